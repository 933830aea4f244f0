//! What the commands refuse or leave out, and how they end when nobody reads: the same wherever it is met.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use murmur_tests::disk::SmallDisk;
use murmur_tests::{Daemon, TINY_RUN, end_of, folder, murmur, run, text, write_run};

use crate::MURMUR;
use crate::place::Place;

/// A model that no machine has memory for.
const HUGE_RUN: &str = "\
[model]
layers = 128
width = 16384
feed_forward = 65536
heads = 128
[optimizer]
batch_sequences = 4096
";

fn ended(output: &Output) -> (Option<i32>, String) {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!message.contains("panicked"), "{message}");
    (output.status.code(), message)
}

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    ended(&run(MURMUR, arguments))
}

/// `start` with this run file, that data directory and no port that could be taken.
fn start(run_file: impl AsRef<Path>, data: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut arguments = vec!["start", text(run_file.as_ref()), "--data-dir", text(data)];
    arguments.extend(["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off"]);
    arguments.extend(more);
    refused(&arguments)
}

#[test]
fn a_gpu_that_is_not_there_and_a_model_that_does_not_fit_have_one_code_everywhere() {
    let folder = folder();
    let (tiny, data) = (write_run(folder.path(), TINY_RUN), folder.path().join("data"));
    let huge = folder.path().join("huge.toml");
    std::fs::write(&huge, HUGE_RUN).expect("written");
    let swarm = folder.path().join("swarm");
    let device = ["--device", "cuda:99"];
    let (code, message) = start(&tiny, &data, &device);
    assert!(code == Some(3) && message.contains("device cuda:99") && message.contains("hint: "), "{message}");
    let (code, message) = refused(&["bench", text(&tiny), "--steps", "1", "--device", "cuda:99"]);
    assert!(code == Some(3) && message.contains("device cuda:99"), "{message}");
    let doctor = ["doctor", "--data-dir", text(&data), "--listen", "/ip4/127.0.0.1/tcp/0"];
    let (code, message) = refused(&[&doctor[..], &device, &["--run", text(&tiny)]].concat());
    assert_eq!(code, Some(3), "{message}");

    let (code, message) = start(&huge, &data, &[]);
    assert!(code == Some(3) && message.contains("training this run takes about"), "{message}");
    let (code, message) = refused(&["bench", text(&huge), "--steps", "1"]);
    assert!(code == Some(3) && message.contains("training this run takes about"), "{message}");
    let (code, message) = refused(&["local", text(&huge), "-n", "1", "--directory", text(&swarm)]);
    assert!(code == Some(3) && message.contains("training this run takes about"), "{message}");
    assert!(message.contains("hint: set training.recompute"), "the founder's own remedy: {message}");
}

#[test]
fn a_tokenizer_for_a_run_without_one_is_refused() {
    let place = Place::new(TINY_RUN);
    let tokenizer = place.at("tokenizer.json");
    std::fs::write(&tokenizer, "{}").expect("written");
    let (code, message) = start(place.run_file(), &place.at("data"), &["--tokenizer", text(&tokenizer)]);
    assert_eq!(code, Some(3), "{message}");
    assert!(message.starts_with("error: this run reads without a tokenizer, but one was given"), "{message}");
    assert!(message.contains("hint: leave --tokenizer out"), "{message}");
}

#[test]
fn what_else_answers_at_a_port_is_said_to_a_joiner() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 256]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let (code, message) = refused(&["join", "--bootstrap", &format!("/ip4/127.0.0.1/tcp/{port}")]);
    assert_eq!(code, Some(4), "{message}");
    assert!(message.contains("a web server answers there (HTTP), no murmur node"), "{message}");
}

#[test]
fn addresses_that_are_none_and_folders_that_are_not_there_are_named() {
    let (code, message) = refused(&["status", "--address", "nonsense"]);
    assert_eq!(code, Some(3), "{message}");
    assert!(message.starts_with("error: \"nonsense\" is no address of a status page\nhint: it takes an address and"));
    let (code, message) = refused(&["ticket", "--address", "off"]);
    assert!(code == Some(3) && message.contains("answers nobody"), "{message}");

    let folder = folder();
    let absent = folder.path().join("absent");
    let to = folder.path().join("to");
    for command in
        [&["sample", text(&absent)][..], &["eval", text(&absent)], &["export", text(&absent), "--to", text(&to)]]
    {
        let (code, message) = refused(command);
        assert_eq!(code, Some(5), "{message}");
        assert!(message.contains(&format!("{} does not exist\nhint: ", text(&absent))), "{message}");
    }
}

#[test]
fn local_does_not_write_among_the_files_of_somebody_else() {
    let place = Place::new(TINY_RUN);
    // The folder that holds the run file itself.
    let (code, message) = refused(&["local", place.run_file(), "--directory", text(place.path())]);
    assert_eq!(code, Some(3), "{message}");
    let swarm = place.at("swarm");
    std::fs::create_dir(&swarm).expect("created");
    std::fs::write(swarm.join("thesis.txt"), "mine\n").expect("written");
    let (code, message) = refused(&["local", place.run_file(), "--directory", text(&swarm)]);
    assert_eq!(code, Some(3), "{message}");
    let expected = format!("error: {} holds something else: thesis.txt\nhint: choose another folder", text(&swarm));
    assert!(message.contains(&expected), "{message}");
    assert_eq!(std::fs::read_dir(&swarm).expect("there").count(), 1, "nothing is written");
}

#[test]
fn local_does_not_mix_two_runs_in_one_folder() {
    let place = Place::new(TINY_RUN);
    let swarm = place.at("swarm");
    std::fs::create_dir(&swarm).expect("created");
    std::fs::write(swarm.join("run.toml"), "run.seed = 77\n").expect("written");
    let (code, message) = refused(&["local", place.run_file(), "--directory", text(&swarm)]);
    assert_eq!(code, Some(3), "{message}");
    assert!(
        message.contains("belongs to another run") && message.contains("run.seed: 1 asked for, 77 in that folder"),
        "{message}"
    );
    assert!(message.contains("hint: choose another folder with --directory"), "{message}");
    let kept = std::fs::read_to_string(swarm.join("run.toml")).expect("there");
    assert_eq!(kept, "run.seed = 77\n", "what lay there is untouched");
}

#[test]
fn a_data_folder_is_trained_on_without_what_is_no_text_and_without_the_nodes_own_checkpoints() {
    let folder = folder();
    let of_files = TINY_RUN.replace("[data]\n", "[data]\nsource = \"files\"\n");
    let run_file = write_run(folder.path(), &of_files);
    let texts = folder.path().join("texts");
    std::fs::create_dir(&texts).expect("created");
    std::fs::write(texts.join("book.txt"), "The quick brown fox. ".repeat(500)).expect("written");
    std::fs::write(texts.join("empty.txt"), "").expect("written");
    std::fs::write(texts.join("photo.jpg"), b"\xff\xd8\xff\xe0\x00\x10JFIF\x00").expect("written");
    let node = texts.join("node");
    let arguments = ["start", text(&run_file), "--data", text(&texts), "--steps", "3", "--exit"];
    for time in ["first", "second"] {
        let ended = Daemon::spawn(MURMUR, &node, &arguments).wait_for_end();
        assert!(ended.status.success(), "{time}: {}", ended.errors);
        let said = ended.errors.lines().find(|line| line.contains("are not trained on")).expect("said").to_owned();
        assert!(said.starts_with("warning: 3 of 4 entries of the data folders"), "{time}: {said}");
        for part in ["empty.txt (empty)", "photo.jpg (binary)", "node (a data directory of murmur)"] {
            assert!(said.contains(part), "{time}: {said}");
        }
    }
    let (code, message) = refused(&["eval", text(&node), "--data", text(&texts)]);
    assert_eq!(code, Some(0), "the same files are the data of the run: {message}");
    let (code, message) = start(&run_file, &node, &["--steps", "3"]);
    assert!(code == Some(0) && message.contains("has taken the steps that it was to take: own 3"), "{message}");
    assert!(
        message.contains("  murmur start --data-dir ") && message.contains(" --data FILES"),
        "how to go on: {message}"
    );
    let (code, message) = start(&run_file, &node, &["--steps", "4"]);
    assert!(code == Some(5) && message.contains("no data file was given"), "one step is left: {message}");
    let (code, message) = start(&run_file, &folder.path().join("other"), &["--data", text(&node)]);
    assert!(code == Some(5) && message.contains("is a data directory of murmur"), "{message}");
}

#[test]
fn where_there_is_ascii_alone_help_is_in_it() {
    for (locale, is_ascii) in [("C.UTF-8", false), ("C", true)] {
        let output = murmur(MURMUR).args(["join", "--help"]).env("LC_ALL", locale).output().expect("it runs");
        let said = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success() && said.contains("--data <FILE>") && said.is_ascii() == is_ascii, "{said}");
    }
}

#[test]
fn a_disk_without_room_for_a_first_checkpoint_is_refused_before_anything_is_learned() {
    let place = Place::new(TINY_RUN);
    let Some(disk) = SmallDisk::mount(256 << 10) else { return };
    let (code, message) = start(place.run_file(), &disk.path().join("node"), &["--steps", "3", "--exit"]);
    assert_eq!(code, Some(5), "{message}");
    assert!(message.contains("error: a checkpoint of this run takes") && message.contains("are free in"), "{message}");
    assert!(message.contains("hint: make room there, or choose another disk with --data-dir"), "{message}");
    disk.fill();
    let (code, message) = start(place.run_file(), &disk.path().join("other"), &["--steps", "3", "--exit"]);
    assert_eq!(code, Some(5), "{message}");
    assert!(message.contains("No space left on device") && message.contains("hint: make room there"), "{message}");
    assert!(!disk.path().join("other/identity.key").exists(), "no half of a key is left behind");
}

/// The journal of a node as one text, whatever files it has.
fn journal(node: &Path) -> String {
    let files = std::fs::read_dir(node.join("journal")).expect("a journal").flatten();
    files.map(|file| std::fs::read_to_string(file.path()).expect("text")).collect()
}

#[test]
fn a_last_checkpoint_that_cannot_be_written_is_in_the_journal_and_in_the_report() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    let daemon = Daemon::spawn(MURMUR, &node, &["start", place.run_file()]);
    daemon.wait_for("steps", |report| report.steps > 5);
    // A file in the place of the folder: nobody can write into it.
    std::fs::remove_dir_all(node.join("checkpoints")).expect("there");
    std::fs::write(node.join("checkpoints"), "").expect("written");
    let ended = daemon.stop();
    assert_eq!(ended.status.code(), Some(5), "{}", ended.errors);
    assert!(ended.errors.contains("hint: there is none yet; make room there"), "{}", ended.errors);
    let told = journal(&node);
    let line = told.lines().find(|line| line.contains("cannot write a checkpoint")).expect("in the journal");
    assert!(line.contains("\"level\":\"warning\""), "{line}");
    let output = run(MURMUR, &["report", text(&node), "--output", text(&place.at("report.html"))]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("; but 1 warning was given."), "{said}");
}

#[test]
fn a_start_that_fails_is_no_run() {
    let place = Place::new(TINY_RUN);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").to_string();
    let core = place.at("core");
    std::fs::write(&core, "mine").expect("written");
    let listed = || {
        let home = place.at("home");
        let output = murmur_tests::output_of(murmur(MURMUR).arg("list").env("XDG_DATA_HOME", home));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for more in [&["--status-address", &port][..], &["--status-address", "off", "--record-core", text(&core)]] {
        let mut command = murmur(MURMUR);
        command.args(["start", place.run_file(), "--listen", "/ip4/127.0.0.1/tcp/0", "--exit", "--steps", "3"]);
        command.args(more).env("XDG_DATA_HOME", place.at("home"));
        let (code, message) = ended(&murmur_tests::output_of(&mut command));
        assert!(code.is_some_and(|code| code > 0), "{message}");
        assert_eq!(listed(), "", "{more:?}: {message}");
    }
}

/// A command whose reader has gone before it writes.
fn without_reader(arguments: &[&str]) -> Output {
    let mut command = murmur(MURMUR);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    drop(child.stdout.take());
    end_of(child)
}

fn into_full_disk(arguments: &[&str]) -> Option<Output> {
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else {
        println!("skipped: this system has no /dev/full");
        return None;
    };
    let mut command: Command = murmur(MURMUR);
    command.args(arguments).stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
    Some(end_of(command.spawn().expect("the program starts")))
}

#[test]
fn commands_end_quietly_without_a_reader_and_with_an_error_on_a_full_disk() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    Daemon::spawn(MURMUR, &node, &["start", place.run_file(), "--steps", "3", "--exit"]).wait_for_end().in_order();
    let sample = ["sample", text(&node), "--tokens", "100"];
    for arguments in [&["sim", "list"][..], &["--help"], &["start", "--help"], &sample, &["eval", text(&node)]] {
        let (code, message) = ended(&without_reader(arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {message}");
        assert!(!message.contains("error"), "{arguments:?}: {message}");
        let Some(output) = into_full_disk(arguments) else { continue };
        let (code, message) = ended(&output);
        assert_eq!(code, Some(5), "{arguments:?}: {message}");
        assert!(message.contains("error: cannot write to standard output: No space left"), "{arguments:?}: {message}");
    }
}

#[test]
fn a_daemon_trains_on_without_its_output_and_says_that_it_was_lost() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    let more = ["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off", "--steps", "3", "--exit"];
    let arguments = [&["start", place.run_file(), "--data-dir", text(&node)][..], &more].concat();
    let Some(output) = into_full_disk(&arguments) else { return };
    let (code, message) = ended(&output);
    assert_eq!(code, Some(5), "{message}");
    assert!(message.contains("warning: cannot write to standard output") && message.contains("training goes on"));
    let (code, message) = refused(&["sample", text(&node), "--tokens", "1"]);
    assert_eq!(code, Some(0), "its checkpoint is there: {message}");
    let (code, message) = ended(&without_reader(&arguments));
    assert_eq!(code, Some(0), "{message}");
}

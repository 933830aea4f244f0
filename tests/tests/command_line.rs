//! What a user sees when something is wrong: the thing, the remedy, an exit code. Snapshots of whole messages.

use std::path::Path;
use std::process::{Command, Stdio};

use murmur_tests::{Daemon, TINY_RUN, end_of, folder, murmur, output_of, run, text, wait_until, write_run};

use crate::MURMUR;
use crate::place::Place;

/// Runs a command that must fail: its exit code and its message, with the folder's path as `…`.
fn failure(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = run(MURMUR, arguments);
    let message = String::from_utf8_lossy(&output.stderr).replace(&folder.display().to_string(), "…");
    assert!(!message.contains("panicked"), "{message}");
    (output.status.code().expect("it ended by itself"), message)
}

/// `start` with this run file and no port that could be taken.
fn start_failure(folder: &Path, run_content: &str, more: &[&str]) -> (i32, String) {
    let run_file = write_run(folder, run_content);
    let data = folder.join("data");
    let mut arguments = vec!["start", run_file.to_str().expect("UTF-8"), "--data-dir", data.to_str().expect("UTF-8")];
    if !more.contains(&"--listen") {
        arguments.extend(["--listen", "/ip4/127.0.0.1/tcp/0"]);
    }
    arguments.extend(["--status-address", "off"]);
    arguments.extend(more);
    failure(folder, &arguments)
}

#[test]
fn an_unknown_key_is_named_with_line_and_nearest_key() {
    let folder = folder();
    let (code, message) = start_failure(folder.path(), "[optimizer]\nlearning_rat = 0.1\n", &[]);
    let expected = "error: …/run.toml:2: unknown key `learning_rat`\n  2 | learning_rat = 0.1\n    | ^^^^^^^^^^^^\n\
                    hint: did you mean `learning_rate`?\n";
    assert_eq!((code, message.as_str()), (3, expected));
}

#[test]
fn a_wrong_type_is_named_with_its_line() {
    let folder = folder();
    let (code, message) = start_failure(folder.path(), "[model]\nlayers = \"four\"\n", &[]);
    assert_eq!(code, 3);
    let expected = "error: …/run.toml:2: model.layers takes a whole number, not negative, not the string \"four\"\n  \
                    2 | layers = \"four\"\n    |          ^^^^^^\n\
                    hint: `murmur init` shows every key with its type and range\n";
    assert_eq!(message, expected);
}

#[test]
fn a_value_out_of_range_is_named_with_its_line_and_range() {
    let folder = folder();
    let (code, message) = start_failure(folder.path(), "[run]\nseed = 3\n\n[gossip]\ngamma = 0.8\n", &[]);
    let expected = "error: …/run.toml:5: gossip.gamma = 0.8 is out of range\n  5 | gamma = 0.8\n    |         ^^^\n\
                    hint: it takes above 0, at most 0.5\n";
    assert_eq!((code, message.as_str()), (3, expected));
}

#[test]
fn a_broken_file_is_named_with_its_line() {
    let folder = folder();
    let (code, message) = start_failure(folder.path(), "[model\nlayers = 4\n", &[]);
    assert_eq!(code, 3);
    assert!(message.starts_with("error: …/run.toml:1: "), "{message}");
}

#[test]
fn a_missing_run_file_leads_to_init() {
    let folder = folder();
    let path = folder.path().join("absent.toml");
    let (code, message) = failure(folder.path(), &["start", path.to_str().expect("UTF-8")]);
    let expected = "error: cannot read the run file …/absent.toml: No such file or directory (os error 2)\n\
                    hint: `murmur init` writes annotated run.toml and node.toml files to begin with\n";
    assert_eq!((code, message.as_str()), (3, expected));
}

#[test]
fn missing_empty_and_short_data_files_are_named() {
    let folder = folder();
    let run_content = format!("{TINY_RUN}\n").replace("[data]\n", "[data]\nsource = \"files\"\n");
    let (code, message) = start_failure(folder.path(), &run_content, &[]);
    assert_eq!(code, 5);
    assert!(message.contains("hint: name them with --data FILE…"), "{message}");
    let file = folder.path().join("text");
    let path = file.to_str().expect("UTF-8");
    let cases = [
        (None, "No such file", "hint: check the path and the content of the file"),
        (Some(""), "empty", "hint: check the path and the content of the file"),
        (Some("short"), "too short", "hint: give more data, a smaller model.context"),
    ];
    for (content, word, hint) in cases {
        if let Some(content) = content {
            std::fs::write(&file, content).expect("written");
        }
        let (code, message) = start_failure(folder.path(), &run_content, &["--data", path]);
        assert_eq!(code, 5, "{message}");
        assert!(message.starts_with("error: ") && message.contains(word), "{word}: {message}");
        assert!(message.contains(hint), "{message}");
    }
}

/// What was refused once must not keep a mended run file out.
#[test]
fn a_start_that_failed_leaves_the_directory_to_the_next() {
    let folder = folder();
    let data = folder.path().join("data");
    let short = folder.path().join("text");
    std::fs::write(&short, "short").expect("written");
    let of_files = TINY_RUN.replace("[data]\n", "[data]\nsource = \"files\"\n");
    let (code, _) = start_failure(folder.path(), &of_files, &["--data", short.to_str().expect("UTF-8")]);
    assert_eq!(code, 5);
    let run_file = write_run(folder.path(), TINY_RUN);
    let arguments = ["start", run_file.to_str().expect("UTF-8"), "--steps", "3", "--exit"];
    Daemon::spawn(MURMUR, &data, &arguments).wait_for_end().in_order();
    let (code, message) = start_failure(folder.path(), &of_files, &["--data", short.to_str().expect("UTF-8")]);
    assert!(code == 3 && message.contains("belongs to another run"), "{message}");
}

#[test]
fn other_data_than_the_runs_is_refused() {
    let folder = folder();
    let digest = "0".repeat(64);
    let content = TINY_RUN.replace("[data]\n", &format!("[data]\nsource = \"files\"\ndigest = \"{digest}\"\n"));
    let file = folder.path().join("text");
    std::fs::write(&file, "other text ".repeat(1000)).expect("written");
    let (code, message) = start_failure(folder.path(), &content, &["--data", file.to_str().expect("UTF-8")]);
    assert_eq!(code, 5);
    assert!(message.contains("hint: every node of this run trains on the same files"), "{message}");
}

#[test]
fn a_port_in_use_is_named() {
    let folder = folder();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    let listen = format!("/ip4/127.0.0.1/tcp/{port}");
    let (code, message) = start_failure(folder.path(), TINY_RUN, &["--listen", &listen]);
    assert_eq!(code, 4);
    assert!(message.contains(&listen) && message.contains("hint: choose another port with --port"), "{message}");
}

#[test]
fn malformed_tickets_and_addresses_are_refused_before_anything_else() {
    let folder = folder();
    let (code, message) = failure(folder.path(), &["join", "murmur1abc"]);
    assert_eq!(code, 3);
    let expected = "error: the ticket is damaged (its checksum does not match); was it copied whole?\n\
                    hint: `murmur start` and `murmur join` print a ticket; an address goes after --bootstrap\n";
    assert_eq!(message, expected);
    let (code, message) = failure(folder.path(), &["join", "12D3KooW"]);
    assert_eq!(code, 3);
    assert!(message.starts_with("error: a ticket begins with `murmur1`"), "{message}");
    let (code, message) = failure(folder.path(), &["join", "--bootstrap", "192.0.2.7:4711"]);
    assert_eq!(code, 3);
    assert!(message.contains("192.0.2.7:4711") && message.contains("hint: "), "{message}");
    let (code, message) = failure(folder.path(), &["join"]);
    assert_eq!(code, 2);
    assert!(message.contains("murmur join murmur1…") && message.contains("murmur join --bootstrap /ip4/"), "{message}");
}

/// Nobody has to answer for that to be known.
#[test]
fn who_joins_a_closed_run_by_an_address_alone_is_told_that_it_takes_a_ticket() {
    let folder = folder();
    let file = folder.path().join("secret");
    std::fs::write(&file, "ab".repeat(32)).expect("written");
    for more in [&["--secret-file", text(&file)][..], &["--closed"]] {
        let (code, message) =
            failure(folder.path(), &[&["join", "--bootstrap", "/ip4/192.0.2.7/tcp/4711"], more].concat());
        assert!(code == 3 && message.contains(&format!("{} is for a closed run", more[0])), "{message}");
        assert!(message.contains("who joins one needs its ticket") && message.contains("hint: "), "{message}");
    }
}

#[test]
fn a_misspelt_environment_variable_is_told() {
    let folder = folder();
    let mut command = std::process::Command::new(MURMUR);
    command.arg("init").arg(folder.path()).env("MURMUR_UPLAOD_MBIT", "10");
    let output = output_of(&mut command);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains("MURMUR_UPLAOD_MBIT is ignored") && message.contains("mean MURMUR_UPLOAD_MBIT?"),
        "{message}"
    );
}

#[test]
fn nobody_at_an_address_is_said_to_be_nobody() {
    let folder = folder();
    // Bound, then closed: free for now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let (code, message) = failure(folder.path(), &["join", "--bootstrap", &format!("/ip4/127.0.0.1/tcp/{free}")]);
    assert_eq!(code, 4);
    assert_eq!(message.matches("; trying again in ").count(), 2, "{message}");
    assert!(message.contains("\nerror: no member can be reached: "), "{message}");
    assert!(message.contains("hint: is the other daemon running"), "{message}");
}

#[test]
fn a_corrupt_identity_is_not_replaced() {
    let folder = folder();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("created");
    std::fs::write(data.join("identity.key"), b"not a key").expect("written");
    let (code, message) = start_failure(folder.path(), TINY_RUN, &[]);
    assert_eq!(code, 5);
    assert!(message.contains("…/data/identity.key"), "{message}");
    assert!(message.contains("hint: restore the file from a backup, or delete it"), "{message}");
    assert_eq!(std::fs::read(data.join("identity.key")).expect("still there"), b"not a key");
}

#[test]
fn a_service_for_a_folder_that_is_not_there_is_refused_unless_its_run_is_named() {
    let folder = folder();
    let (node, run_file) = (folder.path().join("node"), write_run(folder.path(), TINY_RUN));
    let (code, message) = failure(folder.path(), &["service", "--data-dir", text(&node)]);
    assert!(code == 5 && message.contains("there is no folder …/node"), "{message}");
    assert!(message.contains("hint: ") && message.contains("--ticket TICKET") && !node.exists(), "{message}");
    let founds = run(MURMUR, &["service", "--data-dir", text(&node), "--run", text(&run_file)]);
    assert!(founds.status.success() && node.exists(), "{founds:?}");
}

/// Its folder is one among those for temporary files, and nobody else removes it.
#[cfg(unix)]
#[test]
fn an_interrupted_bench_leaves_no_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let (run_file, python, place) =
        (write_run(folder.path(), TINY_RUN), folder.path().join("python"), folder.path().join("tmp"));
    std::fs::create_dir(&place).expect("made");
    std::fs::write(&python, "#!/bin/sh\ntouch \"$0.started\"\ncat > \"$0.told\"\n").expect("written");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("set");
    let mut bench = murmur(MURMUR);
    bench.args(["bench", text(&run_file), "--steps", "1", "--python", text(&python)]).env("TMPDIR", &place);
    bench.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let bench = bench.spawn().expect("the program starts");
    let folders = || std::fs::read_dir(&place).expect("there").count();
    wait_until("PyTorch is started", || folder.path().join("python.started").exists());
    assert_eq!(folders(), 1);
    let killed = Command::new("kill").args(["-INT", &bench.id().to_string()]).status().expect("kill is there");
    assert!(killed.success());
    let ended = end_of(bench);
    assert_eq!((ended.status.code(), folders()), (Some(130), 0), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn devices_that_do_not_exist_are_refused() {
    let folder = folder();
    let (code, message) = start_failure(folder.path(), TINY_RUN, &["--device", "gpu"]);
    assert_eq!(code, 3);
    assert!(message.contains("training.device") && message.contains("cuda:N"), "{message}");
    let (code, message) = start_failure(folder.path(), TINY_RUN, &["--device", "cpu,auto"]);
    assert_eq!(code, 3);
    assert!(message.contains("training.devices = \"auto\"") && message.contains("a list of"), "{message}");
}

#[test]
fn a_directory_of_another_run_is_not_overwritten() {
    let folder = folder();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("created");
    std::fs::write(data.join("run.toml"), "run.seed = 77\n").expect("written");
    let (code, message) = start_failure(folder.path(), TINY_RUN, &[]);
    assert_eq!(code, 3);
    assert!(
        message.contains("belongs to another run") && message.contains("run.seed: 1 asked for, 77 in that directory"),
        "{message}"
    );
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let folder = folder();
    // A file where the directory should be.
    std::fs::write(folder.path().join("data"), "").expect("written");
    let (code, message) = start_failure(folder.path(), TINY_RUN, &[]);
    assert_eq!(code, 5, "{message}");
    assert!(message.starts_with("error: cannot use the data directory …/data: "), "{message}");
    assert!(message.contains("hint: choose another one with --data-dir"), "{message}");
}

#[test]
fn no_checkpoint_is_said_to_be_none() {
    let folder = folder();
    let (code, message) = failure(folder.path(), &["sample", folder.path().to_str().expect("UTF-8")]);
    assert_eq!(code, 5);
    assert!(message.starts_with("error: no usable checkpoint in …\nhint: "), "{message}");
    let (code, message) = failure(folder.path(), &["sample", "--temperature", "-1"]);
    assert_eq!(code, 2, "{message}");
}

/// People are told in a line; programs find it in the first object.
#[test]
fn what_a_node_will_send_is_told_to_programs_too() {
    let place = Place::new(TINY_RUN);
    let mut command = murmur(MURMUR);
    command.arg("start").arg(place.run_file()).arg("--data-dir").arg(place.at("node"));
    command.args(["--steps", "20", "--exit", "--format", "json", "--status-address", "off"]);
    command.args(["--listen", "/ip4/127.0.0.1/tcp/0"]);
    let output = output_of(&mut command);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let first: serde_json::Value = said.lines().next().and_then(|line| serde_json::from_str(line).ok()).expect("JSON");
    let whole_run = first.pointer("/ready/traffic/whole_run_bytes").and_then(serde_json::Value::as_u64);
    assert!(whole_run > Some(0), "20 steps take less than a day: {said}");
}

#[test]
fn no_daemon_is_said_to_be_none() {
    let folder = folder();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let (code, message) = failure(folder.path(), &["status", "--address", &free.to_string()]);
    assert_eq!(code, 4);
    assert!(message.starts_with(&format!("error: no daemon answers at {free}")), "{message}");
}

#[test]
fn init_writes_files_that_start_reads_and_never_overwrites_them() {
    let folder = folder();
    let path = folder.path().to_str().expect("UTF-8");
    let output = run(MURMUR, &["init", path]);
    assert!(output.status.success());
    let run_file = std::fs::read_to_string(folder.path().join("run.toml")).expect("written");
    let manifest = murmur_protocol::RunManifest::from_text(&run_file).expect("valid");
    assert_eq!(manifest, murmur_protocol::RunManifest::built_in());
    let (code, message) = failure(folder.path(), &["init", path]);
    assert_eq!((code, message.as_str()), (5, "error: …/run.toml exists\nhint: --force overwrites it\n"));
}

#[test]
fn local_refuses_what_cannot_work_before_it_starts_anything() {
    let folder = folder();
    let path = folder.path().join("absent.txt");
    let (code, message) = failure(folder.path(), &["local", "--data", path.to_str().expect("UTF-8")]);
    assert_eq!(code, 5);
    assert!(message.contains("…/absent.txt"), "{message}");
    let (code, _) = failure(folder.path(), &["local", "-n", "0"]);
    assert_eq!(code, 2);
    let (code, message) = failure(folder.path(), &["local", "--helper", "0"]);
    assert!(code == 2 && message.contains("leave it out for a swarm without a team"), "{message}");
}

#[test]
fn a_directory_in_use_is_said_before_anybody_is_asked() {
    let folder = folder();
    let directory = folder.path().join("data");
    let run_file = write_run(folder.path(), TINY_RUN);
    let daemon = Daemon::spawn(MURMUR, &directory, &["start", run_file.to_str().expect("UTF-8")]);
    daemon.wait_for("a step", |report| report.steps > 0);
    let directory = directory.to_str().expect("UTF-8");
    let nobody = ["join", "--bootstrap", "/ip4/127.0.0.1/tcp/1", "--data-dir", directory];
    let (code, message) = failure(folder.path(), &nobody);
    assert_eq!(code, 5, "{message}");
    assert!(message.contains("another daemon uses the data directory"), "{message}");
    assert!(!message.contains("unanswered"), "nobody is asked: {message}");
}

#[test]
fn what_is_no_ticket_is_called_by_its_name() {
    let place = Place::new(TINY_RUN);
    let run_file = place.run_file();
    let (code, message) = failure(place.path(), &["doctor", run_file]);
    assert!(code == 2 && message.contains("is a file, and no ticket"), "{message}");
    assert!(message.contains("hint: a run file goes after --run: murmur doctor --run "), "{message}");
    let (code, message) = failure(place.path(), &["join", "/ip4/192.0.2.7/tcp/4711"]);
    assert!(code == 3 && message.contains("is an address, and no ticket"), "{message}");
    assert!(message.contains("hint: an address goes after --bootstrap"), "{message}");
    let (code, message) = failure(place.path(), &["join", run_file]);
    assert!(code == 3 && message.contains("is a file, and no ticket"), "{message}");
    assert!(message.contains("hint: a ticket in a file is read from standard input: murmur join - < "), "{message}");
    let (code, message) = failure(place.path(), &["join", "murmurL1half"]);
    assert!(code == 3 && message.contains("is the line of a helper") && message.contains("--helper"), "{message}");
}

/// Somebody who answers nothing keeps a joiner at its beginning for ten seconds.
#[cfg(unix)]
#[test]
fn who_is_interrupted_before_anything_has_begun_says_so() {
    use std::io::Read;
    let folder = folder();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("/ip4/127.0.0.1/tcp/{}", silent.local_addr().expect("bound").port());
    let mut command = murmur(MURMUR);
    command.args(["join", "--bootstrap", &address, "--data-dir"]).arg(folder.path().join("data"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let process = command.spawn().expect("the program starts");
    let (mut asked, _) = silent.accept().expect("it asks");
    let _ = asked.read(&mut [0; 1]);
    let sent = std::process::Command::new("kill").args(["-INT", &process.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
    let output = end_of(process);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("ended before it began"), "{message}");
}

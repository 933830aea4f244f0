//! `murmur watch` on a real terminal (tmux), with real daemons and their journals; and what follows a daemon by HTTP.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use murmur::observe::journal::{Reading, files_at};
use murmur::observe::{Body, Picture, Record};
use murmur_tests::terminal::{PATIENCE, Terminal};
use murmur_tests::{Daemon, TINY_RUN, wait_until, write_run};

use crate::MURMUR;

/// `murmur watch`; `None` where there is no tmux. After the command its exit code and the terminal's settings are shown.
fn watch(folder: &Path, arguments: &str) -> Option<Terminal> {
    let command = format!("{MURMUR} watch {arguments}; echo ended with $?; stty -a; cat");
    Terminal::open(80, 24, folder, &command)
}

/// The terminal is as it was: no view on it, and what is typed is echoed and comes line by line.
fn assert_restored(terminal: &Terminal) {
    let shown = terminal.wait_for("the end", |shown| shown.contains("ended with") && shown.contains("echonl"));
    assert!(shown.contains("ended with 0"), "{shown}");
    let settings: Vec<&str> = shown.split_whitespace().collect();
    for setting in ["echo", "icanon", "isig", "opost"] {
        assert!(settings.contains(&setting), "{setting}: {shown}");
    }
    let modes = "#{alternate_on} #{cursor_flag}";
    let state = terminal.tmux(&["display-message", "-p", modes]).expect("tmux is there");
    assert_eq!(state.trim(), "0 1", "the usual screen, with a cursor");
}

fn start(folder: &Path, name: &str) -> Daemon {
    let run_file = write_run(folder, TINY_RUN);
    let arguments = ["start", run_file.to_str().expect("UTF-8"), "--name", name];
    Daemon::spawn(MURMUR, &folder.join("node"), &arguments)
}

fn get(address: &str, page: &str) -> String {
    let mut answer = ureq::get(&format!("http://{address}/api/v1/{page}")).call().expect("it answers");
    answer.body_mut().read_to_string().expect("text")
}

fn records(directory: &Path) -> Vec<Record> {
    let files: Vec<PathBuf> = files_at(directory).expect("a journal");
    Reading::new(files).collect()
}

#[test]
fn a_daemon_is_watched_on_a_terminal_that_is_given_back_in_the_end() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let daemon = start(folder.path(), "attic");
    let address = daemon.status_address();
    let Some(terminal) = watch(folder.path(), &address) else { return };
    // A machine that reads a large program from its disk may tell of nothing new for some seconds first.
    let parts =
        ["murmur tiny", "attic", "trains alone: no member is connected", "loss own", "members 0", "machine ", "q quit"];
    terminal.wait_for("the first screen", |shown| parts.iter().all(|part| shown.contains(part)));
    terminal.press("4");
    terminal.wait_for("the events", |shown| shown.contains("murmur 0.1.0 begins") && !shown.contains("machine "));
    for (columns, rows) in [("20", "5"), ("120", "40"), ("80", "24")] {
        terminal.tmux(&["resize-window", "-x", columns, "-y", rows]);
        terminal.press("1");
        let width = columns.parse().expect("a number");
        let fits = |shown: &str| shown.lines().all(|line| line.chars().count() <= width);
        terminal.wait_for(columns, |shown| shown.contains("! ") && shown.contains("q quit") && fits(shown));
    }
    daemon.kill();
    terminal.wait_for("its end", |shown| shown.contains("!! it has not answered for"));
    terminal.press("q");
    assert_restored(&terminal);
}

#[test]
fn a_signal_gives_the_terminal_back_as_well() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let daemon = start(folder.path(), "attic");
    let address = daemon.status_address();
    let Some(terminal) = watch(folder.path(), &address) else { return };
    terminal.wait_for("the first screen", |shown| shown.contains("machine "));
    let shell = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]).expect("tmux is there");
    let children = Command::new("ps").args(["-o", "pid=", "--ppid", shell.trim()]).output().expect("ps is there");
    let view = String::from_utf8_lossy(&children.stdout).trim().to_owned();
    assert!(Command::new("kill").args(["-TERM", &view]).status().expect("kill is there").success());
    assert_restored(&terminal);
}

/// It went on for ever on a whole core, and nothing but SIGKILL ended it.
#[test]
fn a_view_ends_with_its_terminal() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let daemon = start(folder.path(), "attic");
    for _ in 0..3 {
        let command = format!("exec {MURMUR} watch {}", daemon.status_address());
        let Some(terminal) = Terminal::open(80, 24, folder.path(), &command) else { return };
        terminal.wait_for("the first screen", |shown| shown.contains("machine "));
        let view = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]).expect("tmux is there");
        // Empty for a process that has ended and that nobody has asked for.
        let command_line = PathBuf::from(format!("/proc/{}/cmdline", view.trim()));
        let is_there = || std::fs::read(&command_line).is_ok_and(|line| !line.is_empty());
        assert!(is_there(), "{command_line:?}");
        drop(terminal);
        wait_until("the end of the view", || !is_there());
    }
}

#[test]
fn a_journal_goes_on_over_a_restart_and_is_played_again() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let daemon = start(folder.path(), "attic");
    daemon.wait_for("steps", |report| report.steps > 0);
    let samples = || records(&daemon.directory).iter().filter(|record| is_sample(record)).count();
    wait_until("samples in the journal", || samples() >= 3);
    let directory = daemon.directory.clone();
    daemon.kill();
    let killed = records(&directory).last().map(|record| record.seq).expect("records");
    let daemon = start(folder.path(), "attic");
    daemon.wait_for("steps", |report| report.steps > 0);
    daemon.stop();

    let all = records(&directory);
    assert!(all.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1), "no number is left out");
    let runs: Vec<&Record> = all.iter().filter(|record| matches!(record.body, Body::Run(_))).collect();
    assert_eq!(runs.iter().map(|record| record.seq).collect::<Vec<_>>(), [1, killed + 1]);
    assert!(matches!(&runs[1].body, Body::Run(run) if run.run_name == "tiny" && run.name.as_deref() == Some("attic")));
    assert!(matches!(&all.last().expect("records").body, Body::End(end) if end.failure.is_none()));
    let token = std::fs::read_to_string(directory.join("journal/00000001.jsonl")).expect("text");
    assert!(!token.contains("murmur1"), "no ticket is in it");

    let arguments = format!("{} --speed 100000 --ascii", directory.display());
    let Some(terminal) = watch(folder.path(), &arguments) else { return };
    let shown = terminal.wait_for("the end of the journal", |shown| shown.contains("ended in order"));
    assert!(shown.contains("loss own ") && shown.is_ascii(), "{shown}");
    terminal.press("q");
    assert_restored(&terminal);
}

fn is_sample(record: &Record) -> bool {
    matches!(record.body, Body::Sample(_))
}

#[test]
fn members_are_told_of_with_bytes_round_trip_path_and_their_last_exchange() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let first = start(folder.path(), "attic");
    let ticket = first.ticket();
    let second = Daemon::spawn(MURMUR, &folder.path().join("other"), &["join", &ticket, "--name", "barn"]);
    second.wait_for("exchanges", |report| report.exchanges_completed > 2);
    let address = first.status_address();
    let deadline = Instant::now() + PATIENCE;
    let is_known = |picture: &Picture| {
        let node = picture.nodes.values().next()?;
        let peer = node.peers.values().next()?;
        let facts = &peer.facts;
        let last = peer.last.as_ref().filter(|last| last.facts.result == "done")?;
        let is_told = facts.name.as_deref() == Some("barn") && facts.path.as_deref() == Some("direct");
        let has_bytes = facts.sent? > 10_000 && facts.received? > 1_000;
        let exchange = &last.facts;
        let is_measured = exchange.seconds? > 0.0 && exchange.sent? > 0 && exchange.received? > 0;
        Some(
            is_told
                && has_bytes
                && is_measured
                && exchange.distance.is_some()
                && facts.rtt? > 0.0
                && peer.lag.is_some(),
        )
    };
    loop {
        let picture: Picture = serde_json::from_str(&get(&address, "picture")).expect("a picture");
        if is_known(&picture) == Some(true) {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "not all is known: {:?}",
            picture.nodes.values().next().map(|node| &node.peers)
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let newest = get(&address, "records").lines().filter_map(Record::parse).next_back().expect("records").seq;
    let next = get(&address, &format!("records?after={newest}&wait=20"));
    assert_eq!(next.lines().next().and_then(Record::parse).map(|record| record.seq), Some(newest + 1));
}

#[test]
fn where_nothing_can_be_shown_a_line_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let watch = |arguments: &[&str]| {
        let mut command = murmur_tests::murmur(MURMUR);
        let data = folder.path().join("data");
        let output = command.arg("watch").args(arguments).env("XDG_DATA_HOME", data).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("error: ") && errors.contains("hint: "), "{errors}");
        (output.status.code(), errors)
    };
    let daemon = start(folder.path(), "attic");
    let (code, errors) = watch(&[&daemon.status_address()]);
    assert!(code == Some(2) && errors.contains("curl http://") && errors.contains("/api/v1/records"), "{errors}");
    let (code, errors) = watch(&["127.0.0.1:1"]);
    assert!(code == Some(4) && errors.contains("no daemon answers at 127.0.0.1:1"), "{errors}");
    let (code, errors) = watch(&["Cargo.toml"]);
    assert!(code == Some(5) && errors.contains("is no journal of murmur"), "{errors}");
    let (code, errors) = watch(&["nothing-of-that-name"]);
    assert!(code == Some(5) && errors.contains("no run of this machine"), "{errors}");
}

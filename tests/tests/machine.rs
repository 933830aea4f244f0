//! What a user does with the runs of one machine: a daemon in the background, its log, its end, the list, a second daemon.
#![cfg(unix)]

use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use murmur_tests::{TINY_RUN, end_of, murmur, output_of, text, wait_until, write_run};
use serde_json::Value;

use crate::MURMUR;

/// A machine of its own: nothing there but what the test puts there.
struct Machine {
    home: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let home = tempfile::tempdir().expect("a temporary directory");
        // Tests beside this one train the same run, and are not to be found.
        let settings = "[network]\nmdns = false\nkademlia = false\nnat = false\n";
        std::fs::write(home.path().join("node.toml"), settings).expect("written");
        Machine { home }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = murmur(MURMUR);
        command.args(arguments).env("XDG_DATA_HOME", self.home.path()).current_dir(self.home.path());
        command.env("MURMUR_NODE", self.home.path().join("node.toml")).stdin(Stdio::null());
        command
    }

    /// Exit code, standard output and standard error of a command that ends.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } = output_of(&mut self.command(arguments));
        // A model that has hardly learned writes any bytes into a pipe.
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (status.code().expect("it ended by itself"), text(stdout), text(stderr))
    }

    fn list(&self) -> Vec<Value> {
        let (code, lines, errors) = self.run(&["list", "--format", "json"]);
        assert_eq!(code, 0, "{errors}");
        lines.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
    }

    /// What `murmur status` says once the daemon has made so many steps.
    fn status_after_steps(&self, steps: u64) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let (code, text, errors) = self.run(&["status", "--format", "json"]);
            assert_eq!(code, 0, "{errors}");
            let status: Value = serde_json::from_str(&text).expect("a report");
            if status["steps"].as_u64() >= Some(steps) {
                return status;
            }
            assert!(Instant::now() < deadline, "it trains: {status}");
        }
    }

    fn process(&self, name: &str) -> Option<String> {
        let path = self.home.path().join("murmur").join(name).join("daemon.json");
        let daemon: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some(daemon["pid"].to_string())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A test that failed in the middle leaves daemons: they are known by their process ids.
        for name in ["tiny", "tiny-2"] {
            if let Some(process) = self.process(name) {
                let _ = Command::new("kill").args(["-9", &process]).output();
            }
        }
    }
}

const QUIET: [&str; 4] = ["--threads", "1", "--format", "text"];

#[test]
fn a_daemon_in_the_background_is_asked_listed_logged_and_stopped_without_a_word_of_where_it_is() {
    let machine = Machine::new();
    let run_file = write_run(machine.home.path(), TINY_RUN);
    let run_file = run_file.to_str().expect("UTF-8");
    let (code, lines, errors) = machine.run(&[&["start", "-d", run_file], &QUIET[..]].concat());
    assert_eq!(code, 0, "{errors}");
    assert!(lines.starts_with("murmur join murmur1"), "only the ticket's line: {lines}");
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert!(errors.contains("murmur stop ") && errors.contains("murmur logs -f "), "{errors}");

    // On a quiet machine all of this happens before its first step.
    let status = machine.status_after_steps(10);
    assert!(status["peer"].as_str().expect("a peer").starts_with("12D3KooW"), "{status}");
    let (code, ticket, errors) = machine.run(&["ticket"]);
    assert!(code == 0 && ticket.starts_with("murmur join "), "{errors}");
    // Its first checkpoint is 20 s away: it is asked to write one.
    let (code, text, errors) = machine.run(&["sample", "--tokens", "5"]);
    assert!(code == 0 && !text.is_empty(), "{errors}");
    assert!(errors.contains("the daemon is asked to write one"), "{errors}");
    let listed = machine.list();
    assert_eq!((listed.len(), &listed[0]["name"], &listed[0]["running"]), (1, &"tiny".into(), &1.into()), "{listed:?}");
    assert!(listed[0]["steps"].as_u64() > Some(0) && listed[0]["bytes"].as_u64() > Some(0), "{listed:?}");

    // Only its owner's token changes it, and only this machine's names are answered.
    let directory = machine.home.path().join("murmur/tiny");
    let (code, _, errors) = machine.run(&["remove", "tiny", "--yes"]);
    assert!(code == 5 && errors.contains("a daemon uses"), "{errors}");
    let again = machine.run(&[&["start", run_file], &QUIET[..]].concat());
    assert!(again.0 == 5 && again.2.contains("`murmur stop` ends it"), "{again:?}");

    // What it prints from now on is in its log.
    let mut follow = machine.command(&["logs", "-f"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    let (code, text, errors) = machine.run(&["stop"]);
    assert!(code == 0 && text.starts_with("stopped "), "{errors}");
    wait_until("`logs -f` to end with the daemon", || follow.try_wait().expect("it was started").is_some());
    let (_, log, _) = machine.run(&["logs"]);
    assert!(log.contains("left ") && log.contains("next:\n") && log.contains("  murmur sample "), "{log}");
    assert!(!directory.join("daemon.json").exists(), "it has ended in order");
    assert_eq!(machine.run(&["stop"]).0, 4, "nothing runs any more");

    let listed = machine.list();
    assert!(listed[0]["running"] == 0 && listed[0]["loss"].as_f64() > Some(0.0), "{listed:?}");
    let (code, text, errors) = machine.run(&["eval", "--format", "json"]);
    assert!(code == 0 && text.contains("\"loss\""), "{errors}");
    assert_eq!(machine.run(&["remove", "tiny"]).0, 1, "nobody can be asked");
    assert!(directory.exists());
    let (code, text, errors) = machine.run(&["remove", "tiny", "--yes"]);
    assert!(code == 0 && text.starts_with("removed "), "{errors}");
    assert!(!directory.exists() && machine.list().is_empty());
    // Another run of the same name in its run file, in another folder, as after a second `murmur start`.
    let other = machine.home.path().join("murmur/tiny-2");
    let other_path = other.to_str().expect("UTF-8");
    let (code, _, errors) =
        machine.run(&[&["start", "-d", run_file, "--data-dir", other_path, "--steps", "3"], &QUIET[..]].concat());
    assert_eq!(code, 0, "{errors}");
    assert_eq!(machine.run(&["stop", other_path]).0, 0);
    let (code, _, errors) = machine.run(&["remove", "tiny", "--yes"]);
    assert!(code == 5 && errors.contains("there is no run tiny on this machine"), "{code}: {errors}");
    assert!(other.exists(), "the name of a run file is no folder to delete");
}

/// A provider's notice, the end of a stay or of a run come first; then the machine shuts down, and every process is told.
#[test]
fn one_signal_to_a_daemon_that_leaves_already_costs_no_checkpoint() {
    let machine = Machine::new();
    let settings = machine.home.path().join("node.toml");
    let notice = machine.home.path().join("notice");
    let text = std::fs::read_to_string(&settings).expect("a file") + &format!("[stay]\nnotice_file = {notice:?}\n");
    std::fs::write(&settings, text).expect("written");
    let run_file = write_run(machine.home.path(), TINY_RUN);
    let run_file = run_file.to_str().expect("UTF-8");
    let (code, _, errors) = machine.run(&[&["start", "-d", run_file], &QUIET[..]].concat());
    assert_eq!(code, 0, "{errors}");
    // Who leaves has a last exchange: with one that stands still it takes seconds, in which it is told.
    let (_, ticket, _) = machine.run(&["ticket"]);
    let ticket = ticket.trim().trim_start_matches("murmur join ");
    let (code, _, errors) = machine.run(&[&["join", "-d", ticket], &QUIET[..]].concat());
    assert_eq!(code, 0, "{errors}");
    wait_until("an exchange", || {
        let (_, text, _) = machine.run(&["status", "tiny", "--format", "json"]);
        let report = serde_json::from_str::<Value>(&text).unwrap_or_default();
        report["exchanges_completed"].as_u64() > Some(0)
    });
    let signal = |name: &str, signal: &str| {
        let process = machine.process(name).expect("it runs");
        Command::new("kill").args([signal, &process]).status().expect("a shell's command").success()
    };
    let root = machine.home.path().join("murmur/tiny");
    let log = || std::fs::read_to_string(root.join("log/daemon.log")).unwrap_or_default();
    assert!(signal("tiny-2", "-STOP"));
    std::fs::write(&notice, "").expect("written");
    wait_until("it to leave", || log().contains("leaving the swarm: notice from "));
    assert!(signal("tiny", "-TERM"), "it is still there");
    wait_until("its end", || !root.join("daemon.json").exists());
    assert!(!log().contains("ended without leaving"), "{}", log());
    assert!(log().contains("leaving the swarm already"), "it was told while it left: {}", log());
    assert!(root.join("checkpoints").exists(), "{}", log());
}

#[test]
fn a_providers_notice_ends_a_stay_in_time_with_a_checkpoint_and_says_what_the_machine_has_done() {
    let machine = Machine::new();
    let run_file = write_run(machine.home.path(), TINY_RUN);
    let run_file = run_file.to_str().expect("UTF-8");
    let (code, _, errors) = machine.run(&["start", run_file, "--until", "6"]);
    assert!(code == 3 && errors.contains("--until takes a time of day such as 06:00"), "{errors}");

    let settings = machine.home.path().join("node.toml");
    let notice = machine.home.path().join("notice");
    let stay = format!("[stay]\nnotice_file = {notice:?}\nleave_seconds = 20\nprice_per_hour = 3600\n");
    let text = std::fs::read_to_string(&settings).expect("a file") + &stay;
    std::fs::write(&settings, text).expect("written");
    let (code, _, errors) = machine.run(&[&["start", "-d", run_file], &QUIET[..]].concat());
    assert_eq!(code, 0, "{errors}");
    machine.status_after_steps(10);
    std::fs::write(&notice, "").expect("written");
    let (noticed, root) = (Instant::now(), machine.home.path().join("murmur/tiny"));
    while root.join("daemon.json").exists() {
        assert!(noticed.elapsed() < Duration::from_secs(20), "it leaves within its leave_seconds");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (_, log, _) = machine.run(&["logs"]);
    assert!(log.contains("leaving the swarm: notice from ") && log.contains("left "), "{log}");
    assert!(log.contains("million tokens trained on") && log.contains("; costs "), "{log}");
    let checkpoints = std::fs::read_dir(root.join("checkpoints")).expect("a folder").count();
    assert!(checkpoints >= 1, "a checkpoint 20 s before the first regular one");
}

#[test]
fn a_background_start_that_fails_has_the_error_and_the_code() {
    let machine = Machine::new();
    let (code, lines, errors) = machine.run(&["start", "-d", "absent.toml"]);
    assert_eq!((code, lines.as_str()), (3, ""), "{errors}");
    assert!(errors.contains("cannot read the run file absent.toml"), "{errors}");
}

#[test]
fn a_second_daemon_on_one_machine_takes_the_next_ports_and_a_directory_of_its_own() {
    let machine = Machine::new();
    // Whoever has these, the usual ports are taken.
    let _held =
        (TcpListener::bind("0.0.0.0:4711"), UdpSocket::bind("0.0.0.0:4711"), TcpListener::bind("127.0.0.1:4780"));
    let run_file = write_run(machine.home.path(), TINY_RUN);
    let run_file = run_file.to_str().expect("UTF-8");
    let (code, line, errors) = machine.run(&[&["start", "-d", run_file], &QUIET[..]].concat());
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("4711 is taken"), "{errors}");
    let ticket = line.trim().strip_prefix("murmur join ").expect("a line to paste").to_owned();
    // As terminals break it, from a file: the first process hands it on to the one in the background.
    let (first, rest) = ticket.split_at(60);
    let file = machine.home.path().join("ticket");
    std::fs::write(&file, format!("{first}\n{rest}\n")).expect("written");
    let mut join = machine.command(&[&["join", "-d", "-"], &QUIET[..]].concat());
    join.stdin(File::open(&file).expect("written")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = end_of(join.spawn().expect("the program starts"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut names: Vec<String> =
        machine.list().iter().map(|run| run["name"].as_str().expect("a name").into()).collect();
    names.sort();
    assert_eq!(names, ["tiny", "tiny-2"]);
    let (code, _, errors) = machine.run(&["stop"]);
    assert!(code == 3 && errors.contains("say which") && errors.contains("tiny-2"), "{errors}");
    let secret = machine.home.path().join("secret");
    std::fs::write(&secret, "ab".repeat(32)).expect("written");
    let (code, _, errors) = machine.run(&["join", &ticket, "--secret-file", text(&secret), "--data-dir", "third"]);
    assert!(code == 4 && errors.contains("that run is open, leave --secret-file out"), "{errors}");
    assert!(!errors.contains("searching"), "all of an open run say the same: {errors}");
    for name in ["tiny-2", "tiny"] {
        let (code, _, errors) = machine.run(&["stop", name]);
        assert_eq!(code, 0, "{errors}");
    }
    let member = machine.home.path().join("murmur/tiny-2");
    let (code, _, errors) = machine.run(&["start", "--closed", "--data-dir", member.to_str().expect("UTF-8")]);
    assert!(code == 3 && errors.contains("--closed would part this node from it"), "{errors}");
    let founder = machine.home.path().join("murmur/tiny");
    for (option, more) in [("--closed", None), ("--secret-file", Some(text(&secret)))] {
        let arguments = ["start", "--data-dir", text(&founder), option].into_iter().chain(more);
        let (code, _, errors) = machine.run(&arguments.collect::<Vec<_>>());
        assert!(code == 3 && errors.contains(&format!("{option} would cut off its members")), "{errors}");
    }
    let is_closed = |node: &Path| node.join("membership.secret").exists();
    assert!(!is_closed(&member) && !is_closed(&founder), "and no secret is drawn");
}

#[test]
fn a_given_port_that_is_taken_is_an_error() {
    let machine = Machine::new();
    let taken = TcpListener::bind("0.0.0.0:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let run_file = write_run(machine.home.path(), TINY_RUN);
    let (code, _, errors) = machine.run(&["start", run_file.to_str().expect("UTF-8"), "--port", &port]);
    assert_eq!(code, 4, "{errors}");
    assert!(errors.contains(&format!("/ip4/0.0.0.0/tcp/{port}")) && errors.contains("hint: "), "{errors}");
    let (code, _, errors) = machine.run(&["start", "--status-address", "0.0.0.0:80"]);
    assert_eq!(code, 3, "{errors}");
}

/// Whether a program takes a file; `None` where there is no such program.
fn takes(program: &str, arguments: &[&str], file: &Path) -> Option<bool> {
    match Command::new(program).args(arguments).arg(file).output() {
        Ok(output) => Some(output.status.success()),
        Err(_) => {
            eprintln!("skipped: {program} is not installed");
            None
        }
    }
}

#[test]
fn shells_and_man_take_what_is_written_for_them() {
    let machine = Machine::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, text, errors) = machine.run(&["completions", shell]);
        assert!(code == 0 && text.contains("quiet-hours"), "{shell}: {errors}");
        let file = machine.home.path().join(shell);
        std::fs::write(&file, text).expect("written");
        if ["bash", "zsh", "fish"].contains(&shell) {
            assert_ne!(takes(shell, &["-n"], &file), Some(false), "{shell}");
        }
    }
    let pages = machine.home.path().join("man");
    let (code, _, errors) = machine.run(&["man", pages.to_str().expect("UTF-8")]);
    assert_eq!(code, 0, "{errors}");
    let page = std::fs::read_to_string(pages.join("murmur-start.1")).expect("written");
    assert!(page.contains("quiet\\-hours") && pages.join("murmur-sim-run.1").exists(), "{page}");
    let synopsis = page.lines().skip_while(|line| *line != ".SH SYNOPSIS").nth(1);
    assert_eq!(synopsis, Some("\\fBmurmur start\\fR [OPTIONS] [RUN]"), "not every option");
    let title = format!(".TH murmur-start 1 \"\" \"murmur {}\" \"Murmuration\"", env!("CARGO_PKG_VERSION"));
    assert!(page.lines().any(|line| line == title), "no date, and then the version: {page}");
    let (options, arguments) = page.split_once(".SH ARGUMENTS").expect("a section of their own");
    let is_run = |text: &str| text.contains("[\\fIRUN\\fR]");
    assert!(is_run(arguments) && !is_run(options), "{page}");
    for page in ["murmur.1", "murmur-start.1", "murmur-sim-run.1"] {
        assert_ne!(takes("mandoc", &["-T", "lint", "-W", "error"], &pages.join(page)), Some(false), "{page}");
    }
}

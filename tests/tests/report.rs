//! `murmur report` and `murmur replay` on what real daemons have written.

use std::path::Path;
use std::process::Output;

use murmur_tests::{TINY_RUN, murmur, output_of, write_run};

use crate::MURMUR;
use crate::place::Place;

/// Runs a command with a home of its own; its exit code, standard output and standard error.
fn outcome(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = murmur(MURMUR);
    command.args(arguments).env("XDG_DATA_HOME", folder.join("home")).current_dir(folder);
    let Output { status, stdout, stderr } = output_of(&mut command);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// Two daemons exchange; the second is killed; the first goes on, loses it, and leaves in order. Its recording, and both
/// directories.
#[test]
fn a_swarm_that_lost_a_member_is_reported_and_replayed() {
    let place = Place::new(TINY_RUN);
    let core = place.at("core");
    let start = ["start", place.run_file(), "--name", "attic", "--record-core"];
    let start = [&start[..], &[core.to_str().expect("UTF-8")]].concat();
    let first = place.spawn("first", &start);
    let second = place.spawn("second", &["join", &first.ticket(), "--name", "barn"]);
    second.wait_for("exchanges", |report| report.exchanges_completed > 5);
    first.wait_for("exchanges", |report| report.exchanges_completed > 5);
    second.kill();
    let alone = first.wait_for("the loss of its peer", |report| report.peers == 0);
    let before = alone.steps;
    first.wait_for("steps alone", |report| report.steps > before + 20);
    assert!(first.stop().status.success());

    replays_and_finds_what_differs(place.path(), &core);

    let (code, said, errors) = outcome(place.path(), &["report", "first", "second/journal", "--output", "out.html"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.contains("The run \u{201c}tiny\u{201d} has stopped: 2 nodes trained together over"), "{said}");
    assert!(said.contains("a node broke off once"), "{said}");
    let page = std::fs::read_to_string(place.at("out.html")).expect("written");
    for part in [
        "\u{201c}attic\u{201d}",
        "\u{201c}barn\u{201d}",
        "left in order",
        "broke off",
        "run.name = &quot;tiny&quot;",
        "Did joining help?",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains("murmur1") && page.matches("<svg").count() >= 5, "no ticket, and curves");
    // Written over, as it is a report; and without the journal of the second, which the first saw come and go.
    let (code, said, errors) = outcome(place.path(), &["report", "first", "--redact", "--output", "out.html"]);
    assert!(
        code == Some(0) && said.contains("The run has stopped: 1 node of 2 trained with others"),
        "{said} {errors}"
    );
    let page = std::fs::read_to_string(place.at("out.html")).expect("written");
    let path = place.path().display().to_string();
    for own in ["attic", "barn", "12D3KooW", "127.0.0.1", &path] {
        assert!(!page.contains(own), "{own} is told");
    }
    wrong_input_ends_in_a_line(place.path());
}

/// Its last samples are a second apart, and it takes less.
#[test]
fn a_run_of_a_few_steps_is_reported_with_its_last_loss() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    write_run(folder.path(), TINY_RUN);
    let start =
        ["start", "run.toml", "--steps", "3", "--exit", "--listen", "/ip4/127.0.0.1/tcp/0", "--data-dir", "short"];
    let (code, said, errors) = outcome(folder.path(), &start);
    assert_eq!(code, Some(0), "{said} {errors}");
    let left = said.lines().chain(errors.lines()).find(|line| line.starts_with("left "));
    let loss = left.and_then(|line| line.split(" \u{b7} validation ").nth(1)?.split(' ').next()).expect("a loss");
    let (code, said, errors) = outcome(folder.path(), &["report", "short", "--output", "out.html"]);
    assert!(code == Some(0) && said.contains(loss), "{loss}: {said} {errors}");
    for (arguments, is_refused, told) in [
        (&["lend", "--memory", "1GB", "--data-dir", "short"][..], true, "is the data directory of a daemon"),
        (&["doctor", "--run", "run.toml", "--data-dir", "run.toml"], true, "run.toml is no folder"),
        (&["eval", "short", "--base", "nowhere"], false, "the base nowhere is not needed"),
    ] {
        let (code, said, errors) = outcome(folder.path(), arguments);
        assert_eq!(code != Some(0), is_refused, "{arguments:?}: {said} {errors}");
        assert!(format!("{said}{errors}").contains(told), "{arguments:?}: {said} {errors}");
    }
}

fn replays_and_finds_what_differs(folder: &Path, core: &Path) {
    let bytes = std::fs::read(core).expect("a recording");
    let (code, said, errors) = outcome(folder, &["replay", "--check", "core"]);
    assert_eq!(code, Some(0), "{said} {errors}");
    assert!(said.contains("to the node's end: all decisions are the same"), "{said}");
    let events: u64 = said.split(' ').next().and_then(|number| number.parse().ok()).expect("a number of events");
    assert!(events > 100, "{said}");
    // A changed byte in its middle is found between its first and its last event.
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    std::fs::write(folder.join("changed"), &changed).expect("written");
    let (code, _, errors) = outcome(folder, &["replay", "--check", "changed"]);
    assert!(code == Some(5) && errors.contains("it is damaged at event"), "{errors}");
    let damaged = errors.split("at event ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let damaged: u64 = damaged.and_then(|number| number.parse().ok()).expect("a number");
    assert!((1..events).contains(&damaged), "{damaged} of {events}");
    let (code, _, errors) = outcome(folder, &["replay", "--check", "run.toml"]);
    assert!(code == Some(5) && errors.contains("it is no recording of a node"), "{errors}");
    let (code, _, errors) = outcome(folder, &["replay", "--check", "nothing"]);
    assert!(code == Some(5) && errors.contains("cannot read nothing"), "{errors}");
    // A recording is not written over.
    let again = ["start", "run.toml", "--data-dir", "third", "--record-core", "core", "--status-address", "off"];
    let (code, _, errors) = outcome(folder, &[&again[..], &["--listen", "/ip4/127.0.0.1/tcp/0"]].concat());
    assert!(code == Some(5) && errors.contains("a recording is never written over"), "{errors}");
    assert_eq!(std::fs::read(core).expect("there"), bytes);
}

fn wrong_input_ends_in_a_line(folder: &Path) {
    std::fs::create_dir(folder.join("empty")).expect("created");
    std::fs::write(folder.join("notes.html"), "mine").expect("written");
    std::fs::create_dir(folder.join("closed")).expect("created");
    std::os::unix::fs::symlink("00000001.jsonl", folder.join("closed/00000001.jsonl")).expect("a loop");
    let journal = std::fs::read(folder.join("first/journal/00000001.jsonl")).expect("there");
    let other = String::from_utf8(journal)
        .expect("UTF-8")
        .replace("\"run\":\"", "\"run\":\"0")
        .replace("\"node\":\"12", "\"node\":\"13");
    std::fs::write(folder.join("other.jsonl"), other).expect("written");
    for (arguments, code, words) in [
        (&["report"][..], 5, "has a journal"),
        (&["report", "nothing"], 5, "is no file or folder, and no run of this machine"),
        (&["report", "empty"], 5, "there is no journal in it"),
        (&["report", "closed"], 5, "cannot read the journal closed/00000001.jsonl"),
        (&["report", "run.toml"], 5, "is no journal of murmur"),
        (&["report", "first", "--output", "nowhere/out.html"], 5, "there is no folder nowhere"),
        (&["report", "first", "--output", "empty"], 5, "is a folder"),
        (&["report", "first", "--output", "notes.html"], 5, "is there and is no report"),
        (&["report", "first", "first/journal"], 2, "of a node that was read before"),
        (&["report", "first", "other.jsonl"], 2, "these journals are of different runs"),
        (&["local", "-n", "1", "--against", "alone"], 2, "has no swarm to be compared with"),
    ] {
        let (ended, _, errors) = outcome(folder, arguments);
        assert!(ended == Some(code) && errors.contains(words) && errors.contains("hint: "), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{errors}");
    }
    assert_eq!(std::fs::read_to_string(folder.join("notes.html")).expect("there"), "mine");
}

//! A run without a set end: it goes on until its founder finishes it, and then its members stay.

use std::cell::Cell;
use std::path::Path;

use murmur_tests::{Daemon, TINY_RUN, run, text};
use serde_json::Value;

use crate::MURMUR;
use crate::place::Place;

/// Asks the daemon in a data directory to finish its run: the exit code, and what it says.
fn finish(directory: &Path, options: &[&str]) -> (i32, String) {
    let output = run(MURMUR, &[&["finish", text(directory)], options].concat());
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().expect("it ends by itself"), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn the_founder_finishes_a_run_for_all_members_and_for_who_joins_later() {
    let place = Place::new(&TINY_RUN.replace("total_steps = 100000\n", ""));
    let founder = place.start("founder", &[]);
    let ticket = founder.ticket();
    let member = place.spawn("member", &["join", &ticket]);
    let before = member.wait_for("exchanges", |report| report.steps >= 200 && report.exchanges_completed >= 5);
    assert_eq!((before.ends_at, before.is_finishing), (None, false));

    let (code, said) = finish(&place.at("member"), &[]);
    assert!(code == 4 && said.contains("only the run's founder can finish it"), "{code}: {said}");
    assert!(said.contains("hint: run `murmur finish` on the machine that founded the run"), "{said}");
    let (code, said) = finish(&place.at("founder"), &["--in", "1s"]);
    assert!(code == 0 && said.contains("the swarm's learning rate falls from swarm step"), "{code}: {said}");

    let fast = |daemon: &Daemon| daemon.latest().is_some_and(|report| report.tokens_per_second > 0.0);
    assert!(fast(&founder) && fast(&member), "they train");
    for daemon in [&founder, &member] {
        let last = daemon.wait_for("the end of the run", |report| report.phase == "completed");
        assert!(last.is_finishing && last.ends_at.is_some_and(|end| last.progress >= end), "{last:?}");
        let speeds = [last.tokens_per_second, last.swarm_tokens_per_second];
        assert!(speeds == [0.0, 0.0] && last.times.mean_tokens_per_second() > 0.0, "nobody trains any more: {last:?}");
    }
    let (code, said) = finish(&place.at("founder"), &[]);
    assert!(code == 4 && said.contains("the run is complete already"), "{code}: {said}");

    // The members stay: one that comes now copies the finished model, and has nothing to train.
    let late = place.spawn("late", &["join", &ticket]);
    let joined = late.wait_for("the end of the run", |report| report.phase == "completed");
    assert!(joined.is_finishing && joined.steps <= 5, "{joined:?}");
    assert!(late.stop().status.success());

    // A member that was killed knows from its own disk that the run is over, and says so, with what the model scores.
    member.kill();
    assert!(founder.stop().status.success());
    let output = run(MURMUR, &["start", "--exit", "--data-dir", text(&place.at("member"))]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("this run is finished: own "), "{said}");
    assert!(said.contains("score       validation loss ") && said.contains("murmur sample "), "{said}");
    assert!(output.stdout.is_empty(), "no ticket of a node that does not stay: {:?}", output.stdout);
    let output = run(MURMUR, &["start", "--exit", "--hours", "1", "--data-dir", text(&place.at("founder"))]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("warning: --hours changes nothing: this run is finished"), "{said}");
    let stays = place.spawn("member", &["start"]);
    stays.wait_for("it answers as a member", |report| report.phase == "completed");
    assert!(stays.stop().status.success());
}

#[test]
fn two_machines_that_start_the_same_run_file_are_members_of_one_run() {
    let place = Place::new(TINY_RUN);
    let founder = place.start("founder", &[]);
    let arguments = ["start", place.run_file(), "--bootstrap", &founder.address()];
    let second = place.spawn("second", &arguments);
    second.wait_for("an exchange", |report| report.exchanges_completed > 0);
    assert_eq!(second.latest().map(|report| report.run), founder.latest().map(|report| report.run));
    assert!(second.stop().status.success() && founder.stop().status.success());
}

/// Tokens of a step of the tiny run: four sequences of 32.
const STEP_TOKENS: f64 = 128.0;

#[test]
fn a_run_of_so_many_tokens_ends_there_also_when_its_founder_is_killed_in_between() {
    let place = Place::new(&TINY_RUN.replace("total_steps = 100000\n", ""));
    let directory = place.at("founder");
    let founder = place.start("founder", &["--tokens", "1e12"]);
    let file = directory.join("length.json");
    let length = || -> Option<Value> { serde_json::from_slice(&std::fs::read(&file).ok()?).ok() };
    let counted = || length()?["counted"].as_f64();
    founder.wait_for("a count on the disk", |_| counted().is_some_and(|counted| counted > 0.0));
    founder.kill();
    // However fast this machine is: half as much again is left.
    let (mut length, counted) = (length().expect("it stays"), counted().expect("it stays"));
    length["tokens"] = (1.5 * counted).into();
    std::fs::write(&file, length.to_string()).expect("a temporary directory can be written");
    // Ten seconds before its first checkpoint, where the machine is not too busy; else it goes on from that one.
    let resumed = newest_checkpoint(&directory);
    let founder = Daemon::spawn(MURMUR, &directory, &["start"]);
    let fastest = Cell::new(0.0_f64);
    let last = founder.wait_for("the end of the run", |report| {
        fastest.set(fastest.get().max(report.tokens_per_second));
        report.phase == "completed"
    });
    // It looks once a second.
    let (since, left) = (STEP_TOKENS * (last.steps - resumed) as f64, 0.5 * counted);
    let allowed = 0.7 * left..1.3 * left + 2.0 * fastest.get();
    assert!(last.is_finishing && allowed.contains(&since), "{since} of {left} left after {counted}, {allowed:?}");
    assert!(founder.stop().status.success());
}

/// The own steps of the newest checkpoint in a data directory; 0 where there is none.
fn newest_checkpoint(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory.join("checkpoints")) else { return 0 };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).max().unwrap_or(0)
}

#[test]
fn a_length_is_for_the_founder_alone() {
    let place = Place::new(TINY_RUN);
    let founder = place.start("founder", &[]);
    let second = place.at("second");
    let arguments =
        ["start", place.run_file(), "--bootstrap", &founder.address(), "--hours", "1", "--data-dir", text(&second)];
    let output = run(MURMUR, &arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("another one has founded this run") && said.contains("hint: "), "{said}");
}

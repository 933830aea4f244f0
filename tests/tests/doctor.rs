//! `murmur doctor`: a machine on its own, a swarm that it asks, and what stands in the way.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use murmur_tests::{TINY_RUN, end_of, murmur, run, text};
use serde_json::Value;

use crate::MURMUR;
use crate::place::Place;

/// Runs the doctor on the tiny run, or on a swarm: its exit code and its report.
fn doctor(folder: &Path, listen: &str, more: &[&str]) -> (i32, Value) {
    doctor_told(folder, listen, more, "")
}

/// The same with a line on its standard input.
fn doctor_told(folder: &Path, listen: &str, more: &[&str], line: &str) -> (i32, Value) {
    let data = folder.join("not-yet");
    let mut arguments = vec!["doctor", "--data-dir", data.to_str().expect("UTF-8"), "--listen", listen];
    arguments.extend(["--threads", "1", "--format", "json"]);
    arguments.extend(more);
    let input = folder.join("input");
    std::fs::write(&input, format!("{line}\n")).expect("written");
    let mut command = murmur(MURMUR);
    if more.contains(&"--run") {
        command.env("MURMUR_BOOTSTRAP", "/ip4/192.0.2.7/tcp/4711"); // who is not asked then
    }
    command.args(arguments).stdin(File::open(input).expect("there")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = end_of(command.spawn().expect("the program starts"));
    assert!(!data.exists(), "a doctor leaves nothing behind");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    });
    (output.status.code().expect("it ended by itself"), report)
}

fn finding<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no {check} in {report}"))
}

#[test]
fn a_sound_machine_is_told_what_it_would_cost() {
    let place = Place::new(TINY_RUN);
    let run_file = place.run_file();
    let (code, report) = doctor(place.path(), "/ip4/127.0.0.1/tcp/0", &["--run", run_file]);
    assert_eq!((code, report["verdict"]["fit"].as_bool()), (0, Some(true)), "{report}");
    for check in ["ports", "device", "memory", "speed", "disk"] {
        assert_eq!(finding(&report, check)["health"], "good", "{report}");
    }
    assert!(finding(&report, "clock")["text"].as_str().is_some_and(|text| text.contains("time server")), "{report}");
    assert!(report["verdict"]["bytes_per_day"].as_u64().is_some_and(|bytes| bytes > 0), "{report}");
    assert!(report["verdict"]["contribution"].is_null(), "no swarm was asked: {report}");
}

#[test]
fn a_taken_port_stands_in_the_way_and_comes_with_its_fix() {
    let place = Place::new(TINY_RUN);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().expect("bound").port());
    let (code, report) = doctor(place.path(), &listen, &["--run", place.run_file()]);
    assert_eq!(code, 4, "as a daemon would end: {report}");
    let ports = finding(&report, "ports");
    assert!(
        ports["health"] == "problem" && ports["fix"].as_str().is_some_and(|fix| fix.contains("--listen")),
        "{ports}"
    );
}

#[test]
fn a_folder_of_another_run_stands_in_the_way_as_it_does_for_a_start() {
    let place = Place::new(TINY_RUN);
    let (node, other) = (place.at("node"), place.at("other.toml"));
    let daemon = place.start("node", &[]);
    daemon.wait_for("a step", |report| report.steps > 0);
    daemon.stop();
    std::fs::write(&other, TINY_RUN.replace("\"tiny\"", "\"other\"")).expect("written");
    let asked = |command: &str, run_file: &str| {
        let arguments = [command, run_file, "--data-dir", text(&node), "--listen", "/ip4/127.0.0.1/tcp/0"];
        let more: &[&str] = if command == "doctor" { &["--run"] } else { &[] };
        let output = run(MURMUR, &[&arguments[..1], more, &arguments[1..]].concat());
        let told = [output.stdout, output.stderr].map(|told| String::from_utf8_lossy(&told).into_owned()).concat();
        (output.status.code(), told)
    };
    for command in ["doctor", "start"] {
        let (code, told) = asked(command, text(&other));
        assert!(code == Some(3) && told.contains("belongs to another run: run.name: "), "{code:?} {told}");
    }
    let (code, told) = asked("doctor", place.run_file());
    assert_eq!(code, Some(0), "its own run: {told}");
}

#[test]
fn a_run_that_is_over_is_nothing_to_take_part_in() {
    let place = Place::new(&TINY_RUN.replace("total_steps = 100000\n", "total_steps = 20\n"));
    let founder = place.start("founder", &[]);
    founder.wait_for("the end of the run", |report| report.phase == "completed");
    let (code, report) = doctor(place.path(), "/ip4/127.0.0.1/tcp/0", &[&founder.ticket()]);
    assert_eq!((code, report["verdict"]["fit"].as_bool()), (1, Some(false)), "{report}");
    let run = finding(&report, "run");
    assert!(run["health"] == "problem", "{run}");
    let says = |key: &str, words: &str| run[key].as_str().is_some_and(|text| text.contains(words));
    assert!(says("text", "this run is over") && says("fix", "copies the finished model"), "{run}");
    founder.stop();
}

#[test]
fn a_swarm_is_asked_for_its_members_and_their_speed() {
    let place = Place::new(TINY_RUN);
    let founder = place.start("founder", &[]);
    let ticket = founder.ticket();
    // By standard input, where nobody else on this machine can read it.
    let (code, report) = doctor_told(place.path(), "/ip4/127.0.0.1/tcp/0", &["-"], &ticket);
    assert_eq!(code, 0, "{report}");
    assert_eq!(finding(&report, "ticket")["health"], "good");
    let clock = finding(&report, "clock");
    assert!(clock["health"] == "good" && clock["text"].as_str().is_some_and(|text| text.contains(" a member's, ± ")));
    assert!(finding(&report, "swarm")["text"].as_str().is_some_and(|text| text.starts_with("1 member")), "{report}");
    let contribution = report["verdict"]["contribution"].as_f64().expect("the founder proposes exchanges");
    assert!(0.0 < contribution && contribution < 1.0, "{report}");
    founder.stop();
}

/// Only a daemon has an option for it, and a variable is there for all commands.
#[test]
fn a_doctor_hears_what_the_environment_says_to_daemons() {
    let place = Place::new(TINY_RUN);
    let mut command = murmur(MURMUR);
    command.args(["doctor", "--run", place.run_file()]).env("MURMUR_DAILY_GIGABYTES", "a few");
    let output = end_of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && errors.contains("a variable of the environment says so"), "{errors}");
}

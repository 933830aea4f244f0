//! Runs that begin from a model: whole, where a joiner needs nothing of it, and with adapters, where everybody does.

use std::path::{Path, PathBuf};

use murmur_tests::{Daemon, TINY_RUN, murmur, run, succeeded, text, write_run};
use serde_json::Value;

use crate::MURMUR;

/// A model in the form of Hugging Face's, trained a little from this seed.
fn base(folder: &Path, seed: u32) -> PathBuf {
    let (data, base) = (folder.join(format!("trained-{seed}")), folder.join(format!("base-{seed}")));
    let seeded = TINY_RUN.replace("name = \"tiny\"", &format!("name = \"tiny\"\nseed = {seed}"));
    let place = folder.join(format!("seed-{seed}"));
    std::fs::create_dir(&place).expect("a temporary directory can be written");
    let run_file = write_run(&place, &seeded);
    Daemon::spawn(MURMUR, &data, &["start", text(&run_file), "--steps", "300", "--exit"]).wait_for_end().in_order();
    exported(&data, &base, &[]);
    base
}

/// Writes a run's model as a folder.
pub(crate) fn exported(data: &Path, to: &Path, more: &[&str]) {
    succeeded(&run(MURMUR, &[&["export", text(data), "--to", text(to)], more].concat()));
}

/// A `join` that must fail: its exit code and message.
fn refused(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let data = folder.join("refused");
    let own = ["join", "--data-dir", text(&data), "--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off"];
    let output = run(MURMUR, &[&own, arguments].concat());
    assert!(!data.exists(), "something was written");
    (output.status.code().expect("it ended by itself"), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What the doctor says of the base: its health and its fix.
fn diagnosis(folder: &Path, arguments: &[&str]) -> (String, String) {
    let data = folder.join("not-yet");
    let own = ["doctor", "--format", "json", "--data-dir", text(&data), "--listen", "/ip4/127.0.0.1/tcp/0"];
    let output = run(MURMUR, &[&own, arguments].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["check"] == "base").unwrap_or_else(|| panic!("{report}"));
    let part = |name: &str| found[name].as_str().expect("text").to_owned();
    assert_eq!(output.status.success(), part("health") == "good", "{report}");
    (part("health"), part("fix"))
}

#[test]
fn a_joiner_of_a_run_on_a_base_takes_it_from_peers() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let base = base(folder.path(), 0);
    let run_file = write_run(folder.path(), TINY_RUN);
    let (founder, joiner) = (folder.path().join("founder"), folder.path().join("joiner"));
    let mut command = murmur(MURMUR);
    command.args(["start", text(&run_file), "--base", text(&base)]).env("RAYON_NUM_THREADS", "32");
    let founder = Daemon::spawn_with(command, &founder);
    let first = founder.wait_for("a step", |report| report.steps > 0);
    // Whether the model fits is asked before it is read, and who asks must not choose the threads: it was told to take one.
    if let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", founder.process_id())) {
        assert!(threads.count() < 32, "it trains with other threads than it was told");
    }
    // Three hundred steps are behind it: bytes at random have a loss of 5.5.
    assert!(first.loss < Some(4.0), "{first:?}");
    let joiner = Daemon::spawn(MURMUR, &joiner, &["join", &founder.ticket()]);
    let joined = joiner.wait_for("an exchange", |report| report.exchanges_completed > 0);
    assert!(joined.loss < Some(4.0), "{joined:?}");
    assert!(joiner.stop().status.success() && founder.stop().status.success());
}

#[test]
fn adapters_are_trained_on_the_same_base_by_everybody() {
    let _turn = murmur_tests::turn::computes();
    let folder = &tempfile::tempdir().expect("a temporary directory");
    let [base, other] = std::thread::scope(|scope| {
        let seeds = [0, 1].map(|seed| scope.spawn(move || base(folder.path(), seed)));
        seeds.map(|base| base.join().expect("no panic"))
    });
    let run_file = write_run(folder.path(), &format!("{TINY_RUN}[lora]\nrank = 2\n"));
    let at = |name: &str| folder.path().join(name);

    let missing = run(MURMUR, &["start", text(&run_file), "--data-dir", text(&at("refused"))]);
    let message = String::from_utf8_lossy(&missing.stderr);
    assert!(message.contains("adapters need a base model") && message.contains("--base FOLDER"), "{message}");

    let founder = Daemon::spawn(MURMUR, &at("founder"), &["start", text(&run_file), "--base", text(&base)]);
    let ticket = founder.ticket();
    let (code, message) = refused(folder.path(), &[&ticket]);
    assert_ne!(code, 0);
    assert!(message.contains("trains adapters on a base model, and no folder of it is given"), "{message}");
    let (code, message) = refused(folder.path(), &[&ticket, "--base", text(&other)]);
    assert_ne!(code, 0);
    assert!(message.contains("holds another base model") && message.contains("ask its founder for it"), "{message}");

    // A doctor looks at the swarm for some seconds.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (health, fix) = diagnosis(folder.path(), &[&ticket]);
            assert!(health == "problem" && fix.contains("--base FOLDER"), "{health}: {fix}");
        });
        scope.spawn(|| assert_eq!(diagnosis(folder.path(), &[&ticket, "--base", text(&base)]).0, "good"));
    });

    let joiner = Daemon::spawn(MURMUR, &at("joiner"), &["join", &ticket, "--base", text(&base)]);
    joiner.wait_for("exchanges", |report| report.exchanges_completed > 2);
    joiner.stop().in_order();
    assert!(founder.stop().status.success());
    let own = |base: &Path| {
        let run_of = ["doctor", "--run", text(&run_file), "--base", text(base), "--listen", "/ip4/127.0.0.1/tcp/0"];
        let output = run(MURMUR, &[&run_of[..], &["--data-dir", text(&at("founder"))]].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, told) = own(&base);
    assert!(code == Some(0) && !told.contains("another run"), "the founder's own folder: {told}");
    let (code, told) = own(&other);
    assert!(code == Some(3) && told.contains("belongs to another run: base.digest: "), "{told}");

    // Merged, the adapters are a model like any other: it can be a base in turn.
    exported(&at("joiner"), &at("merged"), &["--base", text(&base)]);
    assert_eq!(diagnosis(folder.path(), &["--run", text(&run_file), "--base", text(&at("merged"))]).0, "good");
}

//! Data through the swarm: real daemons of which only the founder was given files.

use std::path::{Path, PathBuf};

use murmur::drivers::DataReport;
use murmur_protocol::RunManifest;
#[cfg(target_os = "linux")]
use murmur_tests::gaps::assert_never_waited;
use murmur_tests::process::memory;
use murmur_tests::{Daemon, TINY_RUN, folder, run, succeeded, write_run};

use crate::MURMUR;

/// Bytes of the text below: sixteen shards of 4 KiB, the last one short.
const TEXT_BYTES: usize = 64_000;

/// Numbers without a pattern, the same each time (Knuth's linear congruential generator).
fn noise() -> impl Iterator<Item = u64> {
    let next =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(1), next).skip(1)
}

/// A text without repetitions longer than a few words.
fn text_file(folder: &Path) -> PathBuf {
    let words = ["starling ", "murmurs ", "over ", "the ", "evening ", "reed ", "bed\n", "and ", "turns ", "again "];
    let mut noise = noise();
    let mut text = String::new();
    while text.len() < TEXT_BYTES {
        text += words[(noise.next().expect("it has no end") >> 33) as usize % words.len()];
    }
    text.truncate(TEXT_BYTES);
    let path = folder.join("text.txt");
    std::fs::write(&path, text).expect("a temporary directory can be written");
    path
}

fn shared_run(folder: &Path) -> PathBuf {
    let data = "[data]\nsource = \"files\"\nshare = true\nshard_bytes = 4096\n";
    write_run(folder, &TINY_RUN.replace("[data]\n", data))
}

fn shards(folder: &Path, node: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join(node).join("shards")).expect("the shards").flatten();
    entries.map(|entry| entry.path()).collect()
}

fn founder(folder: &Path) -> Daemon {
    let (run_file, text) = (shared_run(folder), text_file(folder));
    let [run_file, text] = [&run_file, &text].map(|path| path.to_str().expect("UTF-8"));
    Daemon::spawn(MURMUR, &folder.join("founder"), &["start", run_file, "--data", text])
}

fn has_everything(report: &murmur::observe::report::NodeReport) -> bool {
    report.data.as_ref().is_some_and(|data| data.shards_held == 16 && data.shards == 16)
}

#[test]
fn joiners_without_files_get_the_data_from_members_and_pass_it_on() {
    let folder = folder();
    let founder = founder(folder.path());
    let first = Daemon::spawn(MURMUR, &folder.path().join("first"), &["join", &founder.ticket()]);
    let report = first.wait_for("all shards", has_everything);
    let data = report.data.expect("shared");
    assert_eq!((data.shards_assigned, data.shards_reachable), (16, 16));
    assert_eq!(data.bytes_fetched, TEXT_BYTES as u64, "nothing was fetched twice");
    first.wait_for("training", |report| report.steps >= 50);
    let served = founder.wait_for("it has served", |report| {
        report.data.as_ref().is_some_and(|data| data.bytes_served == TEXT_BYTES as u64)
    });
    assert_eq!(served.misbehaviours, 0);
    founder.kill();

    let second = Daemon::spawn(MURMUR, &folder.path().join("second"), &["join", "--bootstrap", &first.address()]);
    second.wait_for("all shards", has_everything);
    let trained = second.wait_for("training", |report| report.steps >= 50 && report.exchanges_completed >= 1);
    assert_never_waited(&trained);
    first.wait_for("it has served", |report| {
        report.data.as_ref().is_some_and(|data| data.bytes_served == TEXT_BYTES as u64)
    });

    let status = succeeded(&run(MURMUR, &["status", "--address", &second.status_address()]));
    assert!(status.contains("shards       16 of 16 assigned held · 16 held of 16 in all"), "{status}");

    // The losses are of the same held-out text, so all have the same data.
    let losses = [second, first].map(|daemon| {
        let finished = daemon.stop().in_order();
        finished.report.and_then(|report| report.validation_loss).expect("evaluated at the end")
    });
    assert!(losses.iter().all(|loss| *loss < 0.8 * 256f64.ln()), "{losses:?}");
    // Nor does an evaluation need the files.
    let directory = folder.path().join("second");
    let evaluated = run(MURMUR, &["eval", directory.to_str().expect("UTF-8"), "--format", "json"]);
    let evaluated: serde_json::Value = serde_json::from_slice(&evaluated.stdout).expect("JSON");
    assert!((evaluated["loss"].as_f64().expect("a number") - losses[0]).abs() < 1e-3, "{evaluated}, {losses:?}");
    let texts = shards(folder.path(), "second");
    assert_eq!(texts.len(), 16, "{texts:?}");
    assert!(shards(folder.path(), "founder").is_empty(), "the founder serves its files, without a copy");
}

#[test]
fn a_shard_that_changed_on_disk_is_named_and_fetched_again() {
    let folder = folder();
    let founder = founder(folder.path());
    let ticket = founder.ticket();
    let joiner = Daemon::spawn(MURMUR, &folder.path().join("joiner"), &["join", &ticket]);
    joiner.wait_for("all shards", has_everything);
    assert!(joiner.stop().status.success());
    let damaged = shards(folder.path(), "joiner").swap_remove(0);
    let mut bytes = std::fs::read(&damaged).expect("readable");
    bytes[100] ^= 1;
    std::fs::write(&damaged, &bytes).expect("writable");

    let again = Daemon::spawn(MURMUR, &folder.path().join("joiner"), &["join", &ticket]);
    let report = again.wait_for("all shards", has_everything);
    assert_eq!(report.data.map(|data| data.bytes_fetched), Some(bytes.len() as u64), "only the damaged one");
    let finished = again.stop();
    let name = damaged.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(finished.errors.contains("warning:") && finished.errors.contains(&name), "{}", finished.errors);
    assert!(finished.errors.contains("has changed on disk"), "{}", finished.errors);
}

/// What a node holds is on its disk, and memory is for the model.
#[cfg(target_os = "linux")]
#[test]
fn a_node_may_hold_more_shards_than_it_has_memory() {
    const BYTES: usize = 128 << 20;
    let folder = folder();
    let noise: Vec<u8> = noise().take(BYTES / 8).flat_map(u64::to_be_bytes).collect();
    let data = folder.path().join("noise.bin");
    std::fs::write(&data, noise).expect("a temporary directory can be written");
    let run = TINY_RUN.replace("[data]\n", "[data]\nsource = \"files\"\nshare = true\n");
    let run_file = write_run(folder.path(), &run);
    let [run_file, data] = [&run_file, &data].map(|path| path.to_str().expect("UTF-8"));
    let founder = Daemon::spawn(MURMUR, &folder.path().join("founder"), &["start", run_file, "--data", data]);
    let joiner = Daemon::spawn(MURMUR, &folder.path().join("joiner"), &["join", &founder.ticket()]);
    joiner.wait_for("all shards", |report| report.data.as_ref().is_some_and(|data| data.shards_held == data.shards));
    for daemon in [&founder, &joiner] {
        let is_small = || memory(daemon.process_id()).anonymous * 1e6 < (BYTES / 2) as f64;
        // What the transfer took is given back within seconds.
        daemon.wait_for("little memory of its own", |report| report.steps >= 50 && is_small());
    }
}

#[test]
fn private_data_stays_private() {
    let folder = folder();
    let text = text_file(folder.path());
    let run_file = write_run(folder.path(), &TINY_RUN.replace("[data]\n", "[data]\nsource = \"files\"\n"));
    let [run_file, text] = [&run_file, &text].map(|path| path.to_str().expect("UTF-8"));
    let founder = Daemon::spawn(MURMUR, &folder.path().join("founder"), &["start", run_file, "--data", text]);
    let directory = folder.path().join("joiner");
    let arguments = ["join", &founder.ticket(), "--data-dir", directory.to_str().expect("UTF-8")];
    let output = run(MURMUR, &[&arguments[..], &["--listen", "/ip4/127.0.0.1/tcp/0"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{errors}");
    assert!(errors.contains("no data file was given") && errors.contains("hint: name them with --data"), "{errors}");
    assert_eq!(founder.wait_for("a report", |_| true).data, None::<DataReport>);
}

#[test]
fn a_founder_of_shared_data_needs_files_and_others_must_have_the_same() {
    let folder = folder();
    let (run_file, text) = (shared_run(folder.path()), text_file(folder.path()));
    let [run_path, text] = [&run_file, &text].map(|path| path.to_str().expect("UTF-8"));
    let directory = folder.path().join("founder");
    let directory = directory.to_str().expect("UTF-8");
    let output = run(MURMUR, &["start", run_path, "--data-dir", directory]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{errors}");
    assert!(errors.contains("no data file was given"), "{errors}");

    let founder = founder(folder.path());
    let other = folder.path().join("other.txt");
    std::fs::write(&other, vec![b'x'; TEXT_BYTES + 1]).expect("writable");
    let joiner = folder.path().join("joiner");
    let [other, joiner] = [&other, &joiner].map(|path| path.to_str().expect("UTF-8"));
    let output = run(MURMUR, &["join", &founder.ticket(), "--data-dir", joiner, "--data", other]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{errors}");
    assert!(errors.contains("64001 bytes in all, this run's data 64000"), "{errors}");

    // With the same files a joiner fetches nothing.
    let same = Daemon::spawn(MURMUR, &folder.path().join("same"), &["join", &founder.ticket(), "--data", text]);
    let report = same.wait_for("training", |report| report.steps > 0);
    assert_eq!(report.data.map(|data| (data.shards_held, data.bytes_fetched)), Some((16, 0)));
}

#[test]
fn the_run_id_stands_for_the_data_also_where_the_files_are_gone() {
    let folder = folder();
    let first = founder(folder.path());
    first.wait_for("training", |report| report.steps > 0);
    let run = first.stop().report.expect("it left in order").run;
    let again = Daemon::spawn(MURMUR, &folder.path().join("founder"), &["start"]);
    let waiting = again.wait_for("a report", |_| true);
    assert_eq!((waiting.run, waiting.data.map(|data| (data.shards, data.shards_held))), (run, Some((16, 0))));
    let errors = again.stop().errors;
    assert!(errors.contains("hint: give its files with --data"), "{errors}");
    let manifest = std::fs::read_to_string(folder.path().join("founder/run.toml")).expect("claimed");
    let manifest = RunManifest::from_text(&manifest).expect("a manifest");
    assert_eq!((manifest.data.shards.len(), manifest.data.corpus_bytes), (16, TEXT_BYTES as u64));
}

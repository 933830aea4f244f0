//! A model of each family that is accepted, made by the transformers library: tuned by a swarm of two, exported, and loaded
//! by that library again, adapters by PEFT. Needs a Python with torch, transformers and peft in `MURMUR_TEST_PYTHON`.

use std::path::{Path, PathBuf};

use murmur_tests::{Daemon, murmur, output_of, run, text, write_run};
use serde_json::Value;

use crate::MURMUR;
use crate::base::exported;

const FAMILIES: [&str; 6] = ["llama3", "smollm2", "mistral", "qwen2", "qwen3", "smollm3"];

/// On a text of its own, so that Python finds the windows that `murmur eval` reads.
const RUN: &str = "\
[run]
name = \"families\"
[model]
context = 32
[optimizer]
batch_sequences = 4
[schedule]
total_steps = 100000
warmup_steps = 5
[data]
source = \"files\"
validation_fraction = 0.5
validation_sequences = 4
[gossip]
interval_steps = 5
final_exchanges = 4
";

/// How the script ends where a library is missing.
const NO_LIBRARY: i32 = 77;

/// Two losses of one model, computed by different programs in 32 bits.
const TOLERANCE: f64 = 1e-5;

/// Runs the script: what it prints. `None`, with the reason printed, where there is no Python for it.
fn script(arguments: &[&str]) -> Option<Vec<u8>> {
    let Ok(python) = std::env::var("MURMUR_TEST_PYTHON") else {
        println!("skipped: MURMUR_TEST_PYTHON names no Python with torch, transformers and peft");
        return None;
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/families.py");
    let output = output_of(murmur(&python).arg(path).args(arguments).env("HF_HUB_OFFLINE", "1"));
    if output.status.code() == Some(NO_LIBRARY) {
        println!("skipped: {python}: {}", String::from_utf8_lossy(&output.stdout));
        return None;
    }
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// A base of each family in a folder, with a text to tune it on. `None` where nothing can be made.
struct Bases {
    folder: tempfile::TempDir,
    text: PathBuf,
}

impl Bases {
    fn new() -> Option<Bases> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        script(&[&["make", text(folder.path())], &FAMILIES[..]].concat())?;
        let path = folder.path().join("text.txt");
        let lines = (0..120).map(|line| format!("The {line}th bird watches {} others.\n", (line * 7) % 11));
        std::fs::write(&path, lines.collect::<String>()).expect("a temporary directory can be written");
        Some(Bases { folder, text: path })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Has a founder and a joiner tune the base of this family; gives the founder's data directory.
    fn tuned(&self, family: &str, run_text: &str, joins_with: &[&str]) -> PathBuf {
        let (base, data) = (self.at(family), ["--data", text(&self.text)]);
        let run_file = write_run(self.folder.path(), run_text);
        let directory = |name: &str| self.at(&format!("{family}-{name}-{}", run_text.len()));
        let arguments = [&["start", text(&run_file), "--base", text(&base)][..], &data].concat();
        let founder = Daemon::spawn(MURMUR, &directory("founder"), &arguments);
        let ticket = founder.ticket();
        let joiner = Daemon::spawn(MURMUR, &directory("joiner"), &[&["join", &ticket][..], &data, joins_with].concat());
        founder.wait_for("steps and exchanges", |report| report.steps > 30 && report.exchanges_completed > 2);
        for (daemon, name) in [(joiner, "joiner"), (founder, "founder")] {
            let ended = daemon.stop();
            assert!(ended.status.success(), "{family}: the {name}: {}", ended.errors);
        }
        directory("founder")
    }

    /// The mean loss on the held-out windows, by `murmur eval`.
    fn evaluated(&self, data: &Path, more: &[&str]) -> f64 {
        let arguments = [&["eval", text(data), "--data", text(&self.text), "--format", "json"], more].concat();
        let output = run(MURMUR, &arguments);
        let result: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        result["loss"].as_f64().expect("a number")
    }

    /// The same of these folders, by the transformers library.
    fn losses(&self, folders: &[PathBuf]) -> Vec<f64> {
        let folders: Vec<&str> = folders.iter().map(|folder| text(folder)).collect();
        let printed = script(&[&["losses", text(&self.text)], &folders[..]].concat());
        serde_json::from_slice(&printed.expect("the library was there a moment ago")).expect("numbers")
    }
}

fn assert_same(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < TOLERANCE, "{what}: {found} by the library, {expected} here");
}

#[test]
fn every_family_is_tuned_by_two_and_loads_in_the_transformers_library() {
    let Some(bases) = Bases::new() else { return };
    let (mut folders, mut expected) = (Vec::new(), Vec::new());
    for family in FAMILIES {
        let data = bases.tuned(family, RUN, &[]);
        expected.push(bases.evaluated(&data, &[]));
        // With the base's own configuration, and with one made from the run.
        let (theirs, ours) = (bases.at(&format!("{family}-theirs")), bases.at(&format!("{family}-ours")));
        exported(&data, &theirs, &["--base", text(&bases.at(family))]);
        exported(&data, &ours, &[]);
        folders.extend([bases.at(family), theirs, ours]);
    }
    let losses = bases.losses(&folders);
    for ((family, losses), expected) in FAMILIES.iter().zip(losses.chunks_exact(3)).zip(expected) {
        println!("{family}: loss {:.6} before, {expected:.6} after, by the library {:.6}", losses[0], losses[1]);
        assert!(expected < losses[0] - 0.1, "{family}: {expected} after tuning, {} before", losses[0]);
        assert_same(losses[1], expected, &format!("{family}, its own configuration"));
        assert_same(losses[2], expected, &format!("{family}, the run's configuration"));
    }
}

#[test]
fn adapters_on_every_family_load_in_peft() {
    let Some(bases) = Bases::new() else { return };
    let run_text =
        format!("{RUN}[lora]\nrank = 3\nalpha = 6.0\ntargets = [\"q_proj\", \"v_proj\", \"o_proj\", \"down_proj\"]\n");
    let (mut folders, mut expected) = (Vec::new(), Vec::new());
    for family in FAMILIES {
        let base = ["--base", text(&bases.at(family))].map(str::to_owned);
        let base = base.each_ref().map(String::as_str);
        let data = bases.tuned(family, &run_text, &base);
        expected.push(bases.evaluated(&data, &base));
        let (adapters, merged) = (bases.at(&format!("{family}-adapters")), bases.at(&format!("{family}-merged")));
        exported(&data, &adapters, &[&["--adapters"][..], &base].concat());
        exported(&data, &merged, &base);
        assert!(!adapters.join("model.safetensors").exists());
        folders.extend([bases.at(family), adapters, merged]);
    }
    let losses = bases.losses(&folders);
    for ((family, losses), expected) in FAMILIES.iter().zip(losses.chunks_exact(3)).zip(expected) {
        println!("{family}: loss {:.6} before, {expected:.6} after, by PEFT {:.6}", losses[0], losses[1]);
        assert!(expected < losses[0] - 0.01, "{family}: {expected} after tuning, {} before", losses[0]);
        assert_same(losses[1], expected, &format!("{family}, adapters beside their base"));
        assert_same(losses[2], expected, &format!("{family}, merged"));
    }
}

#[test]
fn a_run_of_all_weights_has_no_adapters_to_export_and_a_window_bounds_the_context() {
    let Some(bases) = Bases::new() else { return };
    let data = bases.tuned("mistral", RUN, &[]);
    let refused = run(MURMUR, &["export", text(&data), "--to", text(&bases.at("no")), "--adapters"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it has no adapters"));
    let long = write_run(bases.folder.path(), &RUN.replace("context = 32", "context = 48"));
    let (data, base) = (bases.at("long"), bases.at("mistral"));
    let arguments =
        ["start", text(&long), "--base", text(&base), "--data", text(&bases.text), "--data-dir", text(&data)];
    let refused = run(MURMUR, &arguments);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{message}");
    assert!(message.contains("model.context = 48") && message.contains("knows 40 (sliding_window)"), "{message}");
}

//! The structure that ARCHITECTURE.md promises: who may depend on whom, short files, a purpose on top of each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A file longer than this does two things.
const LINES_MAX: usize = 500;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn rust_files() -> Vec<PathBuf> {
    let files = rust_files_in(&["protocol", "daemon", "sim", "tests"]);
    assert!(files.len() > 50, "only {} files found", files.len());
    files
}

/// All below some folders of the project.
pub(crate) fn rust_files_in(folders: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|name| root().join(name)).collect();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()) {
            // A fuzzer's build folder lies within its crate.
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// Dependencies of a crate as its Cargo.toml declares them, without those of its tests.
fn dependencies(folder: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
    let manifest: toml::Table = text.parse().expect("TOML");
    manifest.get("dependencies").and_then(toml::Value::as_table).expect("a table").keys().cloned().collect()
}

#[test]
fn crates_depend_only_on_whom_they_may() {
    let ours = |folder: &str| -> BTreeSet<String> {
        dependencies(folder).into_iter().filter(|name| name.starts_with("murmur")).collect()
    };
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("protocol", &[] as &[&str]),
        ("daemon/network", &["murmur-protocol"]),
        ("daemon/training", &["murmur-protocol"]),
        ("sim", &["murmur-protocol", "murmur-training"]),
        ("daemon", &["murmur-protocol", "murmur-network", "murmur-training", "murmur-sim"]),
    ]);
    for (folder, allowed) in allowed {
        for name in ours(folder) {
            assert!(allowed.contains(&name.as_str()), "{folder} must not depend on {name}");
        }
    }
}

#[test]
fn the_core_and_the_simulator_know_no_runtime_network_or_tensor_library() {
    let forbidden = ["tokio", "libp2p", "futures", "axum", "candle-core", "rayon", "gemm", "tracing", "getrandom"];
    for folder in ["protocol", "sim"] {
        for name in dependencies(folder) {
            assert!(!forbidden.contains(&name.as_str()), "{folder} must not depend on {name}");
        }
    }
}

#[test]
fn the_core_has_no_clock_thread_file_or_hash_order() {
    let forbidden =
        ["Instant", "SystemTime", "HashMap", "HashSet", "std::thread", "std::fs", "std::net", "std::env", "static mut"];
    let core = root().join("protocol/src");
    for path in rust_files().into_iter().filter(|path| path.starts_with(&core)) {
        let text = std::fs::read_to_string(&path).expect("readable");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            for word in forbidden {
                assert!(!line.contains(word), "{}: {word} in {line:?}", path.display());
            }
        }
    }
}

#[test]
fn no_file_is_longer_than_the_limit() {
    for path in rust_files() {
        let lines = std::fs::read_to_string(&path).expect("readable").lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", path.display());
    }
}

#[test]
fn every_file_begins_with_its_purpose() {
    for path in rust_files() {
        let text = std::fs::read_to_string(&path).expect("readable");
        let first = text.lines().next().unwrap_or_default();
        assert!(first.len() > 20 && first.starts_with("//! "), "{} begins with {first:?}", path.display());
    }
}

#[test]
fn no_module_has_a_name_that_says_nothing() {
    for path in rust_files() {
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8");
        assert!(
            !["util", "utils", "helper", "helpers", "common", "misc", "manager"].contains(&name),
            "{}",
            path.display()
        );
    }
}

/// `module::a_test_by_its_name`, between backticks.
#[test]
fn every_test_that_security_rests_on_is_there() {
    let promises = std::fs::read_to_string(root().join("SECURITY.md")).expect("a file");
    let named: BTreeSet<&str> = promises
        .split('`')
        .filter_map(|part| part.rsplit_once("::"))
        .map(|(_, test)| test)
        .filter(|test| !test.is_empty())
        .collect();
    assert!(named.len() > 8, "{named:?}");
    let code: Vec<String> = rust_files().iter().map(|file| std::fs::read_to_string(file).expect("readable")).collect();
    for name in named {
        let (function, module) = (format!("fn {name}("), format!("mod {name};"));
        assert!(code.iter().any(|text| text.contains(&function) || text.contains(&module)), "{name} is not there");
    }
}

/// The words between backticks of a page that name a file or a folder of the project, with `{a,b}` written out.
fn paths_in(page: &str) -> Vec<String> {
    let folders = ["protocol/", "daemon/", "sim/", "tests/", "configs/", "scripts/", "python/"];
    let words = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = words.filter(|word| folders.iter().any(|folder| word.starts_with(folder)) && !word.contains(' '));
    let written_out = |path: &str| match (path.find('{'), path.find('}')) {
        (Some(open), Some(close)) => {
            let (before, after) = (&path[..open], &path[close + 1..]);
            path[open + 1..close].split(',').map(|name| format!("{before}{name}{after}")).collect()
        }
        _ => vec![path.to_owned()],
    };
    paths.flat_map(written_out).collect()
}

#[test]
fn every_file_that_the_pages_name_is_there() {
    let mut named = 0;
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "GUIDE.md", "SECURITY.md"] {
        let text = std::fs::read_to_string(root().join(page)).expect("there");
        for path in paths_in(&text) {
            assert!(root().join(&path).exists(), "{page} names {path}, which is not there");
            named += 1;
        }
    }
    assert!(named > 80, "only {named} found");
}

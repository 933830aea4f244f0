//! Against what others have written: a store that checks signatures (moto), and the hub's own library in Python, at the same
//! hub and in the same cache. Needs a Python with moto[server], boto3 and huggingface_hub; `MURMUR_TEST_PYTHON` names one.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;

/// A Python with these modules; `None`, with a line that says why, where there is none.
fn python(modules: &[&str]) -> Option<String> {
    let program = std::env::var("MURMUR_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let look = format!("import {}", modules.join(", "));
    let known = Command::new(&program).args(["-c", &look]).stderr(Stdio::null()).status();
    if known.is_ok_and(|status| status.success()) {
        return Some(program);
    }
    println!("skipped: there is no {program} with {}", modules.join(", "));
    None
}

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name).display().to_string()
}

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_that_checks_signatures_takes_ours_and_refuses_a_wrong_key() {
    let Some(python) = python(&["moto.server", "flask", "boto3"]) else { return };
    let bench = Bench::new(Store::default());
    let mut server = murmur(&python);
    server.arg(script("s3_server.py")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Ends(server.spawn().expect("Python starts"));
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("it says where it is");
    let words: Vec<&str> = line.split_whitespace().collect();
    let [url, key, secret] = words[..] else { panic!("{line:?}") };
    let start = |place: &str, key: &str, secret: &str| {
        let mut command = bench.start(&["--data", place]);
        command.env("AWS_ENDPOINT_URL", url).env("AWS_ACCESS_KEY_ID", key).env("AWS_SECRET_ACCESS_KEY", secret);
        command
    };
    succeeds(&mut start("s3://texts/books", key, secret));
    let found =
        files_in(&bench.path("cache")).iter().filter(|path| path.to_string_lossy().contains("/snapshots/")).count();
    assert_eq!(found, 1002, "more than a page");
    let wrong = "wrong".repeat(8);
    let (code, error, hint) = refused(&mut start("s3://texts/books", key, &wrong));
    assert_eq!(code, 4);
    assert!(error.contains("SignatureDoesNotMatch") && hint.contains("AWS_SECRET_ACCESS_KEY"), "{error}: {hint}");
    let (_, error, _) = refused(&mut start("s3://texts/books", "AKIANOBODY", secret));
    assert!(error.contains("InvalidAccessKeyId"), "{error}");
    let (_, error, _) = refused(&mut start("s3://nobodys/books", key, secret));
    assert!(error.contains("NoSuchBucket"), "{error}");
}

#[test]
fn the_hubs_own_library_finds_in_the_cache_what_we_have_loaded_and_we_what_it_has() {
    let Some(python) = python(&["huggingface_hub"]) else { return };
    let bench = Bench::new(hub::dataset());
    let library = |what: &str, cache: &str| {
        let mut command = murmur(&python);
        FOREIGN.iter().for_each(|name| {
            command.env_remove(name);
        });
        command
            .args([&script("hub_client.py"), what])
            .env("HOME", bench.path("home"))
            .env("HF_ENDPOINT", bench.server.url());
        command.env("HF_HOME", bench.path(cache)).env("HF_HUB_DISABLE_XET", "1").env("HF_HUB_DISABLE_TELEMETRY", "1");
        succeeds(&mut command)
    };
    let ours = |cache: &str| {
        let mut command = bench.start(&["--data", "hf://datasets/somebody/texts"]);
        command.env("HF_ENDPOINT", bench.server.url()).env("HF_HOME", bench.path(cache));
        command
    };
    let contents = |asked: &[Asked]| {
        asked.iter().filter(|asked| asked.method == "GET" && asked.target.contains("/resolve/")).count()
    };
    // The library proves the hub right, and what it has loaded is not loaded again.
    library("load", "theirs");
    assert!(contents(&bench.server.take_asked()) > 0);
    succeeds(&mut ours("theirs"));
    assert_eq!(contents(&bench.server.take_asked()), 0);
    // And the other way round.
    std::fs::remove_dir_all(bench.path("node")).expect("written");
    succeeds(&mut ours("ours"));
    assert!(contents(&bench.server.take_asked()) > 0);
    let found = library("find", "ours");
    assert!(found.contains("data/train-00000.txt 30000") && bench.server.take_asked().is_empty(), "{found}");
}

//! Repositories of the Hugging Face hub.

use std::collections::BTreeMap;

use murmur_tests::fake_store::{Repository, Store};
use murmur_tests::run;

use super::*;

/// The commit of all repositories here.
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A dataset with small and large files, in folders.
pub(super) fn dataset() -> Store {
    let files = BTreeMap::from([
        (".gitattributes".to_owned(), (b"*.txt filter=lfs\n".to_vec(), false)),
        ("README.md".to_owned(), (b"# not to be trained on\n".to_vec(), false)),
        ("data/train-00000.txt".to_owned(), (book(30_000), true)),
        ("data/train-00001.txt".to_owned(), (book(20_000), false)),
        ("data/test.txt".to_owned(), (book(10_000), false)),
        ("more/notes.txt".to_owned(), (book(9_000), false)),
    ]);
    let repository = Repository { commit: COMMIT.to_owned(), files };
    Store { repositories: [("datasets/somebody/texts".to_owned(), repository)].into(), ..Store::default() }
}

fn start(bench: &Bench, options: &[&str]) -> std::process::Command {
    let mut command = bench.start(options);
    command.env("HF_ENDPOINT", bench.server.url()).env("HF_TOKEN", "hf_secret_token");
    command
}

/// Paths of a view's files, without what is in front of them.
fn viewed(bench: &Bench) -> Vec<String> {
    let paths = files_in(&bench.path("cache")).into_iter().filter_map(|path| {
        let text = path.to_str()?.split_once("/views/")?.1.to_owned();
        Some(text.split_once('/')?.1.to_owned())
    });
    let mut paths: Vec<String> = paths.collect();
    paths.sort();
    paths
}

#[test]
fn a_dataset_is_loaded_into_the_hubs_own_cache_and_the_token_stays_with_the_hub() {
    let bench = Bench::new(dataset());
    bench.server.store().token = Some("hf_secret_token".to_owned());
    let said = succeeds(start(&bench, &["--data", "hf://datasets/somebody/texts"]).env("MURMUR_LOG", "trace"));
    assert_eq!(viewed(&bench), ["data/test.txt", "data/train-00000.txt", "data/train-00001.txt", "more/notes.txt"]);
    let repository = bench.path("cache/huggingface/hub/datasets--somebody--texts");
    assert_eq!(std::fs::read_to_string(repository.join("refs/main")).expect("a reference"), COMMIT);
    let snapshot = repository.join("snapshots").join(COMMIT);
    assert_eq!(std::fs::read(snapshot.join("data/train-00000.txt")).expect("loaded"), book(30_000));
    assert!(repository.join("blobs").join(sha256(&book(30_000))).is_file(), "a large file is named by its hash");
    let asked = bench.server.take_asked();
    let to_store: Vec<&Asked> = asked.iter().filter(|asked| asked.target.contains("at=store")).collect();
    assert_eq!(to_store.len(), 1);
    for asked in &asked {
        let has_token = asked.headers.contains_key("authorization");
        let is_hub = asked.headers["host"].starts_with("127.0.0.1");
        assert_eq!(has_token, is_hub, "{asked:?}");
    }
    assert!(!said.contains("hf_secret_token"));

    succeeds(&mut start(&bench, &["--data", "hf://datasets/somebody/texts"]));
    let asked = bench.server.take_asked();
    assert!(asked.iter().all(|asked| asked.target.starts_with("/api/")), "nothing is loaded twice: {asked:?}");
    let offline = succeeds(start(&bench, &["--data", "hf://datasets/somebody/texts"]).env("HF_HUB_OFFLINE", "1"));
    assert!(bench.server.take_asked().is_empty(), "{offline}");
}

#[test]
fn a_part_of_a_dataset_is_that_part_and_damage_is_noticed() {
    let bench = Bench::new(dataset());
    bench.server.store().faults = vec![Fault::Flip];
    let pattern = "hf://datasets/somebody/texts/data/train-*.txt";
    let (code, error, hint) = refused(&mut start(&bench, &["--data", pattern]));
    assert_eq!(code, 5, "{error}");
    assert!(error.contains("the hash that the hub names") && hint.contains("start again"), "{error}: {hint}");
    bench.server.store().faults = vec![Fault::Cut(9_000), Fault::Cut(9_000)];
    succeeds(&mut start(&bench, &["--data", pattern]));
    assert_eq!(viewed(&bench), ["train-00000.txt", "train-00001.txt"]);
    let (code, error, hint) = refused(&mut start(&bench, &["--data", "hf://datasets/somebody/texts/data/dev.txt"]));
    assert_eq!((code, hint.contains("under \"Files\"")), (4, true), "{error}: {hint}");
    let (code, error, hint) = refused(&mut start(&bench, &["--data", "hf://datasets/nobody/texts"]));
    assert_eq!((code, error.as_str()), (4, "hf://datasets/nobody/texts does not exist"), "{hint}");
    let (_, error, hint) = refused(&mut start(&bench, &["--data", "hf://datasets/somebody/texts@v9"]));
    assert!(error.contains("@v9 does not exist"), "{error}: {hint}");
    let offline = start(&bench, &["--data", "hf://datasets/somebody/texts/more"]).env("HF_HUB_OFFLINE", "1").output();
    let offline = String::from_utf8_lossy(&offline.expect("it ends").stderr).into_owned();
    assert!(offline.contains("is not in the cache, and HF_HUB_OFFLINE says not to load it"), "{offline}");
}

#[test]
fn a_model_of_the_hub_is_a_base() {
    let bench = Bench::new(Store::default());
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    // A model in the form of the hub's, made here.
    let (made, run_file, exported) = (bench.path("made"), bench.path("made.toml"), bench.path("exported"));
    std::fs::write(&run_file, TINY_RUN).expect("written");
    succeeds(
        bench
            .command(&[
                "start",
                &text(&run_file),
                "--data-dir",
                &text(&made),
                "--steps",
                "1",
                "--exit",
                "--status-address",
                "off",
            ])
            .args(["--listen", "/ip4/127.0.0.1/tcp/0"]),
    );
    assert!(run(MURMUR, &["export", &text(&made), "--to", &text(&exported)]).status.success());
    let mut files: BTreeMap<String, (Vec<u8>, bool)> = files_in(&exported)
        .into_iter()
        .map(|path| {
            (text(Path::new(path.file_name().expect("a file"))), (std::fs::read(&path).expect("readable"), true))
        })
        .collect();
    files.insert("pytorch_model.bin".to_owned(), (vec![0; 5000], true));
    let repository = Repository { commit: COMMIT.to_owned(), files };
    bench.server.store().repositories.insert("models/somebody/small".to_owned(), repository);
    std::fs::write(bench.path("run.toml"), TINY_RUN).expect("written");
    let said = succeeds(&mut start(&bench, &["--base", "hf://somebody/small"]));
    let asked = bench.server.take_asked();
    assert!(!asked.iter().any(|asked| asked.target.contains("pytorch_model.bin")), "only what is read is loaded");
    assert!(asked.iter().any(|asked| asked.target.contains("resolve")), "{said}");
    let manifest = std::fs::read_to_string(bench.path("node/run.toml")).expect("claimed");
    assert!(manifest.contains("base.digest = ") && !manifest.contains("hf://"), "{manifest}");
    // A run may name it, for adapters too.
    let named = format!("{TINY_RUN}[lora]\nrank = 2\n[base]\nremote = \"hf://somebody/small\"\n");
    std::fs::write(bench.path("run.toml"), named).expect("written");
    std::fs::remove_dir_all(bench.path("node")).expect("written");
    let (code, error, _) = refused(&mut start(&bench, &[]));
    assert_eq!((code, error.contains("begins from hf://somebody/small")), (3, true), "{error}");
    succeeds(&mut start(&bench, &["--accept-remote"]));
    let manifest = std::fs::read_to_string(bench.path("node/run.toml")).expect("claimed");
    assert!(manifest.contains("base.remote = \"hf://somebody/small\""), "{manifest}");
    // Its adapters name it as the hub does, not by its place in the cache.
    let (adapters, place) = (bench.path("adapters"), format!("hf://somebody/small@{COMMIT}"));
    let node = text(&bench.path("node"));
    let mut export = bench.command(&["export", &node, "--adapters", "--base", &place, "--to", &text(&adapters)]);
    let said = succeeds(export.env("HF_ENDPOINT", bench.server.url()));
    assert!(!said.contains("a folder of this machine"), "{said}");
    let config = std::fs::read(adapters.join("adapter_config.json")).expect("written");
    let config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!((&config["base_model_name_or_path"], &config["revision"]), (&"somebody/small".into(), &COMMIT.into()));
    let (code, error, hint) = refused(&mut start(&bench, &["--base", "hf://datasets/somebody/small"]));
    assert_eq!((code, error.contains("a base is a model")), (3, true), "{error}: {hint}");
}

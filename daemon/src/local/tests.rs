//! Folders of local swarms.

use murmur_protocol::manifest::DataSpec;

use super::*;

#[test]
fn a_new_folder_goes_where_nothing_begins_in_it_and_one_that_was_there_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let nothing = vec![folder.path().join("no-such-book.txt")];
    let manifest =
        RunManifest { data: DataSpec { source: DataSource::Files, ..DataSpec::default() }, ..RunManifest::default() };
    let mut settings = NodeSettings::default();
    settings.data.files.clone_from(&nothing);
    let there = folder.path().join("there");
    std::fs::create_dir(&there).expect("created");
    for place in [folder.path().join("new"), there.clone()] {
        let options = options(&place, &nothing);
        assert!(run_in(options, &settings, manifest.clone(), place, Swarms::default()).is_err(), "no such data");
    }
    assert!(there.exists() && !folder.path().join("new").exists());
}

fn options(directory: &Path, data: &[PathBuf]) -> LocalOptions {
    LocalOptions {
        run: None,
        nodes: 2,
        helpers: 0,
        steps: None,
        against: None,
        seeds: 3,
        threads: None,
        base: None,
        data: data.to_vec(),
        accept_remote: false,
        tokenizer: None,
        directory: Some(directory.to_owned()),
        tensorboard: None,
        mlflow: None,
        format: Console::Json,
    }
}

#[test]
fn a_folder_of_another_run_or_of_a_single_node_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = RunManifest::default();
    assert!(check_owner(&folder.path().join("new"), &manifest).is_ok());
    std::fs::write(folder.path().join("run.toml"), manifest.canonical_text()).expect("written");
    assert!(check_owner(folder.path(), &manifest).is_ok(), "the same run goes on");
    let mut other = manifest.clone();
    other.run.seed = 77;
    let failure = check_owner(folder.path(), &other).expect_err("another run");
    assert_eq!(failure.code(), ExitCode::Settings);
    assert!(failure.to_string().contains("belongs to another run: run.seed: 77 here, 1 there"), "{failure}");
    assert!(failure.remedy().contains("--directory"), "{failure}");
    std::fs::write(folder.path().join("identity.key"), "").expect("written");
    let failure = check_owner(folder.path(), &manifest).expect_err("a node's");
    assert!(failure.to_string().contains("the data directory of a single node"), "{failure}");
}

//! Folders of local swarms.

use murmur_protocol::manifest::{DataSource, DataSpec};

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
        let options = options(&place);
        assert!(run_in(options, &settings, manifest.clone(), place, Purpose::default()).is_err(), "no such data");
    }
    assert!(there.exists() && !folder.path().join("new").exists());
}

fn options(directory: &Path) -> LocalOptions {
    let directory = Some(directory.to_owned());
    LocalOptions { nodes: 2, directory, format: Console::Json, ..LocalOptions::default() }
}

//! Every file in `configs/` parses, is in range, and says the truth about the defaults.

use std::path::{Path, PathBuf};

use murmur::settings::{NodeSettings, load_node_settings, load_run_manifest};
use murmur_protocol::RunManifest;

fn configs(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(kind);
    let files: Vec<PathBuf> = std::fs::read_dir(folder).expect("there").flatten().map(|entry| entry.path()).collect();
    assert!(!files.is_empty());
    files
}

#[test]
fn every_run_file_is_valid() {
    for path in configs("runs") {
        load_run_manifest(&path).unwrap_or_else(|failure| panic!("{}: {failure}", path.display()));
    }
}

#[test]
fn every_node_file_is_valid() {
    for path in configs("nodes") {
        load_node_settings(&path).unwrap_or_else(|failure| panic!("{}: {failure}", path.display()));
    }
}

/// The annotated files show every key with its default, so that a reader need not look anywhere else.
#[test]
fn the_annotated_files_hold_every_key_at_its_default() {
    let read = |path: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(path);
        std::fs::read_to_string(path).expect("there").parse::<toml::Table>().expect("TOML")
    };
    assert_eq!(read("runs/stories.toml"), toml::Table::try_from(RunManifest::default()).expect("a table"));
    assert_eq!(read("nodes/default.toml"), toml::Table::try_from(NodeSettings::default()).expect("a table"));
}

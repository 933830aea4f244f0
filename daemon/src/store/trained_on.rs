//! `data.json`: which files a node trains on, so that it can say when it goes on with others.

use std::path::{Path, PathBuf};

use super::{read_json, write_atomically};

pub(super) const FILE: &str = "data.json";

/// More files than this are not kept.
const FILES_MAX: usize = 1000;

/// Keeps the files of a node in its data directory. Returns those that it had before where none of them is left: one that was moved
/// keeps its name.
pub(crate) fn other_than_before(root: &Path, files: &[PathBuf]) -> Option<Vec<PathBuf>> {
    if files.is_empty() {
        return None;
    }
    let path = root.join(FILE);
    // What cannot be read or written takes a warning from its owner, and nothing else.
    let before: Option<Vec<PathBuf>> = read_json(&path, "", Ok).ok().flatten();
    let now: Vec<PathBuf> = files.iter().take(FILES_MAX).filter_map(|file| std::path::absolute(file).ok()).collect();
    if before.as_ref() != Some(&now) {
        let _ = serde_json::to_vec_pretty(&now).map(|text| write_atomically(&path, &text));
    }
    let is_left = |before: &PathBuf| {
        let is_same = |file: &PathBuf| {
            file.starts_with(before) || before.starts_with(file) || file.file_name() == before.file_name()
        };
        now.iter().any(is_same)
    };
    before.filter(|before| !before.iter().any(is_left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_noticed_and_moved_or_more_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let other = |names: &[&str]| other_than_before(folder.path(), &paths(names));
        assert_eq!(other(&["/a/book.txt"]), None, "the first");
        assert_eq!(other(&["/b/book.txt", "/b/more.txt"]), None, "moved, and one more");
        assert_eq!(other(&["/b"]), None, "the folder that they are in");
        assert_eq!(other(&["/c"]), Some(paths(&["/b"])));
        assert_eq!(other(&["/c"]), None, "said once");
    }
}

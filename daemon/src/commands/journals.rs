//! The journals that a path or a name means, before anything is read of them.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::failure::{ExitCode, Failure};
use crate::observe::journal::{self, Reading};
use crate::store::Run;

/// Lines at the beginning of a file of which one must be a record, for it to be a journal.
const LINES_TRIED: u64 = 20;

/// The journals at a path, each with its files in the order in which they were written: of a file, of a data directory, or of
/// the folder of a swarm of `murmur local`, which has one for each node.
///
/// # Errors
/// When there is none, or something else.
pub(super) fn at(path: &Path) -> Result<Vec<(PathBuf, Vec<PathBuf>)>, Failure> {
    let nodes = Run::open(path).map_or_else(|| vec![path.to_owned()], |run| run.nodes);
    nodes.into_iter().map(|node| Ok((node.clone(), files(&node)?))).collect()
}

/// The run that a word names. What lies under that name in the working directory goes before, where it has a journal.
pub(super) fn run_named(word: &Path) -> Option<Run> {
    let run = Run::named(word)?;
    let goes_before = word.exists() && (run.directory == word || at(word).is_ok());
    (!goes_before).then_some(run)
}

fn files(node: &Path) -> Result<Vec<PathBuf>, Failure> {
    let files = journal::files_at(node).map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot read the journal of {}: {error}", node.display()))
            .hint("a daemon writes its journal into `journal` in its data directory; `murmur list` shows those")
    })?;
    // A daemon beside may remove its oldest one.
    let failed = files.iter().find_map(|file| File::open(file).err().map(|error| (file, error)));
    if let Some((file, error)) = failed.filter(|(_, error)| error.kind() != ErrorKind::NotFound) {
        return Err(Failure::new(ExitCode::Files, format!("cannot read the journal {}: {error}", file.display()))
            .hint("is it the file of another user?"));
    }
    let is_journal = Reading::new(files.clone()).begins_with_a_record(LINES_TRIED);
    if !is_journal {
        let message = format!("{} is no journal of murmur, or one of a newer version", node.display());
        return Err(Failure::new(ExitCode::Files, message)
            .hint("journals are the files journal/*.jsonl in data directories of daemons"));
    }
    Ok(files)
}

//! Which checkpoint `sample`, `eval` and `export` mean: by a path, by the name of a run, or that of the run used last.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::client::Client;
use crate::console::note;
use crate::drivers::SavedCheckpoint;
use crate::failure::{ExitCode, Failure};
use crate::store::{Outline, Run};

/// The data directory, or the folder of a checkpoint, that is meant. A daemon there that has written none yet is asked to.
///
/// # Errors
/// When no run of this machine has a checkpoint.
pub(super) fn checkpoint_path(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(given) = given else { return latest() };
    let run = Run::named(given);
    if run.as_ref().is_none_or(|run| run.nodes == [given.to_owned()]) {
        let path = given.to_owned();
        ensure_checkpoint(&path);
        return Ok(path);
    }
    let nodes = run.map_or_else(Vec::new, |run| run.nodes);
    let node = nodes.iter().find(|node| Outline::latest(node).is_some()).or(nodes.first());
    let node = node.map_or_else(|| given.to_owned(), PathBuf::clone);
    ensure_checkpoint(&node);
    Ok(node)
}

fn latest() -> Result<PathBuf, Failure> {
    let runs = Run::all_usual();
    let nodes = || runs.iter().flat_map(|run| &run.nodes);
    let usable = |node: &&PathBuf| Outline::latest(node).is_some() || ensure_checkpoint(node);
    let node = nodes().find(usable).ok_or_else(|| {
        Failure::new(ExitCode::Files, "no run of this machine has a checkpoint")
            .hint("`murmur local` trains one in a minute; a folder elsewhere is given by its path")
    })?;
    note(&format!("using       {}", node.display()));
    Ok(node.clone())
}

/// Has a daemon write its first checkpoint, where one runs there without any.
fn ensure_checkpoint(node: &Path) -> bool {
    if Outline::latest(node).is_some() || crate::store::RunningDaemon::of(node).is_none() {
        return false;
    }
    note("            no checkpoint yet: the daemon is asked to write one");
    let written =
        Client::find(None, Some(node)).and_then(|client| client.post::<SavedCheckpoint>("checkpoint", &json!({})));
    written.inspect_err(|failure| note(&format!("warning: {failure}"))).is_ok()
}

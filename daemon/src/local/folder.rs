//! The folder of a local swarm: whose it may be, where a new one goes, and when one goes again.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use murmur_protocol::RunManifest;

use crate::console::{FinishedRun, human_bytes, note};
use crate::failure::{ExitCode, Failure};
use crate::store::{DataDirectory, LOCAL, Outline, Run, known_end, prune_local};

/// Removes a folder that this process has made and no node has begun in.
pub(super) fn remove_unused(folder: &Path) {
    if Run::open(folder).is_none() {
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Makes room for the next swarms, now that this one has ended in order.
pub(super) fn prune(newest: &Path) {
    let (gone, bytes) = prune_local(newest);
    if gone > 0 {
        note(&format!("removed     the oldest local runs beyond ten: {gone}, {} freed", human_bytes(bytes)));
    }
}

/// Refuses a folder that holds another swarm's run, or a single node: its daemons would train two runs.
pub(super) fn check_owner(folder: &Path, manifest: &RunManifest) -> Result<(), Failure> {
    let refusal = |message: String| {
        Failure::new(ExitCode::Settings, message)
            .hint("choose another folder with --directory; without it, a new one is made")
    };
    if folder.join("identity.key").exists() {
        return Err(refusal(format!("{} is the data directory of a single node", folder.display())));
    }
    let file = folder.join("run.toml");
    let Ok(text) = std::fs::read_to_string(&file) else { return Ok(()) };
    let earlier = RunManifest::from_text(&text).map_err(|error| refusal(format!("{}: {error}", file.display())))?;
    if earlier == *manifest {
        return Ok(());
    }
    let differences = manifest.differences_in(&earlier, ["asked for", "in that folder"]).join("; ");
    Err(refusal(format!("{} belongs to another run: {differences}", folder.display())))
}

/// The run of a folder's daemons, so many of them, where it is over for all; as their newest checkpoints tell.
pub(super) fn finished(folder: &Path, nodes: usize) -> Option<FinishedRun> {
    let run = Run::open(folder).filter(|run| run.nodes.len() >= nodes && !run.is_in_use())?;
    let manifest = DataDirectory::claimed_manifest(run.nodes.first()?)?;
    let is_over = |node: &PathBuf| {
        let outline = Outline::latest(node)?;
        let end = known_end(node, &manifest).at()?;
        (outline.progress.max(outline.steps as f64) >= end).then_some(outline)
    };
    let outlines: Vec<Outline> = run.nodes.iter().map(is_over).collect::<Option<_>>()?;
    let losses = outlines.iter().map(|outline| Some(outline.evaluation.as_ref()?.loss)).collect::<Option<Vec<f64>>>();
    Some(FinishedRun {
        steps: outlines.iter().map(|outline| outline.steps).max()?,
        progress: outlines.iter().map(|outline| outline.progress).fold(0.0, f64::max),
        validation_loss: losses.map(|losses| losses.iter().sum::<f64>() / losses.len() as f64),
        scores: None,
        prediction: manifest.prediction(),
    })
}

/// Tokens and decoded images: one folder for all daemons, which read the same.
pub(super) fn prepared(folder: &Path) -> PathBuf {
    folder.join("prepared")
}

/// A folder of the present second, or of one that is so much later.
pub(super) fn new_folder(later: u64) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() + later;
    DataDirectory::default_base().join(LOCAL).join(format!("{seconds}-{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(
            failure.to_string().contains("belongs to another run: run.seed: 77 asked for, 1 in that folder"),
            "{failure}"
        );
        assert!(failure.remedy().contains("--directory"), "{failure}");
        std::fs::write(folder.path().join("identity.key"), "").expect("written");
        let failure = check_owner(folder.path(), &manifest).expect_err("a node's");
        assert!(failure.to_string().contains("the data directory of a single node"), "{failure}");
    }
}

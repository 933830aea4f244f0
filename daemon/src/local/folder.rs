//! The folder of a local swarm: whose it may be, where a new one goes, and when one goes again.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use murmur_protocol::RunManifest;

use crate::console::{FinishedRun, human_bytes, note};
use crate::failure::{ExitCode, Failure};
use crate::store::{DataDirectory, LOCAL, Outline, Run, SERIES_FILE, known_end, prune_local};

/// The run, in a swarm's folder.
const RUN_FILE: &str = "run.toml";

/// What a swarm that has not begun may have left in its folder, beside its run file and its helpers; the last is what a new disk
/// has.
const OURS: [&str; 3] = [PREPARED, SERIES_FILE, "lost+found"];

const PREPARED: &str = "prepared";

/// How the names of helpers' folders begin.
const HELPER: &str = "helper-";

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

/// Refuses a folder that holds another swarm's run, or a single node: its daemons would train two runs. And one that holds files
/// of somebody else, where no local swarm has begun: they would lie among a swarm's, which go with it.
pub(super) fn check_owner(folder: &Path, manifest: &RunManifest) -> Result<(), Failure> {
    let refusal = |message: String| {
        Failure::new(ExitCode::Settings, message)
            .hint("choose another folder with --directory; without it, a new one is made")
    };
    if folder.join("identity.key").exists() {
        return Err(refusal(format!("{} is the data directory of a single node", folder.display())));
    }
    let file = folder.join(RUN_FILE);
    let text = std::fs::read_to_string(&file).ok();
    if let Some(text) = &text {
        let earlier = RunManifest::from_text(text).map_err(|error| refusal(format!("{}: {error}", file.display())))?;
        if earlier != *manifest {
            let differences = manifest.differences_in(&earlier, ["asked for", "in that folder"]).join("; ");
            return Err(refusal(format!("{} belongs to another run: {differences}", folder.display())));
        }
    }
    if folder.join("node-0").is_dir() {
        return Ok(());
    }
    // Without a node nobody of ours has begun here, and a run file in other words is its owner's.
    let is_ours = |name: &str| match name {
        RUN_FILE => text.as_ref().is_some_and(|text| *text == manifest.canonical_text()),
        _ => OURS.contains(&name) || name.starts_with(HELPER),
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Hidden files come from the system or from a file manager.
    match names.find(|name| !is_ours(name) && !name.starts_with('.')) {
        None => Ok(()),
        Some(name) => Err(refusal(format!("{} holds something else: {name}", folder.display()))),
    }
}

/// The run of a folder's daemons, so many of them, where it is over for all; as their newest checkpoints tell.
pub(super) fn finished(folder: &Path, nodes: usize) -> Option<FinishedRun> {
    let run = Run::open(folder).filter(|run| run.nodes.len() >= nodes && !run.is_in_use())?;
    let manifest = DataDirectory::claimed_manifest(run.nodes.first()?)?;
    let is_over = |node: &PathBuf| {
        let outline = Outline::latest(node)?;
        let end = known_end(node, &manifest).ok()?.at()?;
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
        is_own: false,
    })
}

/// Tokens and decoded images: one folder for all daemons, which read the same.
pub(super) fn prepared(folder: &Path) -> PathBuf {
    folder.join(PREPARED)
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

    #[test]
    fn a_folder_with_files_of_somebody_else_is_refused_where_no_swarm_has_begun() {
        let folder = tempfile::tempdir().expect("a folder");
        let manifest = RunManifest::default();
        let check = || check_owner(folder.path(), &manifest).map_err(|failure| failure.to_string());
        // What a start that failed has left, and what the system puts everywhere.
        for name in [PREPARED, "helper-0", "lost+found", ".cache"] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        std::fs::write(folder.path().join(SERIES_FILE), "a\ntogether\n").expect("written");
        assert_eq!(check(), Ok(()));
        std::fs::write(folder.path().join(RUN_FILE), format!("# mine\n{}", manifest.canonical_text()))
            .expect("written");
        assert!(
            check().is_err_and(|said| said.ends_with("holds something else: run.toml")),
            "it would be written over"
        );
        std::fs::remove_file(folder.path().join(RUN_FILE)).expect("there");
        std::fs::write(folder.path().join("thesis.txt"), "").expect("written");
        assert!(check().is_err_and(|said| said.ends_with("holds something else: thesis.txt")));
        std::fs::create_dir(folder.path().join("node-0")).expect("made");
        assert_eq!(check(), Ok(()), "a note beside a swarm's nodes keeps it from nothing");
    }
}

//! What the newest checkpoint of a data directory is about, told from its index alone: reading the model takes seconds.

use std::path::Path;

use murmur_protocol::RunManifest;
use serde::Deserialize;

use super::checkpoint::{LastEvaluation, checkpoint_folders};
use super::checkpoint_error::INDEX_FILE;

/// An index without its hashes. Nothing is verified: who needs the model reads the checkpoint.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Outline {
    /// Own steps.
    pub steps: u64,
    /// Swarm progress, in steps.
    pub progress: f64,
    /// How the model did when it was last evaluated.
    pub evaluation: Option<LastEvaluation>,
    manifest: String,
}

impl Outline {
    /// Of the newest checkpoint in a data directory that has a readable index.
    pub fn latest(root: &Path) -> Option<Outline> {
        let index = |folder: &std::path::PathBuf| std::fs::read(folder.join(INDEX_FILE)).ok();
        let folders = checkpoint_folders(&root.join("checkpoints"));
        folders.iter().filter_map(index).find_map(|bytes| serde_json::from_slice(&bytes).ok())
    }

    /// The run, where its text is sound.
    pub fn manifest(&self) -> Option<RunManifest> {
        RunManifest::from_text(&self.manifest).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_an_earlier_version_has_no_evaluation() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let write = |step: &str, index: &str| {
            let checkpoint = folder.path().join("checkpoints").join(step);
            std::fs::create_dir_all(&checkpoint).expect("created");
            std::fs::write(checkpoint.join(INDEX_FILE), index).expect("written");
        };
        assert_eq!(Outline::latest(folder.path()), None);
        write("step-000000000001", r#"{"steps": 1, "progress": 2.5, "manifest": ""}"#);
        let earlier = Outline::latest(folder.path()).expect("an outline");
        assert_eq!((earlier.steps, earlier.progress, earlier.evaluation), (1, 2.5, None));
        let evaluated = r#"{"steps": 2, "progress": 3.5, "manifest": "", "evaluation": {"loss": 0.25}}"#;
        write("step-000000000002", evaluated);
        write("step-000000000003", "{");
        let latest = Outline::latest(folder.path()).expect("the newest that can be read");
        assert_eq!(latest.evaluation, Some(LastEvaluation { loss: 0.25, accuracy: None }));
    }
}

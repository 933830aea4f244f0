//! What is known of TensorBoard's folder and MLflow's address before any daemon starts: the daemons' own warnings go to their logs.

use std::path::Path;

use crate::console::note;
use crate::settings::NodeSettings;
use crate::tracking::mlflow;

/// Says what is wrong with them. The swarm trains all the same.
pub(super) fn check(settings: &NodeSettings) {
    let folder = &settings.tensorboard.directory;
    if !folder.as_os_str().is_empty()
        && let Err(error) = try_folder(folder)
    {
        note(&format!("warning: cannot write TensorBoard's files in {}: {error}; training goes on", folder.display()));
        note("hint: --tensorboard takes a folder that this user may write; it is made where it is missing");
    }
    if !settings.mlflow.url.is_empty() {
        mlflow::check_address(&settings.mlflow.url);
    }
}

fn try_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let probe = folder.join(format!(".murmur-probe-{}", std::process::id()));
    std::fs::OpenOptions::new().write(true).create_new(true).open(&probe)?;
    std::fs::remove_file(&probe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_made_is_noticed_and_one_that_can_is_left_empty() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let below = folder.path().join("new/tensorboard");
        try_folder(&below).expect("made");
        assert_eq!(std::fs::read_dir(&below).expect("there").count(), 0);
        std::fs::write(folder.path().join("file"), "").expect("written");
        assert!(try_folder(&folder.path().join("file/below")).is_err());
    }
}

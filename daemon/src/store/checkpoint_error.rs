//! Why a checkpoint cannot be used.

use std::io::ErrorKind;
use std::path::PathBuf;

/// What a checkpoint's folder holds, with the hashes of its other files.
pub(super) const INDEX_FILE: &str = "checkpoint.json";

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file is missing or unreadable.
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
    /// The index is no index.
    #[error("{0} is damaged: {1}")]
    Index(PathBuf, String),
    /// A later version wrote it.
    #[error("{0} was written by a newer murmur (format {1}): update this one")]
    Newer(PathBuf, u32),
    /// A file does not have the hash in the index.
    #[error("{0} is damaged: its BLAKE3 differs from the one in {INDEX_FILE}")]
    Hash(PathBuf),
    /// A file is intact but holds something else than the run calls for.
    #[error("{0} does not fit the run: {1}")]
    Content(PathBuf, String),
    /// It would push out a good one, and be refused when read.
    #[error("step {0}: {1} holds values that are not finite")]
    NotFinite(u64, &'static str),
}

impl CheckpointError {
    /// What to do where the checkpoint may be sound all the same, so that nothing must be done with it; none where it is damaged.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        match self {
            CheckpointError::Newer(..) => {
                Some("update murmur: a newer one wrote this checkpoint, and nothing is wrong with it")
            }
            CheckpointError::Io(_, error) if error.kind() != ErrorKind::NotFound => Some(
                "start again once it can be read; where the disk is broken, move that checkpoint's folder away, and the \
                 one before it is used",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_damage_is_a_reason_to_do_without_a_checkpoint() {
        let io = |kind: ErrorKind| CheckpointError::Io(PathBuf::new(), kind.into());
        let is_damage = |error: CheckpointError| error.remedy().is_none();
        assert!(is_damage(CheckpointError::Hash(PathBuf::new())) && is_damage(io(ErrorKind::NotFound)));
        assert!(!is_damage(CheckpointError::Newer(PathBuf::new(), 99)) && !is_damage(io(ErrorKind::PermissionDenied)));
    }
}

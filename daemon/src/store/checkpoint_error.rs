//! Why a checkpoint cannot be used.

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

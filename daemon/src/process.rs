//! The process of a daemon: background, signals, the service manager, memory that goes back to the system, networks of its own.

pub mod background;
pub mod memory;
mod memory_limit;
pub mod namespace;
pub(crate) mod service_manager;
pub(crate) mod signal;
pub(crate) mod stats;
pub(crate) mod suspended;

use std::fs::File;
use std::path::Path;

/// Whether a file that is open is the one of this path still.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let [open, there] = [file.metadata(), std::fs::metadata(path)];
    let place = |metadata: std::io::Result<std::fs::Metadata>| metadata.map(|found| (found.dev(), found.ino()));
    matches!((place(open), place(there)), (Ok(open), Ok(there)) if open == there)
}

/// A file that is open cannot be deleted.
#[cfg(not(unix))]
pub(crate) fn is_at(_: &File, _: &Path) -> bool {
    true
}

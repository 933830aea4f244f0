//! What a node keeps on disk: identity, known peers, the run, checkpoints, shards of shared data.

mod blocked;
mod checkpoint;
mod checkpoint_error;
mod directory;
mod finish;
mod length;
mod outline;
mod privacy;
mod removal;
mod running;
mod runs;
mod shards;
mod tensor_file;
mod writer;

pub use blocked::{keep_blocked, known_blocked};
pub use checkpoint::{Checkpoint, LastEvaluation, Refused, load_latest, newest_checkpoint};
pub use checkpoint_error::CheckpointError;
pub use directory::{DataDirectory, SECRET_FILE};
pub use finish::{keep_finish, known_end};
pub use length::Length;
pub use outline::Outline;
pub use privacy::{PRIVACY_FILE, PrivacyLedger};
pub use removal::{Removed, bytes_in, prune_local, remove};
pub use running::{Announcement, RunningDaemon, is_in_use};
pub use runs::{LOCAL, Run, remember};
pub use shards::{PartialShard, ShardStore, ShardStoreError};
pub use writer::CheckpointWriter;

use std::io::{self, Write};
use std::path::Path;

/// Writes a file so that after a power cut there is the old content or the new, never a part: a temporary file beside
/// it, flushed to disk, renamed over it, the directory flushed.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// The same for a file that only its owner may read.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    // A leftover would keep the mode that it has.
    let _ = std::fs::remove_file(&temporary);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Makes a file that holds a key its owner's alone, whoever made it, and says so where it was not.
pub(crate) fn make_private(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;

        use crate::console::note;

        let Ok(metadata) = std::fs::metadata(path) else { return };
        if metadata.permissions().mode() & 0o077 == 0 {
            return;
        }
        let shown = path.display();
        match std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)) {
            Ok(()) => note(&format!("warning: {shown} could be read by others; now it is yours alone")),
            Err(error) => note(&format!(
                "warning: {shown} can be read by others, and this cannot be changed: {error}\nhint: `chmod 600 {shown}` as its owner"
            )),
        }
    }
}

/// Makes renames and new files in a directory survive a power cut. Only Unix can open directories.
fn sync_directory(path: &Path) -> io::Result<()> {
    if cfg!(unix) { std::fs::File::open(path)?.sync_all() } else { Ok(()) }
}

//! What a node keeps on disk: identity, known peers, the run, checkpoints, shards of shared data.

mod blocked;
mod checkpoint;
mod checkpoint_error;
mod directory;
mod finish;
mod length;
mod lock;
mod outline;
mod privacy;
mod removal;
mod running;
mod runs;
mod series;
mod shards;
mod tensor_file;
mod trained_on;
mod writer;

pub use blocked::{keep_blocked, known_blocked};
pub(crate) use checkpoint::ToWrite;
pub use checkpoint::{Checkpoint, Head, LastEvaluation, Refused, load_latest, newest_checkpoint};
pub(crate) use checkpoint::{checkpoints_in, has_set_aside};
pub use checkpoint_error::CheckpointError;
pub use directory::{DataDirectory, SECRET_FILE};
pub use finish::{keep_finish, known_end};
pub use length::Length;
use lock::Lock;
pub use lock::is_in_use;
pub use outline::Outline;
pub use privacy::{PRIVACY_FILE, PrivacyLedger};
pub use removal::{Removed, bytes_in, left_by_a_start, prune_local, remove};
pub use running::{Announcement, RunningDaemon};
pub use runs::{Run, remember};
pub(crate) use series::{COMPARISON_FILE, FILE as SERIES_FILE, Series};
pub use shards::{PartialShard, ShardStore, ShardStoreError};
pub(crate) use trained_on::other_than_before;
pub use writer::CheckpointWriter;
pub(crate) use writer::{Saving, SavingView, unsaved};

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::de::DeserializeOwned;

use crate::failure::{ExitCode, Failure};

/// In a data directory: how the daemon that uses it is asked.
const DAEMON_FILE: &str = "daemon.json";

/// The folder of swarms that `murmur local` has run, in the default folder.
pub const LOCAL: &str = "local";

/// The folder of a helper's identity, in the default folder.
pub(crate) const LENDING: &str = "lending";

/// The file beside it that tells of data directories elsewhere.
const ELSEWHERE: &str = "elsewhere";

/// Of a disk one part of so many stays free of what is loaded from elsewhere, though at most `RESERVE_MAX` (guesses).
const RESERVE_OF_DISK: u64 = 20;

/// In bytes.
const RESERVE_MAX: u64 = 256 << 20;

/// Bytes that this user may still write to the disk of a folder; none where the system does not tell.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    rustix::fs::statvfs(folder).ok().map(|status| status.f_bavail * status.f_frsize)
}

/// Bytes that may be loaded into a folder: the free ones but for a reserve, of which checkpoints and journals live.
pub(crate) fn loadable_bytes(folder: &Path) -> Option<u64> {
    let status = rustix::fs::statvfs(folder).ok()?;
    let (free, all) = (status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize);
    Some(free.saturating_sub(RESERVE_MAX.min(all / RESERVE_OF_DISK)))
}

/// What a file of JSON in a data directory holds, as `checked` takes it; `None` where there is no such file. `without`: what comes of
/// a start without it.
///
/// # Errors
/// When the file is there and cannot be read.
fn read_json<Written: DeserializeOwned, T>(
    path: &Path,
    without: &str,
    checked: impl FnOnce(Written) -> Result<T, &'static str>,
) -> Result<Option<T>, Failure> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Failure::new(ExitCode::Files, format!("cannot read {}: {error}", path.display()))
            .hint(format!("restore it from a backup; or delete it: {without}"))
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(&error)),
    };
    let written = serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?;
    checked(written).map(Some).map_err(|error| unreadable(&error))
}

/// Writes a file so that after a power cut there is the old content or the new, never a part: a temporary file beside
/// it, flushed to disk, renamed over it, the directory flushed.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, &mut OpenOptions::new())
}

/// The same for a file that only its owner may read.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    replace(path, bytes, &mut options)
}

fn replace(path: &Path, bytes: &[u8], options: &mut OpenOptions) -> io::Result<()> {
    let (mut file, temporary) = temporary_beside(path, options)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written?;
    sync_directory(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// A new file beside another one, under a name that no file has: nobody's file is written over, and no two writers share one.
fn temporary_beside(path: &Path, options: &mut OpenOptions) -> io::Result<(File, PathBuf)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_file_name(format!(".{name}.{}-{number}.tmp", std::process::id()));
        match options.write(true).create_new(true).open(&temporary) {
            // Of a killed process that had the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, temporary)),
        }
    }
}

/// Whether a file of this name is what a killed process has left of writing one of `files`.
fn is_left_of(name: &str, files: &[&str]) -> bool {
    let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
    inner.and_then(|inner| inner.rsplit_once('.')).is_some_and(|(file, _)| files.contains(&file))
}

/// Makes a file that holds a key its owner's alone, whoever made it, and says so where it was not. Only a file on a disk: a pipe
/// or a device is not changed.
pub(crate) fn make_private(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;

        use crate::console::note;

        let Ok(metadata) = std::fs::metadata(path) else { return };
        if !metadata.is_file() || metadata.permissions().mode() & 0o077 == 0 {
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
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// The name of a data directory stands in what a daemon prints and writes: JSON, units, lines to paste.
///
/// # Errors
/// When it is not UTF-8.
pub(crate) fn check_name(root: &Path) -> Result<(), Failure> {
    let refused = || {
        Failure::new(ExitCode::Files, format!("the name of {} is not UTF-8", root.display()))
            .hint("choose another data directory with --data-dir; the default one is in $XDG_DATA_HOME")
    };
    root.to_str().map(|_| ()).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_in_its_folder_is_touched() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (page, other) = (folder.path().join("page.html"), folder.path().join("page.tmp"));
        std::fs::write(&other, "mine").expect("written");
        // As a process leaves it that is killed while it writes.
        let (_, left) = temporary_beside(&page, &mut OpenOptions::new()).expect("made");
        write_atomically(&page, b"one").expect("written");
        write_private(&page, b"two").expect("written");
        assert_eq!(std::fs::read_to_string(&page).expect("there"), "two");
        assert_eq!(std::fs::read_to_string(&other).expect("there"), "mine");
        let name = left.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(is_left_of(name, &["page.html"]) && !is_left_of("page.tmp", &["page.html"]), "{name}");
        // A folder cannot be replaced by a file.
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).expect("made");
        assert!(write_atomically(&taken, b"three").is_err());
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).expect("there").flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        assert_eq!(names, [name, "page.html", "page.tmp", "taken"].map(std::ffi::OsString::from), "no file is left");
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_whose_name_is_no_text_is_refused_before_it_is_there() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"x\xff");
        let error = DataDirectory::open(&folder.path().join(name)).expect_err("no text");
        assert!(error.to_string().contains("is not UTF-8"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}

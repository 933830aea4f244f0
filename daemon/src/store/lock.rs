//! The lock of a data directory, held by the one process that uses it.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::is_at;

/// For how long a lock that another process has is asked for again: one that only looks whether the directory is in use
/// ([`is_in_use`]) has it for a moment, too, and a daemon beside it would not start.
const ASKED_FOR: Duration = Duration::from_millis(200);

const ASKED_EVERY: Duration = Duration::from_millis(5);

/// A data directory that is in use by this process.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Takes the lock of a directory that is there, at once or within a fifth of a second.
    ///
    /// # Errors
    /// When its file cannot be written, or another process has it.
    pub(super) fn take(root: &Path) -> Result<Lock, TryLockError> {
        let path = root.join("lock");
        let mut file = File::create(&path).map_err(TryLockError::Error)?;
        let until = Instant::now() + ASKED_FOR;
        loop {
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Lock(file)),
                // Whoever had it has deleted it: `murmur remove`.
                Ok(()) => file = File::create(&path).map_err(TryLockError::Error)?,
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(ASKED_EVERY),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Lock {
    /// Given up at once: closing the file is not enough where a process is just being started, since it has all open files
    /// of this one until its program begins. Where this process is killed the system gives it up.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Whether a process uses a data directory.
pub fn is_in_use(root: &Path) -> bool {
    // Nothing is written, so a directory of another user can be looked at, too.
    let Ok(file) = File::open(root.join("lock")) else { return false };
    let is_locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    let _ = file.unlock();
    is_locked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_given_up_although_a_process_that_just_starts_has_the_file_still() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let lock = Lock::take(folder.path()).expect("free");
        let inherited = lock.0.try_clone().expect("a file");
        assert!(is_in_use(folder.path()));
        drop(lock);
        assert!(!is_in_use(folder.path()));
        Lock::take(folder.path()).expect("free again");
        drop(inherited);
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_that_was_deleted_meanwhile_is_not_taken() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let removed = Lock::take(folder.path()).expect("free");
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| Lock::take(folder.path()).expect("free after a moment"));
            std::thread::sleep(ASKED_FOR / 4);
            std::fs::remove_file(folder.path().join("lock")).expect("deleted");
            drop(removed);
            let _lock = taken.join().expect("no panic");
            assert!(is_in_use(folder.path()), "the lock is that of the file which is there");
        });
    }

    #[test]
    fn who_only_looks_keeps_nobody_from_taking_it() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        drop(Lock::take(folder.path()).expect("free"));
        let looks = File::open(folder.path().join("lock")).expect("there");
        looks.try_lock_shared().expect("free");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(ASKED_FOR / 8);
                looks.unlock().expect("locked");
            });
            Lock::take(folder.path()).expect("free after a moment");
        });
    }
}

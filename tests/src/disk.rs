//! A small disk that can be filled, for what a full one does to a daemon.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of its own in memory, unmounted with the value.
pub struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts one of so many bytes. Nothing, and a line that says why, where that is not permitted.
    ///
    /// # Panics
    /// When there is no temporary directory.
    pub fn mount(bytes: usize) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let options = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(SmallDisk { folder }),
            other => {
                println!("skipped: no file system can be mounted here ({other:?})");
                None
            }
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves no byte free, until [`empty`](SmallDisk::empty).
    ///
    /// # Panics
    /// When it cannot be written to.
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).expect("writable");
        // Whole pages, as the file system counts.
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    /// Takes back what [`fill`](SmallDisk::fill) has done.
    ///
    /// # Panics
    /// When it was not filled.
    pub fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("filled before");
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

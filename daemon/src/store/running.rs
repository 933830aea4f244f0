//! `daemon.json`: which process uses a data directory, where its status page answers, and the token that changes need.
//!
//! It is there from when a daemon is ready until it ends in order. One that is killed, or ends with an error, leaves it behind, so
//! it counts only while the directory's lock is held. The lock of a directory that machines or containers share is held for all of
//! them, so it says where the process is, too.

use std::fs::File;
use std::io::ErrorKind::PermissionDenied;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{is_in_use, write_private};

/// The file in a data directory, mode 0600.
const FILE: &str = "daemon.json";

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// A daemon that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningDaemon {
    /// Its process.
    pub pid: u32,
    /// Where its status page answers; none where that is off.
    pub status_address: Option<String>,
    /// What requests that change something carry as `Authorization: Bearer …`: only who may read this file knows it.
    pub token: String,
    /// When it became ready, in seconds since 1970.
    pub started_unix: u64,
    /// Nanoseconds of that second: several may become ready in one.
    #[serde(default)]
    pub started_nanoseconds: u32,
    /// Of murmur.
    pub version: String,
    /// Of its machine, since that was started: no other one has the same. None where the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Within which the number of its process counts: a container has its own. None where the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
}

/// Keeps `daemon.json` in place, and removes it when it is dropped.
#[derive(Debug)]
pub struct Announcement {
    path: PathBuf,
    content: Vec<u8>,
}

impl RunningDaemon {
    /// This process, ready now.
    pub fn this(status_address: Option<String>, token: String) -> RunningDaemon {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        RunningDaemon {
            pid: std::process::id(),
            status_address,
            token,
            started_unix: started.as_secs(),
            started_nanoseconds: started.subsec_nanos(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: boot_id(),
            pid_namespace: pid_namespace(),
        }
    }

    /// When it became ready, since 1970.
    pub fn started(&self) -> Duration {
        Duration::new(self.started_unix, self.started_nanoseconds)
    }

    /// Whether it runs on another machine or in another container: the process of its number, and what answers at its address, are
    /// then others here.
    pub fn is_elsewhere(&self) -> bool {
        let differ = |its: &Option<String>, own: Option<String>| its.is_some() && own.is_some() && *its != own;
        differ(&self.boot_id, boot_id()) || differ(&self.pid_namespace, pid_namespace())
    }

    /// Where its status page answers, if it does and runs here.
    pub fn address_here(&self) -> Option<&str> {
        self.status_address.as_deref().filter(|_| !self.is_elsewhere())
    }

    /// A token that nobody can guess: 64 hexadecimal digits.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn draw_token() -> std::io::Result<String> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(blake3::Hash::from_bytes(bytes).to_hex().to_string())
    }

    /// In a data directory that this process has taken. Not written yet.
    pub fn announcement(&self, root: &Path) -> Announcement {
        let content = serde_json::to_vec_pretty(self).expect("numbers and strings are serialisable");
        Announcement { path: root.join(FILE), content }
    }

    /// Whether the daemon that used a data directory has ended otherwise than in order.
    pub fn was_cut_off(&self, root: &Path) -> bool {
        !is_in_use(root) && RunningDaemon::read(root).as_ref() == Some(self)
    }

    /// The daemon that uses a data directory now, where one is ready there.
    pub fn of(root: &Path) -> Option<RunningDaemon> {
        RunningDaemon::read(root).filter(|_| is_in_use(root))
    }

    /// Whether a daemon uses a data directory whose file this user may not read: it is another user's.
    pub fn is_anothers(root: &Path) -> bool {
        let is_denied = |file: &str| File::open(root.join(file)).is_err_and(|error| error.kind() == PermissionDenied);
        is_denied(FILE) && (is_in_use(root) || is_denied("lock"))
    }

    /// What the file says, whether it still runs or not.
    fn read(root: &Path) -> Option<RunningDaemon> {
        serde_json::from_slice(&std::fs::read(root.join(FILE)).ok()?).ok()
    }
}

fn boot_id() -> Option<String> {
    Some(std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

fn pid_namespace() -> Option<String> {
    Some(std::fs::read_link("/proc/self/ns/pid").ok()?.to_str()?.to_owned())
}

impl Announcement {
    /// Writes it where it is not there: a disk may have been full, and somebody may have deleted it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self) -> std::io::Result<()> {
        if self.path.exists() { Ok(()) } else { write_private(&self.path, &self.content) }
    }

    /// At an end that was not in order: it stays.
    pub fn leave(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DataDirectory;

    #[test]
    fn a_daemon_counts_as_running_only_while_it_holds_its_directory() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = DataDirectory::open(folder.path()).expect("free");
        assert_eq!(RunningDaemon::of(folder.path()), None, "not ready yet");
        let daemon = RunningDaemon::this(Some("127.0.0.1:1".to_owned()), RunningDaemon::draw_token().expect("random"));
        let announcement = daemon.announcement(folder.path());
        for _ in 0..2 {
            announcement.write().expect("written");
            assert_eq!(RunningDaemon::of(folder.path()), Some(daemon.clone()));
            assert!(!daemon.was_cut_off(folder.path()));
            std::fs::remove_file(folder.path().join(FILE)).expect("there");
        }
        announcement.write().expect("written");
        drop(directory);
        assert!(daemon.was_cut_off(folder.path()));
        assert_eq!(RunningDaemon::of(folder.path()), None, "killed, which frees the lock and leaves the file");
        assert!(folder.path().join(FILE).exists());
        let again = DataDirectory::open(folder.path()).expect("free again");
        assert_eq!(RunningDaemon::of(folder.path()), None, "what the one before has left is not the next one's");
        drop(again);
        drop(announcement);
        assert!(!folder.path().join(FILE).exists() && !daemon.was_cut_off(folder.path()), "ended in order");
        let announcement = daemon.announcement(folder.path());
        announcement.write().expect("written");
        announcement.leave();
        assert!(daemon.was_cut_off(folder.path()), "ended with an error");
    }

    #[test]
    fn a_daemon_is_elsewhere_where_its_machine_or_its_container_is_known_to_be_another() {
        let own = RunningDaemon::this(None, String::new());
        let of = |boot_id: Option<&str>, pid_namespace: Option<&str>| RunningDaemon {
            boot_id: boot_id.map(str::to_owned),
            pid_namespace: pid_namespace.map(str::to_owned),
            ..own.clone()
        };
        assert!(!own.is_elsewhere() && !of(None, None).is_elsewhere(), "a daemon of before says nothing of it");
        assert_eq!(of(Some("another"), None).is_elsewhere(), own.boot_id.is_some());
        assert_eq!(of(own.boot_id.as_deref(), Some("pid:[7]")).is_elsewhere(), own.pid_namespace.is_some());
        let before: RunningDaemon = serde_json::from_value(serde_json::json!({
            "pid": 7, "status_address": null, "token": "", "started_unix": 7, "version": "0.1.0",
        }))
        .expect("a file of before");
        assert!(!before.is_elsewhere());
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_the_token() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let token = RunningDaemon::draw_token().expect("random");
        assert_ne!(token, RunningDaemon::draw_token().expect("random"));
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        let announcement = RunningDaemon::this(None, token).announcement(folder.path());
        announcement.write().expect("written");
        let mode = std::fs::metadata(folder.path().join(FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

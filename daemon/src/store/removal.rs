//! Deleting runs: only what a daemon writes, and only where no daemon is.

use std::ffi::OsString;
use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::directory::{CLOSED_FILE, LENT_FILE, OF_A_START};
use super::runs::{folders_named, sub_folders};
use super::series::{self, Series};
use super::{DataDirectory, LOCAL, Lock, Run, is_left_of, trained_on, writer};
use crate::observe::{journal, traffic};
use crate::tracking::mlflow;

/// Everything that daemons write into a data directory. Whatever else lies there is somebody's, and stays.
const OURS: [&str; 26] = [
    "checkpoints",
    writer::REPLACED,
    "prepared",
    "shards",
    "log",
    "log.old",
    journal::FOLDER,
    "run.toml",
    "node.toml",
    "peers.json",
    "traffic.json",
    trained_on::FILE,
    traffic::FILE,
    "finish.json",
    "length.json",
    "blocked.json",
    super::PRIVACY_FILE,
    super::DAEMON_FILE,
    mlflow::FILE,
    series::FILE,
    series::COMPARISON_FILE,
    "membership.secret",
    CLOSED_FILE,
    LENT_FILE,
    "identity.key",
    "lock",
];

/// Old swarms of `murmur local` that are kept.
const LOCAL_KEPT: usize = 10;

/// What has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Of which something was left: files that are not ours.
    pub left: usize,
    /// Bytes freed.
    pub bytes: u64,
}

/// What a start that failed or was killed before its run began has left in a folder of this name: nothing but what is a start's.
pub fn left_by_a_start(name: &Path) -> Option<Run> {
    let is_of_a_start = |entry: fs::DirEntry| {
        let name = entry.file_name();
        OF_A_START.iter().chain(&["traffic.json", "log", "log.old"]).any(|ours| name == *ours)
    };
    let is_left = |folder: &PathBuf| {
        let has_checkpoints =
            fs::read_dir(folder.join("checkpoints")).is_ok_and(|mut entries| entries.next().is_some());
        let entries = || fs::read_dir(folder).into_iter().flatten().flatten();
        folder.join("lock").is_file() && !has_checkpoints && entries().all(is_of_a_start)
    };
    let directory = folders_named(name, &DataDirectory::default_base()).into_iter().find(is_left)?;
    Some(Run { nodes: vec![directory.clone()], directory, started: None, changed: SystemTime::UNIX_EPOCH })
}

/// Deletes a run.
///
/// # Errors
/// When a daemon uses it (`WouldBlock`), or something cannot be deleted.
pub fn remove(run: &Run) -> io::Result<Removed> {
    // Held while files go, so that no daemon starts in between.
    let is_swarm = run.nodes.iter().all(|node| *node != run.directory);
    let helpers = if is_swarm { helpers_in(&run.directory) } else { Vec::new() };
    let folders = || run.nodes.iter().chain(&helpers);
    let taken: Result<Vec<Lock>, TryLockError> = folders().map(|folder| Lock::take(folder)).collect();
    let locks = taken?;
    let mut removed = Removed::default();
    for folder in folders() {
        remove_known(folder, &mut removed)?;
    }
    if is_swarm {
        remove_known(&run.directory, &mut removed)?;
    }
    drop(locks);
    Ok(removed)
}

/// The folders of a local team's helpers: `helper-0` and so on.
fn helpers_in(swarm: &Path) -> Vec<PathBuf> {
    (0..=u8::MAX).map(|number| swarm.join(format!("helper-{number}"))).take_while(|helper| helper.is_dir()).collect()
}

/// Deletes the oldest swarms of `murmur local` in the default folder, so that with the new one ten are left. A series of
/// `--against alone` counts as one, and a folder in which no node has begun as none. Those in use stay. How many have gone, and the
/// bytes freed.
pub fn prune_local(new: &Path) -> (usize, u64) {
    prune(&DataDirectory::default_base().join(LOCAL), new)
}

fn prune(folder: &Path, new: &Path) -> (usize, u64) {
    let mut folders: Vec<PathBuf> =
        sub_folders(folder).into_iter().filter(|path| is_ours(path) && path != new).collect();
    // The name begins with the time.
    folders.sort_by_key(|path| std::cmp::Reverse(began(path)));
    let mut kept = vec![counted_as(new)];
    let mut gone = (0, 0);
    for old in folders {
        let (name, run) = (counted_as(&old), Run::open(&old));
        let is_kept = kept.contains(&name);
        if is_kept || kept.len() < LOCAL_KEPT {
            kept.extend(Some(name).filter(|_| !is_kept && run.is_some()));
            continue;
        }
        let Some(run) = run else { continue };
        if let Ok(removed) = remove(&run) {
            gone = (gone.0 + 1, gone.1 + removed.bytes);
        }
    }
    gone
}

/// A folder's name, or that of the series that it belongs to.
fn counted_as(folder: &Path) -> OsString {
    let own = folder.file_name().unwrap_or_default().to_owned();
    Series::of(folder).map_or(own, |series| series.name.into())
}

/// Whether `murmur local` has made this folder: seconds since 1970, and a process.
fn is_ours(folder: &Path) -> bool {
    began(folder).is_some()
}

fn began(folder: &Path) -> Option<u64> {
    let (seconds, process) = folder.file_name()?.to_str()?.split_once('-')?;
    process.parse::<u32>().ok()?;
    seconds.parse().ok()
}

/// Bytes of all files in a folder. Links are not followed.
pub fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

fn remove_known(folder: &Path, removed: &mut Removed) -> io::Result<()> {
    for name in OURS {
        let path = folder.join(name);
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        removed.bytes += if metadata.is_dir() { bytes_in(&path) } else { metadata.len() };
        if metadata.is_dir() {
            fs::remove_dir_all(&path)?
        } else {
            fs::remove_file(&path)?
        };
    }
    let entries = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let is_left = |path: &PathBuf| path.file_name().and_then(|it| it.to_str()).is_some_and(|it| is_left_of(it, &OURS));
    for path in entries.filter(is_left) {
        fs::remove_file(path)?;
    }
    // Only an empty one goes.
    if fs::remove_dir(folder).is_err() {
        removed.left += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use murmur_protocol::{Ending, FinishOrder, RunManifest, Secret};

    use super::*;
    use crate::store::{Length, RunningDaemon, ShardStore, keep_blocked, keep_finish, other_than_before};

    fn begin_node(folder: &Path) {
        fs::create_dir_all(folder.join("checkpoints")).expect("created");
        for file in ["run.toml", "identity.key", "lock", "checkpoints/model"] {
            fs::write(folder.join(file), "1234").expect("written");
        }
    }

    #[test]
    fn a_run_in_use_is_not_removed_and_files_of_others_stay() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let node = folder.path().join("node");
        begin_node(&node);
        fs::write(node.join("notes.txt"), "mine").expect("written");
        let run = Run::open(&node).expect("a run");
        let daemon = DataDirectory::open(&node).expect("free");
        assert_eq!(remove(&run).expect_err("in use").kind(), io::ErrorKind::WouldBlock);
        assert!(node.join("identity.key").exists());
        drop(daemon);
        let removed = remove(&run).expect("removed");
        assert_eq!(removed.left, 1, "the folder stays for the file that is not ours");
        assert!(removed.bytes >= 12);
        let names: Vec<_> = fs::read_dir(&node).expect("there").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["notes.txt"]);
    }

    #[test]
    fn what_a_start_has_left_before_its_run_began_can_be_removed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let node = folder.path().join("node");
        fs::create_dir(&node).expect("made");
        assert_eq!(left_by_a_start(&node), None, "somebody's empty folder");
        let directory = DataDirectory::open(&node).expect("free");
        fs::write(directory.traffic_path(), "1234").expect("written");
        fs::write(directory.identity_path(), "1234").expect("written");
        drop(directory);
        assert_eq!(Run::open(&node), None, "it is no run");
        let left = left_by_a_start(&node).expect("left");
        for other in ["notes.txt", "checkpoints/step-000000000007", "lent", "run.toml"] {
            fs::write(node.join(other), "").expect("written");
            assert_eq!(left_by_a_start(&node), None, "{other}");
            fs::remove_file(node.join(other)).expect("there");
        }
        assert_eq!(remove(&left).expect("removed").left, 0);
        assert!(!node.exists());
    }

    /// By those who write it, so that what gets another name, or is new here, is not forgotten above.
    #[test]
    fn all_that_a_node_keeps_goes_with_its_run() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let node = folder.path().join("node");
        let directory = DataDirectory::open(&node).expect("free");
        directory.claim(&RunManifest::default()).expect("unclaimed");
        directory.keep_secret(&Secret::from_bytes([7; 32])).expect("written");
        directory.mark_closed().and_then(|()| directory.mark_lent()).expect("written");
        directory.remember_peers(&[]);
        fs::write(directory.traffic_path(), "1234").expect("written");
        fs::write(directory.identity_path(), "1234").expect("written");
        fs::create_dir_all(directory.prepared_path()).expect("made");
        ShardStore::open(node.join("shards")).expect("made");
        keep_blocked(&node, &BTreeSet::new()).expect("written");
        let ending = Ending { from: 1.0, until: 2.0 };
        keep_finish(&node, &FinishOrder { serial: 1, ending, signature: [7; 64] }).expect("written");
        Length::Hours { hours: 1.0, until: 2e9 }.keep(&node, 1e9).expect("written");
        assert_eq!(other_than_before(&node, &[node.join("book.txt")]), None);
        let announcement = RunningDaemon::this(None, String::new()).announcement(&node);
        announcement.write().expect("written");
        announcement.leave();
        Series { name: "101-77".to_owned(), alone: true }.mark(&node).expect("written");
        drop(directory);
        assert!(fs::read_dir(&node).expect("there").count() > 15);
        assert_eq!(remove(&Run::open(&node).expect("a run")).expect("removed").left, 0);
        assert!(!node.exists());
    }

    #[test]
    fn helpers_of_a_local_team_go_with_their_swarm() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let swarm = folder.path().join("swarm");
        begin_node(&swarm.join("node-0"));
        DataDirectory::open(&swarm.join("helper-0")).and_then(|helper| Ok(helper.mark_lent()?)).expect("written");
        fs::create_dir_all(swarm.join("helper-0/log.old")).expect("created");
        for file in ["identity.key", "membership.secret", "lock", "log.old/daemon.log"] {
            fs::write(swarm.join("helper-0").join(file), "1234").expect("written");
        }
        fs::write(swarm.join("run.toml"), "").expect("written");
        let run = Run::open(&swarm).expect("a run");
        assert_eq!(remove(&run).expect("removed").left, 0);
        assert!(!swarm.exists());
    }

    #[test]
    fn the_oldest_local_swarms_go_and_ten_are_left() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let swarm = |second: usize| folder.path().join(format!("{second}-77"));
        for second in 101..=113 {
            begin_node(&swarm(second).join("node-0"));
            fs::write(swarm(second).join("run.toml"), "").expect("written");
        }
        fs::write(swarm(101).join("node-0/.traffic.json.77-3.tmp"), "left by a killed process").expect("written");
        begin_node(&folder.path().join("my-own"));
        let in_use = DataDirectory::open(&swarm(102).join("node-0")).expect("free");
        let (gone, bytes) = prune(folder.path(), &swarm(113));
        assert_eq!(gone, 2, "101 and 103: 102 is in use, and 104 to 113 are ten");
        assert!(bytes > 0);
        drop(in_use);
        let left: Vec<usize> = (101..=113).filter(|second| swarm(*second).exists()).collect();
        assert_eq!(left, [102].into_iter().chain(104..=113).collect::<Vec<_>>());
        assert!(folder.path().join("my-own").exists(), "not made by `murmur local`");
    }

    #[test]
    fn a_series_counts_as_one_swarm_and_an_attempt_that_failed_as_none() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let swarm = |second: usize| folder.path().join(format!("{second}-77"));
        // Nine of their own, a series of six, then the new one and attempts of earlier versions.
        for second in 101..=116 {
            begin_node(&swarm(second).join("node-0"));
        }
        for second in 110..=115 {
            Series { name: "110-77".to_owned(), alone: second % 2 == 1 }.mark(&swarm(second)).expect("written");
        }
        (117..=140).for_each(|second| fs::create_dir_all(swarm(second).join("prepared")).expect("made"));
        let left = || (101..=116).filter(|second| swarm(*second).exists()).collect::<Vec<usize>>();
        assert_eq!(prune(folder.path(), &swarm(116)).0, 1, "the eleventh");
        assert_eq!(left(), (102..=116).collect::<Vec<_>>());
        (141..=149).for_each(|second| begin_node(&swarm(second).join("node-0")));
        assert_eq!(prune(folder.path(), &swarm(149)).0, 8 + 6, "the series goes as a whole");
        assert_eq!(left(), [116]);
    }
}

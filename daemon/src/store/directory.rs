//! The data directory: one run of one node.
//!
//! ```text
//! identity.key        who the node is
//! run.toml            the run that the directory belongs to
//! peers.json          members to look for after a restart
//! checkpoints/step-…  see the checkpoint module
//! shards/…            fetched shards, where the run shares its data; see the shards module
//! membership.secret   what a closed run's members know, mode 0600
//! closed              says that the run is closed, where the secret is lost
//! finish.json         the founder's order to finish the run, once it is known
//! data.json           the files that the node trains on
//! traffic.json        bytes of the day
//! privacy.json        what private training has told of the records; see the privacy module
//! daemon.json         the daemon that runs and where, and the token to change it; see the running module
//! lent                in a helper's directory, which no daemon may take
//! lock                held by the daemon that uses the directory
//! ```

use std::fs::TryLockError;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use murmur_protocol::manifest::ManifestError;
use murmur_protocol::message::KnownPeer;
use murmur_protocol::{Address, PeerId, RunId, RunManifest, Secret};
use serde::{Deserialize, Serialize};

use super::{ELSEWHERE, LENDING, LOCAL, Lock, is_in_use, write_atomically, write_private};
use crate::console::{ToldOnce, quoted};
use crate::failure::{ExitCode, Failure, to_write};

/// The membership secret of a closed run, in a data directory.
pub const SECRET_FILE: &str = "membership.secret";

/// Where a node says that its run is closed.
pub(super) const CLOSED_FILE: &str = "closed";

/// Where a helper says that a folder is its own.
pub(super) const LENT_FILE: &str = "lent";

/// Peers remembered over a restart: a few suffice to find the rest.
const PEERS_REMEMBERED_MAX: usize = 64;

/// Folders of runs that are looked through for one: more runs on one machine are somebody's archive.
const DEFAULT_FOLDERS_MAX: usize = 256;

/// What else lies in the default folder.
const TAKEN: [&str; 3] = [LOCAL, ELSEWHERE, LENDING];

/// What a start leaves in a directory before its run begins, but for what is to be read or counted later.
pub(super) const OF_A_START: [&str; 7] =
    ["checkpoints", "prepared", "shards", "identity.key", SECRET_FILE, CLOSED_FILE, "lock"];

/// A data directory in use by this process.
#[derive(Debug)]
pub struct DataDirectory {
    root: PathBuf,
    /// Whether this process has made it.
    is_new: bool,
    _lock: Lock,
}

#[derive(Serialize, Deserialize)]
struct RememberedPeer {
    peer: String,
    addresses: Vec<String>,
}

impl DataDirectory {
    /// `murmur/<name>` under the user's data directory (XDG).
    pub fn default_path(name: &str) -> PathBuf {
        DataDirectory::default_base().join(folder_named(name))
    }

    /// As [`default_path`](Self::default_path), or with a number behind it, such as `stories-2`: the first that no daemon
    /// uses and no other run has. So a second node on a machine, or a run of the same name, needs no `--data-dir`.
    pub fn default_path_to_join(manifest: &RunManifest) -> PathBuf {
        DataDirectory::first_free(&DataDirectory::default_path(&manifest.run.name), manifest.run_id())
    }

    fn first_free(path: &Path, run: RunId) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let siblings = (2..DEFAULT_FOLDERS_MAX).map(|number| path.with_file_name(format!("{name}-{number}")));
        let is_free = |root: &PathBuf| {
            !is_in_use(root) && DataDirectory::claimed_manifest(root).is_none_or(|claimed| claimed.run_id() == run)
        };
        std::iter::once(path.to_owned()).chain(siblings).find(is_free).unwrap_or_else(|| path.to_owned())
    }

    /// Where among those folders a node of this run has been that does not run now, whatever the run's name.
    pub fn default_of_run(run: RunId) -> Option<PathBuf> {
        let folders = std::fs::read_dir(DataDirectory::default_base()).ok()?.take(DEFAULT_FOLDERS_MAX);
        let is_of_run = |root: &PathBuf| {
            DataDirectory::claimed_manifest(root).is_some_and(|it| it.run_id() == run) && !is_in_use(root)
        };
        folders.filter_map(|folder| Some(folder.ok()?.path())).find(is_of_run)
    }

    /// `murmur` in the user's data directory (XDG): where data directories lie that are given no other place.
    pub fn default_base() -> PathBuf {
        let from_environment = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
        let base = from_environment("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(|| from_environment("HOME").map(|home| Path::new(&home).join(".local/share")))
            .unwrap_or_else(|| PathBuf::from("."));
        base.join("murmur")
    }

    /// Creates the directory where it is missing, and takes it for this process.
    ///
    /// # Errors
    /// When it cannot be written or another daemon uses it.
    pub fn open(root: &Path) -> anyhow::Result<DataDirectory> {
        let unusable = || {
            let message = format!("cannot use the data directory {}", root.display());
            Failure::new(ExitCode::Files, message).hint("choose another one with --data-dir")
        };
        super::check_name(root)?;
        let is_new = !root.exists();
        std::fs::create_dir_all(root.join("checkpoints")).with_context(unusable)?;
        match Lock::take(root) {
            Ok(lock) => {
                // Of a daemon that was killed: its process's number may be another's by now.
                let _ = std::fs::remove_file(root.join(super::DAEMON_FILE));
                Ok(DataDirectory { root: root.to_owned(), is_new, _lock: lock })
            }
            Err(TryLockError::WouldBlock) => Err(in_use(root).into()),
            Err(TryLockError::Error(error)) => Err(anyhow::Error::new(error).context(unusable())),
        }
    }

    /// Whether a daemon could open it, as far as others are concerned; one that is not there yet, or has no name, is no daemon's.
    ///
    /// # Errors
    /// When another one uses it.
    pub fn check_unused(root: &Path) -> Result<(), Failure> {
        if !root.as_os_str().is_empty() && is_in_use(root) { Err(in_use(root)) } else { Ok(()) }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The identity file.
    pub fn identity_path(&self) -> PathBuf {
        self.root.join("identity.key")
    }

    /// The membership secret of a closed run.
    pub fn secret_path(&self) -> PathBuf {
        self.root.join(SECRET_FILE)
    }

    /// The bytes of the day.
    pub fn traffic_path(&self) -> PathBuf {
        self.root.join("traffic.json")
    }

    /// Keeps the membership secret, readable by its owner only: a node that comes back is a member still.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_secret(&self, secret: &Secret) -> std::io::Result<()> {
        write_private(&self.secret_path(), format!("{}\n", secret.to_text()).as_bytes())
    }

    /// Whether the run is known to be closed, be its secret there or not.
    pub fn is_closed(&self) -> bool {
        self.root.join(CLOSED_FILE).exists() || self.secret_path().exists()
    }

    /// Keeps that the run is closed: a copy that another user makes of the directory lacks the secret.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn mark_closed(&self) -> std::io::Result<()> {
        let path = self.root.join(CLOSED_FILE);
        if path.exists() {
            return Ok(());
        }
        let text = format!("This run is closed: no node of it starts from here without its {SECRET_FILE}.\n");
        write_atomically(&path, text.as_bytes())
    }

    /// The folder of checkpoints.
    pub fn checkpoints_path(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// The folder of tokens and decoded images.
    pub fn prepared_path(&self) -> PathBuf {
        self.root.join("prepared")
    }

    /// The run that a directory belongs to, where it does and the file is sound.
    pub fn claimed_manifest(root: &Path) -> Option<RunManifest> {
        RunManifest::from_text(&std::fs::read_to_string(root.join("run.toml")).ok()?).ok()
    }

    /// The run that a directory belongs to; `None` where it has no `run.toml`.
    ///
    /// # Errors
    /// When the file cannot be read, or is no run file of this version.
    pub fn claimed(root: &Path) -> Result<Option<RunManifest>, Failure> {
        let path = root.join("run.toml");
        let unusable =
            |error: &dyn std::fmt::Display| Failure::new(ExitCode::Files, format!("{}: {error}", path.display()));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                let message = format!("{} is no folder", root.display());
                return Err(Failure::new(ExitCode::Files, message).hint("choose another directory with --data-dir"));
            }
            Err(error) => return Err(unusable(&error).hint("may this user read it?")),
        };
        let is_newer = |error: &ManifestError| {
            ["unknown field", "unknown variant"].iter().any(|words| error.to_string().contains(words))
        };
        RunManifest::from_text(&text).map(Some).map_err(|error| {
            unusable(&error).hint(match is_newer(&error) {
                true => "a newer murmur may have written it: update murmur, or choose another directory with --data-dir",
                false => {
                    "restore it from a backup (`manifest` in a checkpoint's checkpoint.json is its text), or choose another \
                     directory with --data-dir"
                }
            })
        })
    }

    /// Marks it as that of a helper, whose secret is no swarm's.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn mark_lent(&self) -> std::io::Result<()> {
        write_atomically(&self.root.join(LENT_FILE), b"This is the data directory of `murmur lend`.\n")
    }

    /// Whether it may be claimed for a run.
    ///
    /// # Errors
    /// When it is a helper's, or belongs to another run, whose differing fields are named.
    pub fn check_owner(&self, manifest: &RunManifest) -> Result<(), Failure> {
        DataDirectory::check_owner_of(&self.root, manifest)
    }

    /// The same of a directory that this process has not taken, and that may not be there yet.
    ///
    /// # Errors
    /// As [`DataDirectory::check_owner`].
    pub fn check_owner_of(root: &Path, manifest: &RunManifest) -> Result<(), Failure> {
        DataDirectory::check_not_lent(root)?;
        let Some(earlier) = DataDirectory::claimed(root)?.filter(|earlier| earlier != manifest) else {
            return Ok(());
        };
        Err(DataDirectory::anothers(root, &manifest.differences_in(&earlier, ["asked for", "in that directory"])))
    }

    /// It belongs to a run that differs so from the one that it is wanted for.
    pub(crate) fn anothers(root: &Path, differences: &[String]) -> Failure {
        let message = format!("{} belongs to another run: {}", root.display(), differences.join("; "));
        Failure::new(ExitCode::Settings, message).hint(format!(
            "choose another directory with --data-dir, or another run.name in the run file; or remove the run that is there: murmur \
             remove {}",
            quoted(root)
        ))
    }

    /// Whether a directory may be a daemon's.
    ///
    /// # Errors
    /// When it is a helper's.
    pub fn check_not_lent(root: &Path) -> Result<(), Failure> {
        if !root.join(LENT_FILE).exists() {
            return Ok(());
        }
        let message = format!("{} is the data directory of a helper, whose secret a ticket would tell", root.display());
        Err(Failure::new(ExitCode::Settings, message).hint("choose another directory with --data-dir, or leave it out"))
    }

    /// Claims it for a run, once the run can begin: who mends a run file that was refused starts again in the same directory.
    ///
    /// # Errors
    /// As [`DataDirectory::check_owner`], or when it cannot be written.
    pub fn claim(&self, manifest: &RunManifest) -> anyhow::Result<()> {
        self.check_owner(manifest)?;
        let path = self.root.join("run.toml");
        if path.exists() {
            return Ok(());
        }
        write_atomically(&path, manifest.canonical_text().as_bytes()).map_err(|error| {
            Failure::new(ExitCode::Files, format!("cannot write {}: {error}", path.display()))
                .hint(format!("{}, or choose another directory with --data-dir", to_write(&error)))
                .into()
        })
    }

    /// Members known in an earlier life. A damaged list is no reason not to start.
    pub fn remembered_peers(&self) -> Vec<KnownPeer> {
        let read = || -> anyhow::Result<Vec<RememberedPeer>> {
            Ok(serde_json::from_slice(&std::fs::read(self.root.join("peers.json"))?)?)
        };
        let known = |remembered: RememberedPeer| {
            let peer: PeerId = remembered.peer.parse().ok()?;
            Some(KnownPeer { peer, addresses: remembered.addresses.into_iter().filter_map(Address::new).collect() })
        };
        read().unwrap_or_default().into_iter().take(PEERS_REMEMBERED_MAX).filter_map(known).collect()
    }

    /// Writes the members known now, and after them those known before: members that are stopped at the same time, to be started again
    /// together, have all just left. Best effort: a node without them only takes longer to come back.
    pub fn remember_peers(&self, known: &[KnownPeer]) {
        let is_new = |before: &KnownPeer| known.iter().all(|now| now.peer != before.peer);
        let before = self.remembered_peers();
        let remembered: Vec<RememberedPeer> = known
            .iter()
            .chain(before.iter().filter(|before| is_new(before)))
            .take(PEERS_REMEMBERED_MAX)
            .map(|known| RememberedPeer {
                peer: known.peer.to_string(),
                addresses: known.addresses.iter().map(ToString::to_string).collect(),
            })
            .collect();
        let bytes = serde_json::to_vec_pretty(&remembered).expect("strings are serialisable");
        static TOLD: ToldOnce = ToldOnce::new();
        TOLD.look("the list of peers", write_atomically(&self.root.join("peers.json"), &bytes));
    }
}

impl Drop for DataDirectory {
    /// A new one whose run has not begun goes again: it would be no run of this machine, and nobody's to remove.
    fn drop(&mut self) {
        if !self.is_new || self.root.join("run.toml").exists() {
            return;
        }
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name());
        if names.all(|name| OF_A_START.iter().any(|ours| name == *ours)) {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

fn in_use(root: &Path) -> Failure {
    let message = format!("another daemon uses the data directory {}", root.display());
    Failure::new(ExitCode::Files, message).hint(
        "`murmur status` asks it and `murmur stop` ends it; a second node on this machine joins the first with the line that \
         `murmur ticket` prints",
    )
}

/// A run's name as the name of a folder. It is for people and may hold anything: what begins like an option, or is the name of
/// something else in the default folder, becomes another one.
fn folder_named(name: &str) -> String {
    let safe = |character: char| if character.is_alphanumeric() { character } else { '-' };
    let folder: String = name.chars().map(safe).collect();
    match folder.trim_start_matches('-') {
        "" => "run".to_owned(),
        taken if TAKEN.iter().any(|name| taken.eq_ignore_ascii_case(name)) => format!("{taken}-run"),
        free => free.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runs_folder_is_no_option_and_nothing_else_of_the_default_folder() {
        let cases = [
            ("stories", "stories"),
            ("my run/2", "my-run-2"),
            ("------evil", "evil"),
            ("local", "local-run"),
            ("-Local", "Local-run"),
            ("elsewhere", "elsewhere-run"),
            ("../..", "run"),
            ("Bücher", "Bücher"),
        ];
        cases.into_iter().for_each(|(name, folder)| assert_eq!(folder_named(name), folder));
    }

    #[test]
    fn a_directory_in_use_is_refused() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let first = DataDirectory::open(directory.path()).expect("free");
        let error = DataDirectory::open(directory.path()).expect_err("taken");
        assert!(error.to_string().contains("another daemon uses"), "{error}");
        let early = DataDirectory::check_unused(directory.path()).expect_err("taken");
        assert_eq!(early.to_string(), error.to_string());
        drop(first);
        assert!(DataDirectory::check_unused(directory.path()).is_ok());
        let not_yet = directory.path().join("not yet");
        assert!(DataDirectory::check_unused(&not_yet).is_ok() && !not_yet.exists());
        assert!(DataDirectory::check_unused(Path::new("")).is_ok());
        DataDirectory::open(directory.path()).expect("free again");
    }

    #[test]
    fn a_joiner_takes_the_first_directory_that_is_neither_in_use_nor_of_another_run() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("stories");
        let (ours, mut other) = (RunManifest::default(), RunManifest::default());
        other.run.seed = 9;
        let free = || DataDirectory::first_free(&path, ours.run_id());
        assert_eq!(free(), path);
        let used = DataDirectory::open(&path).expect("free");
        used.claim(&ours).expect("unclaimed");
        let second = folder.path().join("stories-2");
        assert_eq!(free(), second, "the founder runs in the first");
        DataDirectory::open(&second).expect("free").claim(&other).expect("unclaimed");
        assert_eq!(free(), folder.path().join("stories-3"), "the second is of another run");
        drop(used);
        assert_eq!(free(), path, "a member that comes back");
    }

    #[test]
    fn a_directory_that_a_start_has_made_goes_with_it_unless_its_run_has_begun() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let open = |name: &str| DataDirectory::open(&folder.path().join(name)).expect("free");
        let failed = open("failed");
        std::fs::write(failed.identity_path(), "key").expect("written");
        let (root, with_log, begun, there) =
            (failed.root().to_owned(), open("with log"), open("begun"), folder.path().join("there"));
        std::fs::create_dir(&there).expect("made");
        std::fs::write(with_log.root().join("log"), "why it failed").expect("written");
        begun.claim(&RunManifest::default()).expect("unclaimed");
        drop((failed, open("there"), with_log, begun));
        assert!(!root.exists());
        let stay = ["there", "with log", "begun"].map(|name| folder.path().join(name));
        assert!(stay.iter().all(|root| root.join("checkpoints").exists()));
    }

    #[test]
    fn a_directory_belongs_to_one_run() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = DataDirectory::open(directory.path()).expect("free");
        let manifest = RunManifest::default();
        data.claim(&manifest).expect("unclaimed");
        data.claim(&manifest).expect("the same run");
        let mut other = manifest;
        other.run.seed = 9;
        let error = data.claim(&other).expect_err("another run");
        assert!(error.to_string().contains("run.seed: 9 asked for, 1 in that directory"), "{error}");
        let remedy = error.downcast_ref::<Failure>().expect("a failure").remedy();
        assert!(["--data-dir", "run.name", "murmur remove "].iter().all(|way| remedy.contains(way)), "{remedy}");
    }

    #[test]
    fn a_run_file_that_cannot_be_read_is_said_to_be_damaged_or_newer() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        assert!(DataDirectory::claimed(directory.path()).expect("no failure").is_none());
        let newer = format!("{}run.not_yet_known = 1\n", RunManifest::default().canonical_text());
        for (text, advice) in [(&*newer, "update murmur"), ("run.seed = ", "backup"), ("run.seed = -1", "backup")] {
            std::fs::write(directory.path().join("run.toml"), text).expect("written");
            let failure = DataDirectory::claimed(directory.path()).expect_err("unusable");
            assert!(failure.code() == ExitCode::Files && failure.remedy().contains(advice), "{failure}");
        }
    }

    #[test]
    fn a_helpers_directory_belongs_to_no_run() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = DataDirectory::open(directory.path()).expect("free");
        data.mark_lent().expect("written");
        let error = data.claim(&RunManifest::default()).expect_err("a helper's");
        assert!(error.to_string().contains("is the data directory of a helper, whose secret a ticket would tell"));
        let failure = error.downcast_ref::<Failure>().expect("a failure");
        assert_eq!(failure.code(), ExitCode::Settings);
    }

    #[test]
    fn peers_are_remembered_and_a_damaged_list_is_forgotten() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = DataDirectory::open(directory.path()).expect("free");
        let address = Address::new("/ip4/127.0.0.1/tcp/1").expect("short");
        let known = |key| KnownPeer { peer: PeerId::from_public_key([key; 32]), addresses: vec![address.clone()] };
        data.remember_peers(&[known(5), known(6)]);
        assert_eq!(data.remembered_peers(), [known(5), known(6)]);
        data.remember_peers(&[]);
        assert_eq!(data.remembered_peers(), [known(5), known(6)], "all have left, and may come back");
        data.remember_peers(&[known(7), known(6)]);
        assert_eq!(data.remembered_peers(), [known(7), known(6), known(5)], "those that are known now come first");
        std::fs::write(directory.path().join("peers.json"), b"[{").expect("written");
        assert_eq!(data.remembered_peers(), []);
    }
}

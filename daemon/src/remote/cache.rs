//! What has been loaded stays on this machine, in the layout of the Hugging Face hub's own cache, for all three kinds of
//! places: `blobs` hold contents, `snapshots/ID` is a folder of links to them under their names, `refs/NAME` holds the ID of
//! the newest snapshot. So nothing is loaded twice, a snapshot never changes while somebody reads it, and models that
//! Python's `huggingface_hub` has loaded serve here, and the other way round.
//!
//! `listings/ID.json` is ours: which files a snapshot has, so that without a network a part is not taken for the whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::trouble::Trouble;
use crate::store::write_atomically;

/// The variables that say where caches are, but for `HOME`.
pub(crate) const CACHE_VARIABLES: [&str; 3] = ["XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"];

/// All of them.
pub(crate) fn caches() -> [PathBuf; 2] {
    [own_root(), hub_root()]
}

/// What is loaded of the web and of buckets, and what is known of the hub's repositories.
pub(crate) fn own_root() -> PathBuf {
    let base = variable("XDG_CACHE_HOME")
        .or_else(|| variable("LOCALAPPDATA").filter(|_| cfg!(windows)))
        .or_else(|| {
            variable("HOME").map(|home| home.join(if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" }))
        })
        .unwrap_or_else(|| PathBuf::from(".cache"));
    base.join("murmur").join("remote")
}

/// The hub's own cache, as its libraries find it: `HF_HUB_CACHE`, `HF_HOME/hub`, `~/.cache/huggingface/hub`.
pub(crate) fn hub_root() -> PathBuf {
    variable("HF_HUB_CACHE").unwrap_or_else(|| hub_home().join("hub"))
}

/// Where the hub's libraries keep what is the user's.
pub(crate) fn hub_home() -> PathBuf {
    let cache = || {
        variable("XDG_CACHE_HOME")
            .or_else(|| variable("HOME").or_else(|| variable("USERPROFILE")).map(|home| home.join(".cache")))
            .unwrap_or_else(|| PathBuf::from(".cache"))
    };
    variable("HF_HOME").unwrap_or_else(|| cache().join("huggingface"))
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its content's name among the blobs.
    pub(crate) blob: String,
    /// Bytes.
    pub(crate) bytes: u64,
    /// The store's validator, or whose hash the blob's name is; may be empty.
    #[serde(default)]
    pub(crate) tag: String,
}

/// The files of a snapshot, by path.
pub(crate) type Listing = BTreeMap<String, Entry>;

/// One place in a cache.
#[derive(Clone, Debug)]
pub(crate) struct Repository {
    root: PathBuf,
    locks: PathBuf,
    listings: PathBuf,
    /// Whether each content has a lock of its own, as Python's library has it; else one is for all.
    pub(crate) locks_each: bool,
}

impl Repository {
    /// A place of the web or of a bucket, by a name that no other has.
    pub(crate) fn own(kind: &str, name: &str) -> Repository {
        let root = own_root().join(kind).join(name);
        Repository { locks: root.join("locks"), listings: root.join("listings"), root, locks_each: false }
    }

    /// A repository of the hub: `models--OWNER--NAME` or `datasets--OWNER--NAME`.
    pub(crate) fn hub(folder: &str) -> Repository {
        let base = hub_root();
        let listings = own_root().join("hub").join(folder);
        Repository { root: base.join(folder), locks: base.join(".locks").join(folder), listings, locks_each: true }
    }

    /// The folder of a snapshot.
    pub(crate) fn snapshot(&self, id: &str) -> PathBuf {
        self.root.join("snapshots").join(id)
    }

    /// The file of a content.
    pub(crate) fn blob(&self, name: &str) -> PathBuf {
        self.root.join("blobs").join(name)
    }

    /// The file of a content that is still coming.
    pub(crate) fn incomplete(&self, name: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{name}.incomplete"))
    }

    /// Makes the folders.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn prepare(&self) -> Result<(), Trouble> {
        let folders = [self.root.join("blobs"), self.locks.clone(), self.listings.clone()];
        folders.iter().try_for_each(|folder| std::fs::create_dir_all(folder).map_err(|error| unwritten(folder, error)))
    }

    /// Where the place's contents go.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Waits until nobody else on this machine loads this content: a second daemon then finds it. The lock ends with the
    /// process, however it ends.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn lock(&self, name: &str, waits: impl FnOnce()) -> Result<File, Trouble> {
        let path = self.locks.join(format!("{name}.lock"));
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(|error| unwritten(&path, error))?;
        if lock.try_lock().is_err() {
            waits();
            lock.lock().map_err(|error| unwritten(&path, error))?;
        }
        Ok(lock)
    }

    /// The newest snapshot under this name, where there is one.
    pub(crate) fn reference(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join("refs").join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|id| super::names::is_safe(id))
    }

    /// Names a snapshot the newest.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn refer(&self, name: &str, id: &str) -> Result<(), Trouble> {
        let path = self.root.join("refs").join(name);
        let written = std::fs::create_dir_all(path.parent().unwrap_or(&path)).and_then(|()| {
            if std::fs::read_to_string(&path).is_ok_and(|known| known == id) {
                Ok(())
            } else {
                write_atomically(&path, id.as_bytes())
            }
        });
        written.map_err(|error| unwritten(&path, error))
    }

    /// The files of a snapshot, as they were listed.
    pub(crate) fn listing(&self, id: &str) -> Option<Listing> {
        serde_json::from_slice(&std::fs::read(self.listings.join(format!("{id}.json"))).ok()?).ok()
    }

    /// Keeps a listing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn keep_listing(&self, id: &str, listing: &Listing) -> Result<(), Trouble> {
        let path = self.listings.join(format!("{id}.json"));
        let text = serde_json::to_vec(listing).expect("names and numbers are serialisable");
        write_atomically(&path, &text).map_err(|error| unwritten(&path, error))
    }

    /// Whether a file of a snapshot is there whole.
    pub(crate) fn has(&self, id: &str, path: &str, entry: &Entry) -> bool {
        let found = std::fs::metadata(self.snapshot(id).join(path));
        found.is_ok_and(|found| found.is_file() && found.len() == entry.bytes)
    }

    /// Puts a content under its name into a snapshot: a link, or a copy where the system makes no links.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn put(&self, id: &str, path: &str, blob: &str) -> Result<(), Trouble> {
        let (to, content) = (self.snapshot(id).join(path), self.blob(blob));
        let folder = to.parent().unwrap_or(&to);
        let written = std::fs::create_dir_all(folder).and_then(|()| {
            let _ = std::fs::remove_file(&to);
            let up = "../".repeat(2 + path.matches('/').count());
            link(&Path::new(&up).join("blobs").join(blob), &to).or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()), // another process was as quick
                _ => std::fs::copy(&content, &to).map(drop),
            })
        });
        written.map_err(|error| unwritten(&to, error))
    }
}

#[cfg(unix)]
fn link(content: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(content, to)
}

#[cfg(not(unix))]
fn link(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// What keeps a file from being written.
pub(crate) fn unwritten(path: &Path, error: io::Error) -> Trouble {
    Trouble::Write { path: path.to_owned(), error }
}

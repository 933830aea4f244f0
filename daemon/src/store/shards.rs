//! The shards of shared data that a node has fetched: `shards/<hash>`, and `shards/<hash>.part` while one arrives.
//!
//! A file gets its final name only when its bytes have the hash that the name says, flushed; so it is there whole or
//! not at all. The same is asked again when it is loaded: what has changed on disk meanwhile is put out and fetched anew.
//! Shards are mapped, so that a node may hold more of them than it has memory.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use murmur_protocol::Payload;
use murmur_protocol::shards::ShardHash;
use murmur_training::data::files::content_of;

use super::{free_bytes, sync_directory};

/// The folder of shards.
#[derive(Clone, Debug)]
pub struct ShardStore {
    folder: PathBuf,
    /// Bytes that are left free for others.
    kept_free: u64,
}

/// Why a shard cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ShardStoreError {
    /// The system says so.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// Its bytes are not those that its name says.
    #[error("{0} has changed on disk (its BLAKE3 differs from its name)")]
    Changed(PathBuf),
}

/// A shard on its way to the disk.
#[derive(Debug)]
pub struct PartialShard {
    store: ShardStore,
    hash: ShardHash,
    file: File,
    bytes: u64,
}

impl ShardStore {
    /// The store in this folder, created where it is missing.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn open(folder: PathBuf) -> Result<ShardStore, ShardStoreError> {
        match std::fs::create_dir_all(&folder) {
            Ok(()) => Ok(ShardStore::existing(folder)),
            Err(error) => Err(ShardStoreError::Io(folder, error)),
        }
    }

    /// The store in a folder that only a daemon creates.
    pub fn existing(folder: PathBuf) -> ShardStore {
        ShardStore { folder, kept_free: 0 }
    }

    /// The same that leaves so many bytes of the disk free: checkpoints go before shards.
    pub fn keeping_free(self, bytes: u64) -> ShardStore {
        ShardStore { kept_free: bytes, ..self }
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Loads a shard and compares it with its hash; `None` where there is none.
    ///
    /// # Errors
    /// When it cannot be read, or has changed on disk.
    pub fn load(&self, hash: &ShardHash) -> Result<Option<Payload>, ShardStoreError> {
        let path = self.path(hash);
        let bytes = match content_of(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ShardStoreError::Io(path, error)),
        };
        if ShardHash::of(&bytes) != *hash {
            return Err(ShardStoreError::Changed(path));
        }
        Ok(Some(bytes.into()))
    }

    /// Puts a shard out that has changed.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, hash: &ShardHash) -> Result<(), ShardStoreError> {
        let path = self.path(hash);
        std::fs::remove_file(&path).map_err(|error| ShardStoreError::Io(path, error))
    }

    /// Begins a shard, or goes on with what has arrived of it, unless `afresh`. Never with more than `length` bytes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin(&self, hash: ShardHash, length: u64, afresh: bool) -> io::Result<PartialShard> {
        let path = self.partial_path(&hash);
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        let mut file = options.open(&path)?;
        let mut bytes = file.metadata()?.len();
        if afresh || bytes > length {
            file.set_len(0)?;
            file.flush()?;
            bytes = 0;
        }
        Ok(PartialShard { store: self.clone(), hash, file, bytes })
    }

    /// Removes what has arrived of these.
    pub fn give_up(&self, hashes: &[ShardHash]) {
        for hash in hashes {
            let _ = std::fs::remove_file(self.partial_path(hash));
        }
    }

    fn path(&self, hash: &ShardHash) -> PathBuf {
        self.folder.join(hash.to_string())
    }

    fn partial_path(&self, hash: &ShardHash) -> PathBuf {
        self.folder.join(format!("{hash}.part"))
    }
}

impl PartialShard {
    /// Bytes that have arrived.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the room for all of a shard of this length, before anybody is asked for it: what does not fit would come in vain.
    ///
    /// # Errors
    /// When there is none. A file that holds nothing goes then.
    pub fn take_room(self, length: u64) -> io::Result<PartialShard> {
        let free = free_bytes(&self.store.folder);
        self.take_room_of(free, length)
    }

    /// The same where so many bytes of the disk are free, where they are known.
    fn take_room_of(self, free: Option<u64>, length: u64) -> io::Result<PartialShard> {
        // An earlier try that broke off may have taken it already.
        let taken = self.file.metadata().map_or(0, |metadata| taken_by(&metadata)).max(self.bytes);
        let needed = length.saturating_sub(taken) + self.store.kept_free;
        let has_room = free.is_none_or(|free| free >= needed);
        let taken = if has_room { allocate(&self.file, length) } else { Err(rustix::io::Errno::NOSPC.into()) };
        match taken {
            Ok(()) => Ok(self),
            Err(error) => {
                let _ = self.file.set_len(self.bytes);
                if self.bytes == 0 {
                    self.discard();
                }
                Err(error)
            }
        }
    }

    /// Appends what has arrived.
    ///
    /// # Errors
    /// When the disk is full or fails. What could not be written whole is taken back.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Puts the whole shard in its place and gives its bytes; `None` where they have another hash, and then nothing of
    /// them is kept.
    ///
    /// # Errors
    /// When the disk fails; what has arrived is kept.
    pub fn complete(self) -> io::Result<Option<Payload>> {
        let PartialShard { store, hash, file, .. } = self;
        let partial = store.partial_path(&hash);
        let bytes = content_of(&partial)?;
        if ShardHash::of(&bytes) != hash {
            std::fs::remove_file(&partial)?;
            return Ok(None);
        }
        file.sync_all()?;
        std::fs::rename(&partial, store.path(&hash))?;
        sync_directory(&store.folder)?;
        Ok(Some(bytes.into()))
    }

    /// Removes what has arrived.
    pub fn discard(self) {
        let _ = std::fs::remove_file(self.store.partial_path(&self.hash));
    }
}

/// Bytes of the disk that a file has, which may be more than it holds.
#[cfg(unix)]
fn taken_by(metadata: &Metadata) -> u64 {
    // In blocks of 512 bytes, whatever those of the file system are.
    512 * std::os::unix::fs::MetadataExt::blocks(metadata)
}

#[cfg(not(unix))]
fn taken_by(metadata: &Metadata) -> u64 {
    metadata.len()
}

/// Takes the blocks of a file that is to have so many bytes, which it does not have yet. Where the file system cannot, nothing is
/// taken.
#[cfg(target_os = "linux")]
fn allocate(file: &File, length: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, length.max(1)) {
        Err(error) if error == rustix::io::Errno::NOSPC => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(directory: &tempfile::TempDir) -> ShardStore {
        ShardStore::open(directory.path().join("shards")).expect("a temporary directory")
    }

    fn names(store: &ShardStore) -> Vec<String> {
        let entries = std::fs::read_dir(store.folder()).expect("there").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_has_no_room_is_known_before_it_comes_and_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let store = store(&folder);
        let hash = ShardHash::of(b"shard");
        let begin = |store: &ShardStore| store.begin(hash, 5, false).expect("writable");
        let full = store.clone().keeping_free(1 << 60);
        assert_eq!(begin(&full).take_room(5).expect_err("an exabyte").kind(), io::ErrorKind::StorageFull);
        assert!(names(&store).is_empty());
        let mut partial = begin(&store).take_room(5).expect("five bytes");
        partial.write(b"sha").expect("room");
        assert_eq!(begin(&full).take_room(5).expect_err("an exabyte").kind(), io::ErrorKind::StorageFull);
        let mut partial = begin(&store).take_room(5).expect("two bytes");
        assert_eq!(partial.bytes(), 3, "what has come stays");
        partial.write(b"rd").expect("room");
        assert!(partial.complete().expect("written").is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn room_that_was_taken_before_a_break_is_not_asked_for_again() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (store, length) = (store(&folder), 1 << 20);
        let begin = || store.begin(ShardHash::of(b"shard"), length, false).expect("writable");
        let mut partial = begin().take_room_of(Some(length), length).expect("a megabyte");
        partial.write(b"sha").expect("room");
        if taken_by(&partial.file.metadata().expect("there")) < length {
            println!("skipped: this file system takes no room for what comes later");
            return;
        }
        drop(partial);
        assert_eq!(begin().take_room_of(Some(0), length).expect("it has its room").bytes(), 3);
        let full = store.clone().keeping_free(1);
        let refused =
            full.begin(ShardHash::of(b"shard"), length, false).expect("writable").take_room_of(Some(0), length);
        assert_eq!(refused.expect_err("checkpoints go before").kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_shard_goes_on_where_it_stopped_and_is_there_only_when_whole() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (store, hash) = (store(&directory), ShardHash::of(b"murmuration"));
        let mut partial = store.begin(hash, 11, false).expect("writable");
        partial.write(b"murmu").expect("writable");
        drop(partial);
        assert!(store.load(&hash).expect("readable").is_none());
        let mut partial = store.begin(hash, 11, false).expect("writable");
        assert_eq!(partial.bytes(), 5);
        partial.write(b"ration").expect("writable");
        assert_eq!(partial.complete().expect("written"), Some(b"murmuration".to_vec().into()));
        assert_eq!(store.load(&hash).expect("readable"), Some(b"murmuration".to_vec().into()));
        assert_eq!(names(&store), [hash.to_string()]);
    }

    #[test]
    fn wrong_bytes_leave_nothing() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (store, hash) = (store(&directory), ShardHash::of(b"murmuration"));
        let mut partial = store.begin(hash, 11, false).expect("writable");
        partial.write(b"murmuratiOn").expect("writable");
        assert_eq!(partial.complete().expect("compared"), None);
        let mut partial = store.begin(hash, 11, false).expect("writable");
        assert_eq!(partial.bytes(), 0);
        partial.write(b"murmur").expect("writable");
        assert_eq!(store.begin(hash, 11, true).expect("writable").bytes(), 0);
        store.begin(hash, 11, false).expect("writable").discard();
        assert_eq!(names(&store), Vec::<String>::new());
    }

    #[test]
    fn a_shard_that_changed_on_disk_is_named_and_put_out() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (store, hash) = (store(&directory), ShardHash::of(b"murmuration"));
        let mut partial = store.begin(hash, 11, false).expect("writable");
        partial.write(b"murmuration").expect("writable");
        partial.complete().expect("written");
        std::fs::write(store.folder().join(hash.to_string()), b"murmuratioM").expect("writable");
        let error = store.load(&hash).expect_err("changed").to_string();
        assert!(error.contains(&hash.to_string()) && error.contains("changed on disk"), "{error}");
        store.remove(&hash).expect("writable");
        assert!(store.load(&hash).expect("gone").is_none());
    }
}

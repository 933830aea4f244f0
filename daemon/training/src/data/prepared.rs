//! Data in the form that training reads, written once and mapped: tokens of texts, pixels of decoded images.
//!
//! A file is named by all that it follows from (the sources with their length and time of change, and the run's
//! settings), written under a temporary name and renamed: what is there is whole, and several nodes may share a folder.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use super::CorpusError;
use super::files::map;

/// Changes with the format of the files, so that those of older versions are written anew.
const VERSION: &[u8] = b"murmur prepared data 1";

/// What names a prepared file.
pub(super) struct Key(blake3::Hasher);

impl Key {
    pub(super) fn new(kind: &str) -> Key {
        let mut key = Key(blake3::Hasher::new());
        key.0.update(VERSION);
        key.add(kind.as_bytes());
        key
    }

    pub(super) fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes()).update(part);
    }

    /// A source by its path, length and time of change.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub(super) fn add_file(&mut self, path: &Path) -> Result<(), CorpusError> {
        let unreadable = |source| CorpusError::Unreadable { path: path.to_owned(), source };
        let metadata = path.metadata().map_err(unreadable)?;
        let changed =
            metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        self.add(path.canonicalize().map_err(unreadable)?.as_os_str().as_encoded_bytes());
        self.add(&metadata.len().to_le_bytes());
        self.add(&changed.as_nanos().to_le_bytes());
        Ok(())
    }

    fn name(&self) -> String {
        self.0.finalize().to_hex()[..32].to_owned()
    }
}

/// The file of this key in `folder`, written by `write` where it is not there yet, which is told the folder that the file lies in
/// meanwhile. Without a folder it is a temporary file that ends with the process.
///
/// # Errors
/// Those of `write`, and a disk that is full or not writable.
pub(super) fn open_or_write(
    folder: Option<&Path>,
    key: &Key,
    write: impl FnOnce(&mut BufWriter<File>, &Path) -> Result<(), CorpusError>,
) -> Result<Bytes, CorpusError> {
    let place = folder.map_or_else(std::env::temp_dir, Path::to_owned);
    let path = folder.map(|folder| folder.join(key.name()));
    if let Some(path) = path.as_ref().filter(|path| path.exists()) {
        return File::open(path).and_then(|file| map(&file)).map_err(|error| unwritable(path, error));
    }
    if folder.is_some() {
        std::fs::create_dir_all(&place).map_err(|error| unwritable(&place, error))?;
    }
    let temporary = tempfile::NamedTempFile::new_in(&place).map_err(|error| unwritable(&place, error))?;
    let mut writer = BufWriter::new(temporary.reopen().map_err(|error| unwritable(&place, error))?);
    write(&mut writer, &place)?;
    let file = writer.into_inner().map_err(|error| unwritable(&place, error.into_error()))?;
    if let Some(path) = path {
        file.sync_all().map_err(|error| unwritable(&place, error))?;
        temporary.persist(path).map_err(|error| unwritable(&place, error.error))?;
    }
    map(&file).map_err(|error| unwritable(&place, error))
}

pub(super) fn unwritable(path: impl Into<PathBuf>, source: std::io::Error) -> CorpusError {
    CorpusError::CacheUnwritable { path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_is_written_once_and_a_changed_source_writes_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("source");
        let cache = folder.path().join("cache");
        let mut written = 0;
        let mut open = |content: &str| {
            std::fs::write(&source, content).expect("written");
            let mut key = Key::new("test");
            key.add_file(&source).expect("there");
            let bytes = open_or_write(Some(&cache), &key, |file, place| {
                written += 1;
                assert_eq!(place, cache);
                file.write_all(b"prepared").map_err(|error| unwritable("here", error))
            });
            assert_eq!(bytes.expect("prepared"), "prepared");
            written
        };
        assert_eq!(open("one"), 1);
        assert_eq!(open("another"), 2);
        let names = |cache: &Path| std::fs::read_dir(cache).expect("a folder").count();
        assert_eq!(names(&cache), 2);
        let key = Key::new("failing");
        assert!(open_or_write(Some(&cache), &key, |_, _| Err(CorpusError::NoFiles)).is_err());
        assert_eq!(names(&cache), 2, "what failed leaves nothing behind");
    }
}

//! Data in the form that training reads, written once and mapped: tokens of texts, pixels of decoded images.
//!
//! A file is named by all that it follows from (the sources with their length and time of change, and the run's
//! settings), written under a temporary name and renamed, so several nodes may share a folder. Its length stands at its end, and one
//! that does not fit it is written anew.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::CorpusError;
use super::files::map;

/// Changes with the format of the files, so that those of older versions are written anew.
const VERSION: &[u8] = b"murmur prepared data 2";

/// At the end of a file stands the length of what is before it.
const LENGTH_BYTES: usize = 8;

/// Letters of a file's name.
const NAME_LETTERS: usize = 32;

/// How the names of files begin that are being written.
const TEMPORARY: &str = ".tmp";

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
        let unreadable = |source| CorpusError::Unreadable(path.to_owned(), source);
        let metadata = path.metadata().map_err(unreadable)?;
        let changed =
            metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        self.add(path.canonicalize().map_err(unreadable)?.as_os_str().as_encoded_bytes());
        self.add(&metadata.len().to_le_bytes());
        self.add(&changed.as_nanos().to_le_bytes());
        Ok(())
    }

    fn name(&self) -> String {
        self.0.finalize().to_hex()[..NAME_LETTERS].to_owned()
    }
}

/// The content of the file of this key in `folder`, written by `write` where it is not there whole, which is told the folder that the
/// file lies in meanwhile. Without a folder it is a temporary file that ends with the process.
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
    if let Some(path) = &path
        && let Some(content) = reopened(path).map_err(|error| unwritable(path, error))?
    {
        return Ok(content);
    }
    if folder.is_some() {
        std::fs::create_dir_all(&place).map_err(|error| unwritable(&place, error))?;
    }
    let temporary =
        tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&place).map_err(|error| unwritable(&place, error))?;
    // So that nobody takes it for one that a killed process has left.
    let _ = temporary.as_file().try_lock();
    let mut writer = BufWriter::new(temporary.reopen().map_err(|error| unwritable(&place, error))?);
    write(&mut writer, &place)?;
    end_with_length(&mut writer).map_err(|error| unwritable(&place, error))?;
    let file = writer.into_inner().map_err(|error| unwritable(&place, error.into_error()))?;
    if let Some(path) = path {
        file.sync_all().map_err(|error| unwritable(&place, error))?;
        temporary.persist(path).map_err(|error| unwritable(&place, error.error))?;
    }
    let content = map(&file).map_err(|error| unwritable(&place, error))?;
    Ok(content.slice(..content.len() - LENGTH_BYTES))
}

/// The content of a file that was written before; `None` where there is none, or it is damaged. Its time of change says from now on
/// that it is used.
fn reopened(path: &Path) -> std::io::Result<Option<Bytes>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // Not that of another user's in a shared folder.
    let _ = file.set_modified(SystemTime::now());
    let written = map(&file)?;
    let Some((content, length)) = written.split_last_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let is_whole = u64::from_le_bytes(*length) == content.len() as u64;
    Ok(is_whole.then(|| written.slice(..content.len())))
}

fn end_with_length(writer: &mut BufWriter<File>) -> std::io::Result<()> {
    let length = writer.seek(SeekFrom::End(0))?;
    writer.write_all(&length.to_le_bytes())
}

/// Removes from a folder that no other node uses what killed processes have left, and the files that were last written or used before
/// `time`.
pub fn clear_prepared(folder: &Path, time: SystemTime) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let is_prepared = name.len() == NAME_LETTERS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_old = || entry.metadata().and_then(|found| found.modified()).is_ok_and(|changed| changed < time);
        let is_written = || File::open(&path).is_ok_and(|file| file.try_lock().is_err());
        if (name.starts_with(TEMPORARY) && !is_written()) || (is_prepared && is_old()) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

pub(super) fn unwritable(path: impl Into<PathBuf>, source: std::io::Error) -> CorpusError {
    CorpusError::CacheUnwritable(path.into(), source)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    #[test]
    fn a_damaged_file_is_written_anew_and_what_is_not_used_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut written = 0;
        let mut open = |kind: &str| {
            let bytes = open_or_write(Some(folder.path()), &Key::new(kind), |file, _| {
                written += 1;
                // The header comes last, as in files of tokens.
                file.write_all(b"????ared").and_then(|()| file.rewind()).expect("written");
                file.write_all(b"prep").map_err(|error| unwritable("here", error))
            });
            assert_eq!(bytes.expect("prepared"), "prepared");
            written
        };
        assert_eq!((open("one"), open("one")), (1, 1));
        let path = folder.path().join(Key::new("one").name());
        let whole = std::fs::read(&path).expect("there");
        let damaged = [&[][..], &whole[..5], &whole[..whole.len() - 3], &[0; 16], &[&whole[..], &whole[..1]].concat()];
        for (index, damaged) in damaged.into_iter().enumerate() {
            std::fs::write(&path, damaged).expect("written");
            assert_eq!((open("one"), open("one")), (2 + index, 2 + index));
        }
        // Of data that the node had before, of a killed process, and somebody's.
        open("two");
        let (other, notes) = (folder.path().join(Key::new("two").name()), folder.path().join("notes"));
        std::fs::write(folder.path().join(".tmpAbCdEf"), "").expect("written");
        std::fs::write(&notes, "").expect("written");
        let hour_ago = SystemTime::now() - Duration::from_hours(1);
        for old in [&path, &other, &notes] {
            File::open(old).and_then(|file| file.set_modified(hour_ago)).expect("set");
        }
        open("one");
        // Of a command that evaluates the model on other data meanwhile.
        let under_way = folder.path().join(".tmpUnderWay");
        let lock = File::create(&under_way).expect("made");
        lock.lock().expect("free");
        clear_prepared(folder.path(), SystemTime::now() - Duration::from_mins(1));
        let mut left: Vec<PathBuf> =
            std::fs::read_dir(folder.path()).expect("there").map(|entry| entry.expect("readable").path()).collect();
        left.sort();
        let mut expected = [under_way, notes, path];
        expected.sort();
        assert_eq!(left, expected);
    }
}

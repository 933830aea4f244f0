//! Files of the user's, mapped into memory: a corpus may be larger than memory.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use memmap2::Mmap;
use murmur_protocol::manifest::DataSource;

use super::CorpusError;
use super::folders::list_files;
use crate::regular;

/// Smaller files are read as they are: 65,530 of them may be mapped on Linux, and folders can hold more. A guess.
const MAPPED_BYTES_MIN: u64 = 64 << 10;

/// The content of a user's file.
///
/// # Errors
/// When it cannot be read or is empty.
pub fn map_file(path: &Path) -> Result<Bytes, CorpusError> {
    let content = content_of(path).map_err(|source| CorpusError::Unreadable(path.to_owned(), source))?;
    if content.is_empty() { Err(CorpusError::Empty(path.to_owned())) } else { Ok(content) }
}

/// A file's content: mapped, or read where it is small, since systems limit how many files a process maps.
///
/// # Errors
/// When it cannot be read.
pub fn content_of(path: &Path) -> std::io::Result<Bytes> {
    let file = regular::open(path)?;
    match file.metadata()?.len() {
        0..MAPPED_BYTES_MIN => std::fs::read(path).map(Bytes::from),
        _ => map(&file),
    }
}

/// BLAKE3 of the content of files and folders, one after the other, as a run of this source reads them.
///
/// # Errors
/// As [`list`](super::folders::list) and [`map_file`].
pub fn digest_of(source: DataSource, paths: &[PathBuf]) -> Result<blake3::Hash, CorpusError> {
    let mut hasher = blake3::Hasher::new();
    for path in list_files(source, paths)? {
        hasher.update(&map_file(&path)?);
    }
    Ok(hasher.finalize())
}

pub(super) fn map(file: &File) -> std::io::Result<Bytes> {
    // SAFETY: the bytes are only read, and any value is valid for them. A user who shortens a file while it is trained
    // on ends the process (SIGBUS), which says so; larger-than-memory data has no other way, and a restart resumes.
    let mapped = unsafe { Mmap::map(file)? };
    Ok(Bytes::from_owner(mapped))
}

/// Bytes of several files, one after the other.
#[derive(Clone)]
pub struct JoinedFiles {
    /// Each file with where it begins.
    files: Vec<(usize, Bytes)>,
    length: usize,
}

impl JoinedFiles {
    /// The text files and folders at `paths`, in order.
    ///
    /// # Errors
    /// As [`list`](super::folders::list) and [`map_file`].
    pub fn open(paths: &[PathBuf]) -> Result<JoinedFiles, CorpusError> {
        let files =
            list_files(DataSource::Files, paths)?.iter().map(|path| map_file(path)).collect::<Result<Vec<_>, _>>()?;
        Ok(JoinedFiles::of(files))
    }

    /// Contents that are here already.
    pub fn of(contents: impl IntoIterator<Item = Bytes>) -> JoinedFiles {
        let mut joined = JoinedFiles { files: Vec::new(), length: 0 };
        for content in contents {
            joined.files.push((joined.length, content.clone()));
            joined.length += content.len();
        }
        joined
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A copy of a range; `None` beyond the end.
    pub fn read(&self, range: Range<usize>) -> Option<Vec<u8>> {
        if range.end > self.length {
            return None;
        }
        let mut bytes = Vec::with_capacity(range.len());
        let first = self.files.partition_point(|(start, _)| *start <= range.start).saturating_sub(1);
        for (start, content) in &self.files[first..] {
            let from = (range.start + bytes.len()).saturating_sub(*start).min(content.len());
            let to = range.end.saturating_sub(*start).min(content.len());
            bytes.extend_from_slice(&content[from..to]);
            if bytes.len() == range.len() {
                break;
            }
        }
        Some(bytes)
    }

    /// BLAKE3 of all bytes.
    pub fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (_, content) in &self.files {
            hasher.update(content);
        }
        hasher.finalize()
    }

    /// All bytes in one piece: without a copy where there is one file.
    pub fn into_bytes(self) -> Bytes {
        match self.files.as_slice() {
            [(_, content)] => content.clone(),
            files => files.iter().flat_map(|(_, content)| content.iter().copied()).collect::<Vec<u8>>().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_files_are_read_like_one() {
        let whole: Vec<u8> = (0..100).collect();
        let joined =
            JoinedFiles::of([&whole[..10], &whole[10..11], &whole[11..60], &whole[60..]].map(Bytes::copy_from_slice));
        for start in 0..=100 {
            for end in start..=100 {
                assert_eq!(joined.read(start..end).as_deref(), Some(&whole[start..end]));
            }
        }
        assert_eq!(joined.read(90..101), None);
        assert_eq!(joined.digest(), blake3::hash(&whole));
        assert_eq!(joined.into_bytes(), whole);
    }
}

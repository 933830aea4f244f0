//! What a named data file is, by its first bytes or its name, where a run on texts would learn the file's syntax instead of the texts
//! in it; and what to do about it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// First bytes that are looked at: the longest mark, that of Parquet.
const MARK_BYTES: u64 = 4;

/// A kind of file that is no plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataKind {
    /// An object with a text in each line, compressed or not.
    JsonLines,
    /// Columns with commas or tabs between them, compressed or not.
    Table,
    /// Columns in the format of Apache Parquet.
    Parquet,
    /// What gzip has made of anything else.
    Compressed,
    /// Text in UTF-16, as some editors on Windows write it.
    Utf16,
}

impl DataKind {
    /// All kinds, in the order in which they are told.
    pub(crate) const ALL: [DataKind; 5] =
        [DataKind::JsonLines, DataKind::Table, DataKind::Parquet, DataKind::Compressed, DataKind::Utf16];

    /// The kind of a file; `None` where nothing speaks against plain text, or it cannot be read.
    pub(crate) fn of(path: &Path) -> Option<DataKind> {
        // The opening of a pipe would wait for somebody who writes into it.
        if !path.is_file() {
            return None;
        }
        let mut mark = Vec::new();
        File::open(path).and_then(|file| file.take(MARK_BYTES).read_to_end(&mut mark)).ok()?;
        match &mark[..] {
            [] => None,
            [b'P', b'A', b'R', b'1'] => Some(DataKind::Parquet),
            // Such as a.jsonl.gz.
            [0x1f, 0x8b, ..] => {
                Some(path.file_stem().and_then(|name| by_name(Path::new(name))).unwrap_or(DataKind::Compressed))
            }
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some(DataKind::Utf16),
            _ => by_name(path),
        }
    }

    /// What it looks like.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DataKind::JsonLines => "JSON Lines",
            DataKind::Table => "a table",
            DataKind::Parquet => "Parquet",
            DataKind::Compressed => "gzip-compressed data",
            DataKind::Utf16 => "text in UTF-16",
        }
    }

    /// How what is in it is read.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            DataKind::JsonLines => {
                "with data.source = \"json-lines\" the run file (`murmur init` writes one) reads its texts, from data.field"
            }
            DataKind::Table => {
                "configs/runs/table.toml trains a model that predicts a column of it (data.source = \"table\")"
            }
            DataKind::Parquet => {
                "with data.source = \"parquet\" the run file (`murmur init` writes one) reads its texts, from data.field"
            }
            DataKind::Compressed => "gunzip it first",
            DataKind::Utf16 => {
                "as UTF-8 it is half as long and its letters are learned better: iconv -f UTF-16 -t UTF-8"
            }
        }
    }
}

fn by_name(path: &Path) -> Option<DataKind> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    match ending.as_str() {
        "jsonl" | "ndjson" => Some(DataKind::JsonLines),
        "csv" | "tsv" => Some(DataKind::Table),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_first_bytes_or_its_name() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let kind = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).expect("written");
            DataKind::of(&path)
        };
        assert_eq!(kind("a.jsonl", b"{\"text\": \"a\"}\n"), Some(DataKind::JsonLines));
        assert_eq!(kind("a.jsonl.gz", b"\x1f\x8b\x08\0"), Some(DataKind::JsonLines));
        assert_eq!(kind("one.txt.gz", b"\x1f\x8b\x08\0"), Some(DataKind::Compressed));
        assert_eq!(kind("T.CSV", b"a,b\n"), Some(DataKind::Table));
        assert_eq!(kind("any", b"PAR1\x15\x04"), Some(DataKind::Parquet));
        assert_eq!(kind("windows.txt", b"\xff\xfea\0"), Some(DataKind::Utf16));
        assert_eq!(kind("a.txt", b"{\"text\": \"a\"}\n"), None);
        assert_eq!(kind("empty.csv", b""), None);
        assert_eq!(DataKind::of(&folder.path().join("absent.csv")), None);
        assert!(DataKind::ALL.iter().all(|kind| !kind.name().is_empty() && !kind.remedy().is_empty()));
    }
}

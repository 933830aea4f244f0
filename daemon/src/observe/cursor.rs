//! Reading a journal that grows, bit by bit, and going on from there in another process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::journal::{LINE_BYTES_MAX, files};
use super::record::Record;

/// A place in a journal. The default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The number of the last record that was read. It alone decides what is read next; the rest says where to look.
    pub seq: u64,
    /// The number of the file in which the next record is looked for.
    pub file: u64,
    /// Bytes of that file that have been read.
    pub offset: u64,
}

/// The next records of the journal in a folder, at most a megabyte of them, and the place behind them. None are left where the
/// place is the same. Of files that are gone nothing is told: numbers are left out.
///
/// # Errors
/// When a file that is there cannot be read.
pub fn after(folder: &Path, cursor: &Cursor) -> io::Result<(Vec<Record>, Cursor)> {
    // Files that are there before one is read: where there is a later one, this one grows no more.
    let files = files(folder);
    let Some((number, path)) = files.iter().find(|(number, _)| *number >= cursor.file) else {
        return Ok((Vec::new(), *cursor));
    };
    let mut file = File::open(path)?;
    let offset = if *number == cursor.file { cursor.offset } else { 0 };
    // Another journal under the same name is read from its beginning.
    let offset = if offset > file.metadata()?.len() { 0 } else { offset };
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(LINE_BYTES_MAX).read_to_end(&mut bytes)?;
    let is_cut_off = bytes.len() as u64 == LINE_BYTES_MAX;
    let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(last) => last + 1,
        // No line of ours is so long.
        None if is_cut_off => bytes.len(),
        None => 0,
    };
    let mut next = Cursor { seq: cursor.seq, file: *number, offset: offset + whole as u64 };
    let mut records = Vec::new();
    for line in bytes[..whole].split(|byte| *byte == b'\n') {
        let record = std::str::from_utf8(line).ok().and_then(Record::parse);
        // Each file repeats the first record of its process.
        if let Some(record) = record.filter(|record| record.seq > next.seq) {
            next.seq = record.seq;
            records.push(record);
        }
    }
    if whole == 0
        && !is_cut_off
        && let Some((later, _)) = files.iter().find(|(later, _)| later > number)
    {
        next = Cursor { file: *later, offset: 0, ..next };
    }
    Ok((records, next))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::observe::record::{Body, EventFacts, VERSION};

    fn line(seq: u64) -> String {
        let body = Body::Event(EventFacts { text: "x".repeat(100), ..EventFacts::default() });
        Record { v: VERSION, seq, t: 0, up: 0.0, node: "a".to_owned(), body }.line() + "\n"
    }

    fn append(folder: &Path, number: u64, text: &str) {
        let path = folder.join(format!("{number:08}.jsonl"));
        let mut file = File::options().create(true).append(true).open(path).expect("written");
        file.write_all(text.as_bytes()).expect("written");
    }

    fn seqs(folder: &Path, cursor: &mut Cursor) -> Vec<u64> {
        let mut all = Vec::new();
        loop {
            let (records, next) = after(folder, cursor).expect("readable");
            all.extend(records.iter().map(|record| record.seq));
            if next == *cursor {
                return all;
            }
            *cursor = next;
        }
    }

    #[test]
    fn each_record_is_read_once_while_files_grow_and_end() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let at = folder.path();
        let mut cursor = Cursor::default();
        assert!(seqs(at, &mut cursor).is_empty(), "there is none yet");
        append(at, 1, &(line(1) + &line(2) + &line(3)[..20]));
        assert_eq!(seqs(at, &mut cursor), [1, 2], "an unfinished line is left for later");
        append(at, 1, &line(3)[20..]);
        append(at, 1, "this is no record\n");
        assert_eq!(seqs(at, &mut cursor), [3]);
        append(at, 2, &(line(1) + &line(4)));
        assert_eq!(seqs(at, &mut cursor), [4], "a file begins with a record that was told before");
        let again = &mut Cursor { seq: 2, ..Cursor::default() };
        assert_eq!(seqs(at, again), [3, 4]);
        assert_eq!(*again, cursor);
    }

    #[test]
    fn a_long_journal_is_read_bit_by_bit() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let text: String = (1..=20_000).map(line).collect();
        append(folder.path(), 1, &text);
        let (first, _) = after(folder.path(), &Cursor::default()).expect("readable");
        assert!(first.len() < 10_000, "{}", first.len());
        let all = seqs(folder.path(), &mut Cursor::default());
        assert!(all.iter().copied().eq(1..=20_000));
    }

    #[test]
    fn what_is_gone_is_passed_over_and_another_journal_begins_anew() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        append(folder.path(), 5, &(line(90) + &line(100)));
        assert_eq!(seqs(folder.path(), &mut Cursor { seq: 50, file: 2, offset: 9000 }), [90, 100]);
        assert_eq!(seqs(folder.path(), &mut Cursor { seq: 0, file: 5, offset: 9000 }), [90, 100]);
    }
}

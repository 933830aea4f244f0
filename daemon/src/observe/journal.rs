//! The journal: every record of a node as a line of JSON in `journal/` of its data directory.
//!
//! A file is cut off at [`FILE_BYTES_MAX`] and the next begins; the oldest go where all together grow beyond what the owner
//! gives them. A file may be read while it is written. Each begins with the record of the process that wrote it first. A line
//! that a killed process has left unfinished is cut off at the next start.

#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::hub::Told;
use super::record::{Body, Record};
use crate::console::figures::counted;
use crate::console::note;
use crate::process::is_at;

/// The folder in a data directory.
pub const FOLDER: &str = "journal";

/// A file of this size is put aside: half a day of a node.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Files of a journal are a quarter of all its room at most, so that the oldest quarter goes and not everything.
const FILES_MIN: u64 = 4;

/// How often what is written is brought to the disk: a power cut costs so much at most.
const SYNC_PERIOD: Duration = Duration::from_secs(10);

/// So much of the journal is read at the start, in bytes: a tenth of a second's work.
const REMEMBERED_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The longest line that is looked for at the end of a file; none of ours is a tenth of that.
pub(super) const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    bytes_max: u64,
    file: File,
    /// Of the file.
    number: u64,
    /// Bytes in it that are whole lines.
    length: u64,
    /// The line of this process, which begins every file.
    begin: Option<String>,
    /// Lines that could not be written since the last that could.
    lost: u64,
    /// Whether a part of a line may stand behind the whole ones.
    is_torn: bool,
    has_warned: bool,
    synced: Instant,
}

impl Journal {
    /// Opens the journal of a data directory that this process has taken, to keep so many bytes at most. Also the number of
    /// its last record.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn open(root: &Path, bytes_max: u64) -> io::Result<(Journal, u64)> {
        let folder = root.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let files = files(&folder);
        let number = files.last().map_or(1, |(number, _)| *number);
        let path = path(&folder, number);
        let mut file = append(&path)?;
        let whole = whole_lines(&mut file)?;
        if whole < file.metadata()?.len() {
            tracing::debug!("cutting an unfinished line off {}", path.display());
            file.set_len(whole)?;
        }
        // The newest file may have held nothing but that line.
        let last = files.iter().rev().find_map(|(_, path)| last_record(path).ok().flatten());
        let seq = last.map_or(0, |record| record.seq);
        let journal = Journal {
            folder,
            bytes_max,
            file,
            number,
            length: whole,
            begin: None,
            lost: 0,
            is_torn: false,
            has_warned: false,
            synced: Instant::now(),
        };
        Ok((journal, seq))
    }

    /// The last records that are in it, some hours of them, so that curves go on where they were.
    pub fn remembered(&self) -> Vec<Record> {
        let (mut text, mut left) = (Vec::new(), REMEMBERED_BYTES_MAX);
        // The newest file may just have been begun; the one before has enough then.
        for (_, path) in files(&self.folder).into_iter().rev().take(2) {
            let read = File::open(path).and_then(|mut file| tail(&mut file, left));
            let (_, mut before) = read.unwrap_or_default();
            left = left.saturating_sub(before.len() as u64);
            before.append(&mut text);
            text = before;
        }
        let lines = text.split(|byte| *byte == b'\n');
        let records = lines.filter_map(|line| Record::parse(std::str::from_utf8(line).ok()?));
        // The record of its process that begins the newest file is an old one.
        let mut last = 0;
        let is_new = |record: &Record| {
            let is_new = record.seq > last;
            last = last.max(record.seq);
            is_new
        };
        records.filter(is_new).collect()
    }

    /// Writes what comes, on a thread of its own, until the hub closes.
    pub fn start(mut self, records: Receiver<Arc<Told>>) -> std::thread::JoinHandle<()> {
        let work = move || {
            loop {
                match records.recv_timeout(SYNC_PERIOD) {
                    Ok(told) => self.write(&told),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if self.synced.elapsed() >= SYNC_PERIOD {
                    self.sync();
                }
            }
            self.sync();
        };
        std::thread::Builder::new().name("journal".to_owned()).spawn(work).expect("the system gives a thread")
    }

    /// Writes a record. Where that fails it is said, until one can be written again, counted, and the next is tried all the same.
    fn write(&mut self, told: &Told) {
        if matches!(told.record.body, Body::Run(_)) {
            self.begin = Some(told.line.clone());
        }
        match self.write_in_its_file(&told.line) {
            Ok(()) if self.lost > 0 => {
                note(&format!("            the journal goes on, without {}", counted(self.lost, "record")));
                (self.lost, self.has_warned) = (0, false);
            }
            Ok(()) => {}
            Err(error) => {
                self.lost += 1;
                self.warn(&error);
            }
        }
    }

    /// Once, until a record can be written again.
    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_warned, true) {
            let folder = self.folder.display();
            note(&format!("warning: cannot write the journal in {folder}: {error}; training goes on"));
            note("hint: is the disk full? `murmur watch` shows this daemon all the same");
        }
    }

    fn write_in_its_file(&mut self, line: &str) -> io::Result<()> {
        self.rotate(line.len() as u64 + 1)?;
        // Also where an earlier try to begin this file has failed.
        if let Some(begin) = self.begin.clone().filter(|begin| self.length == 0 && begin != line) {
            self.write_line(&begin)?;
        }
        self.write_line(line)
    }

    fn write_line(&mut self, line: &str) -> io::Result<()> {
        // What was written of a line that failed must not stand before the next.
        if self.is_torn {
            self.file.set_len(self.length)?;
        }
        self.is_torn = true;
        // One write, so that who reads meanwhile sees whole lines.
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.is_torn = false;
        self.length += line.len() as u64 + 1;
        Ok(())
    }

    /// Begins the next file where this one has no room for so many bytes.
    fn rotate(&mut self, bytes: u64) -> io::Result<()> {
        if self.length == 0 || self.length + bytes <= self.file_bytes_max() {
            return Ok(());
        }
        if std::mem::take(&mut self.is_torn) {
            self.file.set_len(self.length)?;
        }
        self.file.sync_data()?;
        // First, for a full disk has no room for the next.
        self.prune()?;
        self.file = append(&path(&self.folder, self.number + 1))?;
        self.number += 1;
        self.length = self.file.metadata()?.len();
        Ok(())
    }

    fn file_bytes_max(&self) -> u64 {
        FILE_BYTES_MAX.min(self.bytes_max / FILES_MIN)
    }

    /// Deletes the oldest files where all together are too large; never the newest.
    fn prune(&self) -> io::Result<()> {
        let files = files(&self.folder);
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
        // The newest grows to its full size.
        let mut left: u64 = files.iter().map(|(_, path)| size(path)).sum::<u64>() + self.file_bytes_max();
        for (number, path) in files {
            if left <= self.bytes_max || number >= self.number {
                break;
            }
            left -= size(&path);
            match fs::remove_file(path) {
                // A checkpoint needed its room.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Where its file has been deleted, be it with the folder, what is written is lost: the file begins anew.
    fn renew(&mut self) -> io::Result<()> {
        let path = path(&self.folder, self.number);
        if is_at(&self.file, &path) {
            return Ok(());
        }
        if !self.folder.exists() {
            // Not the data directory as well.
            fs::create_dir(&self.folder)?;
        }
        self.file = append(&path)?;
        (self.length, self.is_torn) = (self.file.metadata()?.len(), false);
        note(&format!("warning: the journal in {} has been deleted; it begins anew", self.folder.display()));
        Ok(())
    }

    fn sync(&mut self) {
        self.synced = Instant::now();
        if let Err(error) = self.renew() {
            self.warn(&error);
        }
        if let Err(error) = self.file.sync_data() {
            tracing::debug!("cannot bring the journal to the disk: {error}");
        }
    }
}

/// Where a journal is read from: a file of it, its folder, or a data directory. In the order in which they were written.
///
/// # Errors
/// When there is none.
pub fn files_at(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let found = [path.join(FOLDER), path.to_owned()].iter().map(|folder| files(folder)).find(|files| !files.is_empty());
    let found = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no journal in it"))?;
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// The records of files, one after the other. Lines that are no records are left out and counted.
#[derive(Debug)]
pub struct Reading {
    files: std::vec::IntoIter<PathBuf>,
    current: Option<BufReader<File>>,
    /// Lines that could not be read.
    pub unreadable: u64,
}

impl Reading {
    /// Of these files.
    pub fn new(files: Vec<PathBuf>) -> Reading {
        Reading { files: files.into_iter(), current: None, unreadable: 0 }
    }
}

impl Reading {
    /// Whether one of so many lines at the beginning is a record. Reads them.
    pub fn begins_with_a_record(&mut self, lines: u64) -> bool {
        while self.unreadable < lines {
            match self.next_line() {
                Some(Some(_)) => return true,
                Some(None) => self.unreadable += 1,
                None => return false,
            }
        }
        false
    }

    /// The record of the next line, if it is one; none at the end.
    fn next_line(&mut self) -> Option<Option<Record>> {
        loop {
            let Some(reader) = &mut self.current else {
                self.current = File::open(self.files.next()?).ok().map(BufReader::new);
                continue;
            };
            let mut line = Vec::new();
            let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            if read.is_ok_and(|bytes| bytes > 0) {
                return Some(std::str::from_utf8(&line).ok().and_then(Record::parse));
            }
            self.current = None;
        }
    }
}

impl Iterator for Reading {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            match self.next_line()? {
                Some(record) => return Some(record),
                None => self.unreadable += 1,
            }
        }
    }
}

/// The files of a journal with their numbers, oldest first.
pub(crate) fn files(folder: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let numbered = |path: PathBuf| {
        let number = path.file_name()?.to_str()?.strip_suffix(".jsonl")?.parse().ok()?;
        Some((number, path))
    };
    let mut files: Vec<(u64, PathBuf)> = entries.filter_map(numbered).collect();
    files.sort();
    files
}

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:08}.jsonl"))
}

fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).append(true);
    // It names peers and addresses.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// How many bytes of a file are whole lines.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    let (begin, end) = tail(file, LINE_BYTES_MAX)?;
    let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index as u64 + 1);
    Ok(begin + whole)
}

/// The last line of a file that is a record.
fn last_record(path: &Path) -> io::Result<Option<Record>> {
    let (_, end) = tail(&mut File::open(path)?, LINE_BYTES_MAX)?;
    let lines = end.split(|byte| *byte == b'\n').rev();
    Ok(lines.filter_map(|line| Record::parse(std::str::from_utf8(line).ok()?)).next())
}

/// The end of a file, so many bytes at most, and where it begins.
fn tail(file: &mut File, most: u64) -> io::Result<(u64, Vec<u8>)> {
    let begin = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(begin))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    Ok((begin, end))
}

//! One file from a server onto this disk: goes on where an earlier attempt or process stopped (`Range`, with `If-Range`
//! where only a validator tells whether it is still the same content; RFC 9110, 13 and 14), checks length and hash, and
//! gives its name to it only when it is whole.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::http::StatusCode;

use super::allowance::Allowance;
use super::cache::unwritten;
use super::http::{Answer, is_passing, server};
use super::progress::{GIVEN_UP_AFTER, Progress};
use super::trouble::Trouble;
use crate::store::loadable_bytes;

/// Bytes that are read, counted and written at once.
const PIECE_BYTES: usize = 64 * 1024;

/// After so many bytes, or half of the room that there was, it is looked whether the disk has room for more.
const ROOM_LOOKED_AFTER: u64 = 16 * 1024 * 1024;

/// Attempts in a row that bring nothing, where this process has had nothing yet: waits of 3.5 s in all.
const FIRST_ATTEMPTS: u32 = 4;

/// The same once something has come: waits of a minute and a half in all, for a router that starts again.
const LATER_ATTEMPTS: u32 = 9;

/// The wait after the first of them; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The longest of these waits, and the longest that a server's `Retry-After` is followed.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Sends a request for the file with these headers besides its own.
pub(crate) type Ask<'a> = dyn Fn(&[(&'static str, String)]) -> Result<Answer, Trouble> + Sync + 'a;

/// A file to load.
pub(crate) struct Wanted<'a> {
    /// For people.
    pub(crate) place: &'a str,
    /// Sends a request for it.
    pub(crate) ask: &'a Ask<'a>,
    /// Looks at an answer that has the content, or tells why there is none.
    pub(crate) judge: &'a (dyn Fn(Answer) -> Result<Answer, Trouble> + Sync),
    /// What has come so far.
    pub(crate) incomplete: PathBuf,
    /// What names the content.
    pub(crate) known: Known<'a>,
    /// Its length, where it is known.
    pub(crate) bytes: Option<u64>,
}

/// What names a content before it is here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known<'a> {
    /// Its SHA-256, and who says so: whatever has come of it is a part of it.
    Sha256(&'a str, &'static str),
    /// The name that git gives it, SHA-1 of its length and content: the same.
    Git(&'a str),
    /// The store's validator for it.
    Tag(&'a str),
    /// Nothing: the validator that came with the first part is kept beside it, in this file.
    Kept(&'a Path, Option<&'a str>),
}

/// A file that is here whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// SHA-256 of it in hexadecimal.
    pub(crate) sha256: String,
    /// Bytes.
    pub(crate) bytes: u64,
}

/// Why an attempt has ended early.
enum Stop {
    /// Another attempt has no use.
    For(Trouble),
    /// The line broke, or the server is busy; it may name a time to wait.
    Passing(String, Option<Duration>),
    /// Nobody answers.
    Silent(Trouble),
    /// The owner's hours or budget are over.
    Rest,
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Stop {
        match trouble {
            Trouble::Unreachable { .. } => Stop::Silent(trouble),
            Trouble::Server { words, is_passing: true, .. } => Stop::Passing(words, None),
            trouble => Stop::For(trouble),
        }
    }
}

/// Loads a file, in as many attempts as bring it further.
///
/// # Errors
/// When it does not come, is not what it should be, or cannot be written.
pub(crate) fn load(wanted: &Wanted<'_>, allowance: &Allowance, progress: &Progress) -> Result<Loaded, Trouble> {
    let (mut furthest, mut failures, mut has_doubted) = (None, 0, false);
    let mut counted = 0;
    loop {
        progress.hold(allowance.reason().is_some());
        allowance.wait();
        progress.hold(false);
        let begin = length_of(&wanted.incomplete);
        let stop = match attempt(wanted, allowance, progress, &mut counted) {
            Ok(loaded) => match wrong(wanted, &loaded) {
                None => return Ok(loaded.0),
                Some(trouble) => {
                    let _ = std::fs::remove_file(&wanted.incomplete);
                    // A part of an earlier life may be what is wrong: once more from its beginning.
                    if begin == 0 || std::mem::replace(&mut has_doubted, true) {
                        return Err(trouble);
                    }
                    continue;
                }
            },
            Err(stop) => stop,
        };
        let (reason, asked, silent) = match stop {
            Stop::For(trouble) => return Err(trouble),
            Stop::Rest => continue,
            Stop::Passing(reason, asked) => (reason, asked, None),
            Stop::Silent(trouble) => (trouble.to_string(), None, Some(trouble)),
        };
        let now = length_of(&wanted.incomplete);
        if now > furthest.unwrap_or(begin) {
            (furthest, failures) = (Some(now), 0);
        }
        failures += 1;
        let has_come = furthest.is_some();
        if gives_up(has_come, failures, progress.silent_for()) {
            let broken = || Trouble::Broken { place: wanted.place.to_owned(), attempts: failures, reason };
            // Who has answered is the right one.
            return Err(silent.filter(|_| !has_come).unwrap_or_else(broken));
        }
        progress.fail(&reason);
        tracing::info!("{}: {reason}; once more from byte {now}", wanted.place);
        let wait = FIRST_WAIT * 2u32.pow(failures - 1);
        std::thread::sleep(asked.unwrap_or(wait).max(wait).min(LONGEST_WAIT));
    }
}

/// Whether attempts have failed often enough, or for too long: one at a server that stalls takes half a minute, or a whole one.
fn gives_up(has_come: bool, failures: u32, silent: Duration) -> bool {
    failures >= if has_come { LATER_ATTEMPTS } else { FIRST_ATTEMPTS } || silent >= GIVEN_UP_AFTER
}

/// What a whole file came to: itself, and the name that git gives it, where that is wanted.
type Whole = (Loaded, Option<String>);

/// One request and its answer. `counted`: bytes of the file that the progress has heard of.
fn attempt(wanted: &Wanted<'_>, allowance: &Allowance, progress: &Progress, counted: &mut u64) -> Result<Whole, Stop> {
    let path = &wanted.incomplete;
    let written = |error| Stop::For(unwritten(path, error));
    let validator = wanted.validator();
    let mut file = File::options().create(true).truncate(false).read(true).write(true).open(path).map_err(written)?;
    let mut here = file.metadata().map_err(written)?.len();
    let may_go_on = wanted.has_hash() || validator.is_some();
    if here > 0 && (!may_go_on || wanted.bytes.is_some_and(|bytes| here > bytes)) {
        file.set_len(0).map_err(written)?;
        here = 0;
    }
    let mut hashes = Hashes::new(wanted);
    if wanted.bytes.is_some_and(|bytes| here == bytes) && here > 0 {
        hashes.read(&mut file).map_err(written)?;
        count_from(here, progress, counted);
        return Ok(hashes.end(here));
    }
    let mut headers = Vec::new();
    if here > 0 {
        headers.push(("Range", format!("bytes={here}-")));
        headers.extend(validator.clone().map(|validator| ("If-Range", validator)));
    }
    let answer = (wanted.ask)(&headers)?;
    if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
        // What is here is longer than the content, or all of it: begin anew.
        file.set_len(0).map_err(written)?;
        return Err(Stop::Passing("it has no such part".to_owned(), None));
    }
    if is_passing(answer.status) {
        let asked = answer.header("retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs);
        return Err(Stop::Passing(format!("it answers {}", answer.status), asked));
    }
    let answer = (wanted.judge)(answer)?;
    // Some servers know `Range` and not `If-Range`: what they send may be a part of other content.
    let is_other = |validator: &String| answer.header("etag").is_some_and(|found| found != *validator);
    if answer.status == StatusCode::PARTIAL_CONTENT && validator.as_ref().is_some_and(is_other) {
        file.set_len(0).map_err(written)?;
        return Err(Stop::Passing("it has other content now".to_owned(), None));
    }
    let part = (answer.status == StatusCode::PARTIAL_CONTENT).then(|| range(answer.header("content-range"))).flatten();
    let total = match part {
        Some((start, total)) if start == here && here > 0 => {
            hashes.read(&mut file).map_err(written)?;
            count_from(here, progress, counted);
            total
        }
        _ if answer.status == StatusCode::OK => {
            // All of it: the server knows no parts, or the content has changed.
            file.set_len(0).map_err(written)?;
            here = 0;
            count_from(here, progress, counted);
            wanted.keep_validator(answer.header("etag")).map_err(written)?;
            answer.header("content-length").and_then(|text| text.parse().ok())
        }
        _ => {
            file.set_len(0).map_err(written)?;
            return Err(Stop::Passing(format!("it answers {} with another part", answer.status), None));
        }
    };
    if let (Some(expected), Some(total)) = (wanted.bytes, total)
        && expected != total
    {
        return Err(Stop::For(wanted.other("length", "its list", &expected.to_string(), &total.to_string())));
    }
    // Where an answer does not tell its length, it has to have the one that is known.
    let total = total.or(wanted.bytes);
    if let Some(total) = total.filter(|_| wanted.bytes.is_none()) {
        progress.expect(total);
    }
    file.seek(SeekFrom::Start(here)).map_err(written)?;
    let mut body = answer.body.into_with_config().limit(u64::MAX).reader();
    let mut piece = vec![0; PIECE_BYTES];
    let mut looks_at = here;
    loop {
        if here >= looks_at {
            let room = room(wanted, total.map_or(1, |total| total.saturating_sub(here)));
            // What has no known end may never fit.
            if room.is_err() && total.is_none() {
                std::fs::remove_file(path).map_err(written)?;
            }
            looks_at = here + (room? / 2).clamp(PIECE_BYTES as u64, ROOM_LOOKED_AFTER);
        }
        let read = match body.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(keep(&file, path, error.to_string())),
        };
        file.write_all(&piece[..read]).map_err(written)?;
        hashes.add(&piece[..read]);
        here += read as u64;
        progress.come(read as u64);
        *counted += read as u64;
        allowance.take(read);
        if total.is_some_and(|total| here > total) {
            return Err(Stop::For(server(wanted.place, "it sends more than it has announced", false)));
        }
        if allowance.reason().is_some() {
            file.sync_data().map_err(written)?;
            return Err(Stop::Rest);
        }
    }
    if total.is_some_and(|total| here < total) {
        return Err(keep(&file, path, "the connection ended in the middle".to_owned()));
    }
    file.sync_all().map_err(written)?;
    Ok(hashes.end(here))
}

/// An attempt begins with what is here; until then what the one before has counted is shown.
fn count_from(here: u64, progress: &Progress, counted: &mut u64) {
    progress.drop_bytes(std::mem::replace(counted, here));
    progress.found(here);
}

/// The line broke: what has come stays.
fn keep(file: &File, path: &Path, reason: String) -> Stop {
    match file.sync_data() {
        Ok(()) => Stop::Passing(reason, None),
        Err(error) => Stop::For(unwritten(path, error)),
    }
}

impl Wanted<'_> {
    /// Whether the whole is checked by a hash, so that a part may be added to whatever is here.
    fn has_hash(&self) -> bool {
        matches!(self.known, Known::Sha256(..) | Known::Git(_) | Known::Kept(_, Some(_)))
    }

    /// What the server is asked to compare, where a part may only be added to the same content.
    fn validator(&self) -> Option<String> {
        match self.known {
            Known::Sha256(..) | Known::Git(_) => None,
            Known::Tag(tag) => Some(tag.to_owned()).filter(|tag| is_strong(tag)),
            Known::Kept(path, _) => std::fs::read_to_string(path).ok().filter(|tag| is_strong(tag)),
        }
    }

    fn keep_validator(&self, tag: Option<&str>) -> io::Result<()> {
        let Known::Kept(path, _) = self.known else { return Ok(()) };
        match tag.filter(|tag| is_strong(tag)) {
            Some(tag) => std::fs::write(path, tag),
            None => std::fs::remove_file(path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
        }
    }

    fn other(&self, what: &'static str, by: &'static str, expected: &str, found: &str) -> Trouble {
        let (expected, found) = (expected.to_owned(), found.to_owned());
        Trouble::Other { place: self.place.to_owned(), what, by, expected, found }
    }
}

/// Whether a validator names the very bytes: a weak one does not (RFC 9110, 8.8.1).
fn is_strong(tag: &str) -> bool {
    tag.len() > 2 && tag.starts_with('"') && tag.ends_with('"')
}

/// What does not fit what was known of the file.
fn wrong(wanted: &Wanted<'_>, (loaded, git): &Whole) -> Option<Trouble> {
    let (by, expected, found) = match wanted.known {
        Known::Sha256(expected, by) => (by, expected, loaded.sha256.as_str()),
        Known::Kept(_, Some(expected)) => ("the address", expected, loaded.sha256.as_str()),
        Known::Git(expected) => ("the hub", expected, git.as_deref().unwrap_or_default()),
        Known::Tag(_) | Known::Kept(_, None) => return None,
    };
    (found != expected).then(|| wanted.other("hash", by, expected, found))
}

/// The start of a part and the length of the whole: `bytes 100-199/200`.
fn range(header: Option<&str>) -> Option<(u64, Option<u64>)> {
    let (part, total) = header?.strip_prefix("bytes ")?.split_once('/')?;
    Some((part.split_once('-')?.0.trim().parse().ok()?, total.trim().parse().ok()))
}

/// Bytes that the disk has room for, where they are as many as that.
fn room(wanted: &Wanted<'_>, needed: u64) -> Result<u64, Stop> {
    let folder = wanted.incomplete.parent().unwrap_or(Path::new("."));
    let free = loadable_bytes(folder).unwrap_or(u64::MAX);
    if free >= needed {
        return Ok(free);
    }
    let (place, folder) = (wanted.place.to_owned(), folder.to_owned());
    Err(Stop::For(Trouble::NoRoom { place, needed, free, folder }))
}

fn length_of(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Hashes of a content as it comes.
struct Hashes {
    sha256: Sha256,
    git: Option<Sha1>,
}

impl Hashes {
    fn new(wanted: &Wanted<'_>) -> Hashes {
        let git = matches!(wanted.known, Known::Git(_)).then(|| {
            // What git hashes in front of a content.
            Sha1::new().chain_update(format!("blob {}\0", wanted.bytes.unwrap_or_default()))
        });
        Hashes { sha256: Sha256::new(), git }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.git.iter_mut().for_each(|git| git.update(bytes));
    }

    /// What is here already, from the file's beginning.
    fn read(&mut self, file: &mut File) -> io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(()),
                read => self.add(&piece[..read]),
            }
        }
    }

    fn end(self, bytes: u64) -> Whole {
        let git = self.git.map(|git| hexadecimal(&git.finalize()));
        (Loaded { sha256: hexadecimal(&self.sha256.finalize()), bytes }, git)
    }
}

/// Bytes in lower-case hexadecimal.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stalls_is_given_up_by_the_clock_and_who_refuses_by_the_number_of_attempts() {
        let second = Duration::from_secs(1);
        assert!(gives_up(false, FIRST_ATTEMPTS, 4 * second) && !gives_up(true, FIRST_ATTEMPTS, 4 * second));
        assert!(gives_up(true, LATER_ATTEMPTS, 92 * second));
        assert!(gives_up(true, 3, GIVEN_UP_AFTER) && gives_up(false, 2, GIVEN_UP_AFTER), "half a minute and more each");
    }

    #[test]
    fn parts_are_read_as_servers_name_them() {
        assert_eq!(range(Some("bytes 100-199/200")), Some((100, Some(200))));
        assert_eq!(range(Some("bytes 0-0/*")), Some((0, None)));
        assert_eq!(range(Some("bytes */200")), None);
        assert_eq!(range(None), None);
        assert!(is_strong("\"abc\"") && !is_strong("W/\"abc\"") && !is_strong("\"\"") && !is_strong("abc"));
    }
    /// A server that knows `Range` and neither `If-Range` nor, where it says so, validators; it has this content by now.
    fn from_such_a_server(
        content: &[u8],
        etag: Option<&str>,
        known: Known<'_>,
        incomplete: &Path,
    ) -> Vec<(String, u16)> {
        let asked = std::sync::Mutex::new(Vec::new());
        let ask = |headers: &[(&'static str, String)]| {
            let range = headers.iter().find(|(name, _)| *name == "Range").map(|(_, range)| range.clone());
            let from = range.as_deref().and_then(|range| range[6..].strip_suffix('-')?.parse::<usize>().ok());
            let mut headers = ureq::http::HeaderMap::new();
            if let Some(etag) = etag {
                headers.insert("etag", etag.parse().expect("visible"));
            }
            let status = if from.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
            if let Some(from) = from {
                let range = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
                headers.insert("content-range", range.parse().expect("visible"));
            }
            asked.lock().expect("one thread").push((range.unwrap_or_default(), status.as_u16()));
            let body = ureq::Body::builder().data(content[from.unwrap_or(0)..].to_vec());
            Ok(Answer { status, headers, body })
        };
        let wanted = Wanted {
            place: "https://a.example/f",
            ask: &ask,
            judge: &|answer| Ok(answer),
            incomplete: incomplete.to_owned(),
            known,
            bytes: None,
        };
        load(&wanted, &Allowance::unlimited(), &Progress::new(1, 0)).expect("loaded");
        assert_eq!(std::fs::read(incomplete).expect("there"), content, "and no mixture of two");
        asked.into_inner().expect("one thread")
    }

    #[test]
    fn a_part_of_other_content_is_noticed_where_a_server_sends_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (incomplete, tag) = (folder.path().join("coming"), folder.path().join("coming.etag"));
        let begin = || {
            std::fs::write(&incomplete, "old").expect("written");
            std::fs::write(&tag, "\"1\"").expect("written");
        };
        begin();
        let whole = from_such_a_server(b"newer text", Some("\"2\""), Known::Kept(&tag, None), &incomplete);
        assert_eq!(whole, [("bytes=3-".to_owned(), 206), (String::new(), 200)]);
        begin();
        let part = from_such_a_server(b"old text", Some("\"1\""), Known::Kept(&tag, None), &incomplete);
        assert_eq!(part, [("bytes=3-".to_owned(), 206)]);
    }

    /// Without a validator only the hash tells that the parts belong together.
    #[test]
    fn a_hash_lets_a_file_go_on_whose_server_names_no_validator() {
        let folder = tempfile::tempdir().expect("a folder");
        let (incomplete, tag) = (folder.path().join("coming"), folder.path().join("coming.etag"));
        let hash = hexadecimal(&Sha256::digest(b"old text"));
        std::fs::write(&incomplete, "old").expect("written");
        let asked = from_such_a_server(b"old text", None, Known::Kept(&tag, Some(&hash)), &incomplete);
        assert_eq!(asked, [("bytes=3-".to_owned(), 206)]);
        std::fs::write(&incomplete, "bad").expect("written");
        let asked = from_such_a_server(b"old text", None, Known::Kept(&tag, Some(&hash)), &incomplete);
        assert_eq!(asked, [("bytes=3-".to_owned(), 206), (String::new(), 200)], "a part of something else");
    }
}

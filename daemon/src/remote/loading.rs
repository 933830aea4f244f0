//! Many files of one place: several at a time, each content once, however many daemons of this machine want it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Remote;
use super::cache::{Entry, Listing, Repository, unwritten};
use super::download::{Known, Wanted, load};
use super::http::Answer;
use super::progress::Progress;
use super::trouble::Trouble;
use crate::store::loadable_bytes;

/// Files that are loaded at once: small ones take as long as an answer does. Four of them fill most lines; a guess.
const AT_ONCE: usize = 4;

/// Who has the files.
pub(super) trait Origin: Sync {
    /// Sends a request for a file with these headers besides its own.
    ///
    /// # Errors
    /// When nobody answers.
    fn ask(&self, path: &str, headers: &[(&'static str, String)]) -> Result<Answer, Trouble>;

    /// Looks at an answer that has the file.
    ///
    /// # Errors
    /// Why there is none.
    fn judge(&self, path: &str, answer: Answer) -> Result<Answer, Trouble>;

    /// What names the file's content.
    fn known<'a>(&'a self, path: &str, entry: &'a Entry) -> Known<'a>;
}

/// Has all files of a listing in a snapshot: loads what is missing.
///
/// # Errors
/// The first that does not come. What has come stays.
pub(super) fn load_all(
    remote: &Remote,
    place: &str,
    (repository, id): (&Repository, &str),
    listing: &Listing,
    origin: &dyn Origin,
) -> Result<(), Trouble> {
    let missing: Vec<(&String, &Entry)> =
        listing.iter().filter(|(path, entry)| !repository.has(id, path, entry)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    repository.prepare()?;
    let waits = || remote.say_waiting(place);
    let _lock = (!repository.locks_each).then(|| repository.lock("all", waits)).transpose()?;
    check_room(place, repository, &missing)?;
    let progress = Progress::new(missing.len() as u64, missing.iter().map(|(_, entry)| entry.bytes).sum());
    let (next, trouble) = (AtomicUsize::new(0), Mutex::new(None::<Trouble>));
    let failed = || trouble.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    let work = || {
        while let Some((path, entry)) = missing.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !failed()) {
            let done = load_one(remote, place, (repository, id), (path, entry), origin, &progress);
            match done {
                Ok(()) => progress.file(),
                Err(error) => {
                    trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        }
    };
    remote.shown(&progress, place, || {
        std::thread::scope(|scope| {
            (1..AT_ONCE.min(missing.len())).for_each(|_| drop(scope.spawn(work)));
            work();
        });
    });
    remote.allowance.keep();
    trouble.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn load_one(
    remote: &Remote,
    place: &str,
    (repository, id): (&Repository, &str),
    (path, entry): (&str, &Entry),
    origin: &dyn Origin,
    progress: &Progress,
) -> Result<(), Trouble> {
    let waits = || remote.say_waiting(place);
    let _lock = repository.locks_each.then(|| repository.lock(&entry.blob, waits)).transpose()?;
    let blob = repository.blob(&entry.blob);
    if std::fs::metadata(&blob).is_ok_and(|found| found.len() == entry.bytes) {
        progress.found(entry.bytes); // of another snapshot, or another process was quicker
    } else {
        let incomplete: PathBuf = repository.incomplete(&entry.blob);
        let wanted = Wanted {
            place: &format!("{}/{path}", place.trim_end_matches('/')),
            ask: &|headers| origin.ask(path, headers),
            judge: &|answer| origin.judge(path, answer),
            incomplete: incomplete.clone(),
            known: origin.known(path, entry),
            bytes: Some(entry.bytes),
        };
        load(&wanted, &remote.allowance, progress)?;
        std::fs::rename(&incomplete, &blob).map_err(|error| unwritten(&blob, error))?;
    }
    repository.put(id, path, &entry.blob)
}

/// Before the first byte: nobody wants to hear after an hour that the disk is too small.
fn check_room(place: &str, repository: &Repository, missing: &[(&String, &Entry)]) -> Result<(), Trouble> {
    let here = |entry: &Entry| {
        let length = |path: PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
        length(repository.blob(&entry.blob)).max(length(repository.incomplete(&entry.blob)))
    };
    let needed = missing.iter().map(|(_, entry)| entry.bytes.saturating_sub(here(entry))).sum();
    match loadable_bytes(repository.root()) {
        Some(free) if free < needed => {
            Err(Trouble::NoRoom { place: place.to_owned(), needed, free, folder: repository.root().to_owned() })
        }
        _ => Ok(()),
    }
}

//! How loading goes, for people: a line that is drawn over and over on a terminal, a line now and then elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::console::figures::{bar, duration};
use crate::console::{human_bytes, note, screen};
use crate::process::service_manager::ServiceManager;

/// How often a terminal is drawn.
const DRAW_PERIOD: Duration = Duration::from_millis(250);

/// Without a terminal, a line this often.
const PLAIN_PERIOD: Duration = Duration::from_secs(5);

/// Nothing is told of what takes no longer.
const SILENT: Duration = Duration::from_millis(500);

/// It is told that nothing comes after so long, or once an attempt has failed: at the lowest cap a piece takes half of it.
const STALLED: Duration = Duration::from_secs(5);

/// The next bytes of a file are awaited for so long: two minutes, for a router that starts again.
pub(crate) const GIVEN_UP_AFTER: Duration = Duration::from_secs(120);

/// The service manager is asked for this much more time, again and again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const BAR_COLUMNS: usize = 16;

/// How far something is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Bytes that are here, those of an earlier life too.
    here: AtomicU64,
    /// Bytes that have come now.
    come: AtomicU64,
    /// Bytes in all; 0 where it is not known.
    total: AtomicU64,
    files_here: AtomicU64,
    files: u64,
    is_over: AtomicBool,
    /// Whether it waits for hours in which something may be loaded; that is told elsewhere.
    is_held: AtomicBool,
    /// Locked for a few instructions.
    silence: Mutex<Silence>,
}

/// Since when no bytes have come.
#[derive(Debug)]
struct Silence {
    since: Instant,
    /// Why the last attempt has failed, where one has since.
    reason: Option<String>,
}

impl Default for Silence {
    fn default() -> Silence {
        Silence { since: Instant::now(), reason: None }
    }
}

impl Progress {
    /// Of so many files and bytes; 0 bytes where it is not known.
    pub(crate) fn new(files: u64, total: u64) -> Progress {
        Progress { files, total: AtomicU64::new(total), ..Progress::default() }
    }

    /// Bytes have come.
    pub(crate) fn come(&self, bytes: u64) {
        self.here.fetch_add(bytes, Ordering::Relaxed);
        self.come.fetch_add(bytes, Ordering::Relaxed);
        *self.silence() = Silence::default();
    }

    /// An attempt has failed.
    pub(crate) fn fail(&self, reason: &str) {
        self.silence().reason = Some(reason.to_owned());
    }

    /// For how long no bytes have come.
    pub(crate) fn silent_for(&self) -> Duration {
        self.silence().since.elapsed()
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes were here already.
    pub(crate) fn found(&self, bytes: u64) {
        self.here.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes are dropped: a file begins anew.
    pub(crate) fn drop_bytes(&self, bytes: u64) {
        let _ = self.here.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |here| Some(here.saturating_sub(bytes)));
    }

    /// A file is complete.
    pub(crate) fn file(&self) {
        self.files_here.fetch_add(1, Ordering::Relaxed);
    }

    /// The length of all, once it is known.
    pub(crate) fn expect(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    /// Nothing comes for a while, or something again.
    pub(crate) fn hold(&self, is_held: bool) {
        if self.is_held.swap(is_held, Ordering::Relaxed) && !is_held {
            *self.silence() = Silence::default();
        }
    }

    /// Nothing more comes.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Tells people until it is over; whoever ends it wakes this thread.
    pub(crate) fn show(&self, place: &str) {
        let (begin, is_live) = (Instant::now(), screen::is_live());
        let manager = ServiceManager::from_environment();
        let (mut is_drawn, mut said_at) = (false, None::<Instant>);
        loop {
            let (is_over, is_held) = (self.is_over.load(Ordering::Relaxed), self.is_held.load(Ordering::Relaxed));
            let is_shown = begin.elapsed() >= SILENT && !is_over && !is_held;
            let is_due = is_shown && said_at.is_none_or(|at| at.elapsed() >= PLAIN_PERIOD);
            if is_due {
                said_at = Some(Instant::now());
                manager.iter().for_each(|manager| manager.wait_for(PATIENCE));
            }
            if is_shown && is_live {
                is_drawn = true;
                screen::draw(vec![format!("loading     {place}"), format!("            {}", self.line(begin))]);
            } else if is_due {
                note(&format!("loading     {place}: {}", self.line(begin)));
            } else if !is_shown && std::mem::take(&mut is_drawn) {
                screen::draw(Vec::new());
            }
            if is_over {
                return;
            }
            std::thread::park_timeout(DRAW_PERIOD);
        }
    }

    /// Share, bytes, files, rate and time left, as far as they are known.
    fn line(&self, begin: Instant) -> String {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (here, total) = (of(&self.here), of(&self.total));
        let stalled = self.stalled();
        if here == 0 && total == 0 {
            return stalled.unwrap_or_else(|| "waiting for an answer".to_owned());
        }
        let rate = of(&self.come) as f64 / begin.elapsed().as_secs_f64().max(1e-3);
        let mut parts = vec![match total {
            0 => human_bytes(here),
            total => {
                let share = (here as f64 / total as f64).min(1.0);
                format!(
                    "{} {:.0} %, {} of {}",
                    bar(share, BAR_COLUMNS),
                    100.0 * share,
                    human_bytes(here),
                    human_bytes(total)
                )
            }
        }];
        if self.files > 1 {
            parts.push(format!("{} of {} files", of(&self.files_here), self.files));
        }
        if let Some(stalled) = stalled {
            parts.push(stalled);
            return parts.join(", ");
        }
        parts.push(format!("{}/s", human_bytes(rate as u64)));
        if total > here && rate >= 1.0 {
            let left = Duration::from_secs_f64((total - here) as f64 / rate);
            parts.push(format!("{} left", duration(left)));
        }
        parts.join(", ")
    }

    /// That nothing comes, and what is waited for, where that is so.
    fn stalled(&self) -> Option<String> {
        let Silence { since, reason } = &*self.silence();
        let silent = since.elapsed();
        let reason = reason.as_deref().or((silent >= STALLED).then_some("the server sends nothing"))?;
        let (silent, limit) = (duration(silent), GIVEN_UP_AFTER.as_secs() / 60);
        Some(format!("nothing has come for {silent}: {reason}; tried for {limit} min at most"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_what_was_here_already_but_not_in_the_rate() {
        let begin = Instant::now().checked_sub(Duration::from_secs(10)).expect("up for longer");
        let progress = Progress::new(3, 4_000_000);
        progress.found(1_000_000);
        progress.come(1_000_000);
        progress.file();
        let line = progress.line(begin);
        assert!(line.contains("50 %, 2.0 MB of 4.0 MB, 1 of 3 files, ") && line.contains(" kB/s, "), "{line}");
        assert!(line.contains("left"), "{line}");
        progress.drop_bytes(2_000_000);
        assert!(progress.line(begin).contains(" 0 %, 0 B of 4.0 MB"), "{}", progress.line(begin));
    }

    #[test]
    fn a_line_on_which_nothing_comes_says_for_how_long_and_why_instead_of_a_rate() {
        let begin = Instant::now().checked_sub(Duration::from_secs(60)).expect("up for longer");
        let progress = Progress::new(1, 4_000_000);
        progress.come(1_000_000);
        let since = |seconds: u64| progress.silence().since = begin + Duration::from_secs(60 - seconds);
        let told = || progress.line(begin).split_once("nothing has come").map(|(_, told)| told.to_owned());
        since(3);
        assert_eq!(told(), None, "a pause");
        since(7);
        let words = told().expect("it is told");
        assert!(words.starts_with(" for 7 s: the server sends nothing; tried for 2 min"), "{words}");
        assert!(!progress.line(begin).contains("/s"), "no rate, and no time left");
        since(1);
        progress.fail("it answers 503");
        assert!(told().is_some_and(|words| words.starts_with(" for 1 s: it answers 503;")), "at once");
        progress.come(1);
        assert_eq!(told(), None);
        progress.fail("it answers 503");
        progress.hold(true);
        progress.hold(false);
        assert_eq!(told(), None, "hours in which nothing may come do not count");
    }
}

//! Failures that come again and again are told once.

use std::sync::atomic::{AtomicBool, Ordering};

use super::screen::note;

/// Tells that something cannot be written, once until it can be again.
pub(crate) struct ToldOnce(AtomicBool);

impl ToldOnce {
    pub(crate) const fn new() -> ToldOnce {
        ToldOnce(AtomicBool::new(false))
    }

    /// Looks at what has become of writing this.
    pub(crate) fn look(&self, what: &str, written: std::io::Result<()>) {
        self.line(what, written).iter().for_each(|line| note(line));
    }

    fn line(&self, what: &str, written: std::io::Result<()>) -> Option<String> {
        let Err(error) = written else {
            self.0.store(false, Ordering::Relaxed);
            return None;
        };
        let is_news = !self.0.swap(true, Ordering::Relaxed);
        is_news.then(|| format!("warning: cannot write {what}, which is tried again: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_stays_full_is_told_of_once_and_again_after_there_was_room() {
        let told = ToldOnce::new();
        let full = || Err(std::io::Error::other("no space left"));
        let lines = [full(), full(), Ok(()), full()].map(|written| told.line("a list", written));
        let line = Some("warning: cannot write a list, which is tried again: no space left".to_owned());
        assert_eq!(lines, [line.clone(), None, None, line]);
    }
}

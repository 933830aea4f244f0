//! A model on its way to the server: at the owner's rate, watched from outside, and put off for long where it fails. A batch of
//! metrics costs nothing to send again; a model may be gigabytes.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use murmur_network::Throttle;

/// Until the next try, after each one that failed. After the last of them this process tries no more.
const PAUSES: [Duration; 4] =
    [Duration::from_mins(1), Duration::from_mins(10), Duration::from_hours(1), Duration::from_hours(4)];

/// What is read of the file at a time, in bytes, so that a slow rate is kept evenly.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// What has been sent, as it is seen from outside.
#[derive(Clone, Debug, Default)]
pub(super) struct Uploaded(Arc<AtomicU64>);

impl Uploaded {
    /// Bytes of models so far, those of tries that failed as well.
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The file as it is sent.
pub(super) struct Body<'a> {
    pub(super) file: &'a File,
    pub(super) throttle: &'a Throttle,
    pub(super) uploaded: &'a Uploaded,
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(PIECE_BYTES_MAX);
        let bytes = self.file.read(&mut buffer[..most])?;
        self.throttle.wait_to_upload(bytes);
        self.uploaded.add(bytes);
        Ok(bytes)
    }
}

/// When a model that did not get there may be sent again.
#[derive(Debug, Default)]
pub(super) struct Tries {
    failed: usize,
    next: Option<Instant>,
}

impl Tries {
    /// Whether it may be sent now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.failed == 0 || self.next.is_some_and(|next| now >= next)
    }

    /// Whether it has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed > 0
    }

    /// It failed again. Until the next try; none where there is no other.
    pub(super) fn fail(&mut self, now: Instant) -> Option<Duration> {
        let pause = PAUSES.get(self.failed).copied();
        self.failed += 1;
        self.next = pause.map(|pause| now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_fails_is_sent_some_times_in_hours_and_no_more() {
        let mut tries = Tries::default();
        let (mut now, begin, mut sent) = (Instant::now(), Instant::now(), 0);
        while now < begin + Duration::from_hours(48) {
            if tries.is_due(now) {
                sent += 1;
                tries.fail(now);
            }
            now += Duration::from_secs(5);
        }
        assert_eq!(sent, 1 + PAUSES.len());
    }
}

//! Caps on bytes a second: everybody who sends or receives draws from one bucket a direction.
//!
//! A token bucket in the form of a virtual schedule (GCRA, ITU-T I.371): what is drawn moves the time at which the bucket
//! is free again, and whoever draws waits until the time that it was given. So draws are served in order, whoever makes
//! them, and their sum keeps to the rate whatever their number.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::bounds::CAP_BURST;

/// Caps of a node, in bytes a second; `None` sets none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// What the node sends, over all peers.
    pub upload: Option<u64>,
    /// What it receives.
    pub download: Option<u64>,
}

/// The buckets of a machine, one a direction; clones share them, so that all connections of a process keep to one cap together.
#[derive(Clone, Debug)]
pub struct Throttle {
    pub(crate) upload: Arc<RateLimiter>,
    pub(crate) download: Arc<RateLimiter>,
}

impl Throttle {
    /// Full buckets with these caps.
    pub fn new(caps: Caps) -> Throttle {
        let limiter = |cap| Arc::new(RateLimiter::new(cap, CAP_BURST));
        Throttle { upload: limiter(caps.upload), download: limiter(caps.download) }
    }

    /// Draws so many bytes to be sent beside all connections, and keeps this thread until they may move.
    pub fn wait_to_upload(&self, bytes: usize) {
        if let Some(rate) = &self.upload.rate {
            let at = rate.draw(Instant::now(), bytes);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
        }
    }
}

impl Default for Throttle {
    /// Without caps.
    fn default() -> Throttle {
        Throttle::new(Caps::default())
    }
}

/// One direction's bucket.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    /// `None`: no cap.
    rate: Option<Rate>,
}

#[derive(Debug)]
struct Rate {
    seconds_per_byte: f64,
    burst: Duration,
    /// When all that was drawn so far is paid for. Locked for a few instructions, never while waiting.
    free_at: Mutex<Instant>,
}

impl RateLimiter {
    /// `burst`: how much of the rate may be drawn at once after a pause.
    pub(crate) fn new(bytes_per_second: Option<u64>, burst: Duration) -> RateLimiter {
        let rate = bytes_per_second.map(|rate| Rate {
            seconds_per_byte: 1.0 / rate.max(1) as f64,
            burst,
            free_at: Mutex::new(Instant::now()),
        });
        RateLimiter { rate }
    }

    /// Draws so many bytes and waits until they may move.
    pub(crate) async fn wait(&self, bytes: usize) {
        if let Some(rate) = &self.rate {
            let at = rate.draw(Instant::now(), bytes);
            if at > Instant::now() {
                sleep_until(at).await;
            }
        }
    }

    /// Draws bytes that move at once: those after them wait the longer.
    pub(crate) fn count(&self, bytes: usize) {
        if let Some(rate) = &self.rate {
            rate.draw(Instant::now(), bytes);
        }
    }
}

impl Rate {
    /// The time from which bytes that are drawn now may move.
    fn draw(&self, now: Instant, bytes: usize) -> Instant {
        let cost = Duration::from_secs_f64(bytes as f64 * self.seconds_per_byte);
        let mut free_at = self.free_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let earliest = now.checked_sub(self.burst).unwrap_or(now);
        *free_at = (*free_at).max(earliest) + cost;
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bytes_per_second: u64, burst: Duration) -> Rate {
        RateLimiter::new(Some(bytes_per_second), burst).rate.expect("a cap")
    }

    #[test]
    fn many_who_draw_keep_to_the_cap_together_within_five_per_cent_over_ten_seconds() {
        let rate = rate(1_000_000, Duration::from_millis(100));
        let begin = Instant::now() + Duration::from_secs(60); // after a long pause
        let end = begin + Duration::from_secs(10);
        // Each draws anew as soon as its last draw may move.
        let mut drawers = [16_384, 16_384, 5_000, 1_000, 64].map(|size| (begin, size));
        let mut moved = 0;
        loop {
            let (now, size) = drawers.iter_mut().min_by_key(|(now, _)| *now).expect("five");
            *now = rate.draw(*now, *size);
            if *now >= end {
                break;
            }
            moved += *size;
        }
        assert!((9_500_000..=10_500_000).contains(&moved), "{moved} bytes in 10 s at 1 MB/s");
    }

    #[test]
    fn what_is_only_counted_delays_the_rest() {
        let rate = rate(1000, Duration::ZERO);
        let now = Instant::now() + Duration::from_secs(1);
        rate.draw(now, 2000);
        assert_eq!(rate.draw(now, 1000) - now, Duration::from_secs(3));
    }

    #[test]
    fn what_a_thread_sends_is_drawn_from_the_same_bucket() {
        let throttle = Throttle::new(Caps { upload: Some(100_000), download: None });
        let begin = Instant::now();
        let burst = (100_000.0 * CAP_BURST.as_secs_f64()) as usize;
        throttle.upload.count(burst);
        throttle.clone().wait_to_upload(20_000);
        assert!(begin.elapsed() >= Duration::from_millis(150), "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn without_a_cap_nobody_waits() {
        let begin = Instant::now();
        RateLimiter::new(None, Duration::ZERO).wait(usize::MAX).await;
        assert!(begin.elapsed() < Duration::from_secs(1));
    }
}

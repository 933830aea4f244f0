//! How long to wait: from what was seen, not from a fixed time-out.
//!
//! The estimator is that of TCP's retransmission timer (Jacobson and Karels 1988; RFC 6298): a smoothed mean plus four
//! times the smoothed deviation, doubled after each wait in vain.

use std::time::Duration;

/// Learns how long something takes.
#[derive(Clone, Debug)]
pub(crate) struct TimeoutEstimator {
    /// Before the first measurement.
    initial: Duration,
    floor: Duration,
    ceiling: Duration,
    doublings_max: u32,
    /// Smoothed mean and mean deviation, in seconds.
    seen: Option<(f64, f64)>,
    doublings: u32,
}

impl TimeoutEstimator {
    /// Waits `initial` until something is known, never less than `floor`, and never more than `initial` doubled
    /// `doublings_max` times.
    pub(crate) fn new(initial: Duration, floor: Duration, doublings_max: u32) -> TimeoutEstimator {
        let ceiling = initial.saturating_mul(1 << doublings_max);
        TimeoutEstimator { initial, floor, ceiling, doublings_max, seen: None, doublings: 0 }
    }

    /// It took this long.
    pub(crate) fn record(&mut self, taken: Duration) {
        let taken = taken.as_secs_f64();
        self.seen = Some(match self.seen {
            None => (taken, taken / 2.0),
            Some((mean, deviation)) => {
                (mean + 0.125 * (taken - mean), deviation + 0.25 * ((taken - mean).abs() - deviation))
            }
        });
        self.doublings = 0;
    }

    /// It did not happen within [`limit`](Self::limit).
    pub(crate) fn record_in_vain(&mut self) {
        self.doublings = (self.doublings + 1).min(self.doublings_max);
    }

    /// How long to wait at most where something else may be tried instead: half of the first wait, whatever was in vain.
    pub(crate) fn short_limit(&self) -> Duration {
        self.limit().min(self.initial / 2)
    }

    /// How long to wait now.
    pub(crate) fn limit(&self) -> Duration {
        let base = match self.seen {
            None => self.initial,
            Some((mean, deviation)) => {
                // Finite and not negative: sums of durations.
                Duration::from_secs_f64(mean + 4.0 * deviation).clamp(self.floor, self.ceiling)
            }
        };
        base.saturating_mul(1 << self.doublings).min(self.ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn the_wait_follows_what_was_seen() {
        let mut timeout = TimeoutEstimator::new(seconds(20), seconds(1), 4);
        assert_eq!(timeout.limit(), seconds(20));
        (0..50).for_each(|_| timeout.record(Duration::from_millis(100)));
        assert_eq!(timeout.limit(), seconds(1), "never below the floor");
        (0..50).for_each(|_| timeout.record(seconds(8)));
        assert!((seconds(8)..seconds(10)).contains(&timeout.limit()), "{:?}", timeout.limit());
    }

    #[test]
    fn waits_in_vain_double_up_to_a_bound_and_success_forgives() {
        let mut timeout = TimeoutEstimator::new(seconds(20), seconds(1), 4);
        timeout.record(seconds(2));
        let before = timeout.limit();
        timeout.record_in_vain();
        assert_eq!(timeout.limit(), 2 * before);
        (0..100).for_each(|_| timeout.record_in_vain());
        assert!(timeout.limit() <= seconds(320));
        timeout.record(seconds(2));
        assert!(timeout.limit() <= before);
    }
}

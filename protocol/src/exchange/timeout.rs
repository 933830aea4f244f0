//! How long to wait: from what was seen, not from a fixed time-out.
//!
//! The estimator is that of TCP's retransmission timer (Jacobson and Karels 1988; RFC 6298): a smoothed mean plus four
//! times the smoothed deviation, doubled after each wait in vain.

use std::time::Duration;

use crate::bounds::*;

/// Learns how long something takes.
#[derive(Clone, Debug)]
pub(crate) struct TimeoutEstimator {
    /// Before the first measurement.
    initial: Duration,
    floor: Duration,
    ceiling: Duration,
    /// What `initial` and `ceiling` are longer by.
    allowance: Duration,
    /// The least that [`short_limit`](Self::short_limit) is.
    short_min: Duration,
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
        let (allowance, short_min) = (Duration::ZERO, Duration::ZERO);
        TimeoutEstimator { initial, floor, ceiling, allowance, short_min, doublings_max, seen: None, doublings: 0 }
    }

    /// Waits in vain double also what was learned until it is the longest wait: what has become slow is waited for in the end.
    pub(crate) fn doubling_to_the_ceiling(self) -> TimeoutEstimator {
        TimeoutEstimator { doublings_max: u32::BITS - 1, ..self }
    }

    /// From now on it may take so much longer than `initial`, and than the longest wait.
    pub(crate) fn allow(&mut self, longer: Duration) {
        self.allowance = longer;
    }

    /// How long to wait before the first measurement.
    pub(crate) fn initial(&self) -> Duration {
        self.initial + self.allowance
    }

    /// The longest wait.
    pub(crate) fn ceiling(&self) -> Duration {
        self.ceiling + self.allowance
    }

    /// From now on [`short_limit`](Self::short_limit) is at least this.
    pub(crate) fn allow_short(&mut self, least: Duration) {
        self.short_min = least;
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
        if self.doublings < self.doublings_max && self.limit() < self.ceiling() {
            self.doublings += 1;
        }
    }

    /// How long to wait at most where something else may be tried instead: half of the first wait, whatever was in vain; longer
    /// where that was allowed ([`allow_short`](Self::allow_short)).
    pub(crate) fn short_limit(&self) -> Duration {
        self.limit().min(self.initial() / 2).max(self.short_min)
    }

    /// How long to wait now.
    pub(crate) fn limit(&self) -> Duration {
        let base = match self.seen {
            None => self.initial(),
            Some((mean, deviation)) => {
                // Finite and not negative: sums of durations.
                Duration::from_secs_f64(mean + 4.0 * deviation).clamp(self.floor, self.ceiling())
            }
        };
        base.saturating_mul(1 << self.doublings).min(self.ceiling())
    }
}

/// How long a proposal waits for its answer before it is repeated.
pub(super) fn answer_timeout() -> TimeoutEstimator {
    TimeoutEstimator::new(PROPOSAL_REPEAT_PERIOD, PROPOSAL_REPEAT_PERIOD_MIN, PROPOSAL_DOUBLINGS_MAX)
}

/// How long a starter may have an exchange answered and remembered.
pub(super) fn longest_deadline(parameters: usize) -> Duration {
    exchange_timeout(parameters).saturating_mul(1 << EXCHANGE_DOUBLINGS_MAX) + STEP_TIME_MAX * STEPS_OF_AN_EXCHANGE
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

    #[test]
    fn what_has_become_slow_is_waited_for_in_the_end_where_that_is_wanted() {
        let quick = |mut timeout: TimeoutEstimator| {
            timeout.record(Duration::from_millis(100));
            (0..100).for_each(|_| timeout.record_in_vain());
            timeout.limit()
        };
        let timeout = TimeoutEstimator::new(seconds(20), seconds(1), 2);
        assert_eq!(quick(timeout.clone()), seconds(4));
        let mut patient = timeout.doubling_to_the_ceiling();
        assert_eq!(quick(patient.clone()), seconds(80));
        patient.allow(seconds(30));
        assert_eq!((patient.limit(), quick(patient)), (seconds(50), seconds(110)));
    }
}

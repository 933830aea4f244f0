//! A host's clock, which may be fast or slow.

use std::time::Duration;

use murmur_protocol::Time;

/// What a host takes for the time: the true one times a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Seconds in one true second.
    rate: f64,
}

impl Clock {
    pub(crate) fn new(rate: f64) -> Clock {
        assert!(rate.is_finite() && rate > 0.0, "a clock goes forward");
        Clock { rate }
    }

    /// What it shows at `time`.
    pub(crate) fn shows(self, time: Time) -> Time {
        // Exact for a good clock: nanoseconds of a hundred days fit an `f64`.
        let shown = time.since_start().as_nanos() as f64 * self.rate;
        Time::from_start(Duration::from_nanos(shown as u64))
    }

    /// The first moment at which it shows `shown` or more.
    pub(crate) fn reaches(self, shown: Time) -> Time {
        let nanoseconds = (shown.since_start().as_nanos() as f64 / self.rate) as u64;
        let at = |nanoseconds| Time::from_start(Duration::from_nanos(nanoseconds));
        let mut first = nanoseconds.saturating_sub(1);
        while self.shows(at(first)) < shown {
            first += 1;
        }
        at(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_woken_for_too_early() {
        for rate in [1.0, 0.9, 1.1, 1.000_03] {
            let clock = Clock::new(rate);
            for nanoseconds in [0, 1, 17, 1_000_000_007, 86_400_000_000_003] {
                let shown = Time::from_start(Duration::from_nanos(nanoseconds));
                let reached = clock.reaches(shown);
                assert!(clock.shows(reached) >= shown);
                let just_before = reached.since_start().saturating_sub(Duration::from_nanos(3));
                assert!(nanoseconds == 0 || clock.shows(Time::from_start(just_before)) < shown);
            }
        }
        let time = Time::from_start(Duration::from_nanos(86_400_000_000_003));
        assert_eq!(Clock::new(1.0).reaches(time), time);
    }
}

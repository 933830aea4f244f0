//! Time as the core sees it: an argument, never a clock.
//!
//! The daemon counts from its own start, the simulator from the beginning of the scenario, so a [`Time`] means nothing
//! outside the process (or the scenario) that made it and never goes on the wire.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant: nanoseconds since the owner of the [`Node`](crate::Node) began to count. Covers 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The beginning of the count.
    pub const ZERO: Time = Time(0);

    /// The far end of the range: later than anything.
    pub const MAX: Time = Time(u64::MAX);

    /// The instant `elapsed` after the beginning; saturates at the far end of the range.
    pub fn from_start(elapsed: Duration) -> Time {
        Time(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long after the beginning this is.
    pub fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// How long after `earlier` this is; zero where `earlier` is in fact later.
    pub fn saturating_since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, duration: Duration) -> Time {
        Time::from_start(self.since_start().saturating_add(duration))
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.6}s", self.since_start().as_secs_f64())
    }
}

/// So long after the beginning of a test.
#[cfg(test)]
pub(crate) fn second(count: u64) -> Time {
    Time::from_start(Duration::from_secs(count))
}

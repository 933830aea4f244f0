//! How far two machines' clocks are apart, as NTP measures it (RFC 5905, section 8): from the times at which a question
//! left, came in, was answered, and at which the answer came in.
//!
//! No decision of the protocol goes by wall clocks; a machine's own quiet hours and its day's budget do, so its owner is
//! told. The driver reads the clocks; here are only their numbers.

use bincode::{Decode, Encode};

/// When a listener, by its own clock, received a hello and sent its challenge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Stamps {
    /// T2, in microseconds since 1970 UTC.
    pub received: u64,
    /// T3, likewise.
    pub sent: u64,
}

/// How far another clock is ahead of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// In microseconds; negative where it is behind.
    pub ahead: i64,
    /// How wrong that may be, in microseconds: half of the time on the way, for its two halves may be unlike.
    pub error: u64,
}

impl ClockOffset {
    /// From the times, by this machine's clock in microseconds since 1970 UTC, at which the hello left (T1) and the
    /// challenge came in (T4). Nothing that the other side stamps can make it panic.
    pub fn measured(asked: u64, stamps: Stamps, answered: u64) -> ClockOffset {
        let [t1, t2, t3, t4] = [asked, stamps.received, stamps.sent, answered].map(i128::from);
        let ahead = ((t2 - t1) + (t3 - t4)) / 2;
        let way = (t4 - t1) - (t3 - t2);
        ClockOffset {
            ahead: ahead.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64,
            error: (way / 2).clamp(0, i128::from(u64::MAX)) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_that_of_the_clocks_and_the_way_is_its_error() {
        // A clock 5 s ahead; 30 µs there, 10 µs of thought, 50 µs back.
        let stamps = Stamps { received: 6_000_030, sent: 6_000_040 };
        let offset = ClockOffset::measured(1_000_000, stamps, 1_000_090);
        assert_eq!(offset, ClockOffset { ahead: 4_999_990, error: 40 });
        assert!((offset.ahead - 5_000_000).unsigned_abs() <= offset.error);
    }

    #[test]
    fn a_clock_that_is_behind_is_negative_and_nonsense_is_survived() {
        let stamps = Stamps { received: 1_000, sent: 1_000 };
        assert_eq!(ClockOffset::measured(61_000, stamps, 61_000), ClockOffset { ahead: -60_000, error: 0 });
        for stamps in [Stamps { received: u64::MAX, sent: 0 }, Stamps { received: 0, sent: u64::MAX }] {
            let offset = ClockOffset::measured(5, stamps, 10);
            assert!(offset.error <= u64::MAX / 2 + 10, "{offset:?}");
        }
        let offset = ClockOffset::measured(0, Stamps { received: u64::MAX, sent: u64::MAX }, 0);
        assert_eq!(offset.ahead, i64::MAX);
    }
}

//! How fast this node can send, from the bytes and times of its transfers.
//!
//! The largest of the last rates counts, as in BBR (Cardwell et al. 2016): a transfer that shared the line, or went to a
//! peer on a slow one, shows too little, and none shows too much, for its time ends with the receiver's confirmation.

use std::collections::VecDeque;
use std::time::Duration;

/// A shorter transfer tells of the way's length and of busy processors, not of the line (a guess: 64 KiB take 5 ms on a
/// line of 100 Mbit/s).
const BYTES_MIN: usize = 64 * 1024;

/// One as short as this takes as long as the way there and back (a guess: 1 KiB takes 8 ms at 1 Mbit/s).
const EMPTY_BYTES_MAX: usize = 1024;

/// Weight of the newest in the running mean of times there and back.
const NEWEST: f64 = 0.125;

/// Transfers behind the estimate (a guess: minutes of exchanges, so that a line that became slow is noticed).
const RECENT: usize = 32;

/// The rates of the last transfers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uplink {
    /// Bytes a second, the oldest first.
    rates: VecDeque<f64>,
    /// Of the shorter transfers; each shows less than the line carries.
    short: VecDeque<f64>,
    /// Seconds there and back, a running mean.
    round_trip: Option<f64>,
}

impl Uplink {
    /// A transfer of so many bytes was confirmed after this time.
    pub(crate) fn on_sent(&mut self, bytes: usize, taken: Duration) {
        if taken.is_zero() {
            return;
        }
        if bytes <= EMPTY_BYTES_MAX {
            let seconds = taken.as_secs_f64();
            let mean = self.round_trip.get_or_insert(seconds);
            *mean += NEWEST * (seconds - *mean);
        }
        let rates = if bytes < BYTES_MIN { &mut self.short } else { &mut self.rates };
        if rates.len() == RECENT {
            rates.pop_front();
        }
        rates.push_back(bytes as f64 / taken.as_secs_f64());
    }

    /// Bytes a second; `None` before a transfer was large enough to tell.
    pub(crate) fn bytes_per_second(&self) -> Option<f64> {
        self.rates.iter().copied().reduce(f64::max)
    }

    /// Seconds of the way to others and back, as the shortest transfers have shown.
    pub(crate) fn round_trip_seconds(&self) -> Option<f64> {
        self.round_trip
    }

    /// Bytes a second that it carries at least, as far as transfers of any length have shown; `None` before the first.
    pub(crate) fn bytes_per_second_at_least(&self) -> Option<f64> {
        self.rates.iter().chain(&self.short).copied().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_of_the_last_transfers_tells_the_line() {
        let mut uplink = Uplink::default();
        uplink.on_sent(1000, Duration::from_millis(1));
        assert_eq!(uplink.bytes_per_second(), None, "too small to tell");
        assert_eq!(uplink.bytes_per_second_at_least(), Some(1e6), "but not to tell something");
        assert_eq!(uplink.round_trip_seconds(), Some(0.001));
        uplink.on_sent(1_000_000, Duration::from_secs(1));
        uplink.on_sent(1_000_000, Duration::from_secs(4));
        assert_eq!(uplink.bytes_per_second(), Some(1e6), "to a peer on a slow line");
        (0..RECENT).for_each(|_| uplink.on_sent(1_000_000, Duration::from_secs(4)));
        assert_eq!(uplink.bytes_per_second(), Some(0.25e6), "the line has become slow");
    }
}

//! How fast this node can send, from the bytes and times of its transfers.
//!
//! The largest of the last rates counts, as in BBR (Cardwell et al. 2016): a transfer that shared the line, or went to a
//! peer on a slow one, shows too little, and none shows too much, for its time ends with the receiver's confirmation.

use std::collections::VecDeque;
use std::time::Duration;

/// A shorter transfer tells of the way's length and of busy processors, not of the line (a guess: 64 KiB take 5 ms on a
/// line of 100 Mbit/s).
const BYTES_MIN: usize = 64 * 1024;

/// Transfers behind the estimate (a guess: minutes of exchanges, so that a line that became slow is noticed).
const RECENT: usize = 32;

/// Rates of the last transfers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uplink {
    /// Bytes a second, the oldest first.
    rates: VecDeque<f64>,
}

impl Uplink {
    /// A transfer of so many bytes was confirmed after this time.
    pub(crate) fn on_sent(&mut self, bytes: usize, taken: Duration) {
        if bytes < BYTES_MIN || taken.is_zero() {
            return;
        }
        if self.rates.len() == RECENT {
            self.rates.pop_front();
        }
        self.rates.push_back(bytes as f64 / taken.as_secs_f64());
    }

    /// Bytes a second; `None` before a transfer was large enough to tell.
    pub(crate) fn bytes_per_second(&self) -> Option<f64> {
        self.rates.iter().copied().reduce(f64::max)
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
        uplink.on_sent(1_000_000, Duration::from_secs(1));
        uplink.on_sent(1_000_000, Duration::from_secs(4));
        assert_eq!(uplink.bytes_per_second(), Some(1e6), "to a peer on a slow line");
        (0..RECENT).for_each(|_| uplink.on_sent(1_000_000, Duration::from_secs(4)));
        assert_eq!(uplink.bytes_per_second(), Some(0.25e6), "the line has become slow");
    }
}

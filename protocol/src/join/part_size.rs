//! How much of a state to send in one transfer: what takes about [`STATE_PART_TIME`] on the way to this joiner.
//!
//! Beginning with one chunk, as nothing is known of the line, the size at most doubles from part to part.

use std::time::Duration;

use crate::bounds::{STATE_PART_CHUNKS_MAX, STATE_PART_TIME};

/// The size of the next part, learned from those before.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartSize(u32);

impl Default for PartSize {
    fn default() -> PartSize {
        PartSize(1)
    }
}

impl PartSize {
    /// Chunks of the next part, at least 1.
    pub(super) fn chunks(self) -> u32 {
        self.0
    }

    /// A part of so many chunks had the line for this long: the last one of a state is a part of a chunk.
    pub(super) fn on_confirmed(&mut self, chunks: f64, taken: Duration) {
        let fitting = chunks * STATE_PART_TIME.as_secs_f64() / taken.as_secs_f64().max(1e-9);
        // A saturating conversion; at most twice or half of what it was.
        self.0 = (fitting as u32).clamp(self.0 / 2, 2 * self.0).clamp(1, STATE_PART_CHUNKS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What parts of 16 KiB chunks come to on a line of so many bytes a second.
    fn settled(bytes_per_second: f64) -> u32 {
        let mut size = PartSize::default();
        for _ in 0..20 {
            let taken = 16_384.0 * f64::from(size.chunks()) / bytes_per_second;
            size.on_confirmed(size.chunks().into(), Duration::from_secs_f64(taken));
        }
        size.chunks()
    }

    #[test]
    fn a_part_takes_about_two_seconds_on_any_line() {
        assert_eq!(settled(1e3), 1, "no less than a chunk");
        assert_eq!(settled(8e3), 1);
        assert_eq!(settled(125e3), 15);
        assert_eq!(settled(1e9), STATE_PART_CHUNKS_MAX);
    }

    #[test]
    fn a_line_that_becomes_slow_is_noticed() {
        let mut size = PartSize(64);
        (0..6).for_each(|_| size.on_confirmed(size.chunks().into(), Duration::from_secs(60)));
        assert_eq!(size.chunks(), 1);
    }
}

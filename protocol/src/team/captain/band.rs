//! Whether the size of a stream is like that of those before: a coarse screen against machines that compute nonsense.

/// Streams before anything is judged. A guess: two batches of a usual team.
const LEARNS_FROM: u32 = 32;

/// How far a size may be from the usual, in doublings, whatever its spread: a factor of 64. A guess, far beyond what an honest
/// stage does from one microbatch to the next.
const DOUBLINGS: f32 = 6.0;

/// Mean deviations beyond that.
const DEVIATIONS: f32 = 6.0;

/// Sizes of the streams of one stage in one direction, as logarithms to base 2.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Band {
    seen: u32,
    mean: f32,
    deviation: f32,
}

impl Band {
    /// Whether a size (the root of the mean square, finite) is within the band; then it is learned from.
    pub(super) fn admits(&mut self, size: f32) -> bool {
        let size = size.max(f32::MIN_POSITIVE).log2();
        let off = (size - self.mean).abs();
        if self.seen >= LEARNS_FROM && off > DOUBLINGS + DEVIATIONS * self.deviation {
            return false;
        }
        self.seen = self.seen.saturating_add(1);
        // A plain mean at first, later one that forgets.
        let share = 1.0 / self.seen.min(64) as f32;
        self.mean += share * (size - self.mean);
        if self.seen > 1 {
            self.deviation += share * (off - self.deviation);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_drift_are_admitted_and_those_that_jump_are_not() {
        let mut band = Band::default();
        // A thousandth within a thousand streams.
        assert!((0..1000).all(|step| band.admits(0.5_f32.powf(step as f32 / 100.0) * (1.0 + (step % 7) as f32))));
        let before = band;
        for odd in [0.0, 1e-9, 1e3, 1e30] {
            assert!(!band.admits(odd), "{odd}");
        }
        assert_eq!(band, before, "nothing is learned from those");
        assert!(band.admits(0.001));
    }

    #[test]
    fn nothing_is_judged_before_enough_is_seen() {
        let mut band = Band::default();
        assert!((0..32).all(|_| band.admits(1.0)));
        assert!(!band.admits(1e4));
        assert!(Band::default().admits(1e4));
    }
}

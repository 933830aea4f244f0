//! How long a correction may be: a multiple of the median of recent ones (ClippedGossip, arXiv 2202.01545).

use std::collections::VecDeque;

use crate::bounds::{CLIP_HISTORY, CLIP_HISTORY_MIN};

/// The median of honest norms is at most this many lower thirds (a guess: partners differ by their ages).
const SPREAD: f64 = 1.5;

/// The usual norm is at least this share of what it was an exchange ago. Where nobody learns any more, averaging halves
/// distances with every exchange; did the limit follow at once, two groups that are a little closer within than between
/// them would freeze apart (a guess: a tenth in forty-five exchanges). Did it not follow at all, liars would keep the others
/// apart by what was usual once.
const USUAL_LEFT: f64 = 0.95;

/// Norms of recent exchanges.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClipHistory {
    /// Oldest first, at most [`CLIP_HISTORY`].
    norms: VecDeque<f64>,
    /// The usual norm. Without [`CLIP_HISTORY_MIN`] norms what another member takes for usual, or 0 where none has told.
    usual: f64,
    /// The same without what was told; 0 while there are too few.
    measured: f64,
    /// Models that are not further apart are one.
    least: f64,
}

impl ClipHistory {
    /// Takes in ‖s·d‖ of an exchange, as it was before clipping: where the swarm drifts apart for good, the limit
    /// follows. `least`: models that are not further apart are one.
    pub(crate) fn record(&mut self, norm: f64, least: f64) {
        if self.norms.len() == CLIP_HISTORY {
            self.norms.pop_front();
        }
        self.norms.push_back(norm);
        let middle = middle(std::iter::once(&*self)).unwrap_or(0.0);
        (self.usual, self.measured) = ((USUAL_LEFT * self.usual).max(middle), (USUAL_LEFT * self.measured).max(middle));
        self.least = least;
    }

    /// The model is another one, with a usual norm of which a member has told that found it near; 0 where none has.
    pub(crate) fn begin_anew(&mut self, usual: f64) {
        self.norms.clear();
        (self.usual, self.measured) = (usual, 0.0);
    }

    /// The usual norm, once there are enough, or another member has told.
    pub(crate) fn usual(&self) -> Option<f64> {
        (self.has_enough() || self.usual > 0.0).then_some(self.usual)
    }

    /// The usual norm of own exchanges alone, once there are enough.
    pub(crate) fn measured(&self) -> Option<f64> {
        self.has_enough().then_some(self.measured)
    }

    fn has_enough(&self) -> bool {
        self.norms.len() >= CLIP_HISTORY_MIN
    }

    /// τ: `factor` usual norms. Nothing is clipped that is hardly apart: where others are nearer still, a model would stay there
    /// for ever. Before these are known what was told, or `first`, which grows with what own training has done to the model: in a
    /// young run distances soon are many times what they were when it was told.
    pub(crate) fn norm(&self, factor: f64, first: f64) -> f64 {
        let first = if self.has_enough() { 0.0 } else { first };
        self.usual().map_or(first, |usual| first.max(factor * usual.max(self.least)))
    }
}

/// Between the lower third of the recent norms of all these and their median, so that it holds against more than a few that lie:
/// honest norms lie close together. `None` while there are too few.
pub(crate) fn middle<'a>(histories: impl Iterator<Item = &'a ClipHistory>) -> Option<f64> {
    let mut sorted: Vec<f64> = histories.flat_map(|history| &history.norms).copied().collect();
    sorted.sort_by(f64::total_cmp);
    let (third, median) = (sorted.get(sorted.len().saturating_sub(1) / 3)?, sorted.get(sorted.len() / 2)?);
    (sorted.len() >= CLIP_HISTORY_MIN).then(|| median.min(SPREAD * third))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_never_unbounded_and_ignores_one_outlier() {
        let mut clip = ClipHistory::default();
        assert_eq!(clip.norm(2.5, 6.0), 6.0);
        for norm in [1.0, 1e9, 1.0, 1e9, 1.0] {
            clip.record(norm, 0.0);
        }
        assert_eq!(clip.norm(2.5, 2.0), 2.5);
        (0..10).for_each(|index| clip.record(if index % 2 == 0 { 1e9 } else { 1.0 }, 0.0));
        assert!(clip.norm(2.5, 2.0) <= 2.5 * SPREAD, "even of nearly a half");
    }

    #[test]
    fn nothing_is_clipped_that_is_hardly_apart() {
        let mut clip = ClipHistory::default();
        (0..CLIP_HISTORY).for_each(|_| clip.record(1.0, 0.01));
        assert_eq!(clip.norm(2.0, 0.0), 2.0);
        (0..200).for_each(|_| clip.record(1e-7, 0.01));
        assert_eq!(clip.norm(2.0, 0.0), 0.02);
    }

    #[test]
    fn old_norms_are_forgotten() {
        let mut clip = ClipHistory::default();
        (0..CLIP_HISTORY).for_each(|_| clip.record(100.0, 0.0));
        (0..200).for_each(|_| clip.record(1.0, 0.0));
        assert_eq!(clip.norm(1.0, 0.0), 1.0);
    }

    #[test]
    fn the_limit_falls_slowly_until_another_model_comes() {
        let mut clip = ClipHistory::default();
        (0..CLIP_HISTORY).for_each(|_| clip.record(1.0, 0.0));
        for round in 1..=CLIP_HISTORY {
            clip.record(0.01, 0.0);
            assert!(clip.norm(1.0, 0.0) >= USUAL_LEFT.powi(round as i32));
        }
        clip.begin_anew(0.1);
        assert_eq!((clip.norm(2.0, 0.0), clip.norm(2.0, 1.0)), (0.2, 1.0), "as told, or as it moves");
        (0..CLIP_HISTORY_MIN).for_each(|_| clip.record(0.01, 0.0));
        assert!((0.05..0.1).contains(&clip.norm(1.0, 1.0)), "from there it falls");
        (0..CLIP_HISTORY).for_each(|_| clip.record(1.0, 0.0));
        assert_eq!(clip.norm(1.0, 0.0), 1.0, "another model has norms of its own");
    }
}

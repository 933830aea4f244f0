//! How long a correction may be: a multiple of the median of recent ones (ClippedGossip, arXiv 2202.01545).

use std::collections::VecDeque;

use crate::bounds::{CLIP_HISTORY, CLIP_HISTORY_MIN, FIRST_CLIP_FACTOR};

/// Norms of recent exchanges.
#[derive(Debug)]
pub(crate) struct ClipHistory {
    /// Oldest first, at most [`CLIP_HISTORY`].
    norms: VecDeque<f64>,
    factor: f64,
}

impl ClipHistory {
    pub(crate) fn new(factor: f64) -> ClipHistory {
        ClipHistory { norms: VecDeque::with_capacity(CLIP_HISTORY), factor }
    }

    /// Takes in ‖s·d‖ of an exchange, as it was before clipping: where the swarm drifts apart for good, the limit
    /// follows.
    pub(crate) fn record(&mut self, norm: f64) {
        if self.norms.len() == CLIP_HISTORY {
            self.norms.pop_front();
        }
        self.norms.push_back(norm);
    }

    /// τ, for a model that its own training has moved by at most `travel`.
    pub(crate) fn norm(&self, travel: f64) -> f64 {
        if self.norms.len() < CLIP_HISTORY_MIN {
            return FIRST_CLIP_FACTOR * travel;
        }
        let mut sorted: Vec<f64> = self.norms.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        self.factor * sorted[sorted.len() / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_never_unbounded_and_ignores_one_outlier() {
        let mut clip = ClipHistory::new(2.5);
        assert_eq!(clip.norm(2.0), 6.0);
        for norm in [1.0, 1e9, 1.0, 1.0] {
            clip.record(norm);
        }
        assert_eq!(clip.norm(2.0), 2.5);
    }

    #[test]
    fn old_norms_are_forgotten() {
        let mut clip = ClipHistory::new(1.0);
        (0..CLIP_HISTORY).for_each(|_| clip.record(100.0));
        (0..CLIP_HISTORY).for_each(|_| clip.record(1.0));
        assert_eq!(clip.norm(0.0), 1.0);
    }
}

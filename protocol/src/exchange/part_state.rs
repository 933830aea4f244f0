//! What the exchanges of one part of the model have taught: its scales, how far others usually are, whether this node is the one
//! that is far off.

use std::collections::VecDeque;

use super::clip::ClipHistory;
use super::last_merges::LastMerges;
use super::outlier::{OutlierDetection, Seen};
use super::terms::Terms;
use crate::bulk::BLOCK;
use crate::numerics::{CodeWidth, Merged, Scales};

/// Where more than this share of the blocks wrapped, the others tell nothing.
const MOST: f64 = 0.5;

/// Exchanges of a part that tell whether the run's end has found one model: of two groups (a guess: three partners are of one
/// half once in eight times).
const LAST_MERGES: usize = 3;

/// What exchanges of one part have taught.
#[derive(Debug, Default)]
pub(super) struct PartState {
    /// `None` before the first exchange.
    pub(super) scales: Option<Scales>,
    pub(super) clip: ClipHistory,
    /// How far own training had moved the model before this node held the part.
    pub(super) travel_before: f64,
    /// A model may be beyond the others' grid in one fragment and among them in the rest.
    pub(super) outlier: OutlierDetection,
    /// Whether the last exchange had blocks that wrap again and again, with whomever; once training is over, that wrap at all: half of
    /// the partners may be near, so that a block never wraps twice in a row, and hides that the others are far.
    pub(super) is_stuck: bool,
    /// Whether the last exchange with 16-bit codes was with a model that was far away.
    pub(super) is_beyond_grid: bool,
    /// Whether it was with one that was hardly another.
    pub(super) is_near: bool,
    /// Oldest first, at most [`LAST_MERGES`].
    pub(super) last_merges: VecDeque<LastMerges>,
}

impl PartState {
    /// `masked`: the share of the blocks that wrapped. `least`: models that are not further apart are one. `is_over`: own training is.
    pub(super) fn take_in(
        &mut self,
        (merged, masked): (&Merged, f64),
        terms: &Terms,
        seen: Seen,
        (least, is_over): (f64, bool),
    ) {
        let most_wrapped = masked > MOST;
        let is_wide = terms.width == CodeWidth::Sixteen;
        let is_telling = merged.norm > least;
        self.is_stuck = merged.stuck_blocks > 0 || (is_over && merged.masked_blocks > 0);
        // Blocks that wrap are further apart than the distance tells; a few that wrap once are not by much.
        if self.last_merges.len() == LAST_MERGES {
            self.last_merges.pop_front();
        }
        let is_told = !self.is_stuck && !most_wrapped;
        self.last_merges.push_back(LastMerges {
            distance: merged.distance,
            is_told,
            is_held_up: !is_told || merged.clip_scale < 1.0,
            partner_progress: seen.progress,
        });
        // On a link they are those of when the merge was ordered: another one may have given newer ones meanwhile.
        if merged.reference.is_none() {
            self.scales.clone_from(&merged.scales);
        }
        // Blocks that wrap are left out of the norm. A wide exchange shows how far apart they are.
        if is_wide {
            self.is_beyond_grid = is_telling && terms.is_far_apart(merged.norm);
            self.is_near = merged.norm <= least;
        }
        let is_beyond_grid = self.is_beyond_grid && (is_wide || merged.masked_blocks > 0);
        // Where most blocks wrapped, or some are known to be far, the norm of the others says nothing.
        if !most_wrapped && !is_beyond_grid {
            self.clip.record(merged.norm, least);
        }
        // Where that goes on, nobody lets this model in.
        let is_apart = most_wrapped && !self.is_near;
        let is_far = is_telling && terms.is_rebuff(merged.norm);
        let is_rebuff = !seen.is_excused && (is_apart || is_beyond_grid || is_far || seen.is_rebuff);
        self.outlier.record(Seen { is_rebuff, ..seen });
    }
}

/// The share of the blocks of so many parameters that wrapped.
pub(super) fn masked_share(merged: &Merged, parameters: usize) -> f64 {
    let blocks = parameters.div_ceil(BLOCK).max(1);
    f64::from(merged.masked_blocks) / blocks as f64
}

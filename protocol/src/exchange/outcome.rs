//! What an own exchange sends, and what came of it.

use crate::bounds::CLIP_TOLD_FACTOR;
use crate::fragments::Holding;
use crate::part::Part;
use crate::peer::PeerId;

/// How an own exchange ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) partner: PeerId,
    /// Which fragments the partner holds.
    pub(crate) holding: Holding,
    pub(crate) part: Part,
    pub(crate) outcome: Outcome,
}

/// What came of an own exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// Merged, this many own steps after the proposal.
    Merged { steps: u64 },
    /// A probe was answered.
    Probed(Probed),
    /// The partner would not; another may.
    Rejected,
    /// The partner never answered.
    Unanswered,
    /// It accepted, and then said nothing until the deadline, while others answer.
    KeptWaiting,
    /// It broke off later, or nobody answers in time.
    BrokenOff,
}

/// What a probe says of this node's model and the partner's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probed {
    /// `None` where a block was beyond the grid.
    pub(crate) distance: Option<f64>,
    /// The length of this node's model.
    pub(crate) norm: f64,
    /// How far apart the partner's own exchanges may be.
    pub(crate) partner_clip: f64,
    /// Steps by which the partner's progress is ahead.
    pub(crate) progress_difference: f64,
}

impl Probed {
    /// The partner's clip norm, as far as it is believed: what is usual falls slowly, so that a member that lies would let everything
    /// in for a long time. What was measured bounds it.
    pub(super) fn believed_clip(&self, clip_factor: f64) -> f64 {
        self.partner_clip.min(CLIP_TOLD_FACTOR * clip_factor * self.distance.unwrap_or_default())
    }
}

/// What an own exchange sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Nothing is moved; codes of 16 bits tell the distance.
    Probe,
    /// Codes on a grid.
    Grid,
    /// Signs, on a link.
    Link,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_norm_is_believed_as_far_as_the_distance_speaks_for_it() {
        let believed = |distance, partner_clip| {
            Probed { distance, norm: 5.0, partner_clip, progress_difference: 0.0 }.believed_clip(2.5)
        };
        assert_eq!(believed(Some(0.2), 0.5), 0.5, "as members of one swarm are apart");
        assert_eq!(believed(Some(0.2), 3e38), CLIP_TOLD_FACTOR * 2.5 * 0.2);
        assert_eq!(believed(None, 3e38), 0.0);
    }
}

//! An exchange that this node has started, from its proposal to the merge.

use super::super::averaging::Circumstances;
use super::super::outbound::Correspondence;
use super::super::terms::Terms;
use crate::bounds::PROPOSAL_REPEATS_MAX;
use crate::fragments::Holding;
use crate::message::{Accept, ExchangeNumber, Propose};
use crate::numerics::{CodeWidth, Reference};
use crate::peer::PeerId;
use crate::time::Time;

/// The exchange under way.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) number: ExchangeNumber,
    pub(super) partner: PeerId,
    /// Which fragments it holds.
    pub(super) holding: Holding,
    pub(super) width: CodeWidth,
    pub(super) propose: Propose,
    pub(super) began: Time,
    pub(super) began_at_steps: u64,
    /// Times that the proposal was sent again.
    pub(super) repeats: u32,
    /// On a link: what both sides have; `None` where this side is to send a new one.
    pub(super) reference: Option<Reference>,
    /// The first answer: a later one must say the same.
    pub(super) accept: Option<Accept>,
    pub(super) repeat_at: Time,
    pub(super) deadline: Time,
    pub(super) stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Waits for ACCEPT.
    Proposed,
    /// Waits for the trainer.
    TakingSnapshot(Terms),
    /// Waits for a worker.
    Encoding(Terms, Circumstances),
    /// Our scales and codes are on their way; waits for the partner's codes, and until it has merged.
    AwaitingReply(Terms, Circumstances, Box<Correspondence>),
    /// Waits for a worker.
    Merging(Terms, Circumstances),
}

impl Outgoing {
    pub(super) fn is(&self, peer: PeerId, number: ExchangeNumber) -> bool {
        self.partner == peer && self.number == number
    }

    /// Whether nobody has answered the proposal and all its repeats.
    pub(super) fn is_unheard(&self) -> bool {
        matches!(self.stage, Stage::Proposed) && self.repeats == PROPOSAL_REPEATS_MAX
    }

    /// Whether only the partner's part is missing.
    pub(super) fn is_with_partner(&self) -> bool {
        matches!(self.stage, Stage::AwaitingReply(..))
    }
}

//! Facts that the outside tells a [`Captain`](super::Captain) and a [`Helper`](super::Helper), in the past tense.

use std::time::Duration;

use super::frame::{Frame, StateHeader, StateKind};
use super::message::{Lanes, Membership, Offer, StepFactors, TeamMessage};
use super::work::{Outcome, Work};
use crate::Payload;
use crate::peer::PeerId;

/// What a captain is told. Wants are those of the owner, who trains: one at a time, the next one after the `…Ended` of the one
/// before. A want that comes while the team is being cut waits until it has a cut.
#[derive(Clone, Debug)]
pub enum CaptainEvent {
    /// A helper that the owner trusts is connected.
    HelperConnected {
        /// The helper's id.
        helper: PeerId,
    },
    /// Its last connection is gone.
    HelperDisconnected {
        /// The helper's id.
        helper: PeerId,
    },
    /// A message arrived.
    MessageArrived {
        /// From whom.
        helper: PeerId,
        /// The message.
        message: TeamMessage,
    },
    /// A stream arrived.
    FrameArrived {
        /// From whom.
        helper: PeerId,
        /// The frame.
        frame: Frame,
        /// The root of the mean square of its values, by [`StreamCodec::measure`](crate::numerics::StreamCodec::measure); `None`
        /// where they are of a wrong length or not finite.
        size: Option<f32>,
    },
    /// A state arrived whole.
    StateArrived {
        /// From whom.
        helper: PeerId,
        /// What it is.
        header: StateHeader,
        /// The bytes.
        payload: Payload,
    },
    /// Reply to [`CaptainEffect::Load`](super::CaptainEffect::Load).
    Loaded {
        /// From the order.
        epoch: u64,
        /// Whether the captain's own stages are in memory.
        result: Result<(), String>,
    },
    /// Reply to [`CaptainEffect::Compute`](super::CaptainEffect::Compute).
    Computed {
        /// From the order.
        work: Work,
        /// What came of it.
        outcome: Outcome,
        /// How long it took, without waiting.
        busy: Duration,
    },
    /// Reply to [`CaptainEffect::Sum`](super::CaptainEffect::Sum).
    Summed {
        /// From the order.
        epoch: u64,
        /// From the order.
        batch: u64,
        /// Of each of the captain's stages, in the order of the model: the sum of the squares of each tensor.
        squares: Vec<Vec<f64>>,
    },
    /// Reply to [`CaptainEffect::Gathered`](super::CaptainEffect::Gathered): all are to step.
    StepDecided {
        /// From the order.
        batch: u64,
        /// The factors of this step, the same for all stages.
        factors: StepFactors,
    },
    /// Reply to [`CaptainEffect::Gathered`](super::CaptainEffect::Gathered): nobody is to step.
    DiscardDecided {
        /// From the order.
        batch: u64,
    },
    /// Reply to [`CaptainEffect::Step`](super::CaptainEffect::Step): all of the captain's own stages have stepped.
    Stepped {
        /// From the order.
        epoch: u64,
        /// From the order.
        batch: u64,
    },
    /// Reply to [`CaptainEffect::Keep`](super::CaptainEffect::Keep).
    Kept {
        /// From the order.
        number: u64,
        /// Whether the owner could read the state and has it; else what is wrong with it, for people. Its helper is let go for good
        /// then.
        result: Result<(), String>,
    },
    /// Reply to [`CaptainEffect::ReadOut`](super::CaptainEffect::ReadOut).
    ReadOut {
        /// From the order.
        request: u64,
        /// The bytes; `None` where the owner does not have them.
        payload: Option<Payload>,
    },
    /// The owner has a batch to train on.
    BatchWanted {
        /// Its microbatches.
        lanes: Lanes,
    },
    /// The owner has a batch to evaluate.
    EvaluationWanted {
        /// Its microbatches.
        microbatches: u32,
    },
    /// The owner has decided whether helpers of this cut are members of the swarm by themselves. They hear of it with the next batch,
    /// and with the next copy where they are no more. A new cut ends it.
    MembershipDecided {
        /// Of the cut: where it is over, nothing is decided.
        epoch: u64,
        /// How they come there, if they do; who of them has older layers is filled in by the machine.
        membership: Option<Membership>,
    },
    /// The owner wants the states of all helpers: [`StateKind::Training`] or [`StateKind::Parameters`].
    CopyWanted {
        /// What of a state is wanted.
        kind: StateKind,
    },
    /// The owner has something to write into the helpers' stages: [`StateKind::Training`], [`StateKind::Parameters`] or
    /// [`StateKind::Correction`].
    WriteWanted {
        /// What the bytes are.
        kind: StateKind,
        /// For each helper's stage, in the order of the model.
        parts: Vec<Payload>,
        /// Of which cut the parts are: where it is over, nothing is written.
        epoch: u64,
        /// Whether the owner takes the same up into the copy that it keeps of all as soon as the write has ended. (Into the captain's
        /// own stages it does in any case.)
        is_kept: bool,
    },
    /// The owner ends the team: helpers are let go.
    EndWanted,
    /// Nothing but time: the deadline that the machine asked for.
    TimePassed,
}

/// What a helper is told.
#[derive(Clone, Debug)]
pub enum HelperEvent {
    /// A captain that the owner trusts is connected.
    CaptainConnected {
        /// The captain's id.
        captain: PeerId,
    },
    /// Its last connection is gone.
    CaptainDisconnected {
        /// The captain's id.
        captain: PeerId,
    },
    /// A message arrived.
    MessageArrived {
        /// From whom.
        captain: PeerId,
        /// The message.
        message: TeamMessage,
    },
    /// A stream arrived.
    FrameArrived {
        /// From whom.
        captain: PeerId,
        /// The frame.
        frame: Frame,
    },
    /// A state arrived whole.
    StateArrived {
        /// From whom.
        captain: PeerId,
        /// What it is.
        header: StateHeader,
        /// The bytes.
        payload: Payload,
    },
    /// Reply to [`HelperEffect::Load`](super::HelperEffect::Load).
    Loaded {
        /// From the order.
        epoch: u64,
        /// What is there, or why nothing is.
        result: Result<Loading, String>,
    },
    /// Reply to [`HelperEffect::Compute`](super::HelperEffect::Compute).
    Computed {
        /// From the order.
        work: Work,
        /// What came of it.
        outcome: Outcome,
        /// How long it took, without waiting.
        busy: Duration,
    },
    /// Reply to [`HelperEffect::Sum`](super::HelperEffect::Sum).
    Summed {
        /// From the order.
        epoch: u64,
        /// From the order.
        batch: u64,
        /// The sum of the squares of each tensor, in the order of the layout.
        squares: Vec<f64>,
    },
    /// Reply to [`HelperEffect::Step`](super::HelperEffect::Step).
    Stepped {
        /// From the order.
        epoch: u64,
        /// From the order.
        batch: u64,
    },
    /// Reply to [`HelperEffect::Copy`](super::HelperEffect::Copy).
    Copied {
        /// From the order.
        request: u64,
        /// The bytes.
        payload: Payload,
    },
    /// Reply to [`HelperEffect::Write`](super::HelperEffect::Write).
    Written {
        /// From the order.
        request: u64,
        /// Whether the bytes fit the stage and are taken up.
        result: Result<(), String>,
    },
    /// What this machine has to give has changed.
    OfferChanged {
        /// From now on; its `held` is filled in by the machine.
        offer: Offer,
    },
    /// As a member of the swarm this machine has reached nobody.
    FoundApart,
    /// The owner wants to leave.
    LeaveWanted,
    /// Nothing but time: the deadline that the machine asked for.
    TimePassed,
}

/// What is there after a stage was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// All but the training state.
    Complete,
    /// All but the training state and the frozen base of the layers, which is not on this machine.
    BaseMissing,
}

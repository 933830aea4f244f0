//! Orders of a [`Captain`](super::Captain) and a [`Helper`](super::Helper) to the outside, in the imperative.

use super::cut::Cut;
use super::frame::{Frame, StateHeader, StateKind};
use super::layers::LayerRange;
use super::message::{Assign, Membership, StepFactors, TeamMessage};
use super::notice::{BatchOutcome, TeamNotice, WriteOutcome};
use super::work::{Stream, Work};
use crate::Payload;
use crate::peer::PeerId;

/// What travels between a captain and a helper.
#[derive(Clone, Debug, PartialEq)]
pub enum Packet {
    /// Small.
    Message(TeamMessage),
    /// Activations or their gradient.
    Frame(Frame),
    /// Parameters, moments, a base.
    State(StateHeader, Payload),
}

/// An order of a captain. What comes back is told in the [module's documentation](super).
#[derive(Clone, Debug)]
pub enum CaptainEffect {
    /// To the network.
    Send {
        /// The helper that receives it.
        helper: PeerId,
        /// A message, a stream or a state.
        packet: Packet,
    },
    /// To the network: close the connections to a helper that is late or misbehaves. It may connect again.
    Disconnect {
        /// The helper whose connections are closed.
        helper: PeerId,
    },
    /// To the network: close the connections to a helper, once what was said is said, and make and take none any more. It is not let
    /// in again for as long as this captain lives.
    Dismiss {
        /// The helper whose connections are closed.
        helper: PeerId,
    },
    /// To the owner: build the captain's own stages of a cut, from what it keeps and the stages there are.
    Load {
        /// Of the cut.
        epoch: u64,
        /// The cut; the captain's stages are those without a helper.
        cut: Cut,
    },
    /// To the owner: compute on one of the captain's stages. One piece of work at a time.
    Compute {
        /// Names it.
        work: Work,
        /// The stream that comes in; none for the forward of the first stage, which has the data, and for the backward of the last one,
        /// which has the losses.
        input: Option<Stream>,
    },
    /// To the owner: all backwards of the captain's stages are done; tell their squares.
    Sum {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
    },
    /// To the owner: the gradient is complete on all stages. Decide whether they step.
    Gathered {
        /// Number of the batch.
        batch: u64,
        /// The sum of the squares of each tensor of the whole model, in its order.
        squares: Vec<f64>,
    },
    /// To the owner: step on all of the captain's stages.
    Step {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
        /// The factors of this step, the same for all stages.
        factors: StepFactors,
    },
    /// To the owner: forget the batch; parameters and moments stay as they were before it.
    Discard {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
    },
    /// To the owner: hand out the kept state of some layers, or their frozen base.
    ReadOut {
        /// Returned with the bytes.
        request: u64,
        /// Which layers.
        layers: LayerRange,
        /// [`StateKind::Training`] or [`StateKind::Base`].
        kind: StateKind,
    },
    /// To the owner: a helper's state. Where it can be read, it takes the place of what is kept of these layers; else
    /// nothing changes, and the owner says so.
    Keep {
        /// Returned in the reply.
        number: u64,
        /// Whose state it is.
        helper: PeerId,
        /// Which layers.
        layers: LayerRange,
        /// [`StateKind::Training`] or [`StateKind::Parameters`].
        kind: StateKind,
        /// Of the state.
        revision: u64,
        /// The bytes.
        payload: Payload,
    },
    /// To the owner: a batch or an evaluation has ended.
    BatchEnded {
        /// Its number.
        batch: u64,
        /// What came of it.
        outcome: BatchOutcome,
    },
    /// To the owner: copies of all helpers are kept; or one is missing, since a helper was lost.
    CopyEnded {
        /// Whether all have come.
        is_complete: bool,
    },
    /// To the owner: a write has ended. Unless nothing was written, the owner takes it up as it said it would.
    WriteEnded {
        /// What came of it.
        outcome: WriteOutcome,
    },
    /// To people and logs.
    Notice(TeamNotice),
}

/// An order of a helper. What comes back is told in the [module's documentation](super).
#[derive(Clone, Debug)]
pub enum HelperEffect {
    /// To the network.
    Send {
        /// The captain that receives it.
        captain: PeerId,
        /// A message, a stream or a state.
        packet: Packet,
    },
    /// To the owner: build this stage in place of the one there is. Where the assignment keeps the state, the layers are the same and
    /// parameters and moments stay.
    Load {
        /// The assignment.
        assign: Box<Assign>,
    },
    /// To the owner: the stage is not needed any more.
    Unload,
    /// To the owner: compute. One piece of work at a time.
    Compute {
        /// Names it.
        work: Work,
        /// The stream that comes in.
        input: Stream,
    },
    /// To the owner: all backwards are done; tell the squares.
    Sum {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
    },
    /// To the owner: step.
    Step {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
        /// The factors of this step, the same for all stages.
        factors: StepFactors,
    },
    /// To the owner: forget the batch; parameters and moments stay as they were before it.
    Discard {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
    },
    /// To the owner: be a member of the swarm by itself, that exchanges the stage's fragments of the model between steps; the same
    /// may be ordered again. Without a membership: be none any more, and let nothing more of the swarm into the stage.
    Average {
        /// How it comes there.
        membership: Option<Membership>,
    },
    /// To the owner: copy the stage's state.
    Copy {
        /// Returned with the copy.
        request: u64,
        /// [`StateKind::Training`] or [`StateKind::Parameters`].
        kind: StateKind,
        /// Of which of its layers.
        layers: LayerRange,
    },
    /// To the owner: take a state up.
    Write {
        /// Returned once it is.
        request: u64,
        /// What the bytes are.
        kind: StateKind,
        /// Of which of its layers.
        layers: LayerRange,
        /// The bytes.
        payload: Payload,
    },
    /// To people and logs.
    Notice(TeamNotice),
}

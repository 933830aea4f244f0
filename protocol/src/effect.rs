//! Orders of the [`Node`](crate::Node) to the outside, in the imperative.

use std::time::Duration;

use crate::bulk::{Correction, Payload, Snapshot};
use crate::event::Misbehaviour;
use crate::finish::{Ending, FinishOrder};
use crate::handshake::Refusal;
use crate::join::Unchecked;
use crate::message::{Message, TransferHeader};
use crate::numerics::{EncodeJob, MergeJob};
use crate::part::{Part, Selection};
use crate::peer::{Address, PeerId};

/// Names an order whose reply is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names an outgoing transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// An order. What comes back is told in the table of the [crate documentation](crate).
#[derive(Clone, Debug)]
pub enum Effect {
    /// Connect to somebody.
    Dial {
        /// Whom, where that is known: another identity at the address is then a failure.
        peer: Option<PeerId>,
        /// Where, best first.
        addresses: Vec<Address>,
    },
    /// Close all connections to a peer.
    Disconnect {
        /// To whom.
        peer: PeerId,
    },
    /// Send a control message. A lost one is repeated by a deadline where it matters.
    Send {
        /// To whom.
        peer: PeerId,
        /// What.
        message: Message,
    },
    /// Send a payload.
    StartTransfer {
        /// Names the transfer in its reply.
        transfer: TransferId,
        /// To whom.
        peer: PeerId,
        /// What it is.
        header: TransferHeader,
        /// The bulk.
        payload: Payload,
    },
    /// Copy a part of the model, or the state for a joiner, at the next step boundary.
    TakeSnapshot {
        /// Returned with the copy.
        request: RequestId,
        /// What to copy.
        selection: Selection,
    },
    /// Turn a snapshot into codes, off the engine's thread: [`numerics::encode`](crate::numerics::encode).
    Encode {
        /// Returned with the codes.
        request: RequestId,
        /// The model.
        snapshot: Snapshot,
        /// How.
        job: EncodeJob,
    },
    /// Compare our codes with a partner's, off the engine's thread: [`numerics::merge`](crate::numerics::merge).
    Merge {
        /// Returned with the outcome.
        request: RequestId,
        /// Both sides' codes, and how.
        job: MergeJob,
    },
    /// Add a correction at the next step boundary: to θ and φ, or to u.
    ApplyCorrection {
        /// Returned once it is added.
        request: RequestId,
        /// What it is for.
        part: Part,
        /// What to add.
        correction: Correction,
        /// What to add to the swarm progress, in steps.
        progress_shift: f64,
    },
    /// Make a peer's model ours: the end of joining.
    LoadState {
        /// Returned once it is loaded, or found unfit.
        request: RequestId,
        /// θ as little-endian `f32`, followed by φ and u where the run has an outer momentum; one chunk after the other.
        chunks: Vec<Payload>,
        /// Swarm progress of that model, in steps.
        progress: f64,
    },
    /// End of an outer round: the trainer takes the step of the outer momentum at the next boundary. No reply.
    AdvanceOuter,
    /// The model is averaged with so many members: where the run has it so, the optimizer's second moments follow from the next
    /// boundary on. No reply.
    MatchBatch {
        /// A smoothed number, this node counted: 1 (alone, as at first) to 64.
        members: f64,
    },
    /// Stop training, but go on to answer snapshots and corrections. No reply.
    EndTraining,
    /// The founder has ordered the end of the run: the learning rate falls as it says, training ends where it says, and
    /// the order is kept on disk. No reply.
    FinishRun(FinishOrder),
    /// From now on, train. No reply.
    BeginTraining,
    /// Something happened that people or logs want to know.
    Notice(Notice),
    /// The last exchanges are done: evaluate, write the final checkpoint. No reply.
    CompleteRun,
    /// The node has left; nothing else will come.
    Stop,
}

/// What happened, for people, logs and the simulator's trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A member connected.
    PeerJoined(PeerId),
    /// A member is gone.
    PeerLeft {
        /// Who.
        peer: PeerId,
        /// Whether it said so.
        announced: bool,
    },
    /// Nobody is connected any more, or nobody answers.
    Alone {
        /// The last reason a dial failed, where there was one.
        reason: Option<String>,
    },
    /// A joiner looks for a peer that can give it the model.
    WaitingForState,
    /// The model has come.
    StateReceived {
        /// From whom, each a part of it.
        donors: Vec<PeerId>,
        /// Swarm progress of the model, in steps.
        progress: f64,
    },
    /// A joiner has got what it asked for of the model.
    StateSent {
        /// Who.
        peer: PeerId,
        /// How many chunks.
        chunks: u32,
        /// Of how many.
        of: u32,
    },
    /// An exchange is done on this side.
    ExchangeCompleted {
        /// With whom.
        partner: PeerId,
        /// What was averaged.
        part: Part,
        /// ‖s·d‖, how far apart the two models were.
        distance: f64,
        /// κ, 1 where nothing was clipped.
        clip_scale: f64,
        /// Blocks left out because their codes wrapped.
        masked_blocks: u32,
        /// Whether it had 16-bit codes: a first exchange, or one between models far apart.
        coarse: bool,
    },
    /// An exchange came to nothing.
    ExchangeFailed {
        /// With whom.
        partner: PeerId,
        /// Why.
        failure: ExchangeFailure,
    },
    /// A handshake ended in a refusal.
    PeerRefused {
        /// Who.
        peer: PeerId,
        /// Why.
        refusal: Refusal,
    },
    /// A peer did what no honest peer does.
    PeerMisbehaved {
        /// Who.
        peer: PeerId,
        /// How.
        misbehaviour: Misbehaviour,
    },
    /// Two live nodes have one identity: a copied data directory, a cloned machine, a backup.
    IdentityDoubled {
        /// Whose.
        peer: PeerId,
    },
    /// A copied model was not found to be near those of other members.
    StateUnchecked {
        /// Who sent the model.
        donors: Vec<PeerId>,
        /// Why.
        why: Unchecked,
        /// Whether it is copied again, from somebody else; otherwise it is believed.
        is_copied_again: bool,
    },
    /// A peer that misbehaved is not dealt with for this long.
    PeerBanned {
        /// Who.
        peer: PeerId,
        /// How long.
        duration: Duration,
    },
    /// The first exchange with a peer that had been out of reach: two parts of the swarm become one.
    Reunited {
        /// With whom.
        partner: PeerId,
        /// How long it was out of reach.
        away: Duration,
        /// How far apart the two models were.
        distance: f64,
        /// The share of the joint weight that the partner's work had, 0 to 1.
        partner_share: f64,
    },
    /// The models drift apart, and link or processor allow no more exchanges.
    BudgetTooSmall {
        /// Steps between own exchanges.
        interval_steps: f64,
        /// Distance over √2 and over local progress; 0.4 to 0.8 is best.
        ratio: f64,
    },
    /// The founder has ordered the end of the run.
    Finishing(Ending),
    /// Training is over; the last exchanges begin.
    Settling,
    /// The last exchanges are done.
    RunCompleted,
}

/// Why an exchange came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExchangeFailure {
    /// The partner said no.
    Rejected,
    /// No answer by the deadline.
    DeadlinePassed,
    /// The partner's connection was lost.
    PartnerLost,
    /// The partner's bytes were unfit.
    Misbehaved,
    /// A local queue was full.
    Overloaded,
    /// This node has copied a model meanwhile.
    ModelReplaced,
}

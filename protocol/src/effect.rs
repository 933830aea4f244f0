//! Orders of the [`Node`](crate::Node) to the outside, in the imperative.

use bincode::{Decode, Encode};

use crate::bulk::{Correction, Payload, Snapshot};
use crate::finish::FinishOrder;
use crate::fragments::Holding;
use crate::message::{Message, TransferHeader};
use crate::notice::Notice;
use crate::numerics::{EncodeJob, MergeJob, ReduceJob};
use crate::part::{Part, Selection};
use crate::peer::{Address, PeerId};
use crate::scheme::Scheme;

/// Names an order whose reply is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct RequestId(pub u64);

/// Names an outgoing transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct TransferId(pub u64);

/// An order. What comes back is told in the table of the [crate documentation](crate).
#[derive(Clone, Debug)]
pub enum Effect {
    /// To the network.
    Network(NetworkOrder),
    /// To the trainer.
    Trainer(TrainerOrder),
    /// To a worker thread.
    Worker(WorkerOrder),
    /// Something happened that people or logs want to know.
    Notice(Notice),
    /// The node has left; nothing else will come.
    Stop,
}

/// What the network is to do.
#[derive(Clone, Debug)]
pub enum NetworkOrder {
    /// Connect to somebody.
    Dial {
        /// Whom, where that is known: another identity at the address is then a failure.
        peer: Option<PeerId>,
        /// Where, best first.
        addresses: Vec<Address>,
    },
    /// Close all connections to a peer, after what is queued for it is sent.
    Disconnect {
        /// Whose connections are closed.
        peer: PeerId,
    },
    /// Send a control message. A lost one is repeated by a deadline where it matters.
    Send {
        /// Who receives it.
        peer: PeerId,
        /// The message.
        message: Message,
    },
    /// Send a payload.
    StartTransfer {
        /// Names the transfer in its reply.
        transfer: TransferId,
        /// Who receives it.
        peer: PeerId,
        /// What the payload is.
        header: TransferHeader,
        /// The bytes.
        payload: Payload,
    },
}

/// What the trainer is to do at the next step boundary.
#[derive(Clone, Debug)]
pub enum TrainerOrder {
    /// Copy a part of the model, or the state for a joiner.
    TakeSnapshot {
        /// Returned with the copy.
        request: RequestId,
        /// What to copy.
        selection: Selection,
    },
    /// Add a correction: to θ and φ, or to u.
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
        /// θ as little-endian `f32`, one chunk after the other.
        chunks: Vec<Payload>,
        /// Which fragments of the model that is: unfit where the trainer holds others by now.
        holding: Holding,
        /// Swarm progress of that model, in steps.
        progress: f64,
    },
    /// End of an outer round: take the step of the outer momentum. No reply.
    AdvanceOuter,
    /// The model is averaged with so many members: where the run has it so, the optimizer's second moments follow from
    /// now on. No reply.
    MatchBatch {
        /// A smoothed number, this node counted: 1 (alone, as at first) to 64.
        members: f64,
    },
    /// In a synchronous run: train until there is something to contribute to an all-reduce, then stand still. That is the
    /// gradient of one batch, or the model after as many steps as the run says. Takes the place of an earlier order.
    Contribute {
        /// Returned with the contribution.
        request: RequestId,
    },
    /// In a synchronous run: take up the sum of all contributions. Their mean is the gradient of the next step, or the
    /// model, from which the outer optimizer steps where there is one. No reply; the next contribution follows it.
    TakeUp {
        /// The sum.
        sum: Snapshot,
        /// How many contributions are in it, at least 1.
        members: u32,
        /// Swarm progress from now on, in steps.
        progress: f64,
    },
    /// In a synchronous run: make another member's replica ours, with its optimizer. Ends an order to contribute.
    LoadReplica {
        /// Returned once it is loaded, or found unfit.
        request: RequestId,
        /// As the other one's trainer made it for [`Selection::Replica`].
        replica: Payload,
        /// Swarm progress of that replica, in steps.
        progress: f64,
    },
    /// Where all average at once: compute only what is asked for; in pairs: train by itself. Holds from the next boundary on, and
    /// is in pairs at first. No reply.
    Average(Scheme),
    /// Train from now on. No reply.
    Begin,
    /// Stop training, but go on to answer snapshots and corrections. No reply.
    End,
    /// The founder has ordered the end of the run: the learning rate falls as it says, and training ends where it says.
    /// No reply.
    Finish(FinishOrder),
    /// The last exchanges are done: evaluate, write the final checkpoint. No reply.
    Complete,
}

/// What is computed off the engine's thread.
#[derive(Clone, Debug)]
pub enum WorkerOrder {
    /// Turn a snapshot into codes: [`numerics::encode`](crate::numerics::encode).
    Encode {
        /// Returned with the codes.
        request: RequestId,
        /// The model.
        snapshot: Snapshot,
        /// How it is to be encoded.
        job: EncodeJob,
    },
    /// Compare our codes with a partner's: [`numerics::merge`](crate::numerics::merge).
    Merge {
        /// Returned with the outcome.
        request: RequestId,
        /// Both sides' codes, and how.
        job: MergeJob,
    },
    /// A step of an all-reduce, as taking slices into a sum: [`numerics::reduce`](crate::numerics::reduce).
    Reduce {
        /// Returned with the sum.
        request: RequestId,
        /// The sum so far, and what is to be done with it.
        job: ReduceJob,
    },
}

impl TrainerOrder {
    /// The request whose reply is awaited, where one is.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            TrainerOrder::TakeSnapshot { request, .. }
            | TrainerOrder::ApplyCorrection { request, .. }
            | TrainerOrder::LoadState { request, .. }
            | TrainerOrder::Contribute { request }
            | TrainerOrder::LoadReplica { request, .. } => Some(*request),
            TrainerOrder::AdvanceOuter
            | TrainerOrder::TakeUp { .. }
            | TrainerOrder::MatchBatch { .. }
            | TrainerOrder::Average(_)
            | TrainerOrder::Begin
            | TrainerOrder::End
            | TrainerOrder::Finish(_)
            | TrainerOrder::Complete => None,
        }
    }
}

impl WorkerOrder {
    /// The request whose reply is awaited.
    pub fn request(&self) -> RequestId {
        match self {
            WorkerOrder::Encode { request, .. }
            | WorkerOrder::Merge { request, .. }
            | WorkerOrder::Reduce { request, .. } => *request,
        }
    }
}

impl Effect {
    /// The request whose reply is awaited, where one is.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Effect::Trainer(order) => order.request(),
            Effect::Worker(order) => Some(order.request()),
            Effect::Network(_) | Effect::Notice(_) | Effect::Stop => None,
        }
    }
}

impl From<NetworkOrder> for Effect {
    fn from(order: NetworkOrder) -> Effect {
        Effect::Network(order)
    }
}

impl From<TrainerOrder> for Effect {
    fn from(order: TrainerOrder) -> Effect {
        Effect::Trainer(order)
    }
}

impl From<WorkerOrder> for Effect {
    fn from(order: WorkerOrder) -> Effect {
        Effect::Worker(order)
    }
}

//! Facts that the outside tells the [`Node`](crate::Node), in the past tense.

use bincode::{Decode, Encode};

use crate::bulk::{Payload, Snapshot};
use crate::effect::{RequestId, TransferId};
use crate::finish::FinishOrder;
use crate::fragments::Holding;
use crate::handshake::Refusal;
use crate::message::{KnownPeer, Message, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::numerics::{Encoded, Merged, Reduced};
use crate::peer::{Address, AddressRange, PeerId};
use crate::stand_ins::StandIns;

/// A fact. Replies to an [`Effect`](crate::Effect) carry its request; late and duplicate ones are counted and ignored.
#[derive(Clone, Debug, Encode, Decode)]
#[bincode(decode_context = "StandIns")]
pub enum Event {
    /// A peer of this run passed the handshake; messages can flow.
    PeerConnected {
        /// The peer's id.
        peer: PeerId,
        /// Where it says it listens.
        addresses: Vec<Address>,
    },
    /// The last connection to a peer is gone. Its unfinished transfers have failed before.
    PeerDisconnected {
        /// The peer's id.
        peer: PeerId,
    },
    /// A dial came to nothing.
    DialFailed {
        /// Whom it was for, where that was known.
        peer: Option<PeerId>,
        /// The addresses tried.
        addresses: Vec<Address>,
        /// Why, for people.
        reason: String,
    },
    /// A handshake ended in a refusal, by us or by the peer.
    HandshakeRefused {
        /// The peer's id.
        peer: PeerId,
        /// The reason that was given.
        refusal: Refusal,
    },
    /// This node can be reached at one more address.
    AddressFound {
        /// The address.
        address: Address,
    },
    /// This node can be reached at an address no longer.
    AddressLost {
        /// The address.
        address: Address,
    },
    /// Somebody said where members may be: a table of the run that all nodes hold parts of, or the local network. Hints
    /// for dialing and no more; beyond [`PEERS_TOLD_MAX`](crate::bounds::PEERS_TOLD_MAX) they are ignored.
    PeersFound {
        /// Whom, and where.
        peers: Vec<KnownPeer>,
    },
    /// The way to a connected peer has changed: direct, or through a relay, which carries messages and no transfers.
    /// A new connection counts as direct until this says otherwise.
    PathChanged {
        /// The peer's id.
        peer: PeerId,
        /// Whether transfers are possible.
        is_direct: bool,
    },
    /// In which range of addresses a connected peer is reached. Until this is told of it, nobody knows; an address behind a
    /// relay says nothing.
    RangeFound {
        /// The peer's id.
        peer: PeerId,
        /// The range.
        range: AddressRange,
    },
    /// A control message arrived.
    MessageReceived {
        /// The peer's id.
        peer: PeerId,
        /// The message.
        message: Message,
    },
    /// A transfer arrived whole.
    TransferReceived {
        /// The peer's id.
        peer: PeerId,
        /// What it is.
        header: TransferHeader,
        /// The bytes.
        payload: Payload,
    },
    /// The receiver confirmed a transfer of ours.
    TransferFinished {
        /// The transfer's number, as the order gave it.
        transfer: TransferId,
    },
    /// A transfer of ours broke off.
    TransferFailed {
        /// The transfer's number, as the order gave it.
        transfer: TransferId,
        /// Why, for people.
        reason: String,
    },
    /// A peer sent what no honest peer sends; the driver has dropped it.
    PeerMisbehaved {
        /// The peer's id.
        peer: PeerId,
        /// What was wrong.
        misbehaviour: Misbehaviour,
    },
    /// Two connections of one peer lead to two live nodes with one identity.
    IdentityDoubled {
        /// The peer's id.
        peer: PeerId,
    },
    /// The trainer is this far. Reported now and then, not for every step.
    StepsCompleted(TrainingReport),
    /// The trainer reached the end of the run, or its own limit of steps.
    TrainingCompleted(TrainingReport),
    /// Reply to [`TrainerOrder::TakeSnapshot`](crate::TrainerOrder::TakeSnapshot).
    SnapshotTaken {
        /// From the effect.
        request: RequestId,
        /// The model at a step boundary.
        snapshot: Snapshot,
        /// Where the trainer stood at that boundary.
        report: TrainingReport,
    },
    /// Reply to [`WorkerOrder::Encode`](crate::WorkerOrder::Encode).
    Encoded {
        /// From the effect.
        request: RequestId,
        /// Our codes, or what was wrong with the starter's steps.
        result: Result<Encoded, Misbehaviour>,
    },
    /// Reply to [`WorkerOrder::Merge`](crate::WorkerOrder::Merge).
    Merged {
        /// From the effect.
        request: RequestId,
        /// The correction, or what was wrong with the peer's bytes.
        result: Result<Merged, Misbehaviour>,
    },
    /// Reply to [`TrainerOrder::Contribute`](crate::TrainerOrder::Contribute).
    Contributed {
        /// From the effect.
        request: RequestId,
        /// The gradient before clipping, or the model: one value per parameter.
        contribution: Snapshot,
        /// [`state_digest`](crate::numerics::state_digest) of the replica's parameters as they were before.
        digest: u64,
        /// Where the trainer stands.
        report: TrainingReport,
    },
    /// Reply to [`WorkerOrder::Reduce`](crate::WorkerOrder::Reduce).
    Reduced {
        /// From the effect.
        request: RequestId,
        /// The sum and what was written of it, or what was wrong with the slices.
        result: Result<Reduced, Misbehaviour>,
    },
    /// Reply to [`TrainerOrder::ApplyCorrection`](crate::TrainerOrder::ApplyCorrection).
    CorrectionApplied {
        /// From the effect.
        request: RequestId,
        /// Where the trainer stands now, the correction's shift included.
        report: TrainingReport,
    },
    /// Reply to [`TrainerOrder::LoadState`](crate::TrainerOrder::LoadState) and
    /// [`TrainerOrder::LoadReplica`](crate::TrainerOrder::LoadReplica).
    StateLoaded {
        /// From the effect.
        request: RequestId,
        /// Whether the state was of the right length and finite, and is now the model.
        accepted: bool,
        /// Where the trainer stands now.
        report: TrainingReport,
    },
    /// A driver's queue was full or the driver is gone: the effect with this request will have no other reply.
    RequestFailed {
        /// From the effect.
        request: RequestId,
    },
    /// Nothing but time: the deadline that the node asked for.
    TimePassed,
    /// The user, or a signal, wants the node to leave the swarm.
    LeaveRequested,
    /// The holder of the founder's key, on this machine, has ordered that the run be finished.
    FinishOrdered {
        /// Checked like one from a peer.
        order: FinishOrder,
    },
    /// The trainer has other fragments of the model in its memory than before, and answers by those from now on. Exchanges of what it
    /// lacks come to nothing; of what has come to it this node takes part in exchanges, with the values that are there. A state
    /// that it was ordered to take over before, and has not, is not accepted.
    HoldingChanged {
        /// What it holds now.
        holding: Holding,
    },
    /// What the trainer has of the model is older than what this node has exchanged: another machine that had the newer values is gone.
    /// If somebody who can be asked is there within [`OUTDATED_FOR`](crate::bounds::OUTDATED_FOR), the model is copied anew.
    ModelOutdated,
    /// The owner wants the network left alone: no exchange begins, none is answered, no model is copied or given, until
    /// [`RestEnded`](Event::RestEnded). Training goes on, and so does what is under way.
    RestBegan,
    /// The network may be used again.
    RestEnded,
}

/// Where the trainer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct TrainingReport {
    /// Steps done by this node since the run began for it.
    pub steps: u64,
    /// Swarm progress: own steps, averaged along with the models.
    pub progress: f64,
    /// Tokens a second, lately.
    pub tokens_per_second: f64,
    /// An upper bound on how far training has moved the model, as a Euclidean norm summed over all steps: AdamW moves
    /// a coordinate by about one learning rate a step, Muon each of a matrix's directions by about one of its own.
    pub travel: f64,
    /// How far own training has moved the model since the snapshot of it before: a Euclidean norm without what
    /// exchanges added, which may be estimated from a sample of blocks. Read with a snapshot only.
    pub local_progress: f64,
}

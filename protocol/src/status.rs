//! What a node shows of itself: plain values, made on demand.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::TrainingReport;
use crate::finish::RunEnd;
use crate::join::CopyStatus;
use crate::message::KnownPeer;
use crate::misbehaviour::Misbehaviour;
use crate::notice::ExchangeFailure;
use crate::peer::PeerId;
use crate::profile::MemberView;
use crate::time::Time;

/// Where a node stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for a peer's model.
    Joining,
    /// Trains and averages.
    Training,
    /// Has done its last step; the final exchanges are under way.
    Settling,
    /// Done; still answers its peers.
    Completed,
    /// Finishes what is under way, then goes.
    Leaving,
    /// Gone.
    Left,
}

/// How much a node holds of what is bounded: what a [`Status`] lists, counted without making the lists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counts {
    /// Where it stands.
    pub phase: Phase,
    /// Members connected now.
    pub connected: usize,
    /// Members known, with addresses.
    pub known: usize,
    /// Partners with whom it keeps a common reference, of the fragment that has most.
    pub links: usize,
    /// Peers that misbehaved.
    pub misbehaving: usize,
    /// Steps between own exchanges at present.
    pub interval_steps: f64,
}

/// A picture of a node.
#[derive(Clone, Debug)]
pub struct Status {
    /// Who it is.
    pub me: PeerId,
    /// Where it stands.
    pub phase: Phase,
    /// How far the copy of a peer's model has come, where one is under way.
    pub copying: Option<CopyStatus>,
    /// The trainer's last report.
    pub training: TrainingReport,
    /// What is known of the run's end.
    pub end: RunEnd,
    /// Members connected now.
    pub connected: Vec<PeerId>,
    /// Members known, with addresses: to be remembered over a restart.
    pub known: Vec<KnownPeer>,
    /// What members say of themselves, connected or heard of; at most [`VIEW_MAX`](crate::bounds::VIEW_MAX).
    pub members: BTreeMap<PeerId, MemberView>,
    /// Which share of the model's fragments this node holds, above 0 and at most 1, and each of the members: machines that hold one model
    /// together each say how fast all of it is trained.
    pub shares: (f64, BTreeMap<PeerId, f64>),
    /// Exchanges so far.
    pub exchanges: ExchangeCounters,
    /// Ξ̂ = ‖s·d‖ / √2 of the last exchange: an estimate of the swarm's disagreement, free of charge.
    pub disagreement: Option<f64>,
    /// Steps between own exchanges at present.
    pub interval_steps: f64,
    /// Ξ̂ over local progress, a running mean that no single exchange moves far; 0.4 to 0.8 is best, above 1.5 the models drift apart.
    pub disagreement_ratio: Option<f64>,
    /// The uplink as the last transfers that were large enough to tell have shown it, in bytes a second; `None` before one.
    pub uplink_bytes_per_second: Option<f64>,
    /// Partners with whom a reference is kept.
    pub links: usize,
    /// γ at present: the run's, or less where corrections come late.
    pub gamma: f64,
    /// τ: own rounds from a snapshot to its correction, a running mean.
    pub delay_rounds: f64,
    /// Σγ of a round.
    pub loop_gain: f64,
    /// How long an own exchange is given at present.
    pub exchange_deadline: Duration,
    /// All-reduces, where the run is synchronous.
    pub synchronous: Option<SynchronousStatus>,
    /// Peers banned now, and until when.
    pub banned: BTreeMap<PeerId, Time>,
    /// Peers that may change little, and how much of the usual: 0 to 1.
    pub distrusted: BTreeMap<PeerId, f64>,
    /// The last misbehaviour of each peer that showed any.
    pub offences: BTreeMap<PeerId, Misbehaviour>,
    /// Whether the owner wants the network left alone for now.
    pub is_resting: bool,
    /// Misbehaviours seen, by peer.
    pub misbehaviours: BTreeMap<PeerId, u64>,
    /// Replies that came too late or twice.
    pub stale_replies: u64,
}

impl Status {
    /// Of a node of which nothing is known yet.
    pub fn of(me: PeerId) -> Status {
        Status {
            me,
            phase: Phase::Joining,
            copying: None,
            training: TrainingReport::default(),
            end: RunEnd::default(),
            connected: Vec::new(),
            known: Vec::new(),
            members: BTreeMap::new(),
            shares: (1.0, BTreeMap::new()),
            exchanges: ExchangeCounters::default(),
            disagreement: None,
            interval_steps: 0.0,
            disagreement_ratio: None,
            uplink_bytes_per_second: None,
            links: 0,
            gamma: 0.0,
            delay_rounds: 0.0,
            loop_gain: 0.0,
            exchange_deadline: Duration::ZERO,
            synchronous: None,
            banned: BTreeMap::new(),
            distrusted: BTreeMap::new(),
            offences: BTreeMap::new(),
            is_resting: false,
            misbehaviours: BTreeMap::new(),
            stale_replies: 0,
        }
    }
}

/// How a node of a synchronous run stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SynchronousStatus {
    /// Members that take part, this one counted; 0 while it stands still and seeks agreement or a group.
    pub members: usize,
    /// All-reduces behind the replica, of whoever made it.
    pub operations: u64,
    /// All-reduces that this node has finished.
    pub finished: u64,
    /// Whether the others go on without it, because its contribution was late. It comes back with that.
    pub is_left_out: bool,
    /// Whether it waits for a copy of another member's replica.
    pub is_copying: bool,
    /// How long it has waited in all: from each own contribution until the sum was there, and for copies of a replica.
    pub waited: Duration,
    /// Who is waited for now.
    pub awaited: Option<PeerId>,
    /// All-reduces that were dropped and begun anew, or given up.
    pub dropped: u64,
    /// Replicas copied from another member.
    pub copied: u64,
    /// Times that another member's replica had other bits.
    pub differed: u64,
    /// How long an all-reduce is given at present.
    pub deadline: Duration,
}

/// Exchanges so far. Every exchange that this node took part in counts once, whoever started it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCounters {
    /// Own proposals that were accepted and merged.
    pub completed_as_starter: u64,
    /// Answered proposals of others.
    pub completed_as_responder: u64,
    /// Among those: of which the starter has never confirmed that it has our codes and our word. It may have merged nothing.
    pub unconfirmed: u64,
    /// Among the completed: those with 16-bit codes, first ones and others between models far apart.
    pub coarse: u64,
    /// Exchanges of the outer momentum among the completed.
    pub momentum: u64,
    /// Distances measured for joiners, or as a joiner; not among the completed.
    pub probes: u64,
    /// What came to nothing, by reason.
    pub failed: BTreeMap<ExchangeFailure, u64>,
    /// Blocks left out of completed exchanges because their codes wrapped.
    pub masked_blocks: u64,
}

impl ExchangeCounters {
    /// Completed in either role.
    pub fn completed(&self) -> u64 {
        self.completed_as_starter + self.completed_as_responder
    }

    /// Exchanges that began and broke off. A partner that says "busy" is not a failure.
    pub fn failed(&self) -> u64 {
        self.failed.iter().filter(|(reason, _)| **reason != ExchangeFailure::Rejected).map(|(_, count)| count).sum()
    }
}

//! What a node shows of itself: plain values, made on demand.

use std::collections::BTreeMap;

use crate::effect::ExchangeFailure;
use crate::event::TrainingReport;
use crate::message::KnownPeer;
use crate::peer::PeerId;

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

/// A picture of a node.
#[derive(Clone, Debug)]
pub struct Status {
    /// Who it is.
    pub me: PeerId,
    /// Where it stands.
    pub phase: Phase,
    /// The trainer's last report.
    pub training: TrainingReport,
    /// Members connected now.
    pub connected: Vec<PeerId>,
    /// Members known, with addresses: to be remembered over a restart.
    pub known: Vec<KnownPeer>,
    /// Exchanges so far.
    pub exchanges: ExchangeCounters,
    /// Ξ̂ = ‖s·d‖ / √2 of the last exchange: an estimate of the swarm's consensus distance, free of charge.
    pub disagreement: Option<f64>,
    /// Misbehaviours seen, by peer.
    pub misbehaviours: BTreeMap<PeerId, u64>,
    /// Replies that came too late or twice.
    pub stale_replies: u64,
}

/// Exchanges so far. Every exchange that this node took part in counts once, whoever started it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCounters {
    /// Own proposals that were accepted and merged.
    pub completed_as_starter: u64,
    /// Answered proposals of others.
    pub completed_as_responder: u64,
    /// Among the completed: first exchanges, with 16-bit codes.
    pub coarse: u64,
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

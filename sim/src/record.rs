//! What a run leaves behind for the checks: plain values, which a test may also forge.
//!
//! A long run of a large swarm makes millions of corrections, so a record keeps none: each exchange is checked when both
//! sides have merged and then becomes part of sums. What stays is bounded by the number of hosts and their pairs, lives
//! and one-sided exchanges.

mod exchange;
mod ledger;
mod life;
mod sample;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use murmur_protocol::Misbehaviour;
use murmur_protocol::{Notice, Time};

pub use exchange::{ExchangeRecord, MergeRecord, Side};
pub use ledger::Totals;
pub(crate) use ledger::{Ledger, add_scaled};
pub use life::LifeRecord;
pub(crate) use sample::Spread;
pub use sample::{Sample, Traffic};

use crate::checks::Violation;
use crate::scenario::HostIndex;

/// Notices kept; older ones are dropped.
const NOTICES_MAX: usize = 200_000;

/// How long a payload that was broken off may be missed where it was to arrive.
pub(crate) const MISSED_FOR: Duration = Duration::from_secs(60);

/// Accusations and violations kept; further ones are only counted.
const FINDINGS_MAX: usize = 1000;

/// Everything that checks look at.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Every life of every host, the dead first.
    pub lives: Vec<LifeRecord>,
    /// Fragments in which models are exchanged, each with references of its own.
    pub fragments: u64,
    /// The trainers' objective at the model that the first founder began with.
    pub first_loss: f64,
    /// The objective that a node reaches which trains alone, where that is not 0 in itself: of the quadratic's own optimum.
    pub alone_loss: f64,
    /// The end of the run, where the founder has ordered it.
    pub end: Option<OrderedEnd>,
    /// All corrections that nodes ordered, summed up.
    pub exchanges: Totals,
    /// What checks found while the run went on, at most 1000.
    pub found: Vec<Violation>,
    /// The largest of everything that is bounded.
    pub peaks: Peaks,
    /// Whom nodes took for misbehaving, at most 1000.
    pub accusations: Vec<Accusation>,
    /// Until when what one host has sent another may be missed there: it is on its way, or the network has broken it off or not taken it.
    pub(crate) missed_until: BTreeMap<(HostIndex, HostIndex), Time>,
    /// How long after its end a member is still known to an honest node, at most.
    pub longest_remembered: Duration,
    /// How long ago the first of those identities ended that live no more.
    pub longest_dead: Duration,
    /// Times at which a node asked to be woken at once, over and over.
    pub busy_wakes: u64,
    /// Crashes, restarts and ends of processes so far.
    pub deaths: u64,
    /// The last 200,000 notices but accusations, with their time and host.
    pub notices: VecDeque<(Time, HostIndex, Notice)>,
    /// How many came before those.
    pub notices_dropped: u64,
    /// What each host has sent, over all its lives.
    pub traffic: Vec<Traffic>,
}

/// The largest of everything that is bounded, over all nodes and times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Members with addresses in a view.
    pub known: usize,
    /// Connected members.
    pub connected: usize,
    /// Peers in the count of misbehaviours.
    pub misbehaving: usize,
    /// Partners with whom a node keeps a reference, of the fragment that has most.
    pub links: usize,
    /// Effects that awaited a reply at once.
    pub awaited: usize,
    /// Merges under way at once on one node.
    pub merging: usize,
    /// States on their way from one node at once.
    pub giving: usize,
    /// Bytes of one payload.
    pub payload_bytes: usize,
    /// Effects of one event.
    pub effects: usize,
}

/// The end of a run, as its founder has ordered it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OrderedEnd {
    /// Swarm progress at which the run is over, in steps.
    pub until: f64,
    /// The largest Euclidean distance of an honest model from their mean when that was ordered.
    pub disagreement: f64,
}

/// A node took another one for misbehaving.
#[derive(Clone, Debug)]
pub struct Accusation {
    /// The virtual time.
    pub at: Time,
    /// The host that accuses.
    pub by: HostIndex,
    /// Whom, where the identity is a host's.
    pub of: Option<HostIndex>,
    /// Whether accuser and accused both deceive nobody.
    pub is_among_honest: bool,
    /// Of what.
    pub misbehaviour: Misbehaviour,
}

impl Record {
    /// Bytes of payloads sent by all hosts.
    pub fn payload_bytes(&self) -> u64 {
        self.traffic.iter().map(|traffic| traffic.payload_bytes).sum()
    }

    /// Models of all honest hosts that take part now.
    pub fn active_models(&self) -> Vec<&[f32]> {
        self.active().map(|life| life.model.as_slice()).collect()
    }

    fn active(&self) -> impl Iterator<Item = &LifeRecord> {
        self.lives.iter().filter(|life| life.active && life.is_honest)
    }

    /// The largest Euclidean distance of what an honest host holds from the mean of all that do.
    pub fn disagreement(&self) -> f64 {
        let models = self.active().map(|life| (life.model.as_slice(), life.held.as_slice()));
        Spread::of(&models.collect::<Vec<_>>()).worst
    }

    pub(crate) fn note(&mut self, at: Time, host: HostIndex, notice: Notice) {
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
            self.notices_dropped += 1;
        }
        self.notices.push_back((at, host, notice));
    }

    /// What `from` has sent `to` may be missed until then.
    pub(crate) fn miss(&mut self, from: HostIndex, to: HostIndex, until: Time) {
        let missed = self.missed_until.entry((from, to)).or_default();
        *missed = until.max(*missed);
    }

    /// Nobody can tell who keeps a payload to itself from whose network does not carry it, or takes its time; that is no accusation.
    pub(crate) fn accuse(&mut self, accusation: Accusation) {
        let Accusation { at, by, of, misbehaviour, .. } = &accusation;
        let missed_until = of.and_then(|of| self.missed_until.get(&(of, *by)));
        if *misbehaviour == Misbehaviour::Stalled && missed_until.is_some_and(|until| at < until) {
            return;
        }
        if self.accusations.len() < FINDINGS_MAX {
            self.accusations.push(accusation);
        }
    }

    pub(crate) fn find(&mut self, verdict: Result<(), Violation>) {
        if let Err(violation) = verdict
            && self.found.len() < FINDINGS_MAX
        {
            self.found.push(violation);
        }
    }
}

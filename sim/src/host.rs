//! One host: a node in its present life, its trainer, and the bookkeeping of a driver.

mod clock;
mod step_clock;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use murmur_protocol::scheme::Scheme;
use murmur_protocol::{Address, Correction, Effect, Event, Part, PeerId, Phase, RequestId, Snapshot, Time, TransferId};

pub(crate) use clock::Clock;
pub(crate) use step_clock::StepClock;

use crate::checks::{Answers, LeftAlone};
use crate::happening::Life;
use crate::liar::Liar;
use crate::network::LinkId;
use crate::record::{LifeRecord, MergeRecord, Peaks, Side};
use crate::scenario::{HostIndex, NodePlan};
use crate::swarm::Core;
use crate::trainer::{Objective, Order, Trainer};

/// Exchanges that are remembered: more than a node hears of while a slow partner's codes are on their way.
const DECLARED_MAX: usize = 256;

/// A running process.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) index: HostIndex,
    pub(crate) life: Life,
    pub(crate) peer: PeerId,
    pub(crate) node: Core,
    pub(crate) clock: Clock,
    pub(crate) trainer: Trainer,
    pub(crate) step_clock: StepClock,
    /// What the trainer is to do at the next step boundary.
    pub(crate) orders: Vec<Order>,
    /// `None` for an honest host.
    pub(crate) liar: Option<Box<Liar>>,
    /// Links that are open as far as this end knows, by peer, oldest first. Two hosts that dial each other at once get
    /// two.
    pub(crate) links: BTreeSet<(PeerId, LinkId)>,
    /// Outgoing payloads whose end is not known yet, and whether each is a state.
    pub(crate) transfers: BTreeMap<TransferId, (LinkId, bool)>,
    /// Merges in the worker pool.
    pub(crate) merging: BTreeMap<RequestId, Merging>,
    /// Corrections on their way into the model, by the number that their order carries.
    pub(crate) landing: BTreeMap<usize, Landing>,
    pub(crate) next_landing: usize,
    /// Requests without a reply so far.
    pub(crate) awaited: BTreeSet<RequestId>,
    pub(crate) answers: Answers,
    pub(crate) left_alone: LeftAlone,
    /// Names of the exchanges that were proposed to this node, by starter and number.
    pub(crate) proposed: VecDeque<(PeerId, u64, u64)>,
    /// What this node declared for its exchanges, and how each is called: names apart, for they are what is looked through.
    declared: VecDeque<Declared>,
    declared_names: VecDeque<u64>,
    /// Number of the last deadline put into the queue, and the node's time of it.
    pub(crate) wake: (u64, Time),
    /// Number of the last moment put into the queue at which the trainer is due, and that moment.
    pub(crate) due: (u64, Option<Time>),
    pub(crate) idle_boundary_is_set: bool,
    pub(crate) has_stopped: bool,
    /// How its node averages at present.
    pub(crate) scheme: Scheme,
    /// While all average at once: counts orders to contribute, and what makes them void.
    pub(crate) contribution: u64,
    /// While all average at once: with whom it averages, as its node has told.
    pub(crate) group: BTreeSet<PeerId>,
    pub(crate) steps_max: Option<u64>,
    /// The trainer's steps when this life began, and when it last reported.
    pub(crate) first_steps: u64,
    pub(crate) reported_steps: u64,
    pub(crate) wakes: u64,
    /// When it was woken last, and how often in that instant.
    pub(crate) woken_at: (Time, u32),
    pub(crate) tally: Tally,
}

/// How a node takes part in an exchange.
#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) partner: Option<HostIndex>,
    /// τ
    pub(crate) clip: f64,
    /// What was encoded, as the partner sees it, and when it was taken; until it is merged.
    pub(crate) encoded: Option<(Snapshot, Time)>,
}

/// What is summed up over a life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) corrections: u64,
    pub(crate) gain: f64,
    pub(crate) delay: Duration,
    /// The same in rounds.
    pub(crate) delay_rounds: f64,
    /// Own rounds up to `rounds_until` steps, each as long as the node had it then.
    pub(crate) rounds: f64,
    pub(crate) rounds_until: u64,
    /// Whether rounds are begun still.
    pub(crate) counts_rounds: bool,
    pub(crate) interval_steps: f64,
    pub(crate) rounding: f64,
    /// Sum of the lengths of all corrections that became part of the model.
    pub(crate) way: f64,
    /// Sum of all corrections that became part of the model, once each.
    pub(crate) landed: Vec<f64>,
    pub(crate) exchanges: u64,
    pub(crate) last_exchange: Time,
    /// Time in which it has computed what it contributed to all-reduces.
    pub(crate) contributing: Duration,
}

/// What must be remembered of a merge until its correction is ordered.
#[derive(Clone, Debug)]
pub(crate) struct Merging {
    pub(crate) record: MergeRecord,
    pub(crate) snapshot: Snapshot,
    /// When the snapshot was taken.
    pub(crate) taken_at: Time,
}

/// A correction that a node ordered.
#[derive(Clone, Debug)]
pub(crate) struct Landing {
    pub(crate) exchange: (u64, Side, Life),
    pub(crate) part: Part,
    pub(crate) correction: Correction,
    /// The model that it was computed from.
    pub(crate) snapshot: Snapshot,
    pub(crate) taken_at: Time,
    pub(crate) factor: f64,
}

impl Host {
    pub(crate) fn new(
        (index, life): (HostIndex, Life),
        peer: PeerId,
        node: Core,
        trainer: Trainer,
        plan: &NodePlan,
        now: Time,
    ) -> Host {
        Host {
            index,
            life,
            peer,
            node,
            clock: Clock::new(plan.clock_rate),
            step_clock: StepClock::new(plan.step_time),
            orders: Vec::new(),
            liar: None,
            links: BTreeSet::new(),
            transfers: BTreeMap::new(),
            merging: BTreeMap::new(),
            landing: BTreeMap::new(),
            next_landing: 0,
            awaited: BTreeSet::new(),
            answers: Answers::default(),
            left_alone: LeftAlone::default(),
            proposed: VecDeque::new(),
            declared: VecDeque::new(),
            declared_names: VecDeque::new(),
            wake: (0, Time::ZERO),
            due: (0, None),
            idle_boundary_is_set: false,
            has_stopped: false,
            contribution: 0,
            group: BTreeSet::new(),
            scheme: Scheme::default(),
            steps_max: plan.steps_max,
            first_steps: trainer.steps,
            reported_steps: trainer.steps,
            wakes: 0,
            woken_at: (Time::ZERO, 0),
            tally: Tally { last_exchange: now, interval_steps: 10.0, counts_rounds: true, ..Tally::default() },
            trainer,
        }
    }

    /// The newest link to a peer that is open as far as this end knows.
    pub(crate) fn link_to(&self, peer: PeerId) -> Option<LinkId> {
        self.links_to(peer).next_back()
    }

    /// All of them, oldest first.
    pub(crate) fn links_to(&self, peer: PeerId) -> impl DoubleEndedIterator<Item = LinkId> + '_ {
        self.links.range((peer, LinkId::MIN)..=(peer, LinkId::MAX)).map(|(_, link)| *link)
    }

    /// Peers with an open link.
    pub(crate) fn connected(&self) -> usize {
        let mut peers: Vec<PeerId> = self.links.iter().map(|(peer, _)| *peer).collect();
        peers.dedup();
        peers.len()
    }

    /// Remembers that `effect` awaits a reply, where it does.
    pub(crate) fn note_request(&mut self, effect: &Effect) {
        self.awaited.extend(effect.request());
    }

    /// Takes a reply off the list: whether it was awaited, and what was remembered of a merge; `None` where the event is
    /// no reply.
    pub(crate) fn note_reply(&mut self, event: &Event) -> Option<(bool, Option<Merging>)> {
        let (Event::SnapshotTaken { request, .. }
        | Event::Encoded { request, .. }
        | Event::Merged { request, .. }
        | Event::CorrectionApplied { request, .. }
        | Event::StateLoaded { request, .. }
        | Event::Contributed { request, .. }
        | Event::Reduced { request, .. }
        | Event::RequestFailed { request }) = event
        else {
            return None;
        };
        Some((self.awaited.remove(request), self.merging.remove(request)))
    }

    /// Remembers with whom, and with which clip norm, this node takes part in an exchange.
    pub(crate) fn declare(&mut self, exchange: u64, partner: Option<HostIndex>, clip: f64) {
        if let Some(declared) = self.declared_for(exchange) {
            (declared.partner, declared.clip) = (partner, clip);
            return;
        }
        if self.declared.len() == DECLARED_MAX {
            self.declared.pop_front();
            self.declared_names.pop_front();
        }
        self.declared.push_back(Declared { partner, clip, encoded: None });
        self.declared_names.push_back(exchange);
    }

    /// Remembers how an exchange is called that a peer has proposed.
    pub(crate) fn hear_proposal(&mut self, peer: PeerId, number: u64, exchange: u64) {
        if self.proposed.len() == DECLARED_MAX {
            self.proposed.pop_front();
        }
        self.proposed.push_back((peer, number, exchange));
    }

    /// The name of the exchange that this peer proposed under this number.
    pub(crate) fn name_of(&self, peer: PeerId, number: u64) -> Option<u64> {
        let found = self.proposed.iter().rev().find(|(by, of, _)| (*by, *of) == (peer, number));
        found.map(|(_, _, exchange)| *exchange)
    }

    /// What this node has declared for an exchange.
    pub(crate) fn declared_for(&mut self, exchange: u64) -> Option<&mut Declared> {
        let found = self.declared_names.iter().rposition(|name| *name == exchange)?;
        self.declared.get_mut(found)
    }

    /// Raises the peaks to what this host holds now.
    pub(crate) fn measure(&self, peaks: &mut Peaks) {
        peaks.awaited = peaks.awaited.max(self.awaited.len());
        peaks.merging = peaks.merging.max(self.merging.len());
        let giving = self.transfers.values().filter(|(_, is_state)| *is_state).count();
        peaks.giving = peaks.giving.max(giving);
    }

    /// Raises the peaks to what the node holds, which looks at all that it knows: for now and then.
    pub(crate) fn measure_node(&mut self, peaks: &mut Peaks) {
        let counts = self.node.counts();
        let steps = self.trainer.steps - self.first_steps;
        self.tally.interval_steps = counts.interval_steps.max(1.0);
        if self.tally.counts_rounds {
            self.tally.rounds += (steps - self.tally.rounds_until) as f64 / self.tally.interval_steps;
        }
        self.tally.rounds_until = steps;
        peaks.known = peaks.known.max(counts.known);
        peaks.connected = peaks.connected.max(counts.connected);
        peaks.links = peaks.links.max(counts.links);
        peaks.misbehaving = peaks.misbehaving.max(counts.misbehaving);
    }

    pub(crate) fn begin_training(&mut self, now: Time) {
        self.trainer.is_training = true;
        // Where all average at once it steps with sums alone.
        if self.scheme == Scheme::Pairs {
            self.step_clock.begin(now);
        }
    }

    /// The node orders the end of training. Where it has no reason to, the steps that are missed are still expected. Steps
    /// up to `now` must have been taken.
    pub(crate) fn end_as_ordered(&mut self, now: Time) {
        match self.node.counts().phase {
            Phase::Training | Phase::Settling => {
                self.trainer.is_training = false;
                self.step_clock.stop(now);
            }
            Phase::Joining | Phase::Completed | Phase::Leaving | Phase::Left => self.end_training(now),
        }
    }

    /// Steps up to `now` must have been taken.
    pub(crate) fn end_training(&mut self, now: Time) {
        self.trainer.is_training = false;
        self.step_clock.end(now);
    }

    /// How far the model has moved beyond its own training and the corrections that were ordered.
    fn unexplained(&self) -> f64 {
        let values = self.trainer.values();
        let moved = values.iter().zip(self.trainer.first_values()).zip(self.trainer.local_movement());
        let landed = self.tally.landed.iter().copied().chain(std::iter::repeat(0.0));
        let squares = moved
            .zip(landed)
            .map(|(((value, first), local), landed)| (f64::from(*value) - f64::from(*first) - local - landed).powi(2));
        squares.sum::<f64>().sqrt()
    }

    /// The model, in which what it does not hold is as in `whole`: its own values say nothing there.
    fn made_whole(&self, whole: Option<&[f32]>) -> Vec<f32> {
        let values = self.trainer.values();
        let mut model = whole.map_or_else(|| values.to_vec(), <[f32]>::to_vec);
        for range in self.trainer.held() {
            model[range.clone()].copy_from_slice(&values[range.clone()]);
        }
        model
    }

    /// The objective at its model, with what it does not hold from `whole`: the model of somebody who holds all.
    pub(crate) fn loss(&self, objective: &Objective, whole: Option<&[f32]>) -> f64 {
        objective.loss(&self.made_whole(whole))
    }

    /// The life as checks see it, at `now`; steps up to then must have been taken. Of the dead without vectors. New exchanges
    /// were begun until `exchanged_until`. `whole`: the model of somebody who holds all of it.
    pub(crate) fn record(
        &self,
        (now, exchanged_until): (Time, Time),
        is_alive: bool,
        objective: &Objective,
        whole: Option<&[f32]>,
    ) -> LifeRecord {
        let vectors = |values: &[f32]| if is_alive { values.to_vec() } else { Vec::new() };
        LifeRecord {
            host: self.index,
            active: is_alive && self.trainer.has_model && !self.has_stopped,
            is_completed: !self.trainer.is_training && self.node.counts().phase == Phase::Completed,
            is_honest: self.liar.is_none(),
            first_model: vectors(self.trainer.first_values()),
            model: vectors(&self.trainer.values()),
            held: self.trainer.held().to_vec(),
            loss: if is_alive { self.loss(objective, whole) } else { 0.0 },
            unexplained: self.unexplained(),
            // One `f32` addition for each correction, and that of the differences taken of the model.
            rounding: self.tally.rounding + 4.0 * rounding_of(&self.trainer.values()),
            steps: self.trainer.steps - self.first_steps,
            progress: self.trainer.progress,
            step_time: self.step_clock.step_time(),
            steps_expected: self.step_clock.expected(now),
            interruptions: self.step_clock.interruptions,
            corrections: self.tally.corrections,
            gain: self.tally.gain,
            delay: self.tally.delay,
            delay_rounds: self.tally.delay_rounds,
            rounds: self.tally.rounds,
            trained: self.step_clock.trained(now) + self.tally.contributing,
            exchanges: self.tally.exchanges,
            connected: self.connected(),
            last_exchange_ago: exchanged_until.saturating_since(self.tally.last_exchange),
        }
    }
}

/// The rounding of one addition to every element, as a Euclidean norm.
pub(crate) fn rounding_of(values: &[f32]) -> f64 {
    let squares = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    f64::from(f32::EPSILON) * squares.sqrt().max(1.0)
}

/// Where a host listens, in every life.
pub(crate) fn address_of(host: HostIndex) -> Address {
    Address::new(format!("sim/{host}")).expect("short and not empty")
}

/// The host behind an address.
pub(crate) fn host_at(address: &Address) -> Option<HostIndex> {
    address.as_str().strip_prefix("sim/")?.parse().ok()
}

/// An identity of a host; `stranger` counts how often it lost the one before.
pub(crate) fn identity(seed: u64, host: HostIndex, stranger: u64) -> PeerId {
    let mut hasher = blake3::Hasher::new_derive_key("murmuration 2026 simulated identity");
    for number in [seed, host as u64, stranger] {
        hasher.update(&number.to_le_bytes());
    }
    PeerId::from_public_key(*hasher.finalize().as_bytes())
}

//! Averaging of all members at once as one part of the node: a [`Collective`], and what its orders mean for the network,
//! the trainer and the worker.
//!
//! ```text
//! Contribute ──► trainer: a gradient, or the model after H steps ──► Contributed
//! Begin, Send …, Absorb … by the schedule: slices go out as transfers, those that come are reduced on the worker
//! Finish ──► trainer: TakeUp, once ──► the next Contribute
//! ```
//!
//! Orders are carried out in turn: what follows a reduction waits for it. The training thread stands still from its
//! contribution until the sum is there; for how long is counted.

mod losing;
mod orders;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::bounds::{bulk_time_max, replica_bytes_max};
use crate::bulk::{Payload, Snapshot};
use crate::collective::{
    Beginning, Collective, Counts, EPOCH_NUMBER_MAX, Epoch, LISTENING, MEMBERS_MAX, Members, Order, SliceName, Split,
    Timeouts, Version, Word,
};
use crate::config::{Config, Start};
use crate::effect::TransferId;
use crate::manifest::SynchronousSpec;
use crate::message::{Message, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::numerics::{Accumulator, Reduced, SliceCodec, contribution_values};
use crate::outbox::{Outbox, Purpose, Reply};
use crate::peer::PeerId;
use crate::status::{Status, SynchronousStatus};
use crate::time::Time;
use sending::Sending;

/// How long a node that comes back with a model looks for its group before it goes on alone: a dial and a handshake take
/// less. A guess.
const SEEKING: Duration = Duration::from_secs(3);

/// Weight of the newest contribution in the running mean of their times.
const NEWEST: f64 = 0.125;

/// Slices kept before they are absorbed: two schedules' worth of the longest.
const KEPT_MAX: usize = 4 * MEMBERS_MAX;

/// Replicas kept that have come before the epoch for which they are.
const REPLICAS_MAX: usize = 2;

/// This node's part in the all-reduces of a synchronous run.
#[derive(Debug)]
pub(crate) struct Synchronous {
    spec: SynchronousSpec,
    codec: SliceCodec,
    /// Of a contribution.
    values: usize,
    collective: Collective,
    /// The members that were told last.
    told: Members,
    /// Whether it was told that the others go on without this node.
    is_told_left_out: bool,
    /// Orders of the collective that are to be carried out in turn.
    work: VecDeque<Order>,
    contribution: Option<Snapshot>,
    /// Names the last order to contribute: what comes for an earlier one is of another replica.
    contribution_number: u64,
    /// When it was ordered, until it is there.
    contribution_ordered: Option<Time>,
    /// How long a contribution takes to compute: a running mean.
    contribution_seconds: Option<f64>,
    /// What rounding has taken away from this node's part of the operations that were finished; empty where there is none.
    residual: Snapshot,
    /// The sum, unless the worker has it.
    accumulator: Option<Accumulator>,
    /// The sum is on the worker.
    is_reducing: bool,
    /// Whom the slices are for that the worker writes, under which name, and which values they are.
    writing: Option<(PeerId, SliceName, Range<usize>)>,
    /// What it has written last, where the sum is still the same: a star sends it to many.
    written: Option<(Range<usize>, Payload)>,
    /// Slices by name, and who sent them, until they are absorbed.
    kept: BTreeMap<SliceName, (PeerId, Payload)>,
    /// Replicas that have come, and who sent them.
    replicas: BTreeMap<(Epoch, Version), (PeerId, Payload)>,
    /// Who is given a copy of the replica of this version, which has been ordered; each member once.
    giving: VecDeque<(PeerId, Epoch, Version)>,
    /// The replica whose copy was ordered last, until it is there.
    copying: Option<Version>,
    sending: Sending,
    is_resting: bool,
    /// What this node went through before it looked for this group.
    earlier: Counts,
}

/// What the node is to conclude from a reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Replied {
    /// Nothing: it was taken in.
    Taken,
    /// Another member's replica is this node's now.
    Copied(PeerId),
    /// It answers another order than it says.
    Stale,
    /// The bytes of this peer were unfit.
    Unfit(PeerId, Misbehaviour),
}

impl Synchronous {
    /// `None` for a run that averages by gossip. `parameters`: of the whole model.
    pub(crate) fn new(config: &Config, me: PeerId, parameters: usize, now: Time) -> Option<Synchronous> {
        let knows_nobody = config.bootstrap.is_empty() && config.remembered.is_empty();
        let until = if knows_nobody { now } else { now + SEEKING };
        let progress = (config.start == Start::WithModel).then_some(config.training.progress);
        let epoch = config.first_number.min(EPOCH_NUMBER_MAX / 2);
        let values = contribution_values(parameters, config.weighs_members);
        Synchronous::seeking(&config.synchronous, (me, values), (epoch, progress), until)
    }

    /// A member that looks for its group. `values`: of a contribution. `epoch`: a number above those of all epochs that it has
    /// announced. `progress`: of its model, where it has one. It goes on alone at the earliest at `until`. `None` for a run that
    /// averages by gossip.
    pub(crate) fn seeking(
        spec: &SynchronousSpec,
        (me, values): (PeerId, usize),
        (epoch, progress): (u64, Option<f64>),
        until: Time,
    ) -> Option<Synchronous> {
        let spec = spec.clone();
        let shape = spec.topology.shape()?;
        let epoch = Epoch { number: epoch, leader: me };
        let operations = progress.map(|progress| (progress.max(0.0) / f64::from(spec.every_steps)) as u64);
        let timeouts = Timeouts {
            contribution: bulk_time_max(spec.codec().bytes(values) as u64),
            state: bulk_time_max(replica_bytes_max(values)),
            listening: Some(LISTENING),
            split: Split::EachGoesOn,
            members_min: spec.members_min as usize,
            ..Timeouts::default()
        };
        let beginning = Beginning::Seeking { epoch, operations, until };
        Some(Synchronous {
            codec: spec.codec(),
            spec,
            values,
            collective: Collective::new(shape, me, beginning, timeouts),
            told: Members::default(),
            is_told_left_out: false,
            work: VecDeque::new(),
            contribution: None,
            contribution_number: 0,
            contribution_ordered: None,
            contribution_seconds: None,
            residual: Snapshot::from(Vec::new()),
            accumulator: None,
            is_reducing: false,
            writing: None,
            written: None,
            kept: BTreeMap::new(),
            replicas: BTreeMap::new(),
            giving: VecDeque::new(),
            copying: None,
            sending: Sending::default(),
            is_resting: false,
            earlier: Counts::default(),
        })
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let collective = self.collective.next_deadline().filter(|_| !self.is_away());
        collective.into_iter().chain(self.sending.next_deadline()).min()
    }

    pub(crate) fn on_deadline(&mut self, now: Time, out: &mut Outbox) {
        if !self.is_away() {
            self.collective.time_passed(now);
            self.drain(now, out);
        }
        self.sending.proceed(now, out);
    }

    /// Whether this peer's connection is needed.
    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        let is_given = self.giving.iter().any(|(to, ..)| *to == peer);
        is_given || self.collective.members().contains(peer) || self.sending.is_busy_with(peer)
    }

    /// Whether others may still need what this node has: the last slices, or the replica at the end of the run.
    pub(crate) fn is_needed(&self, now: Time) -> bool {
        !self.sending.is_empty() || !self.giving.is_empty() || self.collective.is_needed(now)
    }

    /// How long this node stays for others at most, once its training is over.
    pub(crate) fn farewell_max(&self) -> Duration {
        self.collective.farewell_max()
    }

    /// These peers can be sent transfers.
    pub(crate) fn on_reachable(&mut self, now: Time, peers: impl IntoIterator<Item = PeerId>, out: &mut Outbox) {
        self.collective.peers_connected(peers);
        self.drain(now, out);
    }

    /// A peer cannot be sent transfers any more.
    pub(crate) fn on_lost(&mut self, now: Time, peer: PeerId, out: &mut Outbox) {
        self.sending.forget(peer);
        self.giving.retain(|(to, ..)| *to != peer);
        self.collective.peer_lost(now, peer);
        self.drain(now, out);
    }

    /// # Errors
    /// When what a peer says cannot be.
    pub(crate) fn on_word(
        &mut self,
        now: Time,
        peer: PeerId,
        word: Word,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        if !word.is_sound() {
            return Err(Misbehaviour::OutOfRange("members of an all-reduce".into()));
        }
        if !self.is_away() {
            self.collective.word_received(now, peer, word);
            self.drain(now, out);
        }
        Ok(())
    }

    /// # Errors
    /// When the payload is of no length that it may have.
    pub(crate) fn on_transfer(
        &mut self,
        now: Time,
        peer: PeerId,
        (header, payload): (&TransferHeader, Payload),
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        match header {
            TransferHeader::Slices(name) => {
                let most = self.codec.bytes(self.values) as u64;
                if payload.len() as u64 > most || name.epoch.number >= EPOCH_NUMBER_MAX {
                    return Err(Misbehaviour::WrongLength { expected: most, actual: payload.len() as u64 });
                }
                if self.is_resting || self.kept.len() >= KEPT_MAX {
                    return Ok(());
                }
                // While this node's own contribution does not come, the others may try again and again.
                if self.work.is_empty() && !self.is_reducing && self.accumulator.is_none() {
                    let present = self.collective.epoch();
                    self.kept.retain(|name, _| name.epoch >= present);
                }
                self.kept.insert(*name, (peer, payload));
                self.collective.slice_received(now, peer, *name);
            }
            TransferHeader::Replica { epoch, version } => {
                let present = self.collective.epoch();
                self.replicas.retain(|(of, _), _| *of >= present);
                if self.is_resting || self.replicas.len() >= REPLICAS_MAX {
                    return Ok(());
                }
                self.replicas.insert((*epoch, *version), (peer, payload));
                self.collective.state_received(now, *epoch, *version);
            }
            _ => {}
        }
        self.drain(now, out);
        Ok(())
    }

    pub(crate) fn on_transfer_ended(&mut self, now: Time, transfer: TransferId, finished: bool, out: &mut Outbox) {
        self.sending.on_ended(now, transfer, finished);
        self.sending.proceed(now, out);
    }

    /// What the trainer or the worker reply.
    pub(crate) fn on_reply(&mut self, now: Time, purpose: Purpose, reply: Reply, out: &mut Outbox) -> Replied {
        let replied = match (purpose, reply) {
            (Purpose::Contribution(number), Reply::Contributed(contribution, digest, _)) => {
                if number == self.contribution_number {
                    self.time_contribution(now);
                    self.contribution = Some(contribution);
                    self.collective.contributed(now, self.collective.version().operations, digest);
                }
                Replied::Taken
            }
            (Purpose::Reduction, Reply::Reduced(result)) => {
                self.is_reducing = false;
                // What was wrong with a peer's bytes was looked at before.
                match result {
                    Ok(Reduced { accumulator, written }) => self.on_reduced(accumulator, written),
                    Err(_) => self.lose_sum(now),
                }
                Replied::Taken
            }
            (Purpose::ReplicaCopy(version), Reply::Snapshot(replica, _)) => {
                self.give(version, Some(&replica));
                self.sending.proceed(now, out);
                Replied::Taken
            }
            (Purpose::ReplicaLoad(from), Reply::Loaded(true, _)) => {
                self.collective.taken_up();
                Replied::Copied(from)
            }
            (Purpose::ReplicaLoad(from), Reply::Loaded(false, _)) => {
                self.lose_replica(now);
                Replied::Unfit(from, Misbehaviour::OutOfRange("replica".into()))
            }
            (Purpose::Reduction, Reply::Failed) => {
                self.is_reducing = false;
                self.lose_sum(now);
                Replied::Taken
            }
            (Purpose::ReplicaCopy(version), Reply::Failed) => {
                self.give(version, None);
                Replied::Taken
            }
            (Purpose::ReplicaLoad(_), Reply::Failed) => {
                self.lose_replica(now);
                Replied::Taken
            }
            (Purpose::Contribution(_), Reply::Failed) => {
                self.collective.state_lost(now);
                Replied::Taken
            }
            _ => Replied::Stale,
        };
        self.drain(now, out);
        replied
    }

    /// This node's training is over: who is behind, or seeks the model, gets it.
    pub(crate) fn end(&mut self, now: Time, out: &mut Outbox) {
        self.collective.end(now);
        self.drain(now, out);
    }

    /// Fills in what all-reduces have to say of the node.
    pub(crate) fn describe(&self, now: Time, status: &mut Status) {
        let counts = self.counts(now);
        status.synchronous = Some(SynchronousStatus {
            members: if self.collective.is_stalled() { 0 } else { self.collective.members().len() },
            operations: self.collective.version().operations,
            finished: counts.finished,
            is_left_out: self.collective.is_left_out(),
            is_copying: self.collective.is_copying(),
            waited: counts.waited,
            awaited: self.collective.awaited(),
            dropped: counts.dropped,
            copied: counts.copied,
            differed: counts.differed,
            deadline: self.collective.limit(),
        });
    }

    /// What this node went through in all, with what it did `earlier`.
    pub(crate) fn counts(&self, now: Time) -> Counts {
        self.earlier + self.collective.counts(now)
    }

    /// The same member, that went through this before.
    pub(crate) fn after(self, earlier: Counts) -> Synchronous {
        Synchronous { earlier, ..self }
    }

    /// All-reduces that this node has finished in this group.
    pub(crate) fn finished(&self, now: Time) -> u64 {
        self.collective.counts(now).finished
    }

    /// Seconds that a contribution takes to compute, once one has been.
    pub(crate) fn contribution_seconds(&self) -> Option<f64> {
        self.contribution_seconds
    }

    /// The number of the last epoch.
    pub(crate) fn epoch_number(&self) -> u64 {
        self.collective.epoch().number
    }

    fn time_contribution(&mut self, now: Time) {
        let Some(ordered) = self.contribution_ordered.take() else { return };
        let seconds = (now - ordered).as_secs_f64();
        let mean = self.contribution_seconds.get_or_insert(seconds);
        *mean += NEWEST * (seconds - *mean);
    }

    /// Takes the collective's orders, and carries out those whose turn it is.
    fn drain(&mut self, now: Time, out: &mut Outbox) {
        loop {
            self.take_orders(out);
            let next = if self.is_reducing { None } else { self.work.pop_front() };
            let Some(order) = next else { break };
            self.carry_out(now, order, out);
        }
        self.sending.proceed(now, out);
        self.tell_members(out);
    }

    fn take_orders(&mut self, out: &mut Outbox) {
        while let Some(order) = self.collective.poll_order() {
            match order {
                Order::Say { .. } if self.is_away() => {}
                Order::Say { to, word } => out.send(to, Message::Synchronous(word)),
                Order::Begin { epoch, .. } => {
                    self.drop_schedule();
                    self.forget_before(epoch);
                    self.work.push_back(order);
                }
                order => self.work.push_back(order),
            }
        }
    }

    /// Forgets slices and replicas of epochs before this one: that of a schedule which has not been carried out yet, where the collective
    /// is further.
    fn forget_before(&mut self, epoch: Epoch) {
        self.kept.retain(|name, _| name.epoch >= epoch);
        self.replicas.retain(|(of, _), _| *of >= epoch);
        self.sending.forget_before(epoch);
    }

    /// Who rests takes part in nothing, and asks for nothing; who has ended still gives what others need.
    fn is_away(&self) -> bool {
        self.is_resting && !self.collective.is_over()
    }

    /// Swarm progress of a state, in steps.
    fn progress(&self, version: Version) -> f64 {
        version.operations as f64 * f64::from(self.spec.every_steps)
    }

    fn tell_members(&mut self, out: &mut Outbox) {
        let is_left_out = self.collective.is_left_out();
        if is_left_out && !std::mem::replace(&mut self.is_told_left_out, is_left_out) {
            out.notice(Notice::LeftOut);
        }
        self.is_told_left_out = is_left_out;
        let members = self.collective.members();
        if self.collective.is_stalled() || *members == self.told {
            return;
        }
        let (joined, left) = (members.without(&self.told), self.told.without(members));
        let (joined, left) = (joined.iter().collect(), left.iter().collect());
        out.notice(Notice::MembersChanged { members: members.len() as u32, joined, left });
        self.told = members.clone();
    }
}

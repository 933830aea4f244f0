//! One member's part in an all-reduce: the schedule's rounds, the deadline, the copy of a state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::lateness::Lateness;
use super::phase::{Outside, Phase, Reduction, Stall};
use super::timeouts::{Beginning, Timeouts};
use super::{Announced, Counts, Epoch, Members, OPERATIONS_MAX, Order, Schedule, Shape, SliceName, Version, Word};
use crate::Time;
use crate::exchange::TimeoutEstimator;
use crate::peer::PeerId;

/// Epochs whose slices are kept before this member has heard of the epoch itself.
const EARLY_MAX: usize = 4 * super::MEMBERS_MAX * super::MEMBERS_MAX;

/// A deadline that is missed costs everybody the operation, so it is learned from times that are taken so often. A guess.
pub(crate) const SLACK: u32 = 2;

/// The longest wait is the first one doubled so often, and what bytes take.
const DOUBLINGS_MAX: u32 = 2;

/// The time for a copy of the state is the one on a slow line doubled so often, each time that it was too short: a line of a sixteenth
/// of that carries it. A guess.
const COPY_DOUBLINGS_MAX: u32 = 4;

/// One member's part.
#[derive(Clone, Debug)]
pub struct Collective {
    pub(super) me: PeerId,
    /// Whom words reach: everybody that may take part, and is in reach as far as is known. This member too.
    pub(super) everybody: Members,
    pub(super) epoch: Epoch,
    pub(super) members: Members,
    /// Those of the group that it has left for another one.
    pub(super) left: Members,
    shape: Shape,
    schedule: Schedule,
    pub(super) version: Version,
    /// Whether there is a state; a member that has just come has none.
    pub(super) has_state: bool,
    /// The owner has not yet said that the state of `version` is there: it was ordered to finish an operation, or to take a copy.
    pub(super) is_untaken: bool,
    /// Until it has, the state that it had before, where it had one.
    pub(super) version_before: Option<Version>,
    /// Digest of the state; 0 until the owner has told it.
    pub(super) digest: u64,
    /// It waits to be taken in by a group, and would take its state.
    pub(super) seeks: bool,
    /// No operation begins any more: the owner has ended its work.
    pub(super) is_over: bool,
    /// Who has said that it has ended, and how far it was; at most [`MEMBERS_MAX`](super::MEMBERS_MAX).
    pub(super) ended: BTreeMap<PeerId, Version>,
    /// Once the work is over: who was in reach then, and who has been found behind since.
    pub(super) behind: Members,
    /// Once the work is over: until when others may say that they are behind.
    pub(super) needed_until: Option<Time>,
    /// Once the work is over: who was given the state, and the number of the epoch for which; those in reach.
    pub(super) given: BTreeMap<PeerId, u64>,
    pub(super) phase: Phase,
    /// The own contribution to the next operation is there.
    pub(super) has_contribution: bool,
    /// It has been ordered.
    pub(super) is_contributing: bool,
    /// How the others have waited for it in vain.
    pub(super) lateness: Lateness,
    /// Slices of this epoch and operation, or later ones, that have arrived and are not absorbed.
    arrived: BTreeSet<SliceName>,
    absorbed: BTreeSet<usize>,
    /// An announcement that waits for the end of the operation under way.
    pub(super) deferred: Option<Announced>,
    /// States that came before their announcement.
    early_states: BTreeMap<Epoch, Version>,
    /// Members outside of the epoch that have said so.
    pub(super) outside: BTreeMap<PeerId, Outside>,
    /// Members of other groups are not told before then that this one works.
    pub(super) tells_others_at: Time,
    /// What this member has announced for the present epoch, to be said again to who has missed it.
    pub(super) announced: Option<Word>,
    pub(super) timeouts: Timeouts,
    /// Since when the owner has had nothing to compute.
    pub(super) idle_since: Option<Time>,
    /// How many copy the state first, in this epoch's first operation; one member sends it to all of them.
    copies: u32,
    /// Since the last operation that was finished.
    copies_in_vain: u32,
    pub(super) timeout: TimeoutEstimator,
    pub(super) counts: Counts,
    orders: VecDeque<Order>,
}

impl Collective {
    /// The part of `me`.
    ///
    /// # Panics
    /// When `me` is not among those that begin together.
    pub fn new(shape: Shape, me: PeerId, beginning: Beginning, timeouts: Timeouts) -> Collective {
        let (everybody, epoch, members, operations) = match &beginning {
            Beginning::Together(members) => {
                assert!(members.contains(me), "a member begins with its group");
                let leader = members.lowest().expect("at least this one");
                (members.clone(), Epoch { number: 0, leader }, members.clone(), Some(0))
            }
            Beginning::Seeking { epoch, operations, .. } => {
                ([me].into_iter().collect(), *epoch, Members::default(), *operations)
            }
        };
        let mut collective = Collective {
            me,
            everybody,
            epoch,
            schedule: shape.schedule(members.len().max(1)),
            members,
            left: Members::default(),
            shape,
            version: Version { operations: operations.unwrap_or(0), epoch },
            has_state: operations.is_some(),
            is_untaken: false,
            version_before: None,
            digest: 0,
            seeks: false,
            is_over: false,
            ended: BTreeMap::new(),
            behind: Members::default(),
            needed_until: None,
            given: BTreeMap::new(),
            phase: Phase::Contributing,
            has_contribution: false,
            is_contributing: false,
            lateness: Lateness::default(),
            arrived: BTreeSet::new(),
            absorbed: BTreeSet::new(),
            deferred: None,
            early_states: BTreeMap::new(),
            outside: BTreeMap::new(),
            tells_others_at: Time::ZERO,
            announced: None,
            timeouts,
            idle_since: None,
            copies: 0,
            copies_in_vain: 0,
            timeout: TimeoutEstimator::new(timeouts.initial, timeouts.floor, DOUBLINGS_MAX).doubling_to_the_ceiling(),
            counts: Counts::default(),
            orders: VecDeque::new(),
        };
        collective.set_schedule(collective.members.len().max(1));
        match beginning {
            Beginning::Together(_) => collective.ask_for_contribution(Time::ZERO),
            Beginning::Seeking { until, .. } => {
                collective.seeks = true;
                collective.phase = Phase::Stalled(Stall::begin(until, until));
            }
        }
        collective
    }

    /// These are in reach from now on and may take part. What is said to each tells that all are: whoever is missing there is taken
    /// into no group with it.
    pub fn peers_connected(&mut self, peers: impl IntoIterator<Item = PeerId>) {
        let there: Vec<PeerId> = peers.into_iter().filter(|peer| self.everybody.insert(*peer)).collect();
        for peer in there {
            if self.is_left_out() {
                continue;
            }
            if self.is_stalled() {
                let word = self.own_word();
                self.order(Order::Say { to: peer, word });
            } else if !self.members.contains(peer) && !self.is_over {
                self.say_running(peer);
            }
            self.say_ended(peer);
        }
    }

    /// Somebody is out of reach. An operation with it is dropped at once.
    pub fn peer_lost(&mut self, now: Time, peer: PeerId) {
        self.forget(now, peer);
    }

    /// The next order, where there is one.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// When [`time_passed`](Self::time_passed) is to be called at the latest; `None` while only the owner is waited for.
    pub fn next_deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Contributing => self.needed_until,
            Phase::Reducing(reduction) => Some(reduction.begun + self.limit()),
            Phase::Copying { since, .. } => Some(*since + self.limit()),
            Phase::Stalled(stall) => Some(stall.until),
        }
    }

    /// Who takes part now.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The schedule of the present members.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The present epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How far this member is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What this member went through up to now.
    pub fn counts(&self, now: Time) -> Counts {
        let waiting = self.idle_since.map_or(Duration::ZERO, |since| now.saturating_since(since));
        Counts { waited: self.counts.waited + waiting, ..self.counts }
    }

    /// Whose slices are waited for now, where an operation is under way.
    pub fn awaited(&self) -> Option<PeerId> {
        let Phase::Reducing(reduction) = &self.phase else { return None };
        reduction.expected.front().map(|line| self.members.at(self.schedule.moves[*line].from))
    }

    /// Whether it has dropped an operation and seeks agreement.
    pub fn is_stalled(&self) -> bool {
        matches!(self.phase, Phase::Stalled(_))
    }

    /// Whether it waits for a copy of the state.
    pub fn is_copying(&self) -> bool {
        matches!(self.phase, Phase::Copying { .. })
    }

    /// Whether the owner's work is done.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The contribution that was ordered is there. `digest`: of the state from which it was computed, not 0.
    pub fn contributed(&mut self, now: Time, operation: u64, digest: u64) {
        if self.is_left_out() {
            return self.come_back(now);
        }
        if operation != self.version.operations || !self.is_contributing {
            return;
        }
        self.lateness.on_contribution();
        (self.is_contributing, self.has_contribution) = (false, true);
        (self.digest, self.idle_since) = (digest, Some(now));
        if matches!(self.phase, Phase::Contributing) && !self.go_on_without_ended(now) {
            self.begin(now);
        }
    }

    /// Slices have arrived; the owner keeps them until it is told to absorb them.
    pub fn slice_received(&mut self, now: Time, from: PeerId, name: SliceName) {
        self.tell_who_waits_in_an_old_epoch(from, name.epoch);
        // Where another state is copied, also an older one, the operation that follows that.
        let next = self.group_version().operations;
        let is_absorbed = name.operation == next && self.absorbed.contains(&(name.line as usize));
        let is_old = name.epoch < self.epoch || (name.epoch == self.epoch && (name.operation < next || is_absorbed));
        if is_old || self.arrived.len() >= EARLY_MAX || !self.arrived.insert(name) {
            self.counts.ignored += 1;
            return;
        }
        self.advance(now);
    }

    /// A copy of another member's state has arrived; the owner keeps it until it is told to take it.
    pub fn state_received(&mut self, now: Time, epoch: Epoch, version: Version) {
        match self.phase {
            Phase::Copying { version: awaited, .. } if version == awaited && epoch == self.epoch => {
                self.take_up(now, version);
            }
            _ if epoch > self.epoch && self.early_states.len() < EARLY_MAX => {
                self.early_states.insert(epoch, version);
            }
            _ => self.counts.ignored += 1,
        }
    }

    /// Somebody has said something.
    pub fn word_received(&mut self, now: Time, from: PeerId, word: Word) {
        match word {
            Word::Stalled(said) => self.on_stalled(now, from, said),
            Word::Announced(announced) => self.on_announced(now, announced),
            Word::Running { epoch, members, version } => self.on_running(now, from, epoch, (members, version)),
            Word::Ended(version) => self.on_ended(now, from, version),
        }
    }

    /// A deadline may be over.
    pub fn time_passed(&mut self, now: Time) {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if self.is_over {
            self.needed_until = None;
        } else if let Phase::Stalled(_) = self.phase {
            self.decide(now);
        } else {
            self.timeout.record_in_vain();
            self.copies_in_vain += u32::from(self.copies > 0);
            self.stall(now);
        }
    }

    /// How long an operation is given at present.
    pub(crate) fn limit(&self) -> Duration {
        if self.copies == 0 { self.timeout.limit() } else { self.limit_with_copies(self.copies) }
    }

    /// How long to wait where so many copy the state first: what was learned of operations says nothing of that.
    pub(super) fn limit_with_copies(&self, copies: u32) -> Duration {
        let state = self.timeouts.state.saturating_mul(copies << self.copies_in_vain.min(COPY_DOUBLINGS_MAX));
        self.timeout.limit().max(self.timeout.initial()) + state
    }

    fn set_schedule(&mut self, members: usize) {
        self.schedule = self.shape.schedule(members);
        self.timeout.allow(self.timeouts.contribution.mul_f64(self.schedule.longest_way()));
    }

    pub(super) fn order(&mut self, order: Order) {
        self.orders.push_back(order);
    }

    /// From now on these take part. Begins anew what was under way, or copies the state where others are further.
    pub(super) fn adopt(&mut self, now: Time, announced: Announced) {
        let Announced { epoch, members, version, current } = announced;
        let idle_since = match &self.phase {
            Phase::Reducing(reduction) => Some(reduction.begun),
            Phase::Copying { since, .. } => Some(*since),
            Phase::Stalled(stall) => Some(stall.since),
            Phase::Contributing => None,
        };
        if let Some(since) = idle_since.filter(|_| !self.members.is_empty()) {
            self.counts.stood_still += now.saturating_since(since);
            self.counts.dropped += 1;
        }
        self.set_schedule(members.len());
        self.outside.retain(|peer, _| !members.contains(*peer));
        self.arrived.retain(|name| name.epoch >= epoch);
        self.early_states.retain(|of, _| *of >= epoch);
        self.absorbed.clear();
        (self.epoch, self.deferred, self.seeks) = (epoch, None, false);
        self.announced = self.announced.take().filter(|_| epoch.leader == self.me);
        self.copies = members.without(&current).len() as u32;
        let is_believed_current = current.contains(self.me);
        let is_current = self.has_state && self.version == version && is_believed_current;
        if is_current && current.lowest() == Some(self.me) {
            for to in members.without(&current).iter() {
                self.order(Order::GiveState { to, version, epoch });
            }
        }
        self.phase = if is_current { Phase::Contributing } else { Phase::Copying { since: now, version } };
        let before = std::mem::replace(&mut self.members, members).union(&std::mem::take(&mut self.left));
        self.tell_left_behind(&before);
        if is_current {
            if self.has_contribution {
                self.begin(now);
            } else if !self.is_contributing {
                self.ask_for_contribution(now);
            }
        } else if is_believed_current {
            // It has taken another state since it was heard, so nobody gives it this one.
            self.stall(now);
        } else {
            self.idle_since = self.idle_since.or(self.has_state.then_some(now));
            if self.early_states.remove(&epoch) == Some(version) {
                self.take_up(now, version);
            }
        }
    }

    fn take_up(&mut self, now: Time, version: Version) {
        self.order(Order::TakeState { version, epoch: self.epoch });
        self.set_version(version);
        (self.has_contribution, self.is_contributing) = (false, false);
        self.counts.copied += 1;
        self.phase = Phase::Contributing;
        self.ask_for_contribution(now);
        self.advance(now);
    }

    fn ask_for_contribution(&mut self, now: Time) {
        if let Some(since) = self.idle_since.take() {
            self.counts.waited += now.saturating_since(since);
        }
        if !self.is_over {
            self.is_contributing = true;
            self.order(Order::Contribute { operation: self.version.operations });
        }
    }

    fn begin(&mut self, now: Time) {
        if self.version.operations >= OPERATIONS_MAX {
            return self.stall(now);
        }
        self.order(Order::Begin { operation: self.version.operations, epoch: self.epoch });
        self.absorbed.clear();
        self.phase = Phase::Reducing(Reduction { begun: now, round: 0, expected: VecDeque::new() });
        self.enter_round(0);
        self.advance(now);
    }

    /// Sends what this member sends in a round, and notes what it is to receive.
    fn enter_round(&mut self, round: u16) {
        let own = self.members.rank(self.me);
        let mut expected = VecDeque::new();
        for line in 0..self.schedule.moves.len() {
            let what = &self.schedule.moves[line];
            if what.round != round || (what.from != own && what.to != own) {
                continue;
            }
            if what.to == own {
                expected.push_back(line);
            } else {
                let (to, what) = (self.members.at(what.to), *what);
                self.order(Order::Send { to, name: self.name(line), what });
            }
        }
        if let Phase::Reducing(reduction) = &mut self.phase {
            (reduction.round, reduction.expected) = (round, expected);
        }
    }

    /// Absorbs what has arrived as far as the schedule allows.
    fn advance(&mut self, now: Time) {
        loop {
            let Phase::Reducing(reduction) = &mut self.phase else { return };
            let Some(line) = reduction.expected.front().copied() else {
                let next = reduction.round + 1;
                if next >= self.schedule.rounds {
                    return self.finish(now);
                }
                self.enter_round(next);
                continue;
            };
            let name = self.name(line);
            if !self.arrived.remove(&name) {
                return self.look_for_others_bits(now, name);
            }
            if let Phase::Reducing(reduction) = &mut self.phase {
                reduction.expected.pop_front();
            }
            self.absorbed.insert(line);
            let what = self.schedule.moves[line];
            self.order(Order::Absorb { name, what });
        }
    }

    /// Slices that are waited for may have come from somebody that began with other bits.
    fn look_for_others_bits(&mut self, now: Time, name: SliceName) {
        let (first, last) = (SliceName { digest: 0, ..name }, SliceName { digest: u64::MAX, ..name });
        let other = self.arrived.range(first..=last).next().copied();
        if let Some(other) = other {
            self.arrived.remove(&other);
            self.counts.differed += 1;
            self.stall(now);
        }
    }

    fn finish(&mut self, now: Time) {
        if let Phase::Reducing(reduction) = &self.phase {
            self.timeout.record(SLACK * now.saturating_since(reduction.begun));
        }
        let operation = self.version.operations;
        self.set_version(Version { operations: operation + 1, epoch: self.epoch });
        self.order(Order::Finish { operation, version: self.version, members: self.members.clone() });
        self.counts.finished += 1;
        (self.copies, self.copies_in_vain) = (0, 0);
        self.has_contribution = false;
        self.absorbed.clear();
        self.phase = Phase::Contributing;
        if let Some(announced) = self.deferred.take() {
            return self.adopt(now, announced);
        }
        self.ask_for_contribution(now);
        self.invite_those_outside(now);
        self.tell_other_groups(now);
    }

    fn name(&self, line: usize) -> SliceName {
        let line = u32::try_from(line).expect("a schedule has a few thousand lines");
        SliceName { epoch: self.epoch, operation: self.version.operations, line, digest: self.digest }
    }
}

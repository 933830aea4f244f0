//! One member's part in an all-reduce: the schedule's rounds, the deadline, the copy of a state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::agreement::Stall;
use super::{Counts, Epoch, Members, Order, Place, Schedule, Shape, SliceName, Standing, Word};
use crate::Time;
use crate::exchange::TimeoutEstimator;

/// Epochs whose slices are kept before this member has heard of the epoch itself.
const EARLY_MAX: usize = 4 * super::MEMBERS_MAX * super::MEMBERS_MAX;

/// How long a member waits for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the first operation, before anything is known.
    pub initial: Duration,
    /// The least ever.
    pub floor: Duration,
}

impl Default for Patience {
    /// Guesses: half a minute, and a second.
    fn default() -> Patience {
        Patience { initial: Duration::from_secs(30), floor: Duration::from_secs(1) }
    }
}

/// A deadline that is missed costs everybody the operation, so it is learned from times that are taken so often. A guess.
pub(crate) const SLACK: u32 = 2;

/// Waits in vain double the deadline so often at most.
const DOUBLINGS_MAX: u32 = 2;

/// What a member is doing.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// It computes its contribution; nobody is waited for.
    Contributing,
    /// The schedule runs.
    Reducing(Reduction),
    /// It missed an operation and waits for a copy of the state.
    Copying { since: Time, standing: Standing },
    /// It has dropped the operation and seeks agreement on a new epoch.
    Stalled(Stall),
}

/// A schedule under way.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub(super) begun: Time,
    round: u16,
    /// Lines of this round that are yet to be absorbed, in order.
    expected: VecDeque<usize>,
}

/// One member's part.
#[derive(Clone, Debug)]
pub struct Collective {
    pub(super) place: Place,
    pub(super) everybody: Members,
    pub(super) epoch: Epoch,
    pub(super) members: Members,
    shape: Shape,
    schedule: Schedule,
    pub(super) standing: Standing,
    pub(super) phase: Phase,
    /// The own contribution to the next operation is there.
    pub(super) has_contribution: bool,
    /// It has been ordered.
    is_contributing: bool,
    /// Slices of this epoch and operation, or later ones, that have arrived and are not absorbed.
    arrived: BTreeSet<SliceName>,
    absorbed: BTreeSet<usize>,
    /// An announcement that waits for the end of the operation under way.
    pub(super) deferred: Option<(Epoch, Members, Standing, Members)>,
    /// States that came before their announcement.
    early_states: BTreeMap<Epoch, Standing>,
    /// Members outside of the epoch that have said so, and when.
    pub(super) outside: BTreeMap<Place, Time>,
    /// What this member has announced for the present epoch, to be said again to who has missed it.
    pub(super) announced: Option<Word>,
    patience: Patience,
    /// Somebody copies the state first, in this epoch's first operation.
    is_somebody_copying: bool,
    pub(super) timeout: TimeoutEstimator,
    pub(super) counts: Counts,
    orders: VecDeque<Order>,
}

impl Collective {
    /// The part of `place` among `members` (1 to [`MEMBERS_MAX`](super::MEMBERS_MAX)) that all begin with one state.
    ///
    /// # Panics
    /// When `place` is not below `members`, or there are too many.
    pub fn new(shape: Shape, place: Place, members: usize, patience: Patience) -> Collective {
        assert!(usize::from(place) < members, "a place is below the number of members");
        let mut collective = Collective {
            place,
            everybody: Members::first(members),
            epoch: Epoch::FIRST,
            members: Members::first(members),
            shape,
            schedule: shape.schedule(members),
            standing: Standing { operations: 0, epoch: Epoch::FIRST },
            phase: Phase::Contributing,
            has_contribution: false,
            is_contributing: false,
            arrived: BTreeSet::new(),
            absorbed: BTreeSet::new(),
            deferred: None,
            early_states: BTreeMap::new(),
            outside: BTreeMap::new(),
            announced: None,
            patience,
            is_somebody_copying: false,
            timeout: TimeoutEstimator::new(patience.initial, patience.floor, DOUBLINGS_MAX),
            counts: Counts::default(),
            orders: VecDeque::new(),
        };
        collective.ask_for_contribution();
        collective
    }

    /// The next order, where there is one.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// When [`time_passed`](Self::time_passed) is to be called at the latest; `None` while only the owner is waited for.
    pub fn next_deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Contributing => None,
            Phase::Reducing(reduction) => Some(reduction.begun + self.limit()),
            Phase::Copying { since, .. } => Some(*since + self.limit()),
            Phase::Stalled(stall) => Some(stall.until),
        }
    }

    /// Who takes part now.
    pub fn members(&self) -> Members {
        self.members
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
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// What this member went through.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether it has dropped an operation and seeks agreement.
    pub fn is_stalled(&self) -> bool {
        matches!(self.phase, Phase::Stalled(_))
    }

    /// The contribution that was ordered is there.
    pub fn contributed(&mut self, now: Time, operation: u64) {
        if operation != self.standing.operations || !self.is_contributing {
            return;
        }
        (self.is_contributing, self.has_contribution) = (false, true);
        if matches!(self.phase, Phase::Contributing) {
            self.begin(now);
        }
    }

    /// Slices have arrived; the owner keeps them until it is told to absorb them.
    pub fn slice_received(&mut self, now: Time, name: SliceName) {
        let is_old = name.epoch < self.epoch
            || (name.epoch == self.epoch && name.operation < self.standing.operations)
            || (name.epoch == self.epoch
                && name.operation == self.standing.operations
                && self.absorbed.contains(&name.line));
        if is_old || self.arrived.len() >= EARLY_MAX || !self.arrived.insert(name) {
            self.counts.ignored += 1;
            return;
        }
        self.advance(now);
    }

    /// A copy of another member's state has arrived; the owner keeps it until it is told to take it.
    pub fn state_received(&mut self, now: Time, epoch: Epoch, standing: Standing) {
        match self.phase {
            Phase::Copying { standing: awaited, .. } if standing == awaited && epoch == self.epoch => {
                self.take_up(now, standing);
            }
            _ if epoch > self.epoch && self.early_states.len() < EARLY_MAX => {
                self.early_states.insert(epoch, standing);
            }
            _ => self.counts.ignored += 1,
        }
    }

    /// Somebody has said something.
    pub fn word_received(&mut self, now: Time, from: Place, word: Word) {
        match word {
            Word::Stalled { epoch, members, standing } => self.on_stalled(now, from, (epoch, members, standing)),
            Word::Announced { epoch, members, standing, current } => {
                self.on_announced(now, (epoch, members, standing, current));
            }
        }
    }

    /// A deadline may be over.
    pub fn time_passed(&mut self, now: Time) {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if let Phase::Stalled(_) = self.phase {
            self.decide(now);
        } else {
            self.timeout.record_in_vain();
            self.stall(now);
        }
    }

    /// How long to wait now. A copy of a state takes longer than what was learned of operations.
    pub(super) fn limit(&self) -> Duration {
        let learned = self.timeout.limit();
        if self.is_somebody_copying { learned.max(self.patience.initial) } else { learned }
    }

    pub(super) fn order(&mut self, order: Order) {
        self.orders.push_back(order);
    }

    /// From now on these take part. Begins anew what was under way, or copies the state where others are further.
    pub(super) fn adopt(&mut self, now: Time, epoch: Epoch, members: Members, standing: Standing, current: Members) {
        let idle_since = match &self.phase {
            Phase::Reducing(reduction) => Some(reduction.begun),
            Phase::Copying { since, .. } => Some(*since),
            Phase::Stalled(stall) => Some(stall.since),
            Phase::Contributing => None,
        };
        if let Some(since) = idle_since {
            self.counts.stood_still += now.saturating_since(since);
            self.counts.dropped += 1;
        }
        (self.epoch, self.members, self.deferred) = (epoch, members, None);
        self.announced = self.announced.filter(|_| epoch.leader == self.place);
        self.is_somebody_copying = members != current;
        self.schedule = self.shape.schedule(members.len());
        self.outside.retain(|place, _| !members.contains(*place));
        self.arrived.retain(|name| name.epoch >= epoch);
        self.absorbed.clear();
        self.early_states.retain(|of, _| *of >= epoch);
        if self.standing == standing {
            if current.lowest() == Some(self.place) {
                for to in members.without(current).iter() {
                    self.order(Order::GiveState { to, standing, epoch });
                }
            }
            self.phase = Phase::Contributing;
            if self.has_contribution {
                self.begin(now);
            } else if !self.is_contributing {
                self.ask_for_contribution();
            }
        } else {
            self.phase = Phase::Copying { since: now, standing };
            if self.early_states.remove(&epoch) == Some(standing) {
                self.take_up(now, standing);
            }
        }
    }

    fn take_up(&mut self, now: Time, standing: Standing) {
        self.order(Order::TakeState { standing, epoch: self.epoch });
        self.standing = standing;
        (self.has_contribution, self.is_contributing) = (false, false);
        self.counts.copied += 1;
        self.phase = Phase::Contributing;
        self.ask_for_contribution();
        self.advance(now);
    }

    fn ask_for_contribution(&mut self) {
        self.is_contributing = true;
        self.order(Order::Contribute { operation: self.standing.operations });
    }

    fn begin(&mut self, now: Time) {
        self.order(Order::Begin { operation: self.standing.operations });
        self.absorbed.clear();
        self.phase = Phase::Reducing(Reduction { begun: now, round: 0, expected: VecDeque::new() });
        self.enter_round(0);
        self.advance(now);
    }

    /// Sends what this member sends in a round, and notes what it is to receive.
    fn enter_round(&mut self, round: u16) {
        let own = self.members.rank(self.place);
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
                return;
            }
            if let Phase::Reducing(reduction) = &mut self.phase {
                reduction.expected.pop_front();
            }
            self.absorbed.insert(line);
            let what = self.schedule.moves[line];
            self.order(Order::Absorb { name, what });
        }
    }

    fn finish(&mut self, now: Time) {
        if let Phase::Reducing(reduction) = &self.phase {
            self.timeout.record(SLACK * now.saturating_since(reduction.begun));
        }
        let operation = self.standing.operations;
        self.standing = Standing { operations: operation + 1, epoch: self.epoch };
        self.order(Order::Finish { operation, standing: self.standing, members: self.members });
        self.counts.finished += 1;
        self.is_somebody_copying = false;
        self.has_contribution = false;
        self.absorbed.clear();
        self.phase = Phase::Contributing;
        if let Some((epoch, members, standing, current)) = self.deferred.take() {
            self.adopt(now, epoch, members, standing, current);
            return;
        }
        self.ask_for_contribution();
        self.invite_those_outside(now);
    }

    fn name(&self, line: usize) -> SliceName {
        SliceName { epoch: self.epoch, operation: self.standing.operations, line }
    }
}

//! What a captain knows of each helper: its offer, what it holds, how long its work takes, how large its streams are.

use std::collections::BTreeMap;
use std::time::Duration;

use super::band::Band;
use crate::exchange::TimeoutEstimator;
use crate::peer::PeerId;
use crate::team::bounds::HELPERS_KNOWN_MAX;
use crate::team::config::TeamTimeouts;
use crate::team::cut::{Link, Place};
use crate::team::message::{HeldLayers, Offer};
use crate::time::Time;

/// Times that a helper is let in again after what it sent was unfit. A guess.
const STRIKES_MAX: u32 = 3;

/// Batches in a row that one helper may say it cannot compute a number of: a model that has diverged gives none anywhere, and ends
/// training after twenty. A guess.
const NOT_FINITE_MAX: u32 = 5;

/// A piece of work may take so many times as long as the estimate allows: whose machine is busy with something else for a while is not
/// gone, and a connection that is lost is noticed without any wait. A guess.
const SLACK: u32 = 4;

/// Doublings of a wait in vain: a helper that was late and returns gets up to eight times as long.
const DOUBLINGS_MAX: u32 = 3;

/// Batches in a row that a helper may end by being gone, before the others go on without it where they can: for so long at first, and
/// for twice as long each further time, up to 64 times. Guesses.
const LOSSES_MAX: u32 = 3;
const AVOIDED_FOR: Duration = Duration::from_secs(60);
const AVOIDED_DOUBLINGS_MAX: u32 = 6;

/// What a captain waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Forward,
    Backward,
    Evaluate,
    Sum,
    Step,
    Load,
    Copy,
    Write,
}

impl Task {
    const ALL: [Task; 8] =
        [Task::Forward, Task::Backward, Task::Evaluate, Task::Sum, Task::Step, Task::Load, Task::Copy, Task::Write];

    fn wait(self, timeouts: &TeamTimeouts) -> Wait {
        let timeout = match self {
            Task::Forward | Task::Backward | Task::Evaluate | Task::Sum | Task::Step => {
                TimeoutEstimator::new(timeouts.initial, timeouts.floor, DOUBLINGS_MAX)
            }
            Task::Load | Task::Copy | Task::Write => {
                TimeoutEstimator::new(timeouts.loading, timeouts.initial.min(timeouts.loading), DOUBLINGS_MAX)
            }
        };
        Wait { timeout, is_known: false, in_vain: 0 }
    }
}

/// How long one kind of work of one helper takes.
#[derive(Debug)]
struct Wait {
    timeout: TimeoutEstimator,
    /// Whether it was ever seen to its end.
    is_known: bool,
    /// How often it was waited for in vain since the last batch that came to its end.
    in_vain: u32,
}

impl Wait {
    fn record_in_vain(&mut self) {
        self.timeout.record_in_vain();
        self.in_vain = (self.in_vain + 1).min(DOUBLINGS_MAX);
    }

    /// The same kind of work with other layers. What was too short stays so, or a helper that is given layers again and again would
    /// never have the time for its first piece of work.
    fn anew(&self, task: Task, timeouts: &TeamTimeouts) -> Wait {
        let mut wait = task.wait(timeouts);
        (0..self.in_vain).for_each(|_| wait.record_in_vain());
        wait
    }

    fn limit(&self) -> Duration {
        self.timeout.limit() * if self.is_known { SLACK } else { 1 }
    }
}

/// Operations a second that a machine reaches: a plain mean of the first batches, of which the very first is slow, and later one
/// that forgets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    seen: u32,
    mean: f64,
}

impl Speed {
    /// It has computed so many operations in so long.
    pub(super) fn record(&mut self, operations: f64, busy: Duration) {
        let measured = operations / busy.as_secs_f64();
        if measured.is_finite() && measured > 0.0 {
            self.seen = self.seen.saturating_add(1);
            self.mean += (measured - self.mean) / f64::from(self.seen.min(8));
        }
    }

    /// Once there was a batch.
    pub(super) fn reached(&self) -> Option<f64> {
        (self.seen > 0).then_some(self.mean)
    }
}

/// A helper, connected or not.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) is_connected: bool,
    /// Of this connection.
    pub(super) offer: Option<Offer>,
    /// What it has in memory, as far as it told and was told on this connection.
    pub(super) held: Option<HeldLayers>,
    /// Whether it was given a stage and not released since.
    pub(super) is_assigned: bool,
    /// It wants to leave.
    pub(super) leaves: bool,
    /// It could not take a stage; forgotten with its next offer.
    pub(super) cannot: bool,
    /// As measured in batches, once there are some.
    speed: Speed,
    strikes: u32,
    /// Batches in a row that came to nothing by what it computed.
    not_finite: u32,
    /// Batches in a row that it has ended by being gone.
    losses: u32,
    /// Until when it has no stage where the others can do without it.
    avoided_until: Option<Time>,
    waits: Vec<Wait>,
    pub(super) bands: [Band; 2],
}

impl Known {
    fn new(timeouts: &TeamTimeouts) -> Known {
        Known {
            is_connected: false,
            offer: None,
            held: None,
            is_assigned: false,
            leaves: false,
            cannot: false,
            speed: Speed::default(),
            strikes: 0,
            not_finite: 0,
            losses: 0,
            avoided_until: None,
            waits: Task::ALL.iter().map(|task| task.wait(timeouts)).collect(),
            bands: Default::default(),
        }
    }

    /// Whether it may have a stage of a cut that is made now.
    fn is_candidate(&self) -> bool {
        self.is_connected && self.offer.is_some() && !self.leaves && !self.cannot && !self.is_barred()
    }

    /// Whether it has sent what cannot be too often.
    pub(super) fn is_barred(&self) -> bool {
        self.strikes >= STRIKES_MAX
    }

    pub(super) fn limit(&self, task: Task) -> Duration {
        self.waits[task as usize].limit()
    }

    pub(super) fn record(&mut self, task: Task, taken: Duration) {
        let wait = &mut self.waits[task as usize];
        wait.timeout.record(taken);
        wait.is_known = true;
    }

    pub(super) fn record_in_vain(&mut self, task: Task) {
        self.waits[task as usize].record_in_vain();
    }

    /// It has other layers: what was learned of its work says little of the new.
    pub(super) fn forget_work(&mut self, timeouts: &TeamTimeouts) {
        for task in [Task::Forward, Task::Backward, Task::Evaluate, Task::Sum, Task::Step, Task::Copy, Task::Write] {
            self.waits[task as usize] = self.waits[task as usize].anew(task, timeouts);
        }
        self.bands = Default::default();
    }

    /// It has computed so many operations in so long.
    pub(super) fn record_speed(&mut self, operations: f64, busy: Duration) {
        self.speed.record(operations, busy);
    }

    pub(super) fn strike(&mut self) {
        self.strikes = self.strikes.saturating_add(1);
    }

    /// What it computed is no number; whether that has been so too often in a row.
    pub(super) fn record_not_finite(&mut self) -> bool {
        self.not_finite += 1;
        self.not_finite >= NOT_FINITE_MAX
    }

    /// A batch came to its end with this helper in it.
    pub(super) fn forgive(&mut self) {
        (self.not_finite, self.losses) = (0, 0);
        if !self.is_barred() {
            self.strikes = 0;
        }
        self.waits.iter_mut().for_each(|wait| wait.in_vain = 0);
    }

    fn place(&self) -> Option<Place> {
        let offer = self.offer.as_ref()?;
        let rate = |bytes: u64| if bytes == 0 { f64::INFINITY } else { bytes as f64 };
        Some(Place {
            memory_bytes: offer.memory_bytes,
            operations_per_second: self.speed.reached().unwrap_or(offer.operations_per_second),
            link: Link { up: rate(offer.up_bytes_per_second), down: rate(offer.down_bytes_per_second), latency: 0.0 },
        })
    }
}

/// All helpers that were ever heard of, up to a bound.
#[derive(Debug)]
pub(super) struct Roster {
    timeouts: TeamTimeouts,
    known: BTreeMap<PeerId, Known>,
}

impl Roster {
    pub(super) fn new(timeouts: TeamTimeouts) -> Roster {
        Roster { timeouts, known: BTreeMap::new() }
    }

    /// A helper is connected; `None` where there are too many.
    pub(super) fn connect(&mut self, helper: PeerId) -> Option<&mut Known> {
        if !self.known.contains_key(&helper) && self.known.len() == HELPERS_KNOWN_MAX {
            let may_go = |known: &Known| !known.is_connected && !known.is_barred();
            let gone = self.known.iter().find(|(_, known)| may_go(known)).map(|(helper, _)| *helper)?;
            self.known.remove(&gone);
        }
        let known = self.known.entry(helper).or_insert_with(|| Known::new(&self.timeouts));
        (known.is_connected, known.leaves) = (true, false);
        (known.offer, known.held, known.is_assigned) = (None, None, false);
        Some(known)
    }

    /// One that is connected.
    pub(super) fn get_mut(&mut self, helper: PeerId) -> Option<&mut Known> {
        self.known.get_mut(&helper).filter(|known| known.is_connected)
    }

    /// One that is connected.
    pub(super) fn get(&self, helper: PeerId) -> Option<&Known> {
        self.known.get(&helper).filter(|known| known.is_connected)
    }

    /// Forgets what was true of a connection; whether there was one.
    pub(super) fn disconnect(&mut self, helper: PeerId) -> bool {
        let Some(known) = self.get_mut(helper) else { return false };
        known.is_connected = false;
        (known.offer, known.held) = (None, None);
        true
    }

    /// Never lets a helper in again.
    pub(super) fn bar(&mut self, helper: PeerId) {
        if let Some(known) = self.known.get_mut(&helper) {
            known.strikes = STRIKES_MAX;
        }
    }

    /// Whether a helper is not let in again.
    pub(super) fn is_barred(&self, helper: PeerId) -> bool {
        self.known.get(&helper).is_some_and(Known::is_barred)
    }

    /// A helper was gone in the middle of a batch.
    pub(super) fn record_loss(&mut self, now: Time, helper: PeerId) {
        let Some(known) = self.known.get_mut(&helper) else { return };
        known.losses = known.losses.saturating_add(1);
        if let Some(more) = known.losses.checked_sub(LOSSES_MAX) {
            known.avoided_until = Some(now + AVOIDED_FOR * (1 << more.min(AVOIDED_DOUBLINGS_MAX)));
        }
    }

    /// Whether a helper is to have no stage for now, where the others can do without it.
    pub(super) fn is_avoided(&self, helper: PeerId) -> bool {
        self.known.get(&helper).is_some_and(|known| known.avoided_until.is_some())
    }

    /// Takes those back for whom the time is over; whether there are any.
    pub(super) fn on_time(&mut self, now: Time) -> bool {
        let is_over = |known: &&mut Known| known.avoided_until.is_some_and(|until| until <= now);
        self.known.values_mut().filter(is_over).map(|known| known.avoided_until = None).count() > 0
    }

    /// When that is the next time.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.known.values().filter_map(|known| known.avoided_until).min()
    }

    /// Those that may have a stage, with their machines.
    pub(super) fn candidates(&self) -> Vec<(PeerId, Place)> {
        let candidates = self.known.iter().filter(|(_, known)| known.is_candidate());
        candidates.filter_map(|(helper, known)| Some((*helper, known.place()?))).collect()
    }

    /// The same without those that are avoided.
    pub(super) fn reliable(&self) -> Vec<(PeerId, Place)> {
        let mut reliable = self.candidates();
        reliable.retain(|(helper, _)| !self.is_avoided(*helper));
        reliable
    }

    pub(super) fn is_candidate(&self, helper: PeerId) -> bool {
        self.known.get(&helper).is_some_and(Known::is_candidate)
    }

    /// Those that are connected and have offered.
    pub(super) fn offering(&self) -> Vec<PeerId> {
        let offering = self.known.iter().filter(|(_, known)| known.is_connected && known.offer.is_some());
        offering.map(|(helper, _)| *helper).collect()
    }

    /// Machines of those that are connected and have offered.
    pub(super) fn places(&self) -> Vec<(PeerId, Place)> {
        let connected = self.known.iter().filter(|(_, known)| known.is_connected);
        connected.filter_map(|(helper, known)| Some((*helper, known.place()?))).collect()
    }

    /// Those that hold something in memory.
    pub(super) fn held_layers(&self) -> Vec<(PeerId, HeldLayers)> {
        let connected = self.known.iter().filter(|(_, known)| known.is_connected);
        connected.filter_map(|(helper, known)| Some((*helper, known.held?))).collect()
    }

    /// Those that want to leave and have not been let go.
    pub(super) fn leaving(&self) -> Vec<PeerId> {
        let has_stage = |known: &Known| known.is_assigned || known.held.is_some();
        let leaving = self.known.iter().filter(|(_, known)| known.is_connected && known.leaves && has_stage(known));
        leaving.map(|(helper, _)| *helper).collect()
    }

    /// Machines of helpers, whatever else is true of them.
    pub(super) fn place(&self, helper: PeerId) -> Option<Place> {
        self.get(helper)?.place()
    }
}

//! How far a stage is in a batch, as the captain sees it.

use std::collections::{BTreeMap, BTreeSet};

use crate::peer::PeerId;
use crate::team::cut::CutStage;
use crate::team::message::{BatchKind, Lanes};
use crate::team::schedule::{Action, Schedule};
use crate::team::work::{Direction, Stream, WorkKind};
use crate::time::Time;

use super::roster::Task;

/// Which microbatches have been seen: all below a number, and a few beyond.
#[derive(Clone, Debug, Default)]
struct Seen {
    next: u32,
    /// As many as a stage holds at most.
    beyond: BTreeSet<u32>,
}

impl Seen {
    fn contains(&self, microbatch: u32) -> bool {
        microbatch < self.next || self.beyond.contains(&microbatch)
    }

    /// Whether it is new.
    fn insert(&mut self, microbatch: u32) -> bool {
        let is_new = microbatch >= self.next && self.beyond.insert(microbatch);
        while self.beyond.remove(&self.next) {
            self.next += 1;
        }
        is_new
    }
}

/// One stage in one batch.
#[derive(Debug)]
pub(super) struct StageProgress {
    pub(super) helper: Option<PeerId>,
    /// Tensors whose squares it tells.
    pub(super) tensors: usize,
    kind: BatchKind,
    schedule: Schedule,
    /// What it was given and what came of it, forward and backward.
    given: [Seen; 2],
    got: [Seen; 2],
    /// Streams that wait for a stage of the captain's own.
    inputs: BTreeMap<(Direction, u32), Stream>,
    /// When it last began something that it is waited for.
    since: Time,
    pub(super) squares: Option<Vec<f64>>,
    pub(super) has_stepped: bool,
    pub(super) is_copied: bool,
    /// Lost after the first commit.
    pub(super) is_lost: bool,
    embeds: bool,
    predicts: bool,
}

impl StageProgress {
    pub(super) fn new(stage: &CutStage, tensors: usize, kind: BatchKind, lanes: Lanes, now: Time) -> StageProgress {
        let microbatches = lanes.microbatches() as usize;
        let schedule = match kind {
            BatchKind::Training => Schedule::new(stage.in_flight as usize, microbatches),
            BatchKind::Evaluation => Schedule::of_forwards(microbatches),
        };
        StageProgress {
            helper: stage.helper,
            tensors,
            kind,
            schedule,
            given: Default::default(),
            got: Default::default(),
            inputs: BTreeMap::new(),
            since: now,
            squares: None,
            has_stepped: false,
            is_copied: false,
            is_lost: false,
            embeds: stage.embeds,
            predicts: stage.predicts,
        }
    }

    /// What the stage does next: its kind, and the microbatch.
    pub(super) fn next_work(&self) -> Option<(WorkKind, u32)> {
        let (kind, microbatch) = match self.schedule.next_action()? {
            Action::Forward(microbatch) if self.kind == BatchKind::Evaluation => (WorkKind::Evaluate, microbatch),
            Action::Forward(microbatch) => (WorkKind::Forward, microbatch),
            Action::Backward(microbatch) => (WorkKind::Backward, microbatch),
        };
        Some((kind, microbatch as u32))
    }

    /// Forwards that are done.
    pub(super) fn forwards(&self) -> u32 {
        self.schedule.done().0 as u32
    }

    /// Whether it has computed all of the batch.
    pub(super) fn is_through(&self) -> bool {
        self.schedule.next_action().is_none()
    }

    /// Whether the input of what comes next is there: the first stage has the data, the last one the losses.
    pub(super) fn may_go_on(&self) -> bool {
        self.next_work().is_some_and(|(kind, microbatch)| match kind.direction() {
            Direction::Forward => self.embeds || self.given[0].contains(microbatch),
            Direction::Backward => self.predicts || self.given[1].contains(microbatch),
        })
    }

    /// A stream goes to this stage; whether it is the first one of its kind.
    pub(super) fn give(&mut self, now: Time, direction: Direction, microbatch: u32) -> bool {
        let waited = !self.may_go_on();
        let is_new = self.given[direction as usize].insert(microbatch);
        if waited && self.may_go_on() {
            self.since = now;
        }
        is_new
    }

    /// Keeps a stream for a stage of the captain's own.
    pub(super) fn keep(&mut self, direction: Direction, microbatch: u32, stream: Stream) {
        self.inputs.insert((direction, microbatch), stream);
    }

    /// The stream that was kept; none where the stage has the data or the losses.
    pub(super) fn take_input(&mut self, direction: Direction, microbatch: u32) -> Option<Stream> {
        self.inputs.remove(&(direction, microbatch))
    }

    /// Whether the stage was given what an output is of, and has not sent that output yet.
    pub(super) fn owes(&self, direction: Direction, microbatch: u32) -> bool {
        let at = direction as usize;
        // A backward is of a microbatch whose forward is through.
        let is_forward_through = direction == Direction::Forward || self.got[0].contains(microbatch);
        self.given[at].contains(microbatch) && !self.got[at].contains(microbatch) && is_forward_through
    }

    /// An output is there. Returns what it was waited for, and since when, where it is the one that was.
    pub(super) fn get(&mut self, now: Time, direction: Direction, microbatch: u32) -> Option<(Task, Time)> {
        let awaited = self.awaited().filter(|_| {
            self.next_work().is_some_and(|(kind, next)| kind.direction() == direction && next == microbatch)
        });
        self.got[direction as usize].insert(microbatch);
        while let Some((kind, next)) = self.next_work()
            && self.got[kind.direction() as usize].contains(next)
        {
            self.schedule.advance();
            self.since = now;
        }
        awaited
    }

    /// What a helper is waited for, and since when.
    pub(super) fn awaited(&self) -> Option<(Task, Time)> {
        self.helper.filter(|_| !self.is_lost)?;
        let task = match self.next_work() {
            Some((kind, _)) if self.may_go_on() => match kind {
                WorkKind::Forward => Task::Forward,
                WorkKind::Backward => Task::Backward,
                WorkKind::Evaluate => Task::Evaluate,
            },
            None if self.kind == BatchKind::Training && self.squares.is_none() => Task::Sum,
            _ => return None,
        };
        Some((task, self.since))
    }

    pub(super) fn restart_clock(&mut self, now: Time) {
        self.since = now;
    }

    pub(super) fn since(&self) -> Time {
        self.since
    }

    /// Streams that wait at the captain.
    pub(super) fn waiting(&self) -> usize {
        self.inputs.len()
    }
}

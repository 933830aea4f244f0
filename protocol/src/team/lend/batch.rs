//! How a helper works off a batch: in the order of its schedule, from frames that may come in any.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Frame, Helper, HelperEffect, TeamMessage, Work};
use crate::numerics::StreamCodec;
use crate::peer::PeerId;
use crate::team::message::{Assign, BatchKind, FailureCause, Lanes, Membership};
use crate::team::schedule::{Action, Schedule};
use crate::team::work::{Direction, Outcome, Stream, WorkKind};

/// A batch under way.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) epoch: u64,
    pub(super) number: u64,
    kind: BatchKind,
    lanes: Lanes,
    schedule: Schedule,
    pub(super) state: State,
    /// Streams that wait, by their microbatches; at most as many as the assignment says.
    inputs: BTreeMap<(Direction, u32), Stream>,
    /// Rows of the microbatches of which activations are held.
    rows: BTreeMap<u32, u32>,
    busy: Duration,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Computing,
    /// All is computed; the owner adds up squares, or the captain decides.
    Summed {
        told: bool,
    },
    /// The owner steps.
    Stepping {
        revision: u64,
        wants_copy: bool,
    },
    /// It came to nothing here; the captain will drop it.
    Failed,
}

/// What follows from a piece of work.
pub(super) enum Heard {
    Stream(Stream),
    Failure(FailureCause),
    Nothing,
}

impl Batch {
    fn new(assign: &Assign, number: u64, kind: BatchKind, lanes: Lanes) -> Batch {
        let microbatches = lanes.microbatches() as usize;
        let schedule = match kind {
            BatchKind::Training => Schedule::new(assign.in_flight as usize, microbatches),
            BatchKind::Evaluation => Schedule::of_forwards(microbatches),
        };
        Batch {
            epoch: assign.epoch,
            number,
            kind,
            lanes,
            schedule,
            state: State::Computing,
            inputs: BTreeMap::new(),
            rows: BTreeMap::new(),
            busy: Duration::ZERO,
        }
    }

    pub(super) fn held(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.inputs.len()
    }

    /// Whether a frame is of this batch, and of a microbatch whose turn may come soon.
    fn wants(&self, assign: &Assign, frame: &Frame) -> bool {
        let (forwards, backwards) = self.schedule.done();
        let (first, end) = match (self.kind, frame.direction) {
            (BatchKind::Training, Direction::Forward) => (forwards, backwards + assign.waiting as usize),
            (BatchKind::Training, Direction::Backward) => (backwards, forwards),
            (BatchKind::Evaluation, Direction::Forward) => (forwards, forwards + assign.waiting as usize),
            (BatchKind::Evaluation, Direction::Backward) => (0, 0),
        };
        let is_in_turn = (first..end.min(self.lanes.microbatches() as usize)).contains(&(frame.microbatch as usize));
        let fits =
            frame.direction == Direction::Forward || self.rows.get(&frame.microbatch) == Some(&frame.stream.rows);
        is_in_turn && fits && !self.inputs.contains_key(&(frame.direction, frame.microbatch))
    }

    fn take(&mut self, frame: Frame) {
        self.inputs.insert((frame.direction, frame.microbatch), frame.stream);
    }

    /// What comes next, where its stream has come.
    fn next_work(&mut self, stage: u32) -> Option<(Work, Stream)> {
        let (kind, microbatch) = match self.schedule.next_action()? {
            Action::Forward(microbatch) if self.kind == BatchKind::Evaluation => (WorkKind::Evaluate, microbatch),
            Action::Forward(microbatch) => (WorkKind::Forward, microbatch),
            Action::Backward(microbatch) => (WorkKind::Backward, microbatch),
        };
        let microbatch = microbatch as u32;
        let input = self.inputs.remove(&(kind.direction(), microbatch))?;
        let (lane, is_first) = self.lanes.place(microbatch);
        match kind {
            WorkKind::Forward => drop(self.rows.insert(microbatch, input.rows)),
            WorkKind::Backward => drop(self.rows.remove(&microbatch)),
            WorkKind::Evaluate => {}
        }
        self.schedule.advance();
        Some((Work { epoch: self.epoch, batch: self.number, stage, microbatch, kind, lane, is_first }, input))
    }

    pub(super) fn on_computed(&mut self, work: Work, outcome: Outcome, busy: Duration) -> Heard {
        if self.state != State::Computing {
            return Heard::Nothing;
        }
        self.busy += busy;
        let cause = match outcome {
            Outcome::Output(Some(stream)) => {
                debug_assert_eq!((work.epoch, work.batch), (self.epoch, self.number));
                return Heard::Stream(stream);
            }
            Outcome::NotFinite => FailureCause::NotFinite,
            Outcome::InputUnfit => FailureCause::InputUnfit,
            // Between two stages there is always a stream.
            Outcome::Failed(_) | Outcome::Output(None) => FailureCause::Failed,
        };
        self.state = State::Failed;
        self.inputs.clear();
        Heard::Failure(cause)
    }

    /// Whether the batch waits for this, and steps now.
    pub(super) fn commit(&mut self, revision: u64, wants_copy: bool) -> bool {
        let waits = self.state == State::Summed { told: true };
        if waits {
            self.state = State::Stepping { revision, wants_copy };
        }
        waits
    }
}

impl Helper {
    pub(super) fn on_begin(
        &mut self,
        (epoch, number): (u64, u64),
        kind: BatchKind,
        lanes: Lanes,
        membership: Option<Membership>,
    ) {
        let steps = self.batch.as_ref().is_some_and(|batch| matches!(batch.state, State::Stepping { .. }));
        if number <= self.last_batch || !self.is_ready_in(epoch) {
            return self.counts.stale += 1;
        }
        if steps || self.copying.is_some() {
            return self.counts.misbehaved += 1;
        }
        let early = std::mem::take(&mut self.early);
        self.abandon_batch();
        self.last_batch = number;
        if kind == BatchKind::Training {
            self.average(membership);
        }
        let assign = &self.stage.as_ref().expect("a stage that is ready").assign;
        self.batch = Some(Batch::new(assign, number, kind, lanes));
        for frame in early {
            if frame.batch == number {
                self.take(frame);
            } else {
                self.counts.stale += 1;
            }
        }
        self.work();
    }

    pub(super) fn on_frame(&mut self, captain: PeerId, frame: Frame) {
        let Some(stage) = self.stage.as_ref().filter(|stage| stage.is_ready() && stage.assign.epoch == frame.epoch)
        else {
            return self.counts.stale += 1;
        };
        let assign = &stage.assign;
        let rows = frame.stream.rows;
        let bytes = StreamCodec::new(assign.wire, assign.width as usize).bytes(rows as usize);
        let is_sound = (1..=assign.rows_max).contains(&rows) && bytes == frame.stream.payload.len();
        if self.captain != Some(captain) || !is_sound {
            return self.counts.misbehaved += 1;
        }
        if frame.batch > self.last_batch {
            self.keep_early(frame);
        } else {
            self.take(frame);
            self.work();
        }
    }

    /// A frame that has overtaken its batch's beginning.
    fn keep_early(&mut self, frame: Frame) {
        let Some(stage) = &self.stage else { return };
        self.early.retain(|other| other.batch >= frame.batch);
        let is_second = self.early.iter().any(|other| other.microbatch == frame.microbatch);
        let is_older = self.early.iter().any(|other| other.batch > frame.batch);
        let is_late = frame.direction == Direction::Backward || frame.microbatch >= stage.assign.waiting;
        if is_second || is_older || is_late {
            self.counts.stale += 1;
        } else {
            self.early.push_back(frame);
        }
    }

    fn take(&mut self, frame: Frame) {
        let Some(stage) = &self.stage else { return };
        let batch = self.batch.as_mut().filter(|batch| batch.number == frame.batch && batch.state == State::Computing);
        match batch.filter(|batch| batch.wants(&stage.assign, &frame)) {
            Some(batch) => batch.take(frame),
            None => self.counts.stale += 1,
        }
    }

    /// Hands the owner what comes next.
    pub(super) fn work(&mut self) {
        let (Some(batch), Some(stage)) = (&mut self.batch, &self.stage) else { return };
        if self.computing.is_some() || batch.state != State::Computing {
            return;
        }
        if let Some((work, input)) = batch.next_work(stage.assign.stage) {
            self.computing = Some(work);
            self.effects.push_back(HelperEffect::Compute { work, input });
        } else if batch.schedule.next_action().is_none() {
            match batch.kind {
                BatchKind::Training => {
                    batch.state = State::Summed { told: false };
                    self.effects.push_back(HelperEffect::Sum { epoch: batch.epoch, batch: batch.number });
                }
                BatchKind::Evaluation => self.batch = None,
            }
        }
    }

    pub(super) fn on_summed(&mut self, epoch: u64, batch: u64, squares: Vec<f64>) {
        let Some(running) = self.batch_of(epoch, batch).filter(|batch| batch.state == (State::Summed { told: false }))
        else {
            return self.counts.stale += 1;
        };
        running.state = State::Summed { told: true };
        let busy_nanos = u64::try_from(running.busy.as_nanos()).unwrap_or(u64::MAX / 4);
        self.say(TeamMessage::Sums { epoch, batch, squares, busy_nanos });
    }

    pub(super) fn on_stepped(&mut self, epoch: u64, batch: u64) {
        let Some(State::Stepping { revision, wants_copy }) = self.batch_of(epoch, batch).map(|batch| batch.state)
        else {
            return self.counts.stale += 1;
        };
        self.batch = None;
        self.counts.stepped += 1;
        let mut layers = None;
        if let Some(stage) = &mut self.stage {
            stage.revision = revision;
            layers = wants_copy.then_some(stage.assign.layers);
        }
        self.say(TeamMessage::Done { epoch, batch });
        if let Some(layers) = layers {
            self.copy(batch, crate::team::frame::StateKind::Training, layers);
        }
    }

    pub(super) fn on_drop(&mut self, epoch: u64, batch: u64) {
        if let Some(running) = self.batch_of(epoch, batch) {
            match running.state {
                // All have said that they are ready to step, and some have stepped.
                State::Stepping { .. } => self.counts.misbehaved += 1,
                _ => self.abandon_batch(),
            }
        } else if self.is_ready_in(epoch) && batch > self.last_batch {
            // It has overtaken the beginning, which then comes too late.
            self.last_batch = batch;
            self.early.retain(|frame| frame.batch > batch);
        } else {
            self.counts.stale += 1;
        }
    }
}

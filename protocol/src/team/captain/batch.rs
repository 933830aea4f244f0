//! A batch on its way through the stages: streams are handed on, squares gathered, and all step or none.

use std::collections::BTreeMap;
use std::time::Duration;

use super::progress::StageProgress;
use super::roster::{Known, Task};
use super::{Captain, CaptainEffect, Packet, Phase};
use crate::numerics::StreamCodec;
use crate::peer::PeerId;
use crate::team::cut::{Cut, ModelCosts};
use crate::team::frame::Frame;
use crate::team::message::{BatchKind, FailureCause, Lanes, StepFactors, TeamMessage};
use crate::team::notice::{BatchOutcome, DropReason};
use crate::team::work::{Direction, Outcome, Stream, Work, WorkKind};
use crate::time::Time;

/// Steps of a cut after which measured speeds may call for another one, each time after so many. A guess.
const RECONSIDERED_AFTER: u64 = 64;

/// And soon, for what a helper offers is the speed of its plain products. Then layers move between those who have some, and no helper is
/// given up: the first steps are slow. Guesses.
pub(super) const RECONSIDERED_EARLY: [u64; 2] = [4, 16];

/// A batch under way.
#[derive(Debug)]
pub(super) struct Batch {
    epoch: u64,
    number: u64,
    kind: BatchKind,
    lanes: Lanes,
    stages: Vec<StageProgress>,
    state: State,
    /// Rows of the microbatches that are under way, by their numbers.
    rows: BTreeMap<u32, u32>,
    /// Microbatches that may be under way at once.
    in_flight: u32,
    /// How long the captain's own stages computed.
    busy: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Streams and squares come in.
    Computing,
    /// The owner adds up the squares of the captain's stages, and then decides.
    Summing,
    Deciding,
    /// Commits are out.
    Stepping {
        revision: u64,
    },
}

impl Batch {
    /// Whether commits are out.
    pub(super) fn steps(&self) -> bool {
        matches!(self.state, State::Stepping { .. })
    }

    pub(super) fn waiting(&self) -> usize {
        self.stages.iter().map(StageProgress::waiting).sum()
    }

    pub(super) fn under_way(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        let remote = self.stages.iter().filter_map(|stage| Some((stage.helper?, stage)));
        let awaited = |(helper, stage): (PeerId, &StageProgress)| {
            let (task, since) = match self.state {
                State::Stepping { .. } if stage.is_lost || (stage.has_stepped && stage.is_copied) => return None,
                State::Stepping { .. } if stage.has_stepped => (Task::Copy, stage.since()),
                State::Stepping { .. } => (Task::Step, stage.since()),
                State::Computing | State::Summing | State::Deciding => stage.awaited()?,
            };
            Some((helper, task, since))
        };
        remote.filter_map(awaited).collect()
    }

    /// The stage of a helper is gone after the first commit; whether its step may be lost with it.
    pub(super) fn lose(&mut self, helper: PeerId) -> bool {
        let stage = self.stages.iter_mut().find(|stage| stage.helper == Some(helper) && !stage.is_lost);
        stage.is_some_and(|stage| {
            stage.is_lost = true;
            !stage.has_stepped || !stage.is_copied
        })
    }

    /// The state of a helper's stage after the step cannot be read; whether the step is lost with it, since the helper is gone.
    pub(super) fn is_copied_in_vain(&mut self, helper: PeerId) -> bool {
        let stage = self.stages.iter_mut().find(|stage| stage.helper == Some(helper));
        stage.is_some_and(|stage| {
            stage.is_copied = false;
            stage.is_lost
        })
    }

    fn stage_of(&mut self, helper: PeerId) -> Option<(usize, &mut StageProgress)> {
        self.stages.iter_mut().enumerate().find(|(_, stage)| stage.helper == Some(helper))
    }

    /// The next piece of work of the captain's own, where its stream is there. The embedding's comes first: it takes hardly any time, and
    /// without it helpers have nothing to do while the layers compute.
    fn next_work(&mut self) -> Option<(Work, Option<Stream>)> {
        let under_way = self.stages[0].forwards() - self.stages[self.stages.len() - 1].forwards();
        let is_full = self.kind == BatchKind::Evaluation && self.stages.len() > 1 && under_way >= self.in_flight;
        let own = self.stages.iter_mut().enumerate().filter(|(_, stage)| stage.helper.is_none());
        let mut ready = own.filter(|(number, stage)| stage.may_go_on() && !(is_full && *number == 0));
        let (number, stage) = ready.next()?;
        let (kind, microbatch) = stage.next_work()?;
        let input = stage.take_input(kind.direction(), microbatch);
        let (lane, is_first) = self.lanes.place(microbatch);
        let (epoch, batch) = (self.epoch, self.number);
        Some((Work { epoch, batch, stage: number as u32, microbatch, kind, lane, is_first }, input))
    }

    /// Where a stream goes that a stage has computed.
    fn next_stage(&self, stage: usize, direction: Direction) -> Option<usize> {
        match direction {
            Direction::Forward => Some(stage + 1).filter(|next| *next < self.stages.len()),
            Direction::Backward => stage.checked_sub(1),
        }
    }

    /// Squares of all stages, one after the other, once all have told them.
    fn squares(&self) -> Option<Vec<f64>> {
        let all = self.stages.iter().map(|stage| stage.squares.as_deref()).collect::<Option<Vec<_>>>()?;
        Some(all.concat())
    }
}

/// Operations of a stage for a microbatch, forward and backward.
fn operations(model: &ModelCosts, cut: &Cut, stage: usize) -> f64 {
    let stage = &cut.stages[stage];
    let ends = [(stage.embeds, model.embedding), (stage.predicts, model.head)];
    let of_ends: f64 = ends.iter().filter(|(has, _)| *has).map(|(_, costs)| costs.operations).sum();
    of_ends + f64::from(stage.layers.len()) * model.layer.operations
}

impl Captain {
    pub(super) fn begin_batch(&mut self, now: Time, kind: BatchKind, lanes: Lanes) {
        assert!(lanes.is_sound(), "a batch of microbatches");
        let number = self.number();
        let cut = self.cut.as_ref().expect("a captain that is ready has a cut");
        let of_ends = |stage: &crate::team::CutStage| {
            let (first, last) = self.config.tensors_of_ends;
            u32::from(stage.embeds) * first + u32::from(stage.predicts) * last
        };
        let stage = |stage| {
            let tensors = of_ends(stage) + stage.layers.len() * self.config.tensors_per_layer;
            StageProgress::new(stage, tensors as usize, kind, lanes, now)
        };
        let (stages, in_flight) = (cut.stages.iter().map(stage).collect(), cut.stages[0].in_flight);
        let (epoch, rows) = (self.epoch, BTreeMap::new());
        for (helper, membership) in self.helpers_and_memberships(now, kind) {
            self.send(helper, TeamMessage::Begin { epoch, batch: number, kind, lanes, membership });
        }
        let state = State::Computing;
        let batch = Batch { epoch, number, kind, lanes, stages, state, rows, in_flight, busy: Duration::ZERO };
        self.phase = Phase::Computing(Box::new(batch));
        self.compute();
    }

    /// Hands the owner what comes next.
    fn compute(&mut self) {
        let Phase::Computing(batch) = &mut self.phase else { return };
        if self.computing.is_some() || batch.state != State::Computing {
            return;
        }
        if let Some((work, input)) = batch.next_work() {
            self.computing = Some(work);
            self.effects.push_back(CaptainEffect::Compute { work, input });
            return;
        }
        let mut own = batch.stages.iter().filter(|stage| stage.helper.is_none());
        if own.all(StageProgress::is_through) {
            match batch.kind {
                BatchKind::Training => {
                    batch.state = State::Summing;
                    let (epoch, batch) = (batch.epoch, batch.number);
                    self.effects.push_back(CaptainEffect::Sum { epoch, batch });
                }
                BatchKind::Evaluation => self.end_batch(BatchOutcome::Evaluated),
            }
        }
    }

    pub(super) fn on_computed(&mut self, now: Time, work: Work, outcome: Outcome, busy: Duration) {
        if self.computing != Some(work) {
            return self.counts.stale += 1;
        }
        self.computing = None;
        let number = work.stage as usize;
        match &mut self.phase {
            Phase::Computing(batch) if (batch.epoch, batch.number) == (work.epoch, work.batch) => {
                let next = batch.next_stage(number, work.kind.direction());
                batch.busy += busy;
                let before = match work.kind {
                    WorkKind::Backward => number + 1,
                    WorkKind::Forward | WorkKind::Evaluate => number.wrapping_sub(1),
                };
                let sender = batch.stages.get(before).and_then(|stage| stage.helper);
                match outcome {
                    Outcome::Output(stream) if stream.is_some() == next.is_some() => {
                        batch.stages[number].get(now, work.kind.direction(), work.microbatch);
                        let is_last = match batch.kind {
                            BatchKind::Training => work.kind == WorkKind::Backward && number == 0,
                            BatchKind::Evaluation => number + 1 == batch.stages.len(),
                        };
                        if is_last {
                            batch.rows.remove(&work.microbatch);
                        }
                        if let Some(stream) = stream {
                            self.hand_on(now, number, work.kind.direction(), work.microbatch, stream);
                        }
                    }
                    Outcome::NotFinite => self.drop_batch(DropReason::NotFinite),
                    Outcome::InputUnfit => match sender {
                        Some(sender) => self.accuse(now, sender),
                        None => self.drop_batch(DropReason::Failed),
                    },
                    Outcome::Failed(_) | Outcome::Output(_) => self.drop_batch(DropReason::Failed),
                }
            }
            _ => {}
        }
        self.compute();
    }

    /// A stream goes from a stage to the next one in its direction.
    fn hand_on(&mut self, now: Time, from: usize, direction: Direction, microbatch: u32, stream: Stream) {
        let Phase::Computing(batch) = &mut self.phase else { return };
        let Some(to) = batch.next_stage(from, direction) else { return };
        batch.rows.entry(microbatch).or_insert(stream.rows);
        let (epoch, number, stage) = (batch.epoch, batch.number, &mut batch.stages[to]);
        if !stage.give(now, direction, microbatch) {
            return self.counts.stale += 1;
        }
        match stage.helper {
            Some(helper) => {
                let frame = Frame { epoch, batch: number, microbatch, direction, stream };
                self.effects.push_back(CaptainEffect::Send { helper, packet: Packet::Frame(frame) });
            }
            None => stage.keep(direction, microbatch, stream),
        }
    }

    pub(super) fn on_frame(&mut self, now: Time, helper: PeerId, frame: Frame, size: Option<f32>) {
        let Phase::Computing(batch) = &mut self.phase else { return self.counts.stale += 1 };
        let Frame { epoch, batch: number, microbatch, direction, stream } = frame;
        if (epoch, number, State::Computing) != (batch.epoch, batch.number, batch.state) {
            return self.counts.stale += 1;
        }
        let rows = batch.rows.get(&microbatch).copied();
        let Some((from, stage)) = batch.stage_of(helper) else { return self.counts.misbehaved += 1 };
        if !stage.owes(direction, microbatch) {
            return self.counts.stale += 1;
        }
        let codec = StreamCodec::new(self.config.wire, self.config.width as usize);
        let is_long = rows == Some(stream.rows) && codec.bytes(stream.rows as usize) == stream.payload.len();
        let Some(known) = self.roster.get_mut(helper) else { return self.counts.stale += 1 };
        let is_usual = size.is_some_and(|size| size.is_finite() && known.bands[direction as usize].admits(size));
        if !is_long || !is_usual {
            return self.accuse(now, helper);
        }
        if let Some((task, since)) = stage.get(now, direction, microbatch) {
            known.record(task, now - since);
        }
        self.hand_on(now, from, direction, microbatch, stream);
        self.compute();
    }

    pub(super) fn on_summed(&mut self, epoch: u64, number: u64, squares: Vec<Vec<f64>>) {
        let Phase::Computing(batch) = &mut self.phase else { return self.counts.stale += 1 };
        if (batch.epoch, batch.number, batch.state) != (epoch, number, State::Summing) {
            return self.counts.stale += 1;
        }
        let own = batch.stages.iter_mut().filter(|stage| stage.helper.is_none());
        own.zip(squares).for_each(|(stage, squares)| stage.squares = Some(squares));
        self.gather();
    }

    pub(super) fn on_sums(
        &mut self,
        now: Time,
        helper: PeerId,
        (epoch, number): (u64, u64),
        squares: Vec<f64>,
        busy: Duration,
    ) {
        let Phase::Computing(batch) = &mut self.phase else { return self.counts.stale += 1 };
        if (batch.epoch, batch.number) != (epoch, number) || batch.kind == BatchKind::Evaluation {
            return self.counts.stale += 1;
        }
        let microbatches = f64::from(batch.lanes.microbatches());
        let Some((at, stage)) = batch.stage_of(helper) else { return self.counts.misbehaved += 1 };
        if stage.squares.is_some() {
            return self.counts.stale += 1;
        }
        if squares.len() != stage.tensors {
            return self.accuse(now, helper);
        }
        // They may have overtaken the last streams.
        let is_finite = squares.iter().all(|square| square.is_finite());
        stage.squares = Some(squares);
        let since = stage.is_through().then(|| stage.since());
        let cut = self.cut.as_ref().expect("a batch has a cut");
        let operations = microbatches * operations(&self.config.model, cut, at);
        if let Some(known) = self.roster.get_mut(helper) {
            if let Some(since) = since {
                known.record(Task::Sum, now - since);
            }
            known.record_speed(operations, busy);
        }
        if !is_finite {
            self.suspect(now, helper);
        }
        self.gather();
    }

    /// Tells the owner the whole gradient's squares, once they are there.
    fn gather(&mut self) {
        let Phase::Computing(batch) = &mut self.phase else { return };
        if batch.state == State::Summing
            && let Some(squares) = batch.squares()
        {
            batch.state = State::Deciding;
            self.effects.push_back(CaptainEffect::Gathered { batch: batch.number, squares });
        }
    }

    pub(super) fn on_step_decided(&mut self, now: Time, number: u64, factors: StepFactors) {
        let Phase::Computing(batch) = &mut self.phase else { return self.counts.stale += 1 };
        if (batch.number, batch.state) != (number, State::Deciding) {
            return self.counts.stale += 1;
        }
        self.revision += 1;
        let (revision, wants_copy) = (self.revision, self.config.copies_after_steps);
        batch.state = State::Stepping { revision };
        let epoch = batch.epoch;
        let mut helpers = Vec::new();
        for stage in &mut batch.stages {
            stage.restart_clock(now);
            stage.is_copied = !wants_copy;
            helpers.extend(stage.helper);
        }
        for helper in helpers {
            self.send(helper, TeamMessage::Commit { epoch, batch: number, factors, revision, wants_copy });
        }
        self.effects.push_back(CaptainEffect::Step { epoch, batch: number, factors });
    }

    pub(super) fn on_discard_decided(&mut self, number: u64) {
        match &self.phase {
            Phase::Computing(batch) if (batch.number, batch.state) == (number, State::Deciding) => {
                self.forget_batch(BatchOutcome::Discarded);
            }
            _ => self.counts.stale += 1,
        }
    }

    /// The captain's own stages have stepped.
    pub(super) fn on_stepped(&mut self, now: Time, epoch: u64, number: u64) {
        let Phase::Computing(batch) = &mut self.phase else { return self.counts.stale += 1 };
        if (batch.epoch, batch.number) != (epoch, number) || !batch.steps() {
            return self.counts.stale += 1;
        }
        let own = batch.stages.iter_mut().filter(|stage| stage.helper.is_none());
        own.for_each(|stage| (stage.has_stepped, stage.is_copied) = (true, true));
        let cut = self.cut.as_ref().expect("a batch has a cut");
        for layer in cut.of_captain().flat_map(|stage| cut.layers(stage)) {
            let layer = layer as usize;
            (self.kept[layer], self.kept_parameters[layer]) = (self.revision, self.revision);
        }
        self.end_step(now);
    }

    pub(super) fn on_done(&mut self, now: Time, helper: PeerId, epoch: u64, number: u64) {
        let Phase::Computing(batch) = &mut self.phase else { return self.counts.stale += 1 };
        let (is_this, state) = ((batch.epoch, batch.number) == (epoch, number), batch.state);
        let stage = batch.stage_of(helper).map(|(_, stage)| stage).filter(|stage| is_this && !stage.has_stepped);
        let (Some(stage), State::Stepping { revision }) = (stage, state) else { return self.counts.stale += 1 };
        stage.has_stepped = true;
        let since = stage.since();
        stage.restart_clock(now);
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Step, now - since);
            if let Some(held) = &mut known.held {
                held.revision = revision;
            }
        }
        self.end_step(now);
    }

    /// The training state of a stage after the step has come; whether it is one that the batch waits for.
    pub(super) fn on_copy_after_step(&mut self, now: Time, helper: PeerId, number: u64) -> bool {
        let Phase::Computing(batch) = &mut self.phase else { return false };
        let steps = batch.steps() && batch.number == number;
        let stage = batch.stage_of(helper).map(|(_, stage)| stage);
        let Some(stage) = stage.filter(|stage| steps && stage.has_stepped && !stage.is_copied && !stage.is_lost) else {
            return false;
        };
        stage.is_copied = true;
        let since = stage.since();
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Copy, now - since);
        }
        true
    }

    /// The step ends once all have stepped that are still there.
    pub(super) fn end_step(&mut self, now: Time) {
        let Phase::Computing(batch) = &self.phase else { return };
        let is_over = |stage: &StageProgress| stage.is_lost || (stage.has_stepped && stage.is_copied);
        if !batch.steps() || !batch.stages.iter().all(is_over) || !self.checking.is_empty() {
            return;
        }
        let lost: Vec<PeerId> =
            batch.stages.iter().filter(|stage| stage.is_lost).filter_map(|stage| stage.helper).collect();
        let (cut, microbatches) =
            (self.cut.as_ref().expect("a batch has a cut"), f64::from(batch.lanes.microbatches()));
        let own = cut.of_captain().map(|stage| operations(&self.config.model, cut, stage)).sum::<f64>();
        self.speed.record(microbatches * own, batch.busy);
        for helper in batch.stages.iter().filter_map(|stage| stage.helper) {
            if let Some(known) = self.roster.get_mut(helper) {
                known.forgive();
            }
        }
        self.counts.stepped += 1;
        self.steps_of_cut += 1;
        let steps = self.steps_of_cut;
        self.reconsiders |= RECONSIDERED_EARLY.contains(&steps) || steps.is_multiple_of(RECONSIDERED_AFTER);
        self.end_batch(BatchOutcome::Stepped);
        lost.into_iter().for_each(|helper| self.wait_for(now, helper));
    }

    /// What a helper has computed is no number; once that is so again and again, it is let go for good.
    fn suspect(&mut self, now: Time, helper: PeerId) {
        if self.roster.get_mut(helper).is_some_and(Known::record_not_finite) {
            let reason = "what it has computed was no number again and again".to_owned();
            self.dismiss(now, helper, DropReason::NotFinite, reason);
        }
    }

    pub(super) fn on_failed(&mut self, now: Time, helper: PeerId, epoch: u64, number: u64, cause: FailureCause) {
        let Phase::Computing(batch) = &mut self.phase else { return self.counts.stale += 1 };
        let is_this = (batch.epoch, batch.number) == (epoch, number) && !batch.steps();
        if !is_this || batch.stage_of(helper).is_none() {
            return self.counts.stale += 1;
        }
        match cause {
            FailureCause::NotFinite => {
                self.drop_batch(DropReason::NotFinite);
                self.suspect(now, helper);
            }
            // The streams that went to it were found fit on their way, so it is the one that cannot.
            FailureCause::InputUnfit | FailureCause::Failed => self.accuse(now, helper),
        }
    }

    /// A batch comes to nothing, and helpers with it that caused it are let go by the caller.
    pub(super) fn drop_batch(&mut self, reason: DropReason) {
        self.counts.dropped += 1;
        self.forget_batch(BatchOutcome::Dropped(reason));
    }

    /// All stages forget the batch.
    fn forget_batch(&mut self, outcome: BatchOutcome) {
        let Phase::Computing(batch) = &self.phase else { return };
        let (epoch, number) = (batch.epoch, batch.number);
        let helpers: Vec<PeerId> = batch.stages.iter().filter_map(|stage| stage.helper).collect();
        for helper in helpers {
            if self.roster.get(helper).is_some() {
                self.send(helper, TeamMessage::Drop { epoch, batch: number });
            }
        }
        self.effects.push_back(CaptainEffect::Discard { epoch, batch: number });
        self.end_batch(outcome);
    }

    fn end_batch(&mut self, outcome: BatchOutcome) {
        let Phase::Computing(batch) = &self.phase else { return };
        self.effects.push_back(CaptainEffect::BatchEnded { batch: batch.number, outcome });
        self.phase = Phase::Ready;
    }
}

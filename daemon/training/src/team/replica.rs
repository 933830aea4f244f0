//! The replica that a captain's engine trains: the whole model, of which other machines hold a part.
//!
//! It is the owner of the captain's state machine. While it is called it carries out what the machine orders of the captain's own
//! stages; between calls orders wait. Where the team is not whole it says so and does nothing, so that the trainer answers
//! exchanges meanwhile and tries the same batch again.

use std::borrow::Cow;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{Device, Error, Result};
use murmur_protocol::team::{
    BatchOutcome, CaptainConfig, CaptainEffect, CaptainEvent, DropReason, Lanes, Place, StateKind, StepFactors,
    TeamPatience, TeamPhase, Wire,
};
use murmur_protocol::{ModelLayout, RunManifest};

use super::captain::{CaptainModel, Passing, TeamBase};
use super::captain_thread::{CaptainThread, OnNotice, Order, TeamView};
use super::costs::{costs, rows};
use super::part::{PartLengths, Piece, layouts};
use super::state::PartState;
use super::wire::{Facts, TeamWire, Told};
use crate::data::Batch;
use crate::engine::{TrainingError, TrainingOptions};
use crate::model::{Evaluation, StageSpec, trained_layout};
use crate::optimizer::{Moments, Optimizer, norm_of};
use crate::replica::stage::Microbatch;
use crate::replica::{InParts, Replica, parts};

/// How long a call waits for a team that is not whole before it says so: exchanges wait as long.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long an evaluation waits while stages are loaded, for it is not tried again: less than a daemon has for its end.
const EVALUATION_PATIENCE: Duration = Duration::from_secs(30);

/// How often orders are looked for while there may be none.
const LOOK: Duration = Duration::from_millis(5);

/// How a captain trains its team.
pub struct TeamOptions {
    /// Where the captain computes its own stages, on so many threads on a CPU.
    pub device: Device,
    /// See above.
    pub threads: usize,
    /// How streams cross the wire.
    pub wire: Wire,
    /// What the captain's own machine has.
    pub place: Place,
    /// The number of the first cut; greater than that of any cut of an earlier life.
    pub epoch: u64,
    /// Helpers with which the first cut is made at once.
    pub helpers_wanted: usize,
    /// How long to wait for what.
    pub patience: TeamPatience,
    /// Carries words to helpers.
    pub carrier: Box<dyn TeamWire>,
    /// Where the team's facts come together: the wire tells its own there.
    pub facts: (Told, Facts),
    /// What people see.
    pub view: TeamView,
    /// Where people hear what happens.
    pub on_notice: OnNotice,
}

/// What begins once training does.
struct Setup {
    config: CaptainConfig,
    facts: (Told, Facts),
    carrier: Box<dyn TeamWire>,
    on_notice: OnNotice,
}

/// What the machine has been asked for, and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Batch,
    /// A batch whose gradient is complete, with its number: to be stepped with or not.
    Gathered(u64),
    /// The same, which is not to be stepped with.
    Discarded,
    Evaluation,
    Copy,
    Write,
}

/// How something that was asked for has ended.
enum Ended {
    Gathered,
    Batch(BatchOutcome),
    Copied(bool),
    Written,
}

pub(crate) struct TeamReplica {
    layout: Arc<ModelLayout>,
    optimizer: Optimizer,
    parts: InParts,
    /// Behind a lock, since a copy of the model is made through a shared reference and may have to be fetched. Only the trainer's
    /// thread takes it.
    inner: Mutex<Inner>,
}

struct Inner {
    model: CaptainModel,
    setup: Option<Setup>,
    thread: Option<CaptainThread>,
    view: TeamView,
    asked: Asked,
    /// Of the whole gradient.
    squares: Vec<f64>,
    members: f64,
    /// Whether helpers' states are copied after each step, so that those kept are always of now.
    copies_after_steps: bool,
    /// Whether what is kept of helpers' parameters, and of their moments, is older than the last step.
    is_old: [bool; 2],
    /// What helpers are to write of what is kept: it has changed since they had it.
    unwritten: Option<StateKind>,
    /// Why the last call came to nothing, where only a machine is missing.
    waits: Option<String>,
}

impl TeamReplica {
    pub(crate) fn new(
        manifest: &RunManifest,
        base: TeamBase,
        options: TrainingOptions,
        team: TeamOptions,
    ) -> TeamReplica {
        let TeamOptions { device, threads, wire, place, view, epoch, helpers_wanted, patience, .. } = team;
        let is_on_cpu = device.is_cpu();
        let parts = InParts::of(manifest, &options, is_on_cpu);
        let spec = &manifest.model;
        let rows = rows(manifest, &options);
        let moments_in_8_bits = options.keeps_8_bits(manifest, is_on_cpu);
        let of_layer = StageSpec { layers: 0..1, embeds: false, predicts: false };
        let embedding = StageSpec { layers: 0..0, embeds: true, predicts: false };
        let head = StageSpec { layers: spec.layers..spec.layers, embeds: false, predicts: true };
        let tensors = |part: &StageSpec| layouts(manifest, part).1.tensors().len() as u32;
        let lengths = PartLengths::of(manifest, &of_layer, moments_in_8_bits);
        let copies_after_steps = manifest.lora.is_on();
        let config = CaptainConfig {
            epoch,
            model: costs(manifest, &options, threads, (wire, rows)),
            captain: place,
            wire,
            width: spec.width,
            rows_max: rows as u32,
            lanes: lanes_of(&parts.microbatches_of(manifest.optimizer.batch_sequences as usize)),
            tensors_per_layer: tensors(&of_layer),
            tensors_of_ends: (tensors(&embedding), tensors(&head)),
            state_bytes_per_layer: PartState::bytes(lengths.trained, &lengths.moments) as u64,
            run: manifest.canonical_text(),
            copies_after_steps,
            helpers_wanted,
            patience,
        };
        let setup = Setup { config, facts: team.facts, carrier: team.carrier, on_notice: team.on_notice };
        let model = CaptainModel::new(manifest.clone(), base, (device, threads), options, wire);
        let layout = Arc::new(trained_layout(manifest));
        let optimizer = Optimizer::new(&manifest.optimizer, &layout).with_moments(moments_in_8_bits);
        let inner = Inner {
            model,
            setup: Some(setup),
            thread: None,
            view,
            asked: Asked::Nothing,
            squares: vec![0.0; layout.tensors().len()],
            members: 1.0,
            copies_after_steps,
            is_old: [false; 2],
            unwritten: None,
            waits: None,
        };
        TeamReplica { layout, optimizer, parts, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many microbatches in each lane.
fn lanes_of(lanes: &[usize]) -> Lanes {
    let of = |lane: usize| lanes.get(lane).copied().unwrap_or_default() as u32;
    Lanes { first: of(0), second: of(1) }
}

fn team_error(error: &TrainingError) -> Error {
    Error::Msg(error.to_string())
}

impl Inner {
    /// What the engine hears where a machine is missing.
    fn waiting<T>(&mut self) -> Result<T> {
        let status = self.view.status();
        let why = match status {
            Some(status) if status.phase == TeamPhase::Waiting && status.missing_bytes > 0 => {
                format!("{:.1} GB are missing", status.missing_bytes as f64 / 1e9)
            }
            Some(status) if status.phase == TeamPhase::Cutting => "the model is cut anew".to_owned(),
            _ => "helpers are missing".to_owned(),
        };
        self.waits = Some(why.clone());
        Err(Error::Msg(why))
    }

    fn thread(&mut self) -> &CaptainThread {
        if let Some(Setup { config, facts, carrier, on_notice }) = self.setup.take() {
            self.thread = Some(CaptainThread::start(config, facts, carrier, self.view.clone(), on_notice));
        }
        self.thread.as_ref().expect("there is one from the first call on")
    }

    fn tell(&mut self, event: CaptainEvent) {
        self.thread().tell(event);
    }

    fn phase(&self) -> TeamPhase {
        self.view.status().map_or(TeamPhase::Waiting, |status| status.phase)
    }

    /// Carries out one order if it comes within this time. `None` where none has come, or nothing has ended by it.
    fn carry_out_next(&mut self, within: Duration) -> Result<Option<Ended>> {
        let begin = Instant::now();
        let received = self.thread().orders.recv_timeout(within);
        let order = match received {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Msg("the team's thread has ended".to_owned())),
        };
        if let Some(helper) = order.after.filter(|_| matches!(self.asked, Asked::Batch | Asked::Evaluation)) {
            self.view.add_wait(helper, begin.elapsed());
        }
        self.carry_out(order).map_err(|error| team_error(&error))
    }

    fn carry_out(&mut self, order: Order) -> std::result::Result<Option<Ended>, TrainingError> {
        match order.effect {
            CaptainEffect::Load { epoch, cut } => {
                let result = self.model.load(epoch, cut).map_err(|error| error.to_string());
                self.tell(CaptainEvent::Loaded { epoch, result });
            }
            CaptainEffect::Compute { work, input } => {
                let computed = self.model.compute(work, input);
                self.tell(computed);
            }
            CaptainEffect::Sum { epoch, batch } => {
                let squares = self.model.sum()?;
                self.tell(CaptainEvent::Summed { epoch, batch, squares });
            }
            CaptainEffect::Step { epoch, batch, factors } => {
                self.model.step(factors)?;
                self.is_old = [!self.copies_after_steps; 2];
                self.tell(CaptainEvent::Stepped { epoch, batch });
            }
            CaptainEffect::Discard { .. } => self.model.discard()?,
            CaptainEffect::ReadOut { request, layers, kind } => {
                let payload = self.model.read_out(layers, kind)?;
                self.tell(CaptainEvent::ReadOut { request, payload });
            }
            CaptainEffect::Keep { layers, kind: _, revision: _, payload } => self.model.keep(layers, &payload)?,
            CaptainEffect::Gathered { batch, squares } => {
                self.squares = squares;
                self.asked = Asked::Gathered(batch);
                return Ok(Some(Ended::Gathered));
            }
            CaptainEffect::BatchEnded { batch: _, outcome } => {
                self.asked = Asked::Nothing;
                return Ok(Some(Ended::Batch(outcome)));
            }
            CaptainEffect::CopyEnded { is_complete } => {
                self.asked = Asked::Nothing;
                return Ok(Some(Ended::Copied(is_complete)));
            }
            CaptainEffect::WriteEnded { is_complete } => {
                self.asked = Asked::Nothing;
                if is_complete {
                    self.unwritten = None;
                }
                return Ok(Some(Ended::Written));
            }
            CaptainEffect::Send { .. }
            | CaptainEffect::SendFrame { .. }
            | CaptainEffect::SendState { .. }
            | CaptainEffect::Disconnect { .. }
            | CaptainEffect::Notice(_) => {}
        }
        Ok(None)
    }

    /// Carries out orders until what was asked for has ended. `None` where that waits for the team to be whole again: it stays
    /// asked for. Else the machine sees to it that it ends: it drops what takes too long.
    fn until_ended(&mut self) -> Result<Option<Ended>> {
        let begin = Instant::now();
        loop {
            if let Some(ended) = self.carry_out_next(LOOK)? {
                return Ok(Some(ended));
            }
            if begin.elapsed() > PATIENCE && !self.is_whole() {
                return Ok(None);
            }
        }
    }

    fn is_whole(&self) -> bool {
        !matches!(self.phase(), TeamPhase::Waiting | TeamPhase::Cutting)
    }

    /// Carries out orders until the team is whole, every machine has what it is to have, and nothing is asked for but, where it is
    /// wanted, the batch that was asked for before. For so long at most, and shorter where nobody has some layers.
    fn is_ready_within(&mut self, patience: Duration, wants_batch: bool) -> Result<bool> {
        let begin = Instant::now();
        self.thread();
        loop {
            while self.carry_out_next(Duration::ZERO)?.is_some() {}
            match self.asked {
                Asked::Batch if wants_batch && self.is_whole() => return Ok(true),
                Asked::Nothing if self.phase() == TeamPhase::Ready && self.unwritten.is_none() => return Ok(true),
                Asked::Nothing if self.phase() == TeamPhase::Ready => self.write()?,
                // The engine did not want the step.
                Asked::Gathered(batch) => {
                    self.asked = Asked::Discarded;
                    self.tell(CaptainEvent::DiscardDecided { batch });
                }
                _ => {}
            }
            let is_hopeless = self.phase() == TeamPhase::Waiting && begin.elapsed() > PATIENCE;
            if begin.elapsed() > patience || is_hopeless {
                return Ok(false);
            }
            self.carry_out_next(LOOK)?;
        }
    }

    /// Has helpers write what is kept of their layers.
    fn write(&mut self) -> Result<()> {
        let Some(kind) = self.unwritten else { return Ok(()) };
        let with_moments = kind == StateKind::Training;
        let Some((epoch, parts)) = self.model.of_helpers(with_moments) else { return Ok(()) };
        self.asked = Asked::Write;
        // Of moments that are not kept after each step, what is kept is older than the parameters.
        let is_kept = with_moments || self.copies_after_steps;
        self.tell(CaptainEvent::WriteWanted { kind, parts, epoch, is_kept });
        self.until_ended().map(drop)
    }

    /// Fetches what helpers have where what is kept is older and the team is whole.
    fn refresh(&mut self, with_moments: bool) -> Result<()> {
        let is_old = self.is_old[0] || (with_moments && self.is_old[1]);
        if !is_old || !self.is_ready_within(PATIENCE, false)? {
            return Ok(());
        }
        let kind = if with_moments { StateKind::Training } else { StateKind::Parameters };
        self.asked = Asked::Copy;
        self.tell(CaptainEvent::CopyWanted { kind });
        if let Some(Ended::Copied(true)) = self.until_ended()? {
            self.is_old = if with_moments { [false; 2] } else { [false, self.is_old[1]] };
        }
        Ok(())
    }

    fn state(&mut self, with_moments: bool) -> Result<PartState> {
        self.refresh(with_moments)?;
        self.model.state().map_err(|error| team_error(&error))
    }

    /// Gives every machine its part of a new state: at once where the team is whole, else as soon as it is.
    fn set_state(&mut self, state: &PartState) -> Result<()> {
        self.model.set_state(state).map_err(|error| team_error(&error))?;
        self.is_old[0] = false;
        self.is_old[1] &= state.moments.is_none();
        if self.setup.is_some() {
            // Nobody has any of it.
            return Ok(());
        }
        // Where helpers' moments are kept after each step, those go along: a helper may have been lost meanwhile.
        let is_whole = state.moments.is_some() || (self.copies_after_steps && !self.is_whole());
        self.unwritten = match (is_whole, self.unwritten) {
            (true, _) | (_, Some(StateKind::Training)) => Some(StateKind::Training),
            _ => Some(StateKind::Parameters),
        };
        self.is_ready_within(PATIENCE, false).map(drop)
    }

    /// Tries one batch; `None` where it came to nothing and is to be tried again.
    fn try_batch(&mut self, microbatches: &[Microbatch], lanes: usize, share: f32) -> Result<Option<[f64; 2]>> {
        if !self.is_ready_within(PATIENCE, true)? {
            return self.waiting();
        }
        if self.asked == Asked::Nothing {
            let pieces: Vec<Piece> = microbatches.iter().cloned().map(Piece).collect();
            let count = |lane| microbatches.iter().filter(|microbatch| microbatch.lane == lane).count();
            let counts: Vec<usize> = (0..lanes).map(count).collect();
            self.model.passing = Passing { pieces, share, ..Passing::default() };
            self.asked = Asked::Batch;
            self.tell(CaptainEvent::BatchWanted { lanes: lanes_of(&counts) });
        }
        match self.until_ended()? {
            None => self.waiting(),
            Some(Ended::Gathered) => Ok(Some(self.model.passing.losses)),
            Some(Ended::Batch(BatchOutcome::Dropped(DropReason::NotFinite))) => {
                self.squares.fill(f64::NAN);
                Ok(Some([f64::NAN; 2]))
            }
            Some(_) => Ok(None),
        }
    }
}

impl Replica for TeamReplica {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.inner().state(false)?.parameters))
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.inner().set_state(&PartState { parameters: values.to_vec(), moments: None })
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        let (microbatches, lanes) = self.parts.microbatches(batch);
        let share = 1.0 / batch.predictions() as f32;
        let inner = &mut *self.inner();
        inner.waits = None;
        let begin = Instant::now();
        loop {
            if let Some(losses) = inner.try_batch(&microbatches, lanes, share)? {
                return Ok(losses.iter().sum::<f64>() / batch.predictions() as f64);
            }
            if begin.elapsed() > PATIENCE {
                return inner.waiting();
            }
        }
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        Err(Error::Msg("the gradient of a team stays where its layers are".to_owned()))
    }

    fn set_gradient(&mut self, _values: &[f32]) -> Result<()> {
        Err(Error::Msg("the gradient of a team stays where its layers are".to_owned()))
    }

    fn squares(&self) -> Result<Vec<f64>> {
        Ok(self.inner().squares.clone())
    }

    fn gradient_norm(&self) -> Result<f64> {
        Ok(norm_of(&self.inner().squares))
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        let inner = &mut *self.inner();
        inner.waits = None;
        let Asked::Gathered(batch) = inner.asked else { return inner.waiting() };
        let factors = StepFactors { gradient_norm, learning_rate, members: inner.members };
        inner.tell(CaptainEvent::StepDecided { batch, factors });
        match inner.until_ended()? {
            Some(Ended::Batch(BatchOutcome::Stepped)) => Ok(()),
            _ => inner.waiting(),
        }
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        let whole = |(number, batch)| Piece(Microbatch { batch, lane: 0, is_first: number == 0 });
        let pieces: Vec<Piece> = parts(batch, self.parts.micro_batch).enumerate().map(whole).collect();
        let microbatches = pieces.len() as u32;
        let inner = &mut *self.inner();
        inner.waits = None;
        loop {
            if !inner.is_ready_within(EVALUATION_PATIENCE, false)? {
                return inner.waiting();
            }
            inner.model.passing = Passing { pieces: pieces.clone(), ..Passing::default() };
            inner.asked = Asked::Evaluation;
            inner.tell(CaptainEvent::EvaluationWanted { microbatches });
            match inner.until_ended()? {
                Some(Ended::Batch(BatchOutcome::Evaluated)) => return Ok(inner.model.passing.evaluation),
                Some(Ended::Batch(BatchOutcome::Dropped(DropReason::NotFinite))) => {
                    return Ok(Evaluation { loss_sum: f64::NAN, predictions: batch.predictions(), correct: 0 });
                }
                _ => {}
            }
        }
    }

    fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    fn set_members(&mut self, members: f64) {
        self.optimizer.set_members(members);
        self.inner().members = members;
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        let state = self.inner().state(true)?;
        state.moments.ok_or_else(|| Error::Msg("a part of the model has no moments".to_owned()))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        let inner = &mut *self.inner();
        let PartState { parameters, .. } = inner.state(false)?;
        inner.set_state(&PartState { parameters, moments: Some((moments, steps)) })
    }

    fn waits(&self) -> Option<String> {
        self.inner().waits.clone()
    }
}

//! The replica that a captain's engine trains: the whole model, of which other machines hold a part.
//!
//! While it is called it carries out what the captain's state machine orders of the captain's own stages (`owner.rs`); between
//! calls orders wait. Where the team is not whole it says so and does nothing, so that the trainer answers
//! exchanges meanwhile and tries the same batch again.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use candle_core::{Error, Result};
use murmur_protocol::team::{
    BatchOutcome, CaptainConfig, CaptainEvent, DropReason, Place, StepFactors, TeamTimeouts, Wire,
};
use murmur_protocol::{Holding, ModelLayout, RunManifest};

use super::captain::{CaptainModel, Passing, TeamBase};
use super::captain_thread::{OnNotice, TeamView};
use super::costs::{costs, rows};
use super::membership::SwarmTicket;
use super::owner::{Asked, Division, EVALUATION_PATIENCE, Ended, Owner, PATIENCE, Setup, lanes_of};
use super::part::{PartLengths, Piece, layouts};
use super::state::PartState;
use super::wire::{Facts, TeamWire, Told};
use crate::data::Batch;
use crate::engine::{StageDevice, TrainingOptions};
use crate::model::{Evaluation, StageSpec, trained_layout, transformer_of};
use crate::optimizer::{Moments, Optimizer, norm_of};
use crate::replica::stage::Microbatch;
use crate::replica::{InParts, Replica, Resting};

/// How a captain trains its team.
pub struct TeamOptions {
    /// Where the captain computes its own stages, on so many threads on a CPU.
    pub device: StageDevice,
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
    pub timeouts: TeamTimeouts,
    /// Carries words to helpers.
    pub carrier: Box<dyn TeamWire>,
    /// Where the team's facts come together: the wire tells its own there.
    pub facts: (Told, Facts),
    /// How helpers come to the captain's swarm, to exchange their own layers there.
    pub ticket: SwarmTicket,
    /// What people see.
    pub view: TeamView,
    /// Where people hear what happens.
    pub on_notice: OnNotice,
}

pub(crate) struct TeamReplica {
    layout: Arc<ModelLayout>,
    optimizer: Optimizer,
    parts: InParts,
    /// Behind a lock, since a copy of the model is made through a shared reference and may have to be fetched. Only the trainer's
    /// thread takes it.
    owner: Mutex<Owner>,
}

impl TeamReplica {
    pub(crate) fn new(
        manifest: &RunManifest,
        base: TeamBase,
        options: TrainingOptions,
        team: TeamOptions,
    ) -> TeamReplica {
        let TeamOptions { device, threads, wire, place, view, epoch, helpers_wanted, timeouts, .. } = team;
        let is_on_cpu = device.is_cpu();
        let parts = InParts::of(manifest, &options, is_on_cpu);
        let spec = transformer_of(manifest);
        let rows = rows(manifest, &options);
        let moments_in_8_bits = options.keeps_8_bits(manifest, is_on_cpu);
        let of_layer = StageSpec { layers: 0..1, embeds: false, predicts: false };
        let embedding = StageSpec { layers: 0..0, embeds: true, predicts: false };
        let head = StageSpec { layers: spec.layers..spec.layers, embeds: false, predicts: true };
        let tensors = |part: &StageSpec| layouts(manifest, part).1.tensors().len() as u32;
        let lengths = PartLengths::of(manifest, &of_layer, moments_in_8_bits);
        let copies_after_steps = manifest.lora.is_on();
        let (model, lanes) = costs(manifest, &options, threads, wire, device.kernels());
        let config = CaptainConfig {
            epoch,
            model,
            captain: place,
            wire,
            width: spec.width,
            rows_max: rows as u32,
            lanes: lanes_of(&lanes),
            tensors_per_layer: tensors(&of_layer),
            tensors_of_ends: (tensors(&embedding), tensors(&head)),
            state_bytes_per_layer: PartState::bytes(lengths.trained, &lengths.moments) as u64,
            run: manifest.canonical_text(),
            copies_after_steps,
            helpers_wanted,
            timeouts,
        };
        let setup = Setup { config, facts: team.facts, carrier: team.carrier, on_notice: team.on_notice };
        let model = CaptainModel::new(manifest.clone(), base, (device, threads), options, wire);
        let layout = Arc::new(trained_layout(manifest));
        let optimizer = Optimizer::new(&manifest.optimizer, &layout).with_moments(moments_in_8_bits);
        let owner = Owner {
            model,
            setup: Some(setup),
            thread: None,
            view,
            asked: Asked::Nothing,
            squares: vec![0.0; layout.tensors().len()],
            members: 1.0,
            copies_after_steps,
            ticket: team.ticket,
            division: Division::default(),
            is_old: [false; 2],
            unwritten: None,
            waits: None,
            waits_since: None,
            idle_since: Instant::now(),
            own_failures: 0,
        };
        TeamReplica { layout, optimizer, parts, owner: Mutex::new(owner) }
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replica for TeamReplica {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.owner().parameters()?))
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.owner().set_parameters(values)
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        let (microbatches, lanes) = self.parts.microbatches(batch);
        let share = 1.0 / batch.predictions() as f32;
        let owner = &mut *self.owner();
        owner.waits = None;
        let begin = Instant::now();
        loop {
            if let Some(losses) = owner.try_batch(&microbatches, lanes, share)? {
                return Ok(losses.iter().sum::<f64>() / batch.predictions() as f64);
            }
            if begin.elapsed() > PATIENCE {
                return owner.waiting();
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
        Ok(self.owner().squares.clone())
    }

    fn gradient_norm(&self) -> Result<f64> {
        Ok(norm_of(&self.owner().squares))
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        let owner = &mut *self.owner();
        owner.waits = None;
        let Asked::Gathered(batch) = owner.asked else { return owner.waiting() };
        let factors = StepFactors { gradient_norm, learning_rate, members: owner.members };
        owner.tell(CaptainEvent::StepDecided { batch, factors });
        // A batch that was decided on ends, with a helper that is lost as well: one that was stepped is not to be computed again.
        let ended = loop {
            if let Some(ended) = owner.until_ended()? {
                break ended;
            }
        };
        match ended {
            Ended::Batch(BatchOutcome::Stepped) => Ok(()),
            _ => owner.waiting(),
        }
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        let whole = |(number, batch)| Piece(Microbatch { batch, lane: 0, is_first: number == 0, is_last: false });
        let pieces: Vec<Piece> = batch.parts(self.parts.micro_batch).enumerate().map(whole).collect();
        let microbatches = pieces.len() as u32;
        let owner = &mut *self.owner();
        owner.waits = None;
        let begin = Instant::now();
        loop {
            let left = EVALUATION_PATIENCE.saturating_sub(begin.elapsed());
            if left.is_zero() || !owner.is_ready_within(left, false)? {
                return owner.waiting();
            }
            owner.model.passing = Passing { pieces: pieces.clone(), ..Passing::default() };
            owner.asked = Asked::Evaluation;
            owner.idle_since = Instant::now();
            owner.tell(CaptainEvent::EvaluationWanted { microbatches });
            match owner.until_ended()? {
                Some(Ended::Batch(BatchOutcome::Evaluated)) => return Ok(owner.model.passing.evaluation),
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

    fn on_replaced(&mut self) {
        self.owner().is_old[0] = false;
    }

    fn set_members(&mut self, members: f64) {
        self.optimizer.set_members(members);
        self.owner().members = members;
    }

    fn holding(&self) -> Holding {
        self.owner().division.holding
    }

    fn on_progress(&mut self, progress: f64) {
        let division = &mut self.owner().division;
        (division.progress, division.is_over) = (progress, false);
    }

    fn take_outdated(&mut self) -> bool {
        self.owner().take_outdated()
    }

    fn end_training(&mut self) -> Result<()> {
        self.owner().end_membership()
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        let owner = &mut *self.owner();
        owner.gather()?;
        owner.model.moments().map_err(|error| Error::Msg(error.to_string()))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        self.owner().set_moments(&moments, steps)
    }

    fn resting_between(&mut self) -> Option<Vec<Resting<'_>>> {
        self.owner.get_mut().unwrap_or_else(PoisonError::into_inner).model.resting()
    }

    fn rests_between(&self) -> bool {
        self.owner().model.rests()
    }

    fn gather(&mut self) -> Result<()> {
        self.owner().gather()
    }

    fn steps_of_moments(&self) -> u64 {
        self.owner().model.steps_of_moments()
    }

    fn waits(&self) -> Option<String> {
        self.owner().waits.clone()
    }
}

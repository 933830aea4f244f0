//! The training engine: one model, one optimizer, one node's data.
//!
//! It is driven from outside, one call at a time, on one thread. Every method ends at a step boundary, so a snapshot
//! never mixes two steps and a correction never falls between a forward and its backward. On the CPU the work of each
//! call runs inside rayon's pool.

use std::sync::Arc;

use candle_core::Device;
use murmur_protocol::bulk::values_of;
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::{GossipSpec, RunManifest, ScheduleSpec};
use murmur_protocol::{Correction, Part, Payload, Selection, Snapshot, Vector};

use crate::data::{Batch, Corpus, DataPosition, Sampler};
use crate::local_progress::LocalProgress;
use crate::model::{self, Evaluation};
use crate::ops::Kernels;
use crate::optimizer::Moments;
use crate::outer::OuterMomentum;
use crate::replica::{DeviceReplica, HostReplica, Replica};
use crate::schedule::{LearningRate, WarmUpAgain};

mod gradient;
mod options;
mod timed;

pub use gradient::BatchGradient;
pub use options::{TOKENS_AT_ONCE, TrainingOptions};
pub use timed::TimedStep;

/// Trains one model.
pub struct Engine {
    replica: Box<dyn Replica>,
    learning_rate: LearningRate,
    schedule: ScheduleSpec,
    warm_up_again: WarmUpAgain,
    outer: Option<OuterMomentum>,
    sampler: Sampler,
    /// Empty while held-out shards are missing.
    validation: Vec<Batch>,
    manifest: RunManifest,
    steps: u64,
    local_progress: LocalProgress,
}

/// A copy made at a step boundary.
#[derive(Clone, Debug)]
pub struct Taken {
    /// What was selected.
    pub values: Snapshot,
    /// For the model: how far own training has moved it since the last such copy, estimated as a Euclidean norm.
    pub local_progress: f64,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean loss of the batch before the step, nats per byte.
    pub loss: f64,
    /// Euclidean norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// The learning rate used.
    pub learning_rate: f64,
    /// Bytes trained on.
    pub tokens: usize,
}

/// Everything that resuming needs, as plain values. All vectors are flat in the order of the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineState {
    /// θ.
    pub parameters: Vec<f32>,
    /// AdamW's running mean of the gradient.
    pub first_moment: Vec<f32>,
    /// AdamW's running mean of the gradient's square.
    pub second_moment: Vec<f32>,
    /// φ, with the outer momentum on.
    pub slow_weights: Option<Vec<f32>>,
    /// u, with the outer momentum on.
    pub outer_momentum: Option<Vec<f32>>,
    /// Steps and positions.
    pub counters: Counters,
}

/// The small part of an [`EngineState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that this engine has taken in all, skipped ones not counted.
    pub steps: u64,
    /// Steps since the optimizer's moments were zero.
    pub optimizer_steps: u64,
    /// Length of the ramp after a join, in own steps; 0: none.
    pub warm_up_again_steps: u64,
    /// Steps taken on that ramp.
    pub warm_up_again_taken: u64,
    /// Where the node is in its data.
    pub position: DataPosition,
}

/// Why the engine could not do as told.
#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    /// A step went wrong and was left out: parameters and optimizer are as before, the batch counts as read.
    #[error("step skipped: loss {loss} and gradient norm {gradient_norm} must be finite")]
    NotFinite {
        /// Loss of the batch.
        loss: f64,
        /// Norm of the gradient.
        gradient_norm: f64,
    },
    /// Values for another model.
    #[error("{what} has {actual} values, but the model has {expected} parameters")]
    WrongLength {
        /// Which values.
        what: &'static str,
        /// The model's number of parameters.
        expected: usize,
        /// The values' number.
        actual: usize,
    },
    /// A state was saved with another setting of the outer momentum.
    #[error("the saved state {0} an outer momentum, unlike this run")]
    OtherOuterMomentum(&'static str),
    /// The run has no outer momentum to copy or correct.
    #[error("this run has no outer momentum")]
    NoOuterMomentum,
    /// Values from outside that would destroy the model.
    #[error("{0} holds values that are not finite")]
    NotFiniteValues(&'static str),
    /// Fused kernels were asked for on a GPU.
    #[error("fused kernels run on the CPU only")]
    FusedElsewhere,
    /// The device failed, usually for lack of memory.
    #[error("the device failed: {0}")]
    Device(#[from] candle_core::Error),
}

impl Engine {
    /// The run's model with its initial weights, on `device`; `node` decides whose share of the data it reads.
    ///
    /// # Errors
    /// When the device has no memory for it.
    ///
    /// # Panics
    /// When the corpus was opened for another run.
    pub fn new(
        manifest: &RunManifest,
        corpus: Corpus,
        node: [u8; 32],
        device: Device,
    ) -> Result<Engine, TrainingError> {
        let options = TrainingOptions::for_device(&device);
        Engine::with_options(manifest, corpus, node, device, options)
    }

    /// As [`Engine::new`] with a choice of how to compute.
    ///
    /// # Errors
    /// When the device has no memory for the model, or the kernels do not run on it.
    pub fn with_options(
        manifest: &RunManifest,
        corpus: Corpus,
        node: [u8; 32],
        device: Device,
        options: TrainingOptions,
    ) -> Result<Engine, TrainingError> {
        let (spec, optimizer) = (&manifest.model, manifest.optimizer.clone());
        let mut model = model::build(spec);
        model.set_recompute(options.recompute);
        let parameters = model.initial_parameters(manifest.run.seed);
        let local_progress = LocalProgress::new(&parameters);
        let outer = outer_momentum(&manifest.gossip, &parameters);
        let micro_batch = options.examples_at_once(spec.context, &device);
        let replica: Box<dyn Replica> = match options.kernels {
            Kernels::Fused if !device.is_cpu() => return Err(TrainingError::FusedElsewhere),
            Kernels::Fused => Box::new(HostReplica::new(model, parameters, optimizer, micro_batch)),
            Kernels::Composed => Box::new(DeviceReplica::new(model, &parameters, device, optimizer, micro_batch)?),
        };
        let (corpus, batch_sequences) = (Arc::new(corpus), manifest.optimizer.batch_sequences as usize);
        Ok(Engine {
            replica,
            learning_rate: LearningRate::new(&manifest.optimizer, &manifest.schedule),
            schedule: manifest.schedule.clone(),
            warm_up_again: WarmUpAgain::default(),
            local_progress,
            outer,
            validation: validation_batches(&corpus, manifest),
            manifest: manifest.clone(),
            sampler: Sampler::new(corpus, manifest.run.seed, node, spec.context as usize, batch_sequences),
            steps: 0,
        })
    }

    /// Where each parameter lies in flat vectors.
    pub fn layout(&self) -> &Arc<ModelLayout> {
        self.replica.layout()
    }

    /// Adds a shard of data that the swarm shares; it is trained on from the next step on.
    ///
    /// # Panics
    /// When the run has no such shard, or its length is another.
    pub fn add_shard(&mut self, index: usize, shard: Payload) {
        self.sampler.add_shard(index, shard);
        if self.validation.is_empty() {
            self.validation = validation_batches(self.sampler.corpus(), &self.manifest);
        }
    }

    /// Whether there is data to train on and to evaluate with. Steps and evaluations need it.
    pub fn has_data(&self) -> bool {
        self.sampler.corpus().suffices()
    }

    /// Steps taken in all, skipped ones not counted.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One optimizer step on the next batch, at `progress` steps of the swarm.
    ///
    /// # Errors
    /// [`TrainingError::NotFinite`] when the step had to be skipped; the next one may succeed.
    ///
    /// # Panics
    /// Without data: see [`Engine::has_data`].
    pub fn step(&mut self, progress: f64) -> Result<StepReport, TrainingError> {
        self.step_at_rate(self.learning_rate.at(progress))
    }

    /// As [`Engine::step`] at a learning rate given instead of the schedule's.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_at_rate(&mut self, learning_rate: f64) -> Result<StepReport, TrainingError> {
        // One hop into the pool for the whole step, instead of one for each operation.
        rayon::scope(|_| {
            let batch = self.sampler.next_batch();
            let loss = self.replica.compute_gradient(&batch)?;
            self.advance(loss, batch.predictions(), learning_rate * self.warm_up_again.factor())
        })
    }

    /// The optimizer's part of a step, with the gradient that the replica has.
    fn advance(&mut self, loss: f64, tokens: usize, learning_rate: f64) -> Result<StepReport, TrainingError> {
        let gradient_norm = self.replica.gradient_norm()?;
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Err(TrainingError::NotFinite { loss, gradient_norm });
        }
        self.replica.step(gradient_norm, learning_rate)?;
        self.warm_up_again.advance();
        self.steps += 1;
        Ok(StepReport { loss, gradient_norm, learning_rate, tokens })
    }

    /// Mean loss on the run's fixed held-out windows, nats per byte.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// Without data: see [`Engine::has_data`].
    pub fn validation_loss(&mut self) -> Result<f64, TrainingError> {
        Ok(self.evaluate()?.loss())
    }

    /// Loss and accuracy on the run's fixed held-out examples.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// Without data: see [`Engine::has_data`].
    pub fn evaluate(&mut self) -> Result<Evaluation, TrainingError> {
        assert!(!self.validation.is_empty(), "nothing is evaluated before its data is here");
        rayon::scope(|_| {
            let mut evaluation = Evaluation::default();
            for batch in &self.validation {
                evaluation = evaluation.with(self.replica.evaluate(batch)?);
            }
            Ok(evaluation)
        })
    }

    /// A copy of θ.
    ///
    /// # Errors
    /// When the device fails.
    pub fn parameters(&self) -> Result<Vec<f32>, TrainingError> {
        Ok(self.replica.parameters()?.into_owned())
    }

    /// A copy of what is selected.
    ///
    /// # Errors
    /// When the device fails.
    pub fn snapshot(&mut self, selection: Selection) -> Result<Taken, TrainingError> {
        let parameters = self.layout().parameters();
        let (values, local_progress) = match selection {
            Selection::Part(Part { vector: Vector::Momentum, fragment }) => {
                let outer = self.outer.as_ref().ok_or(TrainingError::NoOuterMomentum)?;
                (outer.momentum()[fragment.range(parameters)].to_vec(), 0.0)
            }
            Selection::Part(Part { vector: Vector::Model, fragment }) => {
                let values = self.replica.parameters()?;
                (values[fragment.range(parameters)].to_vec(), self.local_progress.measure(&values))
            }
            Selection::State(stretch) => {
                let model = self.replica.parameters()?;
                let mut vectors = vec![&model[..]];
                if let Some(outer) = &self.outer {
                    vectors.extend([outer.slow_weights(), outer.momentum()]);
                }
                (stretch.of(&vectors), 0.0)
            }
        };
        Ok(Taken { values: Snapshot::from(values), local_progress })
    }

    /// Adds what an exchange decided. For the model: `θ += c`, and `φ += c` with the outer momentum on, so that the
    /// correction stays out of the momentum (ρ = 0). For the momentum: `u += c`.
    ///
    /// # Errors
    /// When it is for another model.
    pub fn apply(&mut self, part: Part, correction: &Correction) -> Result<(), TrainingError> {
        let range = part.fragment.range(self.layout().parameters());
        if correction.len() != range.len() {
            let (expected, actual) = (range.len(), correction.len());
            return Err(TrainingError::WrongLength { what: "a correction", expected, actual });
        }
        if part.vector == Vector::Momentum {
            let outer = self.outer.as_mut().ok_or(TrainingError::NoOuterMomentum)?;
            outer.apply_to_momentum(range, correction);
            return Ok(());
        }
        let before = self.replica.parameters()?.into_owned();
        let mut parameters = before.clone();
        correction.add_to(&mut parameters[range.clone()]);
        self.replica.set_parameters(&parameters)?;
        self.local_progress.leave_out(&before, &parameters);
        if let Some(outer) = &mut self.outer {
            outer.apply(range, correction);
        }
        Ok(())
    }

    /// The outer step at the end of a round; nothing when the run has no outer momentum.
    ///
    /// # Errors
    /// When the device fails.
    pub fn advance_outer(&mut self) -> Result<(), TrainingError> {
        if let Some(outer) = &mut self.outer {
            let parameters = outer.advance(&self.replica.parameters()?).to_vec();
            self.replica.set_parameters(&parameters)?;
        }
        Ok(())
    }

    /// Takes over a model: replaces the parameters and the slow weights, forgets both momenta and warms up again.
    ///
    /// # Errors
    /// When the values are for another model or not finite; nothing has changed then.
    pub fn load_parameters(&mut self, values: &[f32]) -> Result<(), TrainingError> {
        self.check_length("the loaded model", values.len())?;
        check_finite("the loaded model", values)?;
        self.replica.set_parameters(values)?;
        self.local_progress = LocalProgress::new(values);
        if let Some(outer) = &mut self.outer {
            outer.restart(values.to_vec());
        }
        self.reset_optimizer()
    }

    /// As [`Engine::load_parameters`] from all chunks of peers' [`Selection::State`], with slow weights and outer momentum
    /// where the run has them.
    ///
    /// # Errors
    /// As [`Engine::load_parameters`].
    pub fn load_state(&mut self, chunks: &[Payload]) -> Result<(), TrainingError> {
        let parameters = self.layout().parameters();
        let expected = parameters * if self.outer.is_some() { 3 } else { 1 };
        let actual = chunks.iter().map(Payload::len).sum::<usize>() / 4;
        if actual != expected {
            return Err(TrainingError::WrongLength { what: "a peer's state", expected, actual });
        }
        let state = values_of(chunks, expected).ok_or(TrainingError::NotFiniteValues("a peer's state"))?;
        let mut vectors = state.chunks(parameters);
        self.load_parameters(vectors.next().unwrap_or_default())?;
        if let (Some(outer), Some(slow_weights), Some(momentum)) = (&mut self.outer, vectors.next(), vectors.next()) {
            outer.restore(slow_weights.to_vec(), momentum.to_vec());
        }
        Ok(())
    }

    /// Forgets the optimizer's moments and ramps the learning rate up over the next own steps.
    ///
    /// # Errors
    /// When the device fails.
    pub fn reset_optimizer(&mut self) -> Result<(), TrainingError> {
        self.replica.set_moments(Moments::new(self.layout().parameters()), 0)?;
        self.warm_up_again = WarmUpAgain::begin(&self.schedule);
        Ok(())
    }

    /// Everything that resuming needs.
    ///
    /// # Errors
    /// When the device fails.
    pub fn save(&mut self) -> Result<EngineState, TrainingError> {
        let (moments, optimizer_steps) = self.replica.moments()?;
        Ok(EngineState {
            parameters: self.parameters()?,
            first_moment: moments.first,
            second_moment: moments.second,
            slow_weights: self.outer.as_ref().map(|outer| outer.slow_weights().to_vec()),
            outer_momentum: self.outer.as_ref().map(|outer| outer.momentum().to_vec()),
            counters: Counters {
                steps: self.steps,
                optimizer_steps,
                warm_up_again_steps: self.warm_up_again.steps,
                warm_up_again_taken: self.warm_up_again.taken,
                position: self.sampler.position(),
            },
        })
    }

    /// Continues from a saved state, with the same bits as if it had never been interrupted (on the CPU).
    ///
    /// # Errors
    /// When the state is of another model or run, or not finite; nothing has changed then.
    pub fn restore(&mut self, state: EngineState) -> Result<(), TrainingError> {
        let EngineState { parameters, first_moment, second_moment, slow_weights, outer_momentum, counters } = state;
        let outer = match (&self.outer, slow_weights, outer_momentum) {
            (None, None, None) => None,
            (Some(_), Some(slow_weights), Some(momentum)) => Some((slow_weights, momentum)),
            (None, _, _) => return Err(TrainingError::OtherOuterMomentum("has")),
            (Some(_), _, _) => return Err(TrainingError::OtherOuterMomentum("lacks")),
        };
        let mut parts = vec![
            ("the saved model", &parameters),
            ("the saved first moment", &first_moment),
            ("the saved second moment", &second_moment),
        ];
        if let Some((slow_weights, momentum)) = &outer {
            parts.extend([("the saved slow weights", slow_weights), ("the saved outer momentum", momentum)]);
        }
        for (what, values) in parts {
            self.check_length(what, values.len())?;
            check_finite(what, values)?;
        }
        self.replica.set_parameters(&parameters)?;
        self.local_progress = LocalProgress::new(&parameters);
        let moments = Moments { first: first_moment, second: second_moment };
        self.replica.set_moments(moments, counters.optimizer_steps)?;
        if let (Some(place), Some((slow_weights, momentum))) = (&mut self.outer, outer) {
            place.restore(slow_weights, momentum);
        }
        self.warm_up_again = WarmUpAgain { steps: counters.warm_up_again_steps, taken: counters.warm_up_again_taken };
        self.sampler.seek(counters.position);
        self.steps = counters.steps;
        Ok(())
    }

    fn check_length(&self, what: &'static str, actual: usize) -> Result<(), TrainingError> {
        let expected = self.layout().parameters();
        if actual == expected { Ok(()) } else { Err(TrainingError::WrongLength { what, expected, actual }) }
    }
}

fn check_finite(what: &'static str, values: &[f32]) -> Result<(), TrainingError> {
    let finite = values.iter().all(|value| value.is_finite());
    if finite { Ok(()) } else { Err(TrainingError::NotFiniteValues(what)) }
}

fn outer_momentum(gossip: &GossipSpec, parameters: &[f32]) -> Option<OuterMomentum> {
    (gossip.outer_learning_rate > 0.0).then(|| OuterMomentum::new(gossip, parameters.to_vec()))
}

/// The held-out windows in batches; none while shards of them are missing.
fn validation_batches(corpus: &Corpus, manifest: &RunManifest) -> Vec<Batch> {
    if !corpus.suffices() {
        return Vec::new();
    }
    let windows = corpus.validation(manifest);
    windows.chunks(manifest.optimizer.batch_sequences as usize).map(Batch::of).collect()
}

#[cfg(test)]
mod tests;

//! The training engine: one model, one optimizer, one node's data.
//!
//! It is driven from outside, one call at a time, on one thread. Every method ends at a step boundary, so a snapshot
//! never mixes two steps and a correction never falls between a forward and its backward. On the CPU the work of each
//! call runs inside rayon's pool.

use std::sync::Arc;

use candle_core::Device;
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::{GossipSpec, RunManifest, ScheduleSpec};
use murmur_protocol::{Ending, Fragments, Payload, Snapshot};

use crate::data::{Corpus, DataPosition, Sampler};
use crate::gpu;
use crate::local_progress::LocalProgress;
use crate::model::{self, Evaluation, Scores, Transformer};
use crate::ops::Kernels;
use crate::ops::base_weights::BaseWeights;
use crate::optimizer::{Moments, Optimizer};
use crate::outer::OuterMomentum;
use crate::privacy::PrivateTraining;
use crate::replica::{DeviceReplica, HostReplica, Replica, Replicated};
use crate::schedule::{LearningRate, WarmUpAgain};

pub(crate) mod cut;
mod gradient;
mod offload;
pub(crate) mod options;
mod private;
pub(crate) mod saving;
mod state;
mod synchronous;
mod team;
mod timed;
mod transfers;

pub use cut::{StageDevice, StageOnDevice, why_not_cut};
pub use gradient::BatchGradient;
pub use offload::why_not_offloaded;
pub use options::{Precision, TOKENS_AT_ONCE, TrainingOptions};
pub use state::{Counters, EngineState, GradientAverage};
pub use timed::TimedStep;
pub use transfers::{CorrectionUnderWay, SnapshotUnderWay, Taken};

/// Trains one model.
pub struct Engine {
    replica: Box<dyn Replica>,
    learning_rate: LearningRate,
    schedule: ScheduleSpec,
    warm_up_again: WarmUpAgain,
    outer: Option<OuterMomentum>,
    sampler: Sampler,
    /// Where the last batch began.
    batch_began: DataPosition,
    manifest: RunManifest,
    fragments: Fragments,
    steps: u64,
    local_progress: LocalProgress,
    /// For its memory.
    last_copy: Option<Snapshot>,
    /// Corrections that have begun and not been finished.
    corrections_under_way: usize,
    /// Where its state is being saved piece by piece.
    saving: Option<saving::Saving>,
    /// In a synchronous run that averages models: the last average.
    last_average: Option<Vec<f32>>,
    /// Whether it computes on one device, the CPU.
    is_on_cpu: bool,
    /// Where its steps are private.
    private: Option<PrivateTraining>,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean loss of the batch before the step, in nats per byte, token or image; not a number where a private step took no record.
    pub loss: f64,
    /// Euclidean norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// The learning rate used: AdamW's.
    pub learning_rate: f64,
    /// How far it moved the model at most, as a Euclidean norm.
    pub travel: f64,
    /// Bytes, tokens or images trained on; of private steps the same number for each, whatever it took.
    pub tokens: usize,
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
    /// A private step that nobody has counted.
    #[error("a private step needs a permit")]
    NoPermit,
    /// Adapters alone are no model.
    #[error("the run trains adapters on a base model, which is missing")]
    BaseMissing,
    /// Values for another model.
    #[error("{what} has {actual} values, but the model calls for {expected}")]
    WrongLength {
        /// Which values.
        what: &'static str,
        /// How many there should be.
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
    /// Kernels were asked for that the device or the model has not.
    #[error("{0:?} kernels do not train this here: {1}")]
    KernelsElsewhere(Kernels, String),
    /// A model was to lie on several devices.
    #[error("this model is not cut into stages: {0}")]
    NotCut(String),
    /// A model was to lie in the machine's memory while a GPU trains it.
    #[error("this model is not offloaded: {0}")]
    NotOffloaded(String),
    /// A machine of the team has sent what cannot be.
    #[error("{0}")]
    Team(String),
    /// The team is not whole: what was asked for came to nothing, and the same batch is to be tried again.
    #[error("waits for the team: {0}")]
    TeamWaits(String),
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
        Engine::with_options(manifest, corpus, node, device, TrainingOptions::default())
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
        Engine::on_base(manifest, None, corpus, node, &[device], options)
    }

    /// As [`Engine::with_options`] from the weights of a base: trains them, or the run's adapters on them. With several
    /// devices a step takes a batch for each and moves all by the mean of their gradients.
    ///
    /// # Errors
    /// As [`Engine::with_options`]; also when the base is of another size, or missing where the run trains adapters.
    ///
    /// # Panics
    /// When there is no device; also when the corpus was opened for another run.
    pub fn on_base(
        manifest: &RunManifest,
        base: Option<BaseWeights>,
        corpus: Corpus,
        node: [u8; 32],
        devices: &[Device],
        options: TrainingOptions,
    ) -> Result<Engine, TrainingError> {
        let spec = &manifest.model;
        let (expected, actual) = (model::parameter_count(spec), base.as_ref().map(BaseWeights::len));
        if let Some(actual) = actual.filter(|actual| *actual != expected) {
            return Err(TrainingError::WrongLength { what: "the base", expected, actual });
        }
        let moments_in_8_bits = options.keeps_8_bits(manifest, devices.iter().all(Device::is_cpu));
        let options = TrainingOptions { moments_in_8_bits, ..options };
        let bases = std::iter::repeat_n(base, devices.len());
        let replicas = devices.iter().zip(bases).map(|(device, base)| replica(manifest, base, device, &options));
        let mut replicas = replicas.collect::<Result<Vec<_>, TrainingError>>()?;
        let replica = match replicas.len() {
            0 => panic!("training needs a device"),
            1 => replicas.remove(0),
            _ => Box::new(Replicated::new(replicas)),
        };
        let mut engine = Engine::around(manifest, corpus, node, replica, devices.len())?;
        engine.is_on_cpu = matches!(devices, [device] if device.is_cpu());
        Ok(engine)
    }

    /// Of a replica, which takes so many batches of the run's size at every step.
    pub(crate) fn around(
        manifest: &RunManifest,
        corpus: Corpus,
        node: [u8; 32],
        replica: Box<dyn Replica>,
        batches: usize,
    ) -> Result<Engine, TrainingError> {
        let parameters = replica.parameters()?;
        let local_progress = LocalProgress::new(&parameters);
        let outer = outer_momentum(&manifest.gossip, &parameters);
        drop(parameters);
        let corpus = Arc::new(corpus);
        Ok(Engine {
            fragments: Fragments::of(&manifest.gossip, replica.layout()),
            replica,
            learning_rate: LearningRate::new(&manifest.optimizer, &manifest.schedule),
            schedule: manifest.schedule.clone(),
            warm_up_again: WarmUpAgain::default(),
            local_progress,
            outer,
            manifest: manifest.clone(),
            sampler: Sampler::new(corpus, manifest, node).several_batches(batches),
            batch_began: DataPosition::default(),
            steps: 0,
            last_copy: None,
            corrections_under_way: 0,
            saving: None,
            last_average: None,
            is_on_cpu: false,
            private: None,
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
    }

    /// Whether there is data to train on and to evaluate with. Steps and evaluations need it.
    pub fn has_data(&self) -> bool {
        self.sampler.corpus().suffices()
    }

    /// Steps taken in all, skipped ones not counted.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The founder has ordered the final decay of the learning rate.
    pub fn finish(&mut self, ending: Ending) {
        self.learning_rate.finish(ending);
    }

    /// Tells with how many members this model is averaged, this one counted: at least 1, and fractions are fine. Where the run
    /// matches second moments to the batch, they follow from the next step on.
    pub fn set_members(&mut self, members: f64) {
        self.replica.set_members(members);
    }

    /// One optimizer step on the next batch, at `progress` steps of the swarm.
    ///
    /// # Errors
    /// [`TrainingError::NotFinite`] when the step had to be skipped; the next one may succeed.
    ///
    /// # Panics
    /// Without data: see [`Engine::has_data`].
    pub fn step(&mut self, progress: f64) -> Result<StepReport, TrainingError> {
        self.replica.on_progress(progress);
        self.step_at_rate(self.learning_rate.at(progress))
    }

    /// As [`Engine::step`] at a learning rate given instead of the schedule's.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_at_rate(&mut self, learning_rate: f64) -> Result<StepReport, TrainingError> {
        // One hop into the pool for the whole step, instead of one for each operation.
        rayon::scope(|_| {
            let (loss, tokens) = self.compute_gradient()?;
            self.advance(loss, tokens, learning_rate * self.warm_up_again.factor())
        })
    }

    /// Has the replica compute the next batch's gradient, or a private one. Returns the mean loss and the number of predictions.
    fn compute_gradient(&mut self) -> Result<(f64, usize), TrainingError> {
        if let Some(private) = &mut self.private {
            if !private.take_permit() {
                return Err(TrainingError::NoPermit);
            }
            let (saved, outer) = (&mut self.saving, self.outer.as_ref());
            let loss =
                private.compute_gradient(&mut *self.replica, self.sampler.corpus(), &mut |replica, record| {
                    saving::gradient_beside(replica, record, saved, outer)
                })?;
            return Ok((loss, private.predictions()));
        }
        self.batch_began = self.sampler.position();
        let batch = self.sampler.next_batch();
        let computed = self.gradient_beside_saving(&batch);
        Ok((self.unless_it_waits(computed)?, batch.predictions()))
    }

    /// Where only another machine is missing, the same batch is read again.
    fn unless_it_waits<T>(&mut self, computed: candle_core::Result<T>) -> Result<T, TrainingError> {
        computed.map_err(|error| match self.replica.waits() {
            Some(why) => {
                self.repeat_batch();
                TrainingError::TeamWaits(why)
            }
            None => error.into(),
        })
    }

    /// The optimizer's part of a step, with the gradient that the replica has.
    fn advance(&mut self, loss: f64, tokens: usize, learning_rate: f64) -> Result<StepReport, TrainingError> {
        let gradient_norm = self.replica.gradient_norm()?;
        // The loss of a private step is a secret: whether the step is skipped would tell of it.
        if !(loss.is_finite() || self.private.is_some()) || !gradient_norm.is_finite() {
            return Err(TrainingError::NotFinite { loss, gradient_norm });
        }
        let stepped = self.replica.step(gradient_norm, learning_rate);
        self.unless_it_waits(stepped)?;
        self.warm_up_again.advance();
        self.steps += 1;
        let travel = self.replica.optimizer().travel(learning_rate);
        Ok(StepReport { loss, gradient_norm, learning_rate, travel, tokens })
    }

    /// Mean loss on the run's fixed held-out windows or images, in nats per byte, token or image.
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
        rayon::scope(|_| {
            let mut evaluation = Evaluation::default();
            let mut batches = self.sampler.corpus().validation_batches(&self.manifest).peekable();
            assert!(batches.peek().is_some(), "nothing is evaluated before its data is here");
            for batch in batches {
                let evaluated = self.replica.evaluate(&batch);
                let waits = || self.replica.waits().map(TrainingError::TeamWaits);
                evaluation = evaluation.with(evaluated.map_err(|error| waits().unwrap_or_else(|| error.into()))?);
            }
            Ok(evaluation)
        })
    }

    /// How well the model predicts the run's fixed held-out rows; none where it reads no table.
    ///
    /// # Errors
    /// When the device fails.
    pub fn scores(&self) -> Result<Option<Scores>, TrainingError> {
        if self.manifest.model.inputs() == 0 {
            return Ok(None);
        }
        let batches = self.sampler.corpus().validation_batches(&self.manifest);
        Ok(model::scores::of_batches(&self.manifest, &self.replica.parameters()?, batches)?)
    }

    /// A copy of θ.
    ///
    /// # Errors
    /// When the device fails.
    pub fn parameters(&self) -> Result<Vec<f32>, TrainingError> {
        Ok(self.replica.parameters()?.into_owned())
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
}

fn check_length(what: &'static str, actual: usize, expected: usize) -> Result<(), TrainingError> {
    if actual == expected { Ok(()) } else { Err(TrainingError::WrongLength { what, expected, actual }) }
}

fn check_finite(what: &'static str, values: &[f32]) -> Result<(), TrainingError> {
    let finite = values.iter().all(|value| value.is_finite());
    if finite { Ok(()) } else { Err(TrainingError::NotFiniteValues(what)) }
}

/// One device's replica of the run's model, with its initial weights.
fn replica(
    manifest: &RunManifest,
    base: Option<BaseWeights>,
    device: &Device,
    options: &TrainingOptions,
) -> Result<Box<dyn Replica>, TrainingError> {
    let kernels = options.kernels.unwrap_or_else(|| Kernels::choose(device, manifest));
    let elsewhere = |reason: &str| TrainingError::KernelsElsewhere(kernels, reason.to_owned());
    match kernels {
        Kernels::Fused if !device.is_cpu() => return Err(elsewhere("they are for the CPU")),
        Kernels::Cuda => {
            let spec = manifest.model.transformer().ok_or_else(|| elsewhere("they are for transformers alone"))?;
            let accelerator = gpu::accelerator(device).map_err(|reason| elsewhere(&reason))?;
            return Ok(Box::new(cut::on_gpu(manifest, &Transformer::new(spec), base, accelerator, options)?));
        }
        Kernels::Fused | Kernels::Composed => {}
    }
    let begun = model::begin(manifest, base, options.weightless);
    let (mut model, parameters) = begun.ok_or(TrainingError::BaseMissing)?;
    model.set_recompute(options.recompute);
    model.set_precision(options.precision);
    let (optimizer, micro_batch) = (manifest.optimizer.clone(), options.examples_at_once(&manifest.model, kernels));
    Ok(match kernels {
        Kernels::Composed => Box::new(DeviceReplica::new(model, &parameters, device.clone(), optimizer, micro_batch)?),
        _ => {
            let optimizer = Optimizer::new(&optimizer, model.layout()).with_moments(options.moments_in_8_bits);
            // Those of a checkpoint, or new ones once a model has been copied.
            let moments = if options.weightless { Moments::default() } else { optimizer.moments() };
            Box::new(HostReplica::with_moments(model, parameters, optimizer, micro_batch, moments))
        }
    })
}

fn outer_momentum(gossip: &GossipSpec, parameters: &[f32]) -> Option<OuterMomentum> {
    (gossip.outer_learning_rate > 0.0).then(|| OuterMomentum::new(gossip, parameters.to_vec()))
}

#[cfg(test)]
mod tests;

//! A replica in the machine's memory: flat vectors are the truth, the model writes its gradient straight into one.

mod stage;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::OptimizerSpec;
use rayon::prelude::*;

use super::Replica;
use super::resting::{Resting, beside};
use crate::data::Batch;
use crate::model::{Evaluation, Model, Task, Write, evaluate_in_parts};
use crate::optimizer::{Moments, Optimizer, TASK_VALUES};

pub(crate) use stage::HostStage;

pub(crate) struct HostReplica {
    model: Box<dyn Model>,
    /// What the model computes with: behind its own values ([`HostReplica::own`]) a copy of what another stage has, of which the
    /// gradient is here, but no moments.
    parameters: Vec<f32>,
    /// Empty before the first batch: a joiner holds the model that it copies meanwhile.
    gradient: Vec<f32>,
    /// From the first batch of at least two examples on.
    second_lane: Option<Lane>,
    moments: Moments,
    /// Since the moments were zero.
    steps: u64,
    optimizer: Optimizer,
    /// Examples computed at once, at most.
    micro_batch: usize,
}

impl HostReplica {
    /// With all moments in 32 bits.
    pub(crate) fn new(
        model: Box<dyn Model>,
        parameters: Vec<f32>,
        optimizer: OptimizerSpec,
        micro_batch: usize,
    ) -> HostReplica {
        let optimizer = Optimizer::new(&optimizer, model.layout());
        let moments = optimizer.moments();
        HostReplica::with_moments(model, parameters, optimizer, micro_batch, moments)
    }

    /// With these moments; empty where others take their place before the first step.
    pub(crate) fn with_moments(
        model: Box<dyn Model>,
        mut parameters: Vec<f32>,
        optimizer: Optimizer,
        micro_batch: usize,
        moments: Moments,
    ) -> HostReplica {
        parameters.resize(parameters.len() + model.copied(), 0.0);
        let gradient = Vec::new();
        HostReplica { model, parameters, gradient, second_lane: None, moments, steps: 0, optimizer, micro_batch }
    }

    fn begin_second_lane(&mut self, batch: &Batch) {
        if self.second_lane.is_none() && has_two_lanes(self.parameters.len(), batch.examples(), self.micro_batch) {
            let lane = |model| Lane { model, gradient: vec![0.0; self.parameters.len()] };
            self.second_lane = self.model.another().map(lane);
        }
    }

    /// What computes a gradient, and what rests meanwhile.
    fn split(&mut self) -> (Computing<'_>, Resting<'_>) {
        let own = self.own();
        self.gradient.resize(self.parameters.len(), 0.0);
        let HostReplica { model, parameters, gradient, second_lane, moments, micro_batch, optimizer, .. } = self;
        let tensors = 0..optimizer.tensors.len();
        let resting = Resting { parameters: &parameters[own], moments, optimizer, tensors };
        (Computing { model: &mut **model, parameters, gradient, second_lane, micro_batch: *micro_batch }, resting)
    }

    /// Where its own values lie.
    fn own(&self) -> Range<usize> {
        0..self.model.layout().parameters()
    }
}

/// What of a replica computes a gradient.
struct Computing<'a> {
    model: &'a mut dyn Model,
    parameters: &'a [f32],
    gradient: &'a mut [f32],
    second_lane: &'a mut Option<Lane>,
    micro_batch: usize,
}

impl Computing<'_> {
    /// Returns the mean loss.
    fn gradient(self, batch: &Batch) -> Result<f64> {
        let Computing { model, parameters, gradient, second_lane, micro_batch } = self;
        let task = Task::alone(1.0 / batch.predictions() as f32, Write::Replace);
        let loss = match second_lane.as_mut().filter(|_| batch.examples() > 1) {
            None => gradient_in_parts(model, parameters, batch, micro_batch, task, gradient)?,
            Some(second) => {
                let middle = batch.examples().div_ceil(2);
                let halves = [batch.part(0..middle), batch.part(middle..batch.examples())];
                let (micro_batch, task) = (micro_batch / 2, Task { threads: task.threads.div_ceil(2), ..task });
                let (loss, second_loss) = rayon::join(
                    || gradient_in_parts(model, parameters, &halves[0], micro_batch, task, gradient),
                    || {
                        let Lane { model, gradient } = &mut *second;
                        gradient_in_parts(&mut **model, parameters, &halves[1], micro_batch, task, gradient)
                    },
                );
                add(gradient, &second.gradient);
                loss? + second_loss?
            }
        };
        Ok(loss / batch.predictions() as f64)
    }
}

/// What computes the second half of a batch beside the first.
///
/// Two lanes meet once in a step, where threads that share every operation meet after each: 1.3 × as fast on two threads
/// for a model of 0.8M parameters, 1.15 × for one of 10M. Bits do not depend on the number of threads, for there are two
/// lanes on any.
struct Lane {
    model: Box<dyn Model>,
    gradient: Vec<f32>,
}

/// Larger models have operations so long that a second gradient costs more than waiting: 128 MiB of it.
const LANE_PARAMETERS_MAX: usize = 32 << 20;

/// Whether a batch of so many examples is computed in two lanes, where the model can.
pub(crate) fn has_two_lanes(parameters: usize, examples: usize, micro_batch: usize) -> bool {
    parameters <= LANE_PARAMETERS_MAX && examples.min(micro_batch) > 1
}

/// Returns the sum of the losses.
fn gradient_in_parts(
    model: &mut dyn Model,
    parameters: &[f32],
    batch: &Batch,
    micro_batch: usize,
    mut task: Task,
    gradient: &mut [f32],
) -> Result<f64> {
    let (mut loss, mut parts) = (0.0, batch.parts(micro_batch).peekable());
    while let Some(part) = parts.next() {
        task.is_last = parts.peek().is_none();
        loss += model.gradient(parameters, &part, &task, gradient)?;
        task.write = Write::Add;
    }
    Ok(loss)
}

/// Adds `values` to `sums`, in parallel.
fn add(sums: &mut [f32], values: &[f32]) {
    let tasks = sums.par_chunks_mut(TASK_VALUES).zip(values.par_chunks(TASK_VALUES));
    tasks.for_each(|(sums, values)| sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value));
}

impl Replica for HostReplica {
    fn layout(&self) -> &Arc<ModelLayout> {
        self.model.layout()
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(&self.parameters[self.own()]))
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        let own = self.own();
        self.parameters[own].copy_from_slice(values);
        Ok(())
    }

    fn edit_parameters(&mut self, edit: &mut dyn FnMut(&mut [f32])) -> Result<()> {
        let own = self.own();
        edit(&mut self.parameters[own]);
        Ok(())
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        self.begin_second_lane(batch);
        self.split().0.gradient(batch)
    }

    fn resting(&self) -> Option<Vec<Resting<'_>>> {
        let HostReplica { moments, optimizer, .. } = self;
        let tensors = 0..optimizer.tensors.len();
        Some(vec![Resting { parameters: &self.parameters[self.own()], moments, optimizer, tensors }])
    }

    fn resting_mut(&mut self) -> Option<(&mut [f32], &mut Moments, &mut u64)> {
        let own = self.own();
        Some((&mut self.parameters[own], &mut self.moments, &mut self.steps))
    }

    fn compute_gradient_beside(
        &mut self,
        batch: &Batch,
        other: &mut (dyn FnMut(&[Resting<'_>], &AtomicBool) + Send),
    ) -> Result<f64> {
        self.begin_second_lane(batch);
        let (computing, resting) = self.split();
        beside(|| computing.gradient(batch), |is_over| other(&[resting], is_over))
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(&self.gradient[self.own()]))
    }

    fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        let own = self.own();
        self.gradient.resize(self.parameters.len(), 0.0);
        self.gradient[own].copy_from_slice(values);
        Ok(())
    }

    fn squares(&self) -> Result<Vec<f64>> {
        Ok(self.optimizer.squares(&self.gradient))
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        self.steps += 1;
        let weight = &mut self.moments.average_weight;
        let factors = self.optimizer.factors(self.steps, gradient_norm, learning_rate, weight);
        self.optimizer.step(factors, &mut self.parameters, &self.gradient, &mut self.moments);
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        // It takes memory of its own, and no more than a step does.
        self.model.release();
        self.second_lane.iter_mut().for_each(|lane| lane.model.release());
        evaluate_in_parts(&*self.model, &self.parameters, batch, self.micro_batch)
    }

    fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    fn set_members(&mut self, members: f64) {
        self.optimizer.set_members(members);
    }

    fn steps_of_moments(&self) -> u64 {
        self.steps
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        Ok((self.moments.clone(), self.steps))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        (self.moments, self.steps) = (moments, steps);
        Ok(())
    }
}

//! Several replicas on the devices of one machine that train as one: each computes the gradient of its part of a batch,
//! and all step with the mean, as one device would with the whole batch.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use rayon::prelude::*;

use super::{Replica, Resting, Transfer};
use crate::data::Batch;
use crate::model::Evaluation;
use crate::optimizer::{Moments, Optimizer};

pub(crate) struct Replicated {
    /// At least one; the first one's parameters and moments are what the node shows.
    workers: Vec<Box<dyn Replica>>,
    /// Of the whole batch.
    gradient: Vec<f32>,
}

impl Replicated {
    pub(crate) fn new(workers: Vec<Box<dyn Replica>>) -> Replicated {
        let gradient = vec![0.0; workers[0].layout().parameters()];
        Replicated { workers, gradient }
    }

    fn on_all(&mut self, act: impl Fn(&mut dyn Replica) -> Result<()> + Sync) -> Result<()> {
        self.workers.par_iter_mut().try_for_each(|worker| act(&mut **worker))
    }
}

impl Replica for Replicated {
    fn layout(&self) -> &Arc<ModelLayout> {
        self.workers[0].layout()
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        self.workers[0].parameters()
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.on_all(|worker| worker.set_parameters(values))
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        let (examples, workers) = (batch.examples(), self.workers.len());
        let part = |worker: usize| batch.part(worker * examples / workers..(worker + 1) * examples / workers);
        let compute = |(index, worker): (usize, &mut Box<dyn Replica>)| {
            let part = part(index);
            let share = part.predictions() as f64 / batch.predictions() as f64;
            // A batch of fewer examples than workers leaves some without any.
            Ok((share, if share > 0.0 { worker.compute_gradient(&part)? } else { 0.0 }))
        };
        let parts: Vec<(f64, f64)> = self.workers.par_iter_mut().enumerate().map(compute).collect::<Result<_>>()?;
        self.gradient.fill(0.0);
        for (worker, (share, _)) in self.workers.iter().zip(&parts).filter(|(_, (share, _))| *share > 0.0) {
            let (share, values) = (*share as f32, worker.gradient()?);
            self.gradient.par_iter_mut().zip(values.par_iter()).for_each(|(sum, value)| *sum += share * value);
        }
        let gradient = &self.gradient;
        self.workers.par_iter_mut().try_for_each(|worker| worker.set_gradient(gradient))?;
        Ok(parts.iter().map(|(share, loss)| share * loss).sum())
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(&self.gradient))
    }

    fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        self.gradient.copy_from_slice(values);
        self.on_all(|worker| worker.set_gradient(values))
    }

    fn squares(&self) -> Result<Vec<f64>> {
        self.workers[0].squares()
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        self.on_all(|worker| worker.step(gradient_norm, learning_rate))
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        self.workers[0].evaluate(batch)
    }

    fn wait(&self) -> Result<()> {
        self.workers.iter().try_for_each(|worker| worker.wait())
    }

    fn optimizer(&self) -> &Optimizer {
        self.workers[0].optimizer()
    }

    fn set_members(&mut self, members: f64) {
        self.workers.iter_mut().for_each(|worker| worker.set_members(members));
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        self.workers[0].moments()
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        self.on_all(|worker| worker.set_moments(moments.clone(), steps))
    }

    fn resting(&self) -> Option<Vec<Resting<'_>>> {
        self.workers[0].resting()
    }

    fn steps_of_moments(&self) -> u64 {
        self.workers[0].steps_of_moments()
    }

    fn begin_copy(&self) -> Result<Option<Transfer<Vec<f32>>>> {
        self.workers[0].begin_copy()
    }
}

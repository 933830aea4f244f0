//! A replica in the machine's memory: flat vectors are the truth, the model writes its gradient straight into one.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::OptimizerSpec;

use super::{Replica, parts};
use crate::data::Batch;
use crate::model::{Evaluation, Model, Write};
use crate::optimizer::{self, Moments, StepFactors, gradient_norm};

pub(crate) struct HostReplica {
    model: Box<dyn Model>,
    parameters: Vec<f32>,
    gradient: Vec<f32>,
    moments: Moments,
    /// Since the moments were zero.
    steps: u64,
    optimizer: OptimizerSpec,
    /// Examples computed at once, at most.
    micro_batch: usize,
}

impl HostReplica {
    pub(crate) fn new(
        model: Box<dyn Model>,
        parameters: Vec<f32>,
        optimizer: OptimizerSpec,
        micro_batch: usize,
    ) -> HostReplica {
        let (gradient, moments) = (vec![0.0; parameters.len()], Moments::new(parameters.len()));
        HostReplica { model, parameters, gradient, moments, steps: 0, optimizer, micro_batch }
    }
}

impl Replica for HostReplica {
    fn layout(&self) -> &Arc<ModelLayout> {
        self.model.layout()
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(&self.parameters))
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.parameters.copy_from_slice(values);
        Ok(())
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        let share = 1.0 / batch.predictions() as f32;
        let (mut loss, mut write) = (0.0, Write::Replace);
        for part in parts(batch, self.micro_batch) {
            loss += self.model.gradient(&self.parameters, &part, share, write, &mut self.gradient)?;
            write = Write::Add;
        }
        Ok(loss / batch.predictions() as f64)
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(&self.gradient))
    }

    fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        self.gradient.copy_from_slice(values);
        Ok(())
    }

    fn gradient_norm(&self) -> Result<f64> {
        Ok(gradient_norm(&self.gradient))
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        self.steps += 1;
        let factors = StepFactors::new(&self.optimizer, self.steps, gradient_norm, learning_rate);
        let (layout, moments) = (self.model.layout(), &mut self.moments);
        optimizer::step(&self.optimizer, factors, layout, &mut self.parameters, &self.gradient, moments);
        Ok(())
    }

    fn evaluate(&self, batch: &Batch) -> Result<Evaluation> {
        self.model.evaluate(&self.parameters, batch)
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        Ok((self.moments.clone(), self.steps))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        (self.moments, self.steps) = (moments, steps);
        Ok(())
    }
}

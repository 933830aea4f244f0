//! One pass of a batch through stages that take turns: all its microbatches through one, then through the next, and back.

use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::manifest::TransformerModel;

use super::stages_of;
use super::streams::{Arrivals, Leaving};
use crate::data::{Batch, TokenBatch};
use crate::gpu::transformer::GpuTurns;
use crate::gpu::weights::{Gradient, Weights};
use crate::gpu::{Accelerator, Kind, Span};
use crate::model::Evaluation;

/// Where weights of stages come from, and gradients go to.
pub(super) trait Weighted {
    /// The weights of a stage: waits for them.
    fn load(&mut self, stage: usize) -> Result<Weights>;

    /// Begins to load the weights of another stage, see [`super::slots::Slots::begin_beside`].
    fn begin_beside(&mut self, stage: usize, other: usize) -> Result<()>;

    /// Whether anything of the embedding is trained.
    fn trains_embedding(&self) -> bool;

    /// Where the gradient of a stage is to be added.
    fn begin_gradient(&mut self, stage: usize) -> Result<ToStage>;

    /// Nothing more is added to it.
    fn end_gradient(&mut self, stage: usize) -> Result<()>;
}

/// The gradient of a stage.
#[derive(Clone, Copy)]
pub(super) struct ToStage {
    pub(super) values: Span,
    pub(super) is_of_adapters: bool,
}

pub(super) struct Passing {
    device: Arc<dyn Accelerator>,
    model: GpuTurns,
    arrivals: Arrivals,
    /// The number of the last stage.
    head: usize,
    /// Examples computed at once, at most.
    micro_batch: usize,
}

impl Passing {
    /// Of the transformer of `spec`, with adapters of this rank or none, whose products read weights as `kind`.
    pub(super) fn new(
        device: Arc<dyn Accelerator>,
        spec: &TransformerModel,
        (micro_batch, kind, rank): (usize, Kind, usize),
    ) -> Result<Passing> {
        let stages = stages_of(spec);
        let model = GpuTurns::new(device.clone(), spec, &stages, (kind, rank))?;
        Ok(Passing { device, model, arrivals: Arrivals::default(), head: stages.len() - 1, micro_batch })
    }

    /// The mean loss of a batch; the gradient is left to `weights`. `sums` is for a sum on its way to the host.
    pub(super) fn compute_gradient(&mut self, weights: &mut impl Weighted, batch: &Batch, sums: Span) -> Result<f64> {
        let microbatches: Vec<Batch> = batch.parts(self.micro_batch).collect();
        let batches = microbatches.iter().map(Batch::tokens).collect::<Result<Vec<_>>>()?;
        let share = 1.0 / batch.predictions() as f32;
        // Of each stage but the embedding, the streams that it reads.
        let mut inputs: Vec<Leaving> = Vec::new();
        for stage in 0..self.head {
            let outputs = self.through(weights, stage, &batches, inputs.last_mut())?;
            inputs.push(outputs);
        }
        let (mut to_outputs, mut loss_sum) = (None, 0.0);
        let last = usize::from(!weights.trains_embedding());
        for stage in (last..=self.head).rev() {
            let input = inputs.pop();
            let (to_inputs, loss) =
                self.back_through(weights, stage, &batches, (input, to_outputs.take()), (share, sums))?;
            (to_outputs, loss_sum) = (Some(to_inputs), loss_sum + loss);
        }
        Ok(loss_sum / batch.predictions() as f64)
    }

    pub(super) fn evaluate(&mut self, weights: &mut impl Weighted, batch: &Batch, sums: Span) -> Result<Evaluation> {
        let microbatches: Vec<Batch> = batch.parts(self.micro_batch).collect();
        let batches = microbatches.iter().map(Batch::tokens).collect::<Result<Vec<_>>>()?;
        let mut streams = self.through(weights, 0, &batches, None)?;
        for stage in 1..self.head {
            streams = self.through(weights, stage, &batches, Some(&mut streams))?;
        }
        let (head, mut evaluation) = (self.head, Evaluation::default());
        let of_head = weights.load(head)?;
        let Passing { device, model, arrivals, .. } = self;
        let input = |number| Ok(vec![streams.values(number)?]);
        arrivals.each(&**device, batches.len(), input, |number, places| {
            model.evaluate(head, &of_head, batches[number], places[0])?;
            evaluation = evaluation.with(model.evaluation(batches[number].targets.len(), sums)?);
            Ok(())
        })?;
        Ok(evaluation)
    }

    /// All microbatches through a stage that is not the head.
    fn through(
        &mut self,
        weights: &mut impl Weighted,
        stage: usize,
        batches: &[&TokenBatch],
        mut inputs: Option<&mut Leaving>,
    ) -> Result<Leaving> {
        let of_stage = weights.load(stage)?;
        weights.begin_beside(stage, stage + 1)?;
        let Passing { device, model, arrivals, .. } = self;
        let mut outputs = Leaving::default();
        let input = |number| inputs.iter_mut().map(|inputs| inputs.values(number)).collect();
        arrivals.each(&**device, batches.len(), input, |number, places| {
            outputs.push(model.forward(stage, &of_stage, batches[number], places.first().copied())?)
        })?;
        Ok(outputs)
    }

    /// All microbatches back through a stage: from the gradients of its outputs to those of its inputs, of which the embedding has
    /// none; from the losses where it is the head. Returns the sum of these as well, and leaves the stage's gradient.
    fn back_through(
        &mut self,
        weights: &mut impl Weighted,
        stage: usize,
        batches: &[&TokenBatch],
        (mut inputs, mut to_outputs): (Option<Leaving>, Option<Leaving>),
        (share, sums): (f32, Span),
    ) -> Result<(Leaving, f64)> {
        let of_stage = weights.load(stage)?;
        if stage > 0 {
            weights.begin_beside(stage, stage - 1)?;
        }
        let is_head = to_outputs.is_none();
        let ToStage { values, is_of_adapters } = weights.begin_gradient(stage)?;
        let Passing { device, model, arrivals, .. } = self;
        if stage == 0 {
            model.begin_embedding();
        }
        let (mut to_inputs, mut loss) = (Leaving::default(), 0.0);
        let streams = |number| inputs.iter_mut().chain(&mut to_outputs).map(|of| of.values(number)).collect();
        arrivals.each(&**device, batches.len(), streams, |number, places| {
            let batch = batches[number];
            let gradient = Gradient::new(values, is_of_adapters, number + 1 == batches.len());
            let to_input = match places {
                [input] if is_head => {
                    let to_input = model.backward_of_losses(stage, &of_stage, batch, *input, (share, gradient))?;
                    loss += model.loss_sum(batch.targets.len(), sums)?;
                    Some(to_input)
                }
                [others @ .., to_output] => {
                    model.backward(stage, &of_stage, batch, others.first().copied(), (*to_output, gradient))?
                }
                [] => unreachable!("every stage reads something on the way back"),
            };
            to_input.map_or(Ok(()), |to_input| to_inputs.push(to_input))
        })?;
        weights.end_gradient(stage)?;
        Ok((to_inputs, loss))
    }
}

//! A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, causal attention with grouped queries; where the run says so,
//! with biases in attention, norms of its heads, and layers without positions.
//!
//! Tensors have the names of Hugging Face's Llama checkpoints (and those of its relatives) and rotary positions their
//! convention (halves of a head are paired), so that weights load here and elsewhere.
//!
//! It is cut at blocks: a [`Transformer`] is one stage of the model, and all of it where nobody cuts.
//!
//! What it computes is written once (`network.rs`, `block.rs`, `head.rs`), with the operations of any device
//! (`operations.rs`): here with the processor's (`host.rs`), in [`crate::gpu`] with those of an NVIDIA GPU. `composed.rs`
//! has it once more in candle's operations: what the others are checked against, and for other GPUs.

use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Result, Tensor, bail};
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::TransformerModel;

use super::initial::initial_parameters;
use super::stage::{BackwardOutput, Evaluated, StageSpec, Staged};
use super::{Evaluation, Model, Task};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::Precision;
use crate::ops::embedding::RowSums;
use crate::ops::rotary::RotaryTables;
use crate::ops::{attention, linear};

mod block;
pub(crate) mod composed;
mod head;
mod host;
mod layout;
mod network;
pub(crate) mod operations;
mod passes;
mod turns;
mod weights;
mod workspace;

use composed::Composed;
use host::{HostMemory, HostModel};
pub(crate) use layout::stage_layout;
pub use layout::transformer_layout;
pub(crate) use network::Network;
pub(crate) use passes::Passes;
pub(crate) use turns::{Turn, Turns};
pub(crate) use weights::{Adapters, Weights};
pub(crate) use workspace::{kept_blocks, row_values};

/// The parameters of one stage to begin with, flat in the order of its layout.
pub(crate) fn initial_of_stage(spec: &TransformerModel, stage: &StageSpec, seed: u64) -> Vec<f32> {
    initial_parameters(&stage_layout(spec, stage), spec.layers, seed)
}

/// The architecture in one size, or one stage of it.
pub struct Transformer {
    pub(super) stage: StageSpec,
    layout: Arc<ModelLayout>,
    network: Network,
    model: HostModel,
    passes: Passes<HostMemory>,
    /// Of the microbatches so far, what the embedding adds to a tied table's gradient.
    embedded: RowSums,
}

impl Transformer {
    /// The model of `spec`.
    pub fn new(spec: &TransformerModel) -> Transformer {
        Transformer::of_stage(spec, StageSpec::whole(spec))
    }

    /// One stage of the model of `spec`.
    ///
    /// # Panics
    /// When a stage predicts with the embedding's table (a tied head) and does not embed: the table has one owner.
    pub(crate) fn of_stage(spec: &TransformerModel, stage: StageSpec) -> Transformer {
        let layout = stage_layout(spec, &stage);
        Transformer {
            network: Network::new(spec, &stage, &layout),
            layout: Arc::new(layout),
            stage,
            model: HostModel { spec: spec.clone(), rotary: RotaryTables::of(spec), precision: Precision::F32 },
            passes: Passes::new(false),
            embedded: RowSums::default(),
        }
    }

    /// Which part of the model it is.
    pub(crate) fn stage(&self) -> &StageSpec {
        &self.stage
    }

    /// Another one, to compute beside this one; `None` where activations are computed again.
    pub(super) fn beside(&self) -> Option<Transformer> {
        let another = || {
            let mut another = Transformer::of_stage(&self.model.spec, self.stage.clone());
            another.set_precision(self.model.precision);
            another
        };
        (!self.passes.recompute()).then(another)
    }

    /// What a batch gives at the end of the stage.
    pub(super) fn evaluated(
        &self,
        weights: Weights<'_>,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
    ) -> Result<Evaluated> {
        let mut device = self.model.on(weights, batch, rayon::current_num_threads())?;
        // In memory of its own, where blocks take turns.
        let stream = Passes::new(true).evaluate(&self.network, &mut device, input)?;
        Ok(stream.map_or(Evaluated::Evaluation(device.evaluation), Evaluated::Stream))
    }

    /// As [`Staged::forward`] with any weights.
    pub(super) fn forward_with(
        &mut self,
        weights: Weights<'_>,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
        threads: usize,
    ) -> Result<Option<Vec<f32>>> {
        let device = self.model.on(weights, batch, threads)?;
        self.passes.forward(&self.network, &device, input)
    }

    /// As [`Staged::backward`] with any weights: writes or adds the gradient of what is trained.
    pub(super) fn backward_with(
        &mut self,
        weights: Weights<'_>,
        batch: &TokenBatch,
        to_output: Option<Vec<f32>>,
        task: &Task,
        gradient: &mut [f32],
    ) -> Result<BackwardOutput> {
        let device = self.model.on(weights, batch, task.threads)?;
        let mut device = device.with_gradient(gradient, task, &mut self.embedded);
        let to_input = self.passes.backward(&self.network, &mut device, to_output, task.share)?;
        Ok(BackwardOutput { loss: device.evaluation.loss_sum, to_input })
    }
}

impl Staged for Transformer {
    fn forward(
        &mut self,
        parameters: &[f32],
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
        threads: usize,
    ) -> Result<Option<Vec<f32>>> {
        self.forward_with(Weights::of_trained(parameters), batch, input, threads)
    }

    fn backward(
        &mut self,
        parameters: &[f32],
        batch: &TokenBatch,
        to_output: Option<Vec<f32>>,
        task: &Task,
        gradient: &mut [f32],
    ) -> Result<BackwardOutput> {
        self.backward_with(Weights::of_trained(parameters), batch, to_output, task, gradient)
    }

    fn abandon(&mut self) {
        self.passes.abandon();
    }

    fn evaluate_stage(&mut self, parameters: &[f32], batch: &TokenBatch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        self.evaluated(Weights::of_trained(parameters), batch, input)
    }
}

impl Model for Transformer {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        initial_parameters(&self.layout, self.model.spec.layers, seed)
    }

    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let device = parameters.first().map_or(&Device::Cpu, Tensor::device);
        let HostModel { spec, rotary, precision } = &self.model;
        let weights = |name: &str| self.layout.position(name).map(|place| &parameters[place]);
        let composed = Composed { spec, weights, dtype: precision.dtype(), multiply: linear::composed };
        let attend =
            |_, [query, key, value]: [Tensor; 3]| attention::composed(&query, &key, &value, spec.heads as usize);
        let stream = composed.stream(&batch.tokens()?.to_tensor(device)?, rotary, attend)?;
        composed.logits(&stream)?.reshape((batch.predictions(), ()))
    }

    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        let batch = batch.tokens()?;
        self.forward(parameters, batch, None, task.threads)?;
        Ok(self.backward(parameters, batch, None, task, gradient)?.loss)
    }

    fn another(&self) -> Option<Box<dyn Model>> {
        self.beside().map(|another| Box::new(another) as Box<dyn Model>)
    }

    fn staged(&mut self) -> Option<&mut dyn Staged> {
        Some(self)
    }

    fn forward_time(&self) -> Option<Duration> {
        Some(self.passes.forward_time())
    }

    fn set_recompute(&mut self, recompute: bool) {
        self.passes = Passes::new(recompute);
    }

    fn set_precision(&mut self, precision: Precision) {
        self.model.precision = precision;
    }

    fn evaluate(&self, parameters: &[f32], batch: &Batch) -> Result<Evaluation> {
        match self.evaluated(Weights::of_trained(parameters), batch.tokens()?, None)? {
            Evaluated::Evaluation(evaluation) => Ok(evaluation),
            Evaluated::Stream(_) => bail!("this is one stage of a model: alone it evaluates nothing"),
        }
    }
}

#[cfg(test)]
mod tests;

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

use candle_core::{Device, Result, Tensor, bail};
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::{LoraSpec, TransformerModel};

use super::initial::initial_parameters;
use super::lora::{Frozen, initial_adapters, lora_layout};
use super::stage::{BackwardOutput, Evaluated, StageSpec};
use super::{Evaluation, Model, Task};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::Precision;
use crate::ops::base_weights::BaseWeights;
use crate::ops::embedding::RowSums;
use crate::ops::rotary::RotaryTables;

mod block;
mod composed;
mod decoder;
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
pub(crate) use decoder::{Decoder, parts};
pub(crate) use host::HostMemory;
use host::HostModel;
pub(crate) use host::predicted_at_once;
pub use layout::transformer_layout;
pub(crate) use layout::{held_layout, stage_layout};
pub(crate) use network::Network;
pub(crate) use passes::Passes;
pub(crate) use turns::{Turn, Turns};
use weights::Weights;
pub(crate) use workspace::{kept_blocks, row_values};

/// The parameters of one stage to begin with, flat in the order of its layout.
pub(crate) fn initial_of_stage(spec: &TransformerModel, stage: &StageSpec, seed: u64) -> Vec<f32> {
    initial_parameters(&stage_layout(spec, stage), spec.layers, seed)
}

/// The architecture in one size, or one stage of it. All of it is trained, or adapters beside it ([`super::lora`]).
pub struct Transformer {
    pub(super) stage: StageSpec,
    /// Of what is trained.
    layout: Arc<ModelLayout>,
    /// Of what it computes with: see [`held_layout`].
    held: Arc<ModelLayout>,
    /// Beside which adapters are trained.
    base: Option<Arc<Frozen>>,
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

    /// One stage of the model of `spec`. Where it predicts with a copy of another stage's table, that lies in flat vectors behind
    /// all that its layout has.
    pub(crate) fn of_stage(spec: &TransformerModel, stage: StageSpec) -> Transformer {
        let held = held_layout(spec, &stage);
        Transformer {
            network: Network::new(spec, &stage, &held),
            layout: Arc::new(stage_layout(spec, &stage)),
            held: Arc::new(held),
            base: None,
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

    /// Of what it computes with: its own tensors, and behind them a copy of another stage's.
    pub(crate) fn held_layout(&self) -> &ModelLayout {
        &self.held
    }

    /// The same where these weights, flat in the order of what it computes with, are held in the bits of `spec` and do not change:
    /// adapters beside them are trained.
    ///
    /// # Panics
    /// When the number of weights is not the model's.
    pub fn with_adapters(self, weights: impl Into<BaseWeights>, spec: &LoraSpec) -> Transformer {
        let frozen = Frozen::new((&self.layout, self.held.clone()), weights.into(), spec);
        Transformer { base: Some(Arc::new(frozen)), layout: Arc::new(lora_layout(&self.layout, spec)), ..self }
    }

    /// Reads `tokens`, at least one and at most what the context has room for, and gives the logits of the one after them.
    pub(crate) fn read(
        &self,
        parameters: &[f32],
        tokens: &[u32],
        decoder: &mut Decoder<HostMemory>,
    ) -> Result<Vec<f32>> {
        // On a thread of rayon's, or each small operation would wait for one.
        rayon::scope(|_| {
            let mut logits = Vec::new();
            for part in parts(tokens) {
                let device = self.model.on(self.weights(parameters), &part, rayon::current_num_threads())?;
                logits = decoder.read(&self.network, &device.after(decoder.length()))?;
            }
            Ok(logits)
        })
    }

    fn weights<'a>(&'a self, parameters: &'a [f32]) -> Weights<'a> {
        Weights::of(self.base.as_deref(), parameters)
    }
}

/// As one stage of several. Streams are given away and taken over, never copied: a buffer that went with the forward comes back
/// with the backward.
impl Transformer {
    /// The forward of a microbatch: from tokens, or from the `input` stream where the stage does not embed. Returns the output
    /// stream, which stays here where the stage predicts. Keeps what [`Transformer::backward`] needs.
    ///
    /// # Errors
    /// When the batch does not fit the model.
    pub(crate) fn forward(
        &mut self,
        parameters: &[f32],
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
        threads: usize,
    ) -> Result<Option<Vec<f32>>> {
        let Transformer { network, model, base, passes, .. } = self;
        let device = model.on(Weights::of(base.as_deref(), parameters), batch, threads)?;
        passes.forward(network, &device, input)
    }

    /// The backward of the microbatch whose forward was first of those that wait for theirs: from the losses, or from the
    /// gradient `to_output` of the output stream where the stage does not predict. Writes or adds the gradient of the weights.
    ///
    /// # Errors
    /// When the batch does not fit the model.
    ///
    /// # Panics
    /// When no forward waits.
    pub(crate) fn backward(
        &mut self,
        parameters: &[f32],
        batch: &TokenBatch,
        to_output: Option<Vec<f32>>,
        task: &Task,
        gradient: &mut [f32],
    ) -> Result<BackwardOutput> {
        let Transformer { network, model, base, passes, embedded, .. } = self;
        let device = model.on(Weights::of(base.as_deref(), parameters), batch, task.threads)?;
        let mut device = device.with_gradient(gradient, task, embedded);
        let to_input = passes.backward(network, &mut device, to_output, task.share)?;
        Ok(BackwardOutput { loss: device.evaluation.loss_sum, to_input })
    }

    /// Forgets forwards that wait for a backward that never comes.
    pub(crate) fn abandon(&mut self) {
        self.passes.abandon();
    }

    /// As [`Transformer::forward`] without a backward to come.
    ///
    /// # Errors
    /// When the batch does not fit the model.
    pub(crate) fn evaluate_stage(
        &self,
        parameters: &[f32],
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
    ) -> Result<Evaluated> {
        let mut device = self.model.on(self.weights(parameters), batch, rayon::current_num_threads())?;
        // In memory of its own, where blocks take turns.
        let stream = Passes::new(true).evaluate(&self.network, &mut device, input)?;
        Ok(stream.map_or(Evaluated::Evaluation(device.evaluation), Evaluated::Stream))
    }
}

impl Model for Transformer {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn copied(&self) -> usize {
        // With adapters it is frozen like the rest.
        if self.base.is_some() { 0 } else { self.held.parameters() - self.layout.parameters() }
    }

    fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        match &self.base {
            Some(_) => initial_adapters(&self.layout, seed),
            None => initial_parameters(&self.layout, self.model.spec.layers, seed),
        }
    }

    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let device = parameters.first().map_or(&Device::Cpu, Tensor::device);
        let HostModel { spec, rotary, precision } = &self.model;
        let folded = self.base.as_ref().map(|base| base.folded(&self.layout, parameters, device)).transpose()?;
        let (layout, parameters) = match (&self.base, &folded) {
            (Some(base), Some(folded)) => (base.layout(), &folded[..]),
            _ => (&self.layout, parameters),
        };
        let weights = |name: &str| layout.position(name).map(|place| &parameters[place]);
        let composed = Composed { spec, rotary, weights, dtype: precision.dtype() };
        composed.logits(&batch.tokens()?.to_tensor(device)?)?.reshape((batch.predictions(), ()))
    }

    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        let batch = batch.tokens()?;
        self.forward(parameters, batch, None, task.threads)?;
        Ok(self.backward(parameters, batch, None, task, gradient)?.loss)
    }

    fn another(&self) -> Option<Box<dyn Model>> {
        if self.passes.recompute() {
            return None;
        }
        let mut another = Transformer::of_stage(&self.model.spec, self.stage.clone());
        another.set_precision(self.model.precision);
        Some(Box::new(Transformer { layout: self.layout.clone(), base: self.base.clone(), ..another }))
    }

    fn staged(&mut self) -> Option<&mut Transformer> {
        Some(self)
    }

    fn release(&mut self) {
        self.passes.release();
    }

    fn set_recompute(&mut self, recompute: bool) {
        self.passes = Passes::new(recompute);
    }

    fn set_precision(&mut self, precision: Precision) {
        self.model.precision = precision;
    }

    fn evaluate(&self, parameters: &[f32], batch: &Batch) -> Result<Evaluation> {
        match self.evaluate_stage(parameters, batch.tokens()?, None)? {
            Evaluated::Evaluation(evaluation) => Ok(evaluation),
            Evaluated::Stream(_) => bail!("this is one stage of a model: alone it evaluates nothing"),
        }
    }
}

#[cfg(test)]
mod tests;

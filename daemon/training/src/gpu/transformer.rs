//! A transformer on a GPU: what `model/transformer` computes on any device, with the operations of this one.
//!
//! The residual stream, its gradient and sums over rows are `f32`; what matrices are multiplied in is the kind of the
//! weights given. Backward computes attention's probabilities, norms and SwiGLU again instead of keeping them.

use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::manifest::TransformerModel;

use super::rows::RowSums;
use super::weights::{Gradient, Weights};
use super::{Accelerator, Argument, HEAD_COLUMNS, Kind, Memory, Product, Span, bytes_of, of_kind, sizes};
use crate::data::TokenBatch;
use crate::model::transformer::operations::attention_of;
use crate::model::transformer::{Decoder, Network, Passes, held_layout, parts};
use crate::model::{Evaluation, StageSpec};
use crate::ops::attention::Attention;
use crate::ops::rotary::RotaryTables;

mod attention;
mod in_turns;
mod linear;
mod memory;
mod operations;
#[cfg(test)]
mod tests;

pub(crate) use in_turns::GpuTurns;
pub(crate) use memory::activation_values;
use memory::{GpuMemory, Scratch, fuses_attention};

pub(crate) struct GpuTransformer {
    network: Network,
    model: GpuModel,
    passes: Passes<GpuMemory>,
    /// Of the largest batch so far.
    scratch: Option<Scratch>,
    /// Of the microbatches so far, what the embedding adds to a tied table's gradient.
    embedded: RowSums,
}

/// What all batches of a model have in common.
struct GpuModel {
    device: Arc<dyn Accelerator>,
    spec: TransformerModel,
    /// Of what matrices are multiplied in.
    kind: Kind,
    /// Whether attention is one kernel, not products of scores that are held.
    fuses_attention: bool,
    /// Of adapters; 0 without.
    rank: usize,
    /// Of layers that turn queries and keys.
    angles: Angles,
    /// Of layers that do not, where there are some: no turn.
    no_angles: Option<Angles>,
}

/// One batch with its weights.
struct Gpu<'a> {
    model: &'a GpuModel,
    attention: Attention,
    scratch: &'a Scratch,
    weights: &'a Weights,
    batch: &'a TokenBatch,
    /// Tokens of its text that caches hold.
    past: usize,
    /// Where the gradient is added, of a backward.
    gradient: Option<Gradient>,
    embedded: &'a mut RowSums,
}

/// By which queries and keys are turned, each `[context, half a head's width]`.
struct Angles {
    cosines: Memory,
    sines: Memory,
}

impl Angles {
    fn new(device: &dyn Accelerator, cosines: &[f32], sines: &[f32]) -> Result<Angles> {
        let table = |values: &[f32]| {
            let memory = device.allocate(Kind::F32, values.len())?;
            device.upload(bytes_of(values), memory.span())?;
            Ok::<Memory, candle_core::Error>(memory)
        };
        Ok(Angles { cosines: table(cosines)?, sines: table(sines)? })
    }

    fn spans(&self) -> [Span; 2] {
        [self.cosines.span(), self.sines.span()]
    }
}

impl GpuModel {
    fn new(device: Arc<dyn Accelerator>, spec: &TransformerModel, kind: Kind, rank: usize) -> Result<GpuModel> {
        let (tables, head_width) = (RotaryTables::of(spec), spec.resolved_head_width() as usize);
        assert!(head_width <= HEAD_COLUMNS * sizes().threads, "the ranges of a run's model");
        let values = tables.cosines().len();
        let angles = Angles::new(&*device, tables.cosines(), tables.sines())?;
        let no_angles = (!spec.layers_without_rope.is_empty())
            .then(|| Angles::new(&*device, &vec![1.0; values], &vec![0.0; values]))
            .transpose()?;
        let fuses_attention = fuses_attention(kind, head_width);
        Ok(GpuModel { device, spec: spec.clone(), kind, fuses_attention, rank, angles, no_angles })
    }

    fn width(&self) -> usize {
        self.spec.width as usize
    }
}

impl Gpu<'_> {
    fn epsilon(&self) -> Argument {
        Argument::from(self.model.spec.norm_epsilon as f32)
    }

    /// Runs a kernel for what products read.
    fn launch(&self, kernel: &str, blocks: usize, arguments: &[Argument]) -> Result<()> {
        self.model.device.launch(&of_kind(kernel, self.model.kind), blocks, arguments)
    }

    fn gradient(&self) -> Gradient {
        self.gradient.expect("a backward has a place for its gradient")
    }

    fn multiply(&self, product: Product) -> Result<()> {
        self.model.device.multiply(&product)
    }
}

impl GpuTransformer {
    pub(crate) fn new(
        device: Arc<dyn Accelerator>,
        spec: &TransformerModel,
        stage: &StageSpec,
        (kind, recompute, rank): (Kind, bool, usize),
    ) -> Result<GpuTransformer> {
        Ok(GpuTransformer {
            network: Network::new(spec, stage, &held_layout(spec, stage)),
            model: GpuModel::new(device, spec, kind, rank)?,
            passes: Passes::new(recompute),
            scratch: None,
            embedded: RowSums::default(),
        })
    }

    /// What computes a batch that fits this model, or the next part of a text of which so many tokens were read.
    fn on<'a>(
        &'a mut self,
        weights: &'a Weights,
        batch: &'a TokenBatch,
        gradient: Option<Gradient>,
        read: Option<usize>,
    ) -> Result<(&'a Network, &'a mut Passes<GpuMemory>, Gpu<'a>)> {
        let GpuTransformer { network, model, passes, scratch, embedded } = self;
        let attention = attention_of(&model.spec, batch)?;
        let scratch = Scratch::that_fits(scratch, model, &attention, read.is_some())?;
        let past = read.unwrap_or(0);
        Ok((network, passes, Gpu { model, attention, scratch, weights, batch, past, gradient, embedded }))
    }

    /// The forward of a microbatch through this stage, of whose output the stream is returned where it does not predict. What
    /// its backward needs is kept.
    pub(crate) fn forward(
        &mut self,
        weights: &Weights,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
    ) -> Result<Option<Vec<f32>>> {
        let (network, passes, device) = self.on(weights, batch, None, None)?;
        passes.forward(network, &device, input)
    }

    /// The backward of the oldest forward that waits: from the losses, whose sum [`GpuTransformer::loss_sum`] tells, or from
    /// the gradient of the output. Returns that of the input where there is one.
    pub(crate) fn backward(
        &mut self,
        weights: &Weights,
        batch: &TokenBatch,
        to_output: Option<Vec<f32>>,
        share: f32,
        gradient: Gradient,
    ) -> Result<Option<Vec<f32>>> {
        let (network, passes, mut device) = self.on(weights, batch, Some(gradient), None)?;
        passes.backward(network, &mut device, to_output, share)
    }

    /// Forgets forwards that wait for a backward that never comes.
    pub(crate) fn abandon(&mut self) {
        self.passes.abandon();
    }

    /// Forgets what a batch that was given up has left of a gradient.
    pub(crate) fn begin_gradient(&mut self) {
        self.embedded.clear();
    }

    /// The output stream of a batch, or nothing: then [`GpuTransformer::evaluation`] tells how well it was predicted.
    pub(crate) fn evaluate(
        &mut self,
        weights: &Weights,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
    ) -> Result<Option<Vec<f32>>> {
        let (network, passes, mut device) = self.on(weights, batch, None, None)?;
        passes.evaluate(network, &mut device, input)
    }

    /// Reads `tokens`, at least one and at most what the context has room for, and gives the logits of the one after them.
    pub(crate) fn read(
        &mut self,
        weights: &Weights,
        tokens: &[u32],
        decoder: &mut Decoder<GpuMemory>,
    ) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        for part in parts(tokens) {
            let (network, _, device) = self.on(weights, &part, None, Some(decoder.length()))?;
            logits = decoder.read(network, &device)?;
        }
        Ok(logits)
    }

    /// Of the last batch, so many predictions; `sums` is for a sum that is on its way to the host.
    pub(crate) fn evaluation(&self, predictions: usize, sums: Span) -> Result<Evaluation> {
        self.scratch().evaluation(&*self.model.device, predictions, sums)
    }

    /// The sum of the losses of these.
    pub(crate) fn loss_sum(&self, predictions: usize, sums: Span) -> Result<f64> {
        self.scratch().loss_sum(&*self.model.device, predictions, sums)
    }

    fn scratch(&self) -> &Scratch {
        self.scratch.as_ref().expect("a batch has begun")
    }
}

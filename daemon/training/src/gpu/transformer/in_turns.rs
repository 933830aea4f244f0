//! A transformer whose stages take turns on a GPU: embedding, each block, and the head. The weights of a stage are given with each
//! call, and the streams that it reads; those that it gives go to the machine's memory.

use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::manifest::TransformerModel;

use super::memory::{GpuMemory, Scratch};
use super::{Gpu, GpuModel};
use crate::data::TokenBatch;
use crate::gpu::rows::RowSums;
use crate::gpu::weights::{Gradient, Weights};
use crate::gpu::{Accelerator, Kind, Span};
use crate::model::transformer::operations::attention_of;
use crate::model::transformer::{Network, Turn, Turns, held_layout};
use crate::model::{Evaluation, StageSpec};
use crate::replica::Transfer;

pub(crate) struct GpuTurns {
    /// Of each stage.
    networks: Vec<Network>,
    model: GpuModel,
    turns: Turns<GpuMemory>,
    /// Of the largest batch so far.
    scratch: Option<Scratch>,
    /// Of the microbatches so far, what the embedding adds to a tied table's gradient.
    embedded: RowSums,
}

impl GpuTurns {
    /// Of these stages, which have one block at most; with adapters of this rank, or none.
    pub(crate) fn new(
        device: Arc<dyn Accelerator>,
        spec: &TransformerModel,
        stages: &[StageSpec],
        (kind, rank): (Kind, usize),
    ) -> Result<GpuTurns> {
        let network = |stage: &StageSpec| Network::new(spec, stage, &held_layout(spec, stage));
        Ok(GpuTurns {
            networks: stages.iter().map(network).collect(),
            model: GpuModel::new(device, spec, kind, rank)?,
            turns: Turns::new(spec.vocabulary as usize),
            scratch: None,
            embedded: RowSums::default(),
        })
    }

    /// Forgets what a batch that was given up has left of the embedding's gradient.
    pub(crate) fn begin_embedding(&mut self) {
        self.embedded.clear();
    }

    /// A batch in a stage, with the stream that it reads.
    fn on<'a>(
        &'a mut self,
        stage: usize,
        weights: &'a Weights,
        batch: &'a TokenBatch,
        input: Option<Span>,
        gradient: Option<Gradient>,
    ) -> Result<(Turn<'a, GpuMemory>, Gpu<'a>)> {
        let GpuTurns { networks, model, turns, scratch, embedded } = self;
        let attention = attention_of(&model.spec, batch)?;
        let scratch = Scratch::that_fits(scratch, model, &attention, false)?;
        let device = Gpu { model, attention, scratch, weights, batch, past: 0, gradient, embedded };
        let mut turn = turns.enter(&networks[stage], &device)?;
        if let Some(input) = input {
            device.copy_stream(input, turn.input())?;
        }
        Ok((turn, device))
    }

    /// The stream that a stage gives, which is not the head.
    pub(crate) fn forward(
        &mut self,
        stage: usize,
        weights: &Weights,
        batch: &TokenBatch,
        input: Option<Span>,
    ) -> Result<Transfer<Vec<f32>>> {
        let (mut turn, device) = self.on(stage, weights, batch, input, None)?;
        turn.forward(&device)?;
        device.begin_download(turn.output())
    }

    /// Leaves the losses of the head, and which rows' targets were the likeliest, for [`GpuTurns::evaluation`].
    pub(crate) fn evaluate(&mut self, stage: usize, weights: &Weights, batch: &TokenBatch, input: Span) -> Result<()> {
        let (mut turn, mut device) = self.on(stage, weights, batch, Some(input), None)?;
        turn.losses(&mut device, None)
    }

    /// The same of so large a share of the losses, back to the gradient of the input.
    pub(crate) fn backward_of_losses(
        &mut self,
        stage: usize,
        weights: &Weights,
        batch: &TokenBatch,
        input: Span,
        (share, gradient): (f32, Gradient),
    ) -> Result<Transfer<Vec<f32>>> {
        let (mut turn, mut device) = self.on(stage, weights, batch, Some(input), Some(gradient))?;
        turn.losses(&mut device, Some(share))?;
        device.begin_download(turn.stream_gradient())
    }

    /// From the gradient of the output of a stage that is not the head to that of its input; none of the embedding.
    pub(crate) fn backward(
        &mut self,
        stage: usize,
        weights: &Weights,
        batch: &TokenBatch,
        input: Option<Span>,
        (to_output, gradient): (Span, Gradient),
    ) -> Result<Option<Transfer<Vec<f32>>>> {
        let (mut turn, mut device) = self.on(stage, weights, batch, input, Some(gradient))?;
        device.copy_stream(to_output, turn.stream_gradient())?;
        turn.backward(&mut device)?;
        input.is_some().then(|| device.begin_download(turn.stream_gradient())).transpose()
    }

    /// As [`super::GpuTransformer::evaluation`].
    pub(crate) fn evaluation(&self, predictions: usize, sums: Span) -> Result<Evaluation> {
        self.scratch().evaluation(&*self.model.device, predictions, sums)
    }

    /// As [`super::GpuTransformer::loss_sum`].
    pub(crate) fn loss_sum(&self, predictions: usize, sums: Span) -> Result<f64> {
        self.scratch().loss_sum(&*self.model.device, predictions, sums)
    }

    fn scratch(&self) -> &Scratch {
        self.scratch.as_ref().expect("a batch has begun")
    }
}

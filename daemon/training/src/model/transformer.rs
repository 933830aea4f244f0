//! A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, causal attention with grouped queries; where the run says so,
//! with biases in attention, norms of its heads, and layers without positions.
//!
//! Tensors have the names of Hugging Face's Llama checkpoints (and those of its relatives) and rotary positions their
//! convention (halves of a head are paired), so that weights load here and elsewhere.
//!
//! It is cut at blocks: a [`Transformer`] is one stage of the model, and all of it where nobody cuts.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{Result, Tensor, bail};
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::ModelSpec;

use super::initial::initial_parameters;
use super::stage::{BackwardOutput, Evaluated, StageSpec, Staged};
use super::{Evaluation, Model, Task, Write};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::Precision;
use crate::ops::attention::Attention;
use crate::ops::embedding;
use crate::ops::product::Products;
use crate::ops::rotary::RotaryTables;

mod block;
mod composed;
mod frame;
mod head;
mod layout;
mod weights;
mod workspace;

use block::Block;
use frame::Frame;
use head::Head;
pub(crate) use layout::stage_layout;
pub use layout::transformer_layout;
use weights::Gradient;
pub(crate) use weights::{Adapters, Weights};
use workspace::{Pass, Workspace};

/// The architecture in one size, or one stage of it.
pub struct Transformer {
    spec: ModelSpec,
    pub(super) stage: StageSpec,
    layout: Arc<ModelLayout>,
    rotary: RotaryTables,
    /// Where the embedding lies, of a stage that embeds.
    embedding: Option<Range<usize>>,
    blocks: Vec<Block>,
    /// Of a stage that predicts.
    head: Option<Head>,
    /// Whether the backward computes activations again.
    recompute: bool,
    /// What matrices are multiplied in.
    precision: Precision,
    /// From the microbatch before.
    workspace: Option<Workspace>,
    /// Forwards whose backward is to come, in order.
    waiting: VecDeque<Pass>,
    /// Buffers of passes that are over.
    free: Vec<Pass>,
    /// Of all gradients so far.
    forward_time: Duration,
}

impl Transformer {
    /// The model of `spec`.
    pub fn new(spec: &ModelSpec) -> Transformer {
        Transformer::of_stage(spec, StageSpec::whole(spec))
    }

    /// One stage of the model of `spec`.
    ///
    /// # Panics
    /// When a stage predicts with the embedding's table (a tied head) and does not embed: the table has one owner.
    pub(crate) fn of_stage(spec: &ModelSpec, stage: StageSpec) -> Transformer {
        let layout = stage_layout(spec, &stage);
        Transformer {
            rotary: RotaryTables::of(spec),
            embedding: layout.tensor("model.embed_tokens.weight").map(|tensor| tensor.range()),
            blocks: stage.layers.clone().map(|layer| Block::new(&layout, spec, layer)).collect(),
            head: stage.predicts.then(|| Head::new(&layout)),
            layout: Arc::new(layout),
            stage,
            spec: spec.clone(),
            recompute: false,
            precision: Precision::F32,
            workspace: None,
            waiting: VecDeque::new(),
            free: Vec::new(),
            forward_time: Duration::ZERO,
        }
    }

    /// Which part of the model it is.
    pub(crate) fn stage(&self) -> &StageSpec {
        &self.stage
    }

    /// Another one, to compute beside this one; `None` where activations are computed again.
    pub(super) fn beside(&self) -> Option<Transformer> {
        let another =
            || Transformer { precision: self.precision, ..Transformer::of_stage(&self.spec, self.stage.clone()) };
        (!self.recompute).then(another)
    }

    /// Logits of the token after the last of `tokens`, for flat `parameters` on the CPU.
    ///
    /// # Errors
    /// When there are no tokens, more than the context, or one outside of the vocabulary.
    #[cfg(test)]
    pub(crate) fn next_token_logits(&self, parameters: &[f32], tokens: &[u32]) -> Result<Vec<f32>> {
        let batch = TokenBatch { inputs: tokens.to_vec(), targets: tokens.to_vec(), sequences: 1 };
        let frame = self.frame(&batch)?;
        let weights = Weights::of_trained(parameters);
        let (pass, mut workspace) = self.forward_once(&frame, weights, tokens, None);
        let stream = &pass.streams[self.blocks.len()][(tokens.len() - 1) * frame.width..];
        let mut logits = vec![0.0; self.spec.vocabulary as usize];
        let head = self.head.as_ref().expect("the whole model predicts");
        head.predict(&frame, weights, stream, &mut logits, &mut workspace.scratch.normalised[..frame.width]);
        Ok(logits)
    }

    /// What the blocks need to know of a batch that fits this model.
    fn frame(&self, batch: &TokenBatch) -> Result<Frame<'_>> {
        let (spec, length) = (&self.spec, batch.length());
        if length == 0 || length > spec.context as usize {
            bail!("a sequence of {length} tokens for a context of {}", spec.context);
        }
        let tokens = batch.inputs.iter().chain(&batch.targets);
        if let Some(token) = tokens.max().filter(|token| **token >= spec.vocabulary) {
            bail!("token {token} of a vocabulary of {}", spec.vocabulary);
        }
        let attention = Attention {
            sequences: batch.sequences,
            length,
            heads: spec.heads as usize,
            key_heads: spec.resolved_key_value_heads() as usize,
            head_width: spec.resolved_head_width() as usize,
        };
        let (width, inner) = (spec.width as usize, spec.feed_forward as usize);
        Ok(Frame {
            attention,
            width,
            inner,
            epsilon: spec.norm_epsilon as f32,
            rotary: &self.rotary,
            has_head_norm: spec.head_norm,
            products: Products { threads: rayon::current_num_threads(), rounding: self.precision.rounding() },
        })
    }

    /// Buffers for one microbatch at a time.
    fn new_workspace(&self, frame: &Frame<'_>, shares_kept: bool) -> Workspace {
        Workspace::new(frame, shares_kept, self.head.as_ref().map(|head| head.logits(frame.rows())))
    }

    /// Fills the streams, and what is kept of the blocks.
    fn fill(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        tokens: &[u32],
        input: Option<Vec<f32>>,
        (pass, workspace): (&mut Pass, &mut Workspace),
    ) {
        match (&self.embedding, input) {
            (Some(table), _) => weights.embed(table, tokens, &mut pass.streams[0]),
            (None, Some(input)) if input.len() == frame.rows() * frame.width => pass.streams[0] = input,
            (None, _) => panic!("a stage that does not embed reads a stream of the batch's size"),
        }
        for (layer, block) in self.blocks.iter().enumerate() {
            let kept = workspace.shared.as_mut().unwrap_or_else(|| &mut pass.kept[layer]);
            let (before, after) = pass.streams.split_at_mut(layer + 1);
            block.activate(frame, weights, &before[layer], kept, &mut workspace.scratch);
            block.finish(frame, weights, kept, &mut after[0], &mut workspace.scratch);
        }
    }

    /// A forward without a backward to come.
    fn forward_once(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        tokens: &[u32],
        input: Option<Vec<f32>>,
    ) -> (Pass, Workspace) {
        let mut workspace = self.new_workspace(frame, true);
        let mut pass = Pass::new(frame, self.blocks.len(), 0, self.stage.embeds);
        self.fill(frame, weights, tokens, input, (&mut pass, &mut workspace));
        (pass, workspace)
    }

    /// What a batch gives at the end of the stage.
    pub(super) fn evaluated(
        &self,
        weights: Weights<'_>,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
    ) -> Result<Evaluated> {
        let frame = self.frame(batch)?;
        let (mut pass, mut workspace) = self.forward_once(&frame, weights, &batch.inputs, input);
        let stream = std::mem::take(&mut pass.streams[self.blocks.len()]);
        let Some(head) = &self.head else { return Ok(Evaluated::Stream(stream)) };
        let Workspace { logits, scratch, .. } = &mut workspace;
        let ends = (&stream[..], &batch.targets[..]);
        Ok(Evaluated::Evaluation(head.evaluate(&frame, weights, ends, (logits, scratch))))
    }

    /// Turns `to_stream` from the gradient of the last stream into that of the first, and writes that of the weights.
    fn blocks_backward(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        gradient: &mut Gradient<'_>,
        (pass, workspace): (&mut Pass, &mut Workspace),
        to_stream: &mut [f32],
    ) {
        let Workspace { shared, scratch, .. } = workspace;
        for (layer, block) in self.blocks.iter().enumerate().rev() {
            let input = &pass.streams[layer];
            let kept = match shared {
                Some(shared) => {
                    block.activate(frame, weights, input, shared, scratch);
                    shared
                }
                None => &mut pass.kept[layer],
            };
            block.backward(frame, weights, gradient, (input, kept), to_stream, scratch);
        }
    }

    /// As [`Staged::forward`] with any weights.
    pub(super) fn forward_with(
        &mut self,
        weights: Weights<'_>,
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
        threads: usize,
    ) -> Result<Option<Vec<f32>>> {
        let (workspace, mut free) = (self.workspace.take(), std::mem::take(&mut self.free));
        let frame = self.frame(batch)?.on(threads);
        let kept = if self.recompute { 0 } else { self.blocks.len() };
        let workspace = workspace.filter(|workspace| workspace.fits(frame.rows(), self.recompute));
        let mut workspace = workspace.unwrap_or_else(|| self.new_workspace(&frame, self.recompute));
        free.retain(|pass| pass.fits(frame.rows(), kept));
        let new_pass = || Pass::new(&frame, self.blocks.len(), kept, self.stage.embeds);
        let mut pass = free.pop().unwrap_or_else(new_pass);
        let begin = Instant::now();
        self.fill(&frame, weights, &batch.inputs, input, (&mut pass, &mut workspace));
        self.forward_time += begin.elapsed();
        let output = (!self.stage.predicts).then(|| std::mem::take(&mut pass.streams[self.blocks.len()]));
        (self.workspace, self.free) = (Some(workspace), free);
        self.waiting.push_back(pass);
        Ok(output)
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
        let mut pass = self.waiting.pop_front().expect("a backward comes after its forward");
        let Task { share, write, threads } = *task;
        let workspace = self.workspace.take();
        let frame = self.frame(batch)?.on(threads);
        let workspace = workspace.filter(|workspace| workspace.fits(frame.rows(), self.recompute));
        let mut workspace = workspace.unwrap_or_else(|| self.new_workspace(&frame, self.recompute));
        let (last, mut gradient) = (self.blocks.len(), weights.gradient(gradient, write, frame.products));
        let (loss, mut to_stream) = match (&self.head, to_output) {
            (Some(head), _) => {
                let Workspace { scratch, to_stream, logits, .. } = &mut workspace;
                let mut to_stream = std::mem::take(to_stream);
                let ends = (&pass.streams[last][..], &mut to_stream[..]);
                let answers = (&batch.targets[..], share);
                let buffers = (&mut logits[..], scratch);
                (head.loss_and_backward(&frame, weights, &mut gradient, ends, answers, buffers), to_stream)
            }
            (None, Some(to_output)) => (0.0, to_output),
            (None, None) => panic!("a stage that does not predict is given the gradient of its output"),
        };
        self.blocks_backward(&frame, weights, &mut gradient, (&mut pass, &mut workspace), &mut to_stream);
        // The buffer that stays takes the place of the one that was given away.
        let (to_input, spare) = match &self.embedding {
            Some(table) => {
                if let Some((to_table, write)) = gradient.place(table) {
                    // A tied head has written there already.
                    if write == Write::Replace && !(self.stage.predicts && self.spec.tied_head) {
                        to_table.fill(0.0);
                    }
                    embedding::backward(to_table, &to_stream, &batch.inputs);
                }
                (None, to_stream)
            }
            None => (Some(to_stream), std::mem::take(&mut pass.streams[0])),
        };
        if self.stage.predicts {
            workspace.to_stream = spare;
        } else {
            pass.streams[last] = spare;
        }
        self.workspace = Some(workspace);
        self.free.push(pass);
        Ok(BackwardOutput { loss, to_input })
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
        self.waiting.clear();
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
        initial_parameters(&self.layout, self.spec.layers, seed)
    }

    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        self.composed_logits(parameters, batch)
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
        Some(self.forward_time)
    }

    fn set_recompute(&mut self, recompute: bool) {
        self.recompute = recompute;
    }

    fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
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

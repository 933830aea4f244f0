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
mod head;
mod layout;
mod workspace;

use block::{Block, Frame, Gradient};
use head::Head;
pub(crate) use layout::stage_layout;
pub use layout::transformer_layout;
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
        Transformer::stage(spec, StageSpec::whole(spec))
    }

    /// One stage of the model of `spec`.
    ///
    /// # Panics
    /// When a stage predicts with the embedding's table (a tied head) and does not embed: the table has one owner.
    pub(crate) fn stage(spec: &ModelSpec, stage: StageSpec) -> Transformer {
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

    /// Logits of the token after the last of `tokens`, for flat `parameters` on the CPU.
    ///
    /// # Errors
    /// When there are no tokens, more than the context, or one outside of the vocabulary.
    #[cfg(test)]
    pub(crate) fn next_token_logits(&self, parameters: &[f32], tokens: &[u32]) -> Result<Vec<f32>> {
        let batch = TokenBatch { inputs: tokens.to_vec(), targets: tokens.to_vec(), sequences: 1 };
        let frame = self.frame(&batch)?;
        let (pass, mut workspace) = self.forward_once(&frame, parameters, tokens, None);
        let stream = &pass.streams[self.blocks.len()][(tokens.len() - 1) * frame.width..];
        let mut logits = vec![0.0; self.spec.vocabulary as usize];
        let head = self.head.as_ref().expect("the whole model predicts");
        head.predict(&frame, parameters, stream, &mut logits, &mut workspace.scratch.normalised[..frame.width]);
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
        parameters: &[f32],
        tokens: &[u32],
        input: Option<Vec<f32>>,
        (pass, workspace): (&mut Pass, &mut Workspace),
    ) {
        match (&self.embedding, input) {
            (Some(table), _) => embedding::forward(&mut pass.streams[0], &parameters[table.clone()], tokens),
            (None, Some(input)) if input.len() == frame.rows() * frame.width => pass.streams[0] = input,
            (None, _) => panic!("a stage that does not embed reads a stream of the batch's size"),
        }
        for (layer, block) in self.blocks.iter().enumerate() {
            let kept = workspace.shared.as_mut().unwrap_or_else(|| &mut pass.kept[layer]);
            let (before, after) = pass.streams.split_at_mut(layer + 1);
            block.activate(frame, parameters, &before[layer], kept, &mut workspace.scratch);
            block.finish(frame, parameters, kept, &mut after[0], &mut workspace.scratch);
        }
    }

    /// A forward without a backward to come.
    fn forward_once(
        &self,
        frame: &Frame<'_>,
        parameters: &[f32],
        tokens: &[u32],
        input: Option<Vec<f32>>,
    ) -> (Pass, Workspace) {
        let mut workspace = self.new_workspace(frame, true);
        let mut pass = Pass::new(frame, self.blocks.len(), 0, self.stage.embeds);
        self.fill(frame, parameters, tokens, input, (&mut pass, &mut workspace));
        (pass, workspace)
    }

    /// What a batch gives at the end of the stage.
    fn evaluated(&self, parameters: &[f32], batch: &TokenBatch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        let frame = self.frame(batch)?;
        let (mut pass, mut workspace) = self.forward_once(&frame, parameters, &batch.inputs, input);
        let stream = std::mem::take(&mut pass.streams[self.blocks.len()]);
        let Some(head) = &self.head else { return Ok(Evaluated::Stream(stream)) };
        let Workspace { logits, scratch, .. } = &mut workspace;
        let ends = (&stream[..], &batch.targets[..]);
        Ok(Evaluated::Evaluation(head.evaluate(&frame, parameters, ends, (logits, scratch))))
    }
    /// Turns `to_stream` from the gradient of the last stream into that of the first, and writes that of the weights.
    fn blocks_backward(
        &self,
        frame: &Frame<'_>,
        parameters: &[f32],
        gradient: &mut Gradient<'_>,
        (pass, workspace): (&mut Pass, &mut Workspace),
        to_stream: &mut [f32],
    ) {
        let Workspace { shared, scratch, .. } = workspace;
        for (layer, block) in self.blocks.iter().enumerate().rev() {
            let input = &pass.streams[layer];
            let kept = match shared {
                Some(shared) => {
                    block.activate(frame, parameters, input, shared, scratch);
                    shared
                }
                None => &mut pass.kept[layer],
            };
            block.backward(frame, parameters, gradient, (input, kept), to_stream, scratch);
        }
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
        let (workspace, mut free) = (self.workspace.take(), std::mem::take(&mut self.free));
        let frame = self.frame(batch)?.on(threads);
        let kept = if self.recompute { 0 } else { self.blocks.len() };
        let workspace = workspace.filter(|workspace| workspace.fits(frame.rows(), self.recompute));
        let mut workspace = workspace.unwrap_or_else(|| self.new_workspace(&frame, self.recompute));
        free.retain(|pass| pass.fits(frame.rows(), kept));
        let new_pass = || Pass::new(&frame, self.blocks.len(), kept, self.stage.embeds);
        let mut pass = free.pop().unwrap_or_else(new_pass);
        let begin = Instant::now();
        self.fill(&frame, parameters, &batch.inputs, input, (&mut pass, &mut workspace));
        self.forward_time += begin.elapsed();
        let output = (!self.stage.predicts).then(|| std::mem::take(&mut pass.streams[self.blocks.len()]));
        (self.workspace, self.free) = (Some(workspace), free);
        self.waiting.push_back(pass);
        Ok(output)
    }

    fn backward(
        &mut self,
        parameters: &[f32],
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
        let (last, mut gradient) = (self.blocks.len(), Gradient { values: gradient, write, products: frame.products });
        let (loss, mut to_stream) = match (&self.head, to_output) {
            (Some(head), _) => {
                let Workspace { scratch, to_stream, logits, .. } = &mut workspace;
                let mut to_stream = std::mem::take(to_stream);
                let ends = (&pass.streams[last][..], &mut to_stream[..]);
                let answers = (&batch.targets[..], share);
                let buffers = (&mut logits[..], scratch);
                (head.loss_and_backward(&frame, parameters, &mut gradient, ends, answers, buffers), to_stream)
            }
            (None, Some(to_output)) => (0.0, to_output),
            (None, None) => panic!("a stage that does not predict is given the gradient of its output"),
        };
        self.blocks_backward(&frame, parameters, &mut gradient, (&mut pass, &mut workspace), &mut to_stream);
        // The buffer that stays takes the place of the one that was given away.
        let (to_input, spare) = match &self.embedding {
            Some(table) => {
                let to_table = &mut gradient.values[table.clone()];
                // A tied head has written there already.
                if write == Write::Replace && !(self.stage.predicts && self.spec.tied_head) {
                    to_table.fill(0.0);
                }
                embedding::backward(to_table, &to_stream, &batch.inputs);
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

    fn abandon(&mut self) {
        self.waiting.clear();
    }

    fn evaluate_stage(&mut self, parameters: &[f32], batch: &TokenBatch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        self.evaluated(parameters, batch, input)
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
        let another = Transformer { precision: self.precision, ..Transformer::stage(&self.spec, self.stage.clone()) };
        (!self.recompute).then(|| Box::new(another) as Box<dyn Model>)
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
        match self.evaluated(parameters, batch.tokens()?, None)? {
            Evaluated::Evaluation(evaluation) => Ok(evaluation),
            Evaluated::Stream(_) => bail!("this is one stage of a model: alone it evaluates nothing"),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use murmur_protocol::manifest::{AttentionBias, RopeScaling};

    use super::*;
    use crate::model::{gradients_by_autograd, parameter_count, tensors_of};
    use crate::ops::gradient_check::{random_tokens, random_values};

    /// The built-in kind, and those with everything else.
    fn specs() -> [ModelSpec; 5] {
        let plain = ModelSpec { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..ModelSpec::default() };
        let other = ModelSpec { tied_head: true, vocabulary: 300, rope_theta: 500.0, ..plain.clone() };
        let scaled = ModelSpec { rope_scaling: RopeScaling::Llama3, rope_factor: 8.0, ..plain.clone() };
        let scaled = ModelSpec { rope_original_context: 8, attention_bias: AttentionBias::Qkv, ..scaled };
        // Queries wider than the stream, and narrower.
        let qwen = ModelSpec { head_width: 12, heads: 4, key_value_heads: 2, head_norm: true, ..plain.clone() };
        let qwen = ModelSpec { attention_bias: AttentionBias::All, ..qwen };
        let smol = ModelSpec { head_width: 6, layers_without_rope: vec![1], tied_head: true, ..plain.clone() };
        [plain, ModelSpec { heads: 4, key_value_heads: 2, norm_epsilon: 1e-3, ..other }, scaled, qwen, smol]
    }

    /// Parameters in which neither biases nor scales are all alike.
    fn parameters_of(model: &Transformer) -> Vec<f32> {
        let mut parameters = model.initial_parameters(1);
        for tensor in model.layout().tensors().iter().filter(|tensor| tensor.shape.len() == 1) {
            let noise = random_values(tensor.len(), 5);
            parameters[tensor.range()].iter_mut().zip(noise).for_each(|(value, noise)| *value += 0.2 * noise);
        }
        parameters
    }

    fn batch(spec: &ModelSpec) -> Batch {
        let tokens = |seed| random_tokens(3 * spec.context as usize, spec.vocabulary, seed);
        Batch::Tokens(TokenBatch { inputs: tokens(1), targets: tokens(2), sequences: 3 })
    }

    fn compare_with_autograd(spec: &ModelSpec) -> Result<()> {
        let (mut model, batch) = (Transformer::new(spec), batch(spec));
        let parameters = parameters_of(&model);
        let mut gradient = vec![f32::NAN; parameters.len()];
        let rows = batch.predictions() as f64;
        let task = Task::alone(1.0 / rows as f32, Write::Replace);
        let loss = model.gradient(&parameters, &batch, &task, &mut gradient)?;
        let variables: Vec<Var> =
            tensors_of(model.layout(), &parameters)?.iter().map(Var::from_tensor).collect::<Result<_>>()?;
        let (expected_loss, expected) = gradients_by_autograd(&model, &variables, &batch)?;
        assert!((loss / rows - f64::from(expected_loss.to_scalar::<f32>()?)).abs() < 1e-5);
        for (tensor, expected) in model.layout().tensors().iter().zip(expected) {
            let (actual, expected) = (&gradient[tensor.range()], expected.flatten_all()?.to_vec1::<f32>()?);
            let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let pairs = actual.iter().zip(&expected);
            let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
            // Errors of a dozen operations in a row add up.
            assert!(error < 1e-4 * largest, "{}: {error} of {largest}", tensor.name);
            let zeros = actual.iter().filter(|value| **value == 0.0).count();
            // Rows of the embedding whose token does not occur have none.
            let may_have = tensor.name.contains("embed_tokens") && zeros < actual.len();
            assert!(zeros == 0 || may_have, "{}: {zeros} zeros", tensor.name);
        }
        Ok(())
    }

    #[test]
    fn every_parameter_receives_the_gradient_of_autograd() -> Result<()> {
        specs().iter().try_for_each(compare_with_autograd)
    }

    /// More rows than have their logits computed at once.
    #[test]
    fn a_large_vocabulary_is_predicted_in_parts() -> Result<()> {
        let spec = ModelSpec { layers: 1, width: 8, heads: 2, feed_forward: 8, ..ModelSpec::default() };
        let spec = ModelSpec { context: 50, vocabulary: 70_000, ..spec };
        assert!(Transformer::new(&spec).head.expect("it predicts").logits(150) < 150 * 70_000);
        compare_with_autograd(&spec)?;
        compare_with_autograd(&ModelSpec { tied_head: true, ..spec })
    }

    #[test]
    fn gradients_of_parts_add_up() -> Result<()> {
        for spec in specs() {
            let mut model = Transformer::new(&spec);
            let (parameters, batch) = (parameters_of(&model), batch(&spec));
            let (mut whole, mut parts) = (vec![0.0; parameters.len()], vec![f32::NAN; parameters.len()]);
            let loss = model.gradient(&parameters, &batch, &Task::alone(0.1, Write::Replace), &mut whole)?;
            let first =
                model.gradient(&parameters, &batch.part(0..1), &Task::alone(0.1, Write::Replace), &mut parts)?;
            let second = model.gradient(&parameters, &batch.part(1..3), &Task::alone(0.1, Write::Add), &mut parts)?;
            assert!((loss - first - second).abs() < 1e-3, "{loss} {first} {second}");
            let error = whole.iter().zip(&parts).fold(0.0_f32, |error, (left, right)| error.max((left - right).abs()));
            assert!(error < 1e-5, "{error}");
        }
        Ok(())
    }

    #[test]
    fn products_of_sixteen_bits_give_nearly_the_same_gradient_of_32_bits() -> Result<()> {
        for spec in specs() {
            let mut model = Transformer::new(&spec);
            let variables = tensors_of(model.layout(), &parameters_of(&model))?;
            let variables = variables.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
            let (exact_loss, exact) = gradients_by_autograd(&model, &variables, &batch(&spec))?;
            model.set_precision(Precision::Bf16);
            let (loss, gradients) = gradients_by_autograd(&model, &variables, &batch(&spec))?;
            let difference = (loss - exact_loss)?.abs()?.to_scalar::<f32>()?;
            // Eight bits of mantissa: rounding to 0.4 %, a dozen roundings in a row.
            assert!(difference > 0.0 && difference < 0.02, "{difference}");
            for (tensor, (rounded, exact)) in model.layout().tensors().iter().zip(gradients.iter().zip(&exact)) {
                let error = (rounded - exact)?.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt();
                let norm = exact.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt();
                assert!(error > 0.0 && error < 0.05 * norm, "{}: {error} of {norm}", tensor.name);
            }
        }
        Ok(())
    }

    #[test]
    fn evaluation_agrees_with_the_composed_model() -> Result<()> {
        for spec in specs() {
            let model = Transformer::new(&spec);
            let (parameters, batch) = (parameters_of(&model), batch(&spec));
            let fused = model.evaluate(&parameters, &batch)?;
            let composed =
                Evaluation::of(&model.logits(&tensors_of(model.layout(), &parameters)?, &batch)?, batch.targets())?;
            assert!((fused.loss_sum - composed.loss_sum).abs() < 1e-3, "{fused:?} {composed:?}");
            assert_eq!((fused.predictions, fused.correct), (composed.predictions, composed.correct));
        }
        Ok(())
    }

    #[test]
    fn the_built_in_model_has_its_promised_size() {
        assert_eq!(parameter_count(&ModelSpec::default()), 234_048);
    }
}

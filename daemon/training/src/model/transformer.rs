//! A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, causal attention with grouped queries; where the run says so,
//! with biases in attention, norms of its heads, and layers without positions.
//!
//! Tensors have the names of Hugging Face's Llama checkpoints (and those of its relatives) and rotary positions their
//! convention (halves of a head are paired), so that weights load here and elsewhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Result, Tensor, bail};
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::{AttentionBias, ModelSpec};

use super::initial::initial_parameters;
use super::{Evaluation, Model, Task, Write};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::Precision;
use crate::ops::attention::Attention;
use crate::ops::product::Products;
use crate::ops::rotary::RotaryTables;
use crate::ops::{attention, bias, embedding, head_norm, linear, rms_norm, swiglu};

mod block;
mod head;
mod workspace;

use block::{Block, Frame, Gradient};
use head::Head;
use workspace::Workspace;

/// The architecture in one size.
pub struct Transformer {
    spec: ModelSpec,
    layout: Arc<ModelLayout>,
    rotary: RotaryTables,
    blocks: Vec<Block>,
    head: Head,
    /// Whether the backward computes activations again.
    recompute: bool,
    /// What matrices are multiplied in.
    precision: Precision,
    /// From the step before.
    workspace: Option<Workspace>,
    /// Of all gradients so far.
    forward_time: Duration,
}

/// Names and shapes of such a model's parameters.
pub fn transformer_layout(spec: &ModelSpec) -> ModelLayout {
    let (width, inner, vocabulary) = (spec.width as usize, spec.feed_forward as usize, spec.vocabulary as usize);
    let (query_width, key_width) = (spec.query_width() as usize, spec.key_width() as usize);
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, width]),
        ("model.norm.weight".to_owned(), vec![width]),
    ];
    if !spec.tied_head {
        tensors.push(("lm_head.weight".to_owned(), vec![vocabulary, width]));
    }
    for layer in 0..spec.layers {
        let parts = [
            ("input_layernorm", vec![width]),
            ("self_attn.q_proj", vec![query_width, width]),
            ("self_attn.k_proj", vec![key_width, width]),
            ("self_attn.v_proj", vec![key_width, width]),
            ("self_attn.o_proj", vec![width, query_width]),
            ("post_attention_layernorm", vec![width]),
            ("mlp.gate_proj", vec![inner, width]),
            ("mlp.up_proj", vec![inner, width]),
            ("mlp.down_proj", vec![width, inner]),
        ];
        tensors.extend(parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape)));
        let attention = optional_tensors(spec).into_iter();
        tensors.extend(attention.map(|(part, size)| (format!("model.layers.{layer}.self_attn.{part}"), vec![size])));
    }
    ModelLayout::new(tensors)
}

/// Names and sizes of the vectors that attention has in some families only.
fn optional_tensors(spec: &ModelSpec) -> Vec<(&'static str, usize)> {
    let (query_width, key_width) = (spec.query_width() as usize, spec.key_width() as usize);
    let mut vectors = Vec::new();
    if spec.attention_bias != AttentionBias::None {
        vectors.extend([("q_proj.bias", query_width), ("k_proj.bias", key_width), ("v_proj.bias", key_width)]);
    }
    if spec.attention_bias == AttentionBias::All {
        vectors.push(("o_proj.bias", spec.width as usize));
    }
    if spec.head_norm {
        let head_width = spec.resolved_head_width() as usize;
        vectors.extend([("q_norm.weight", head_width), ("k_norm.weight", head_width)]);
    }
    vectors
}

impl Transformer {
    /// The model of `spec`.
    pub fn new(spec: &ModelSpec) -> Transformer {
        let layout = transformer_layout(spec);
        Transformer {
            rotary: RotaryTables::of(spec),
            blocks: (0..spec.layers).map(|layer| Block::new(&layout, spec, layer)).collect(),
            head: Head::new(&layout),
            layout: Arc::new(layout),
            spec: spec.clone(),
            recompute: false,
            precision: Precision::F32,
            workspace: None,
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
        let mut workspace = self.new_workspace(&frame, 1);
        self.forward(&frame, parameters, tokens, &mut workspace);
        let stream = &workspace.streams[self.blocks.len()][(tokens.len() - 1) * frame.width..];
        let mut logits = vec![0.0; self.spec.vocabulary as usize];
        self.head.predict(&frame, parameters, stream, &mut logits, &mut workspace.scratch.normalised[..frame.width]);
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

    fn new_workspace(&self, frame: &Frame<'_>, kept: usize) -> Workspace {
        Workspace::new(frame, self.blocks.len(), kept, self.head.logits(frame.rows()))
    }

    /// Fills the streams, and what is kept of the blocks.
    fn forward(&self, frame: &Frame<'_>, parameters: &[f32], tokens: &[u32], workspace: &mut Workspace) {
        let Workspace { streams, kept, scratch, .. } = workspace;
        let table = self.layout.tensor("model.embed_tokens.weight").expect("every transformer has one").range();
        embedding::forward(&mut streams[0], &parameters[table], tokens);
        let last = kept.len() - 1;
        for (layer, block) in self.blocks.iter().enumerate() {
            let kept = &mut kept[layer.min(last)];
            let (before, after) = streams.split_at_mut(layer + 1);
            block.activate(frame, parameters, &before[layer], kept, scratch);
            block.finish(frame, parameters, kept, &mut after[0], scratch);
        }
    }

    /// Writes the gradient and returns the sum of the losses.
    fn backward(
        &self,
        frame: &Frame<'_>,
        parameters: &[f32],
        batch: &TokenBatch,
        share: f32,
        gradient: &mut Gradient<'_>,
        workspace: &mut Workspace,
    ) -> f64 {
        let Workspace { streams, kept, scratch, to_stream, logits, .. } = workspace;
        let ends = (&streams[self.blocks.len()][..], &mut to_stream[..]);
        let answers = (&batch.targets[..], share);
        let loss = self.head.loss_and_backward(frame, parameters, gradient, ends, answers, (logits, scratch));
        for (layer, block) in self.blocks.iter().enumerate().rev() {
            let input = &streams[layer];
            if self.recompute {
                block.activate(frame, parameters, input, &mut kept[0], scratch);
            }
            let kept = if self.recompute { &mut kept[0] } else { &mut kept[layer] };
            block.backward(frame, parameters, gradient, (input, kept), to_stream, scratch);
        }
        let table = self.layout.tensor("model.embed_tokens.weight").expect("every transformer has one").range();
        let to_table = &mut gradient.values[table];
        // A tied head has written there already.
        if gradient.write == Write::Replace && !self.spec.tied_head {
            to_table.fill(0.0);
        }
        embedding::backward(to_table, to_stream, &batch.inputs);
        loss
    }

    fn attend<'a>(&self, layer: u32, part: &impl Fn(&str) -> Option<&'a Tensor>, stream: &Tensor) -> Result<Tensor> {
        let weight = weights(part);
        let project = |input: &Tensor, name: &str| {
            let result = linear::composed(input, weight(&format!("self_attn.{name}_proj")))?;
            match part(&format!("self_attn.{name}_proj.bias")) {
                Some(bias) => bias::composed(&result, bias),
                None => Ok(result),
            }
        };
        let turned = |heads: Tensor, name: &str| {
            let heads = match part(&format!("self_attn.{name}_norm.weight")) {
                Some(scale) => head_norm::composed(&heads, scale, self.spec.norm_epsilon)?,
                None => heads,
            };
            if self.spec.has_rope(layer) { self.rotary.composed(&heads) } else { Ok(heads) }
        };
        let normalised = self.normalised(stream, weight("input_layernorm"))?;
        let (query, key) = (turned(project(&normalised, "q")?, "q")?, turned(project(&normalised, "k")?, "k")?);
        let attended = attention::composed(&query, &key, &project(&normalised, "v")?, self.spec.heads as usize)?;
        project(&attended, "o")?.to_dtype(DType::F32)
    }

    fn feed_forward<'a>(&self, part: &impl Fn(&str) -> Option<&'a Tensor>, stream: &Tensor) -> Result<Tensor> {
        let weight = weights(part);
        let normalised = self.normalised(stream, weight("post_attention_layernorm"))?;
        let gate = linear::composed(&normalised, weight("mlp.gate_proj"))?;
        let up = linear::composed(&normalised, weight("mlp.up_proj"))?;
        linear::composed(&swiglu::composed(&gate, &up)?, weight("mlp.down_proj"))?.to_dtype(DType::F32)
    }

    /// What products read of the stream, which itself is `f32`.
    fn normalised(&self, stream: &Tensor, scale: &Tensor) -> Result<Tensor> {
        rms_norm::composed(stream, scale, self.spec.norm_epsilon)?.to_dtype(self.precision.dtype())
    }
}

/// The weight of a layer's part, of which a tensor's full name is made.
fn weights<'a>(part: &impl Fn(&str) -> Option<&'a Tensor>) -> impl Fn(&str) -> &'a Tensor {
    |name| part(&format!("{name}.weight")).expect("the layout has every tensor of the model")
}

impl Model for Transformer {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        initial_parameters(&self.layout, self.spec.layers, seed)
    }

    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let find = |name: &str| {
            let index = self.layout.tensors().binary_search_by(|tensor| tensor.name.as_str().cmp(name));
            index.ok().map(|index| &parameters[index])
        };
        let named = |name: &str| find(name).expect("the layout has every tensor of the model");
        let table = named("model.embed_tokens.weight");
        let tokens = batch.tokens()?.to_tensor(table.device())?;
        let mut stream = embedding::composed(table, &tokens)?;
        for layer in 0..self.spec.layers {
            let part = |part: &str| find(&format!("model.layers.{layer}.{part}"));
            stream = (&stream + self.attend(layer, &part, &stream)?)?;
            stream = (&stream + self.feed_forward(&part, &stream)?)?;
        }
        let normalised = self.normalised(&stream, named("model.norm.weight"))?;
        let head = if self.spec.tied_head { table } else { named("lm_head.weight") };
        linear::composed(&normalised, head)?.reshape((batch.predictions(), ()))?.to_dtype(DType::F32)
    }

    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        let kept = if self.recompute { 1 } else { self.blocks.len() };
        let workspace = self.workspace.take();
        let Task { share, write, threads } = *task;
        let batch = batch.tokens()?;
        let frame = self.frame(batch)?;
        let products = Products { threads, ..frame.products };
        let frame = Frame { products, ..frame };
        let mut gradient = Gradient { values: gradient, write, products };
        let workspace = workspace.filter(|workspace| workspace.fits(frame.rows(), kept));
        let mut workspace = workspace.unwrap_or_else(|| self.new_workspace(&frame, kept));
        let begin = Instant::now();
        self.forward(&frame, parameters, &batch.inputs, &mut workspace);
        let forward_time = begin.elapsed();
        let loss = self.backward(&frame, parameters, batch, share, &mut gradient, &mut workspace);
        self.forward_time += forward_time;
        self.workspace = Some(workspace);
        Ok(loss)
    }

    fn another(&self) -> Option<Box<dyn Model>> {
        let precision = self.precision;
        let another = || Transformer { precision, ..Transformer::new(&self.spec) };
        (!self.recompute).then(|| Box::new(another()) as Box<dyn Model>)
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
        let batch = batch.tokens()?;
        let frame = self.frame(batch)?;
        let mut workspace = self.new_workspace(&frame, 1);
        self.forward(&frame, parameters, &batch.inputs, &mut workspace);
        let Workspace { streams, logits, scratch, .. } = &mut workspace;
        let ends = (&streams[self.blocks.len()][..], &batch.targets[..]);
        Ok(self.head.evaluate(&frame, parameters, ends, (logits, scratch)))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use murmur_protocol::manifest::RopeScaling;

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
        assert!(Transformer::new(&spec).head.logits(150) < 150 * 70_000);
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

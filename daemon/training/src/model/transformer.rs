//! A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, causal attention with grouped queries, no biases.
//!
//! Tensors have the names of Hugging Face's Llama checkpoints and rotary positions its convention (halves of a head are
//! paired), so that weights load here and elsewhere.

use std::sync::Arc;

use candle_core::{Result, Tensor, Var};
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::ModelSpec;

use super::initial::initial_parameters;
use super::{Evaluation, Model, Write, tensors_of};
use crate::data::Batch;
use crate::ops::Kernels;
use crate::ops::attention::attention;
use crate::ops::cross_entropy::cross_entropy;
use crate::ops::embedding::embedding;
use crate::ops::linear::linear;
use crate::ops::rms_norm::rms_norm;
use crate::ops::rotary::{RotaryTables, rotary};
use crate::ops::swiglu::swiglu;

/// The architecture in one size.
pub struct Transformer {
    spec: ModelSpec,
    layout: Arc<ModelLayout>,
    rotary: RotaryTables,
}

/// Names and shapes of such a model's parameters.
pub fn transformer_layout(spec: &ModelSpec) -> ModelLayout {
    let (width, inner, vocabulary) = (spec.width as usize, spec.feed_forward as usize, spec.vocabulary as usize);
    let key_width = (spec.width / spec.heads * spec.resolved_key_value_heads()) as usize;
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
            ("self_attn.q_proj", vec![width, width]),
            ("self_attn.k_proj", vec![key_width, width]),
            ("self_attn.v_proj", vec![key_width, width]),
            ("self_attn.o_proj", vec![width, width]),
            ("post_attention_layernorm", vec![width]),
            ("mlp.gate_proj", vec![inner, width]),
            ("mlp.up_proj", vec![inner, width]),
            ("mlp.down_proj", vec![width, inner]),
        ];
        tensors.extend(parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape)));
    }
    ModelLayout::new(tensors)
}

impl Transformer {
    /// The model of `spec`.
    pub fn new(spec: &ModelSpec) -> Transformer {
        Transformer {
            layout: Arc::new(transformer_layout(spec)),
            rotary: RotaryTables::new((spec.width / spec.heads) as usize, spec.context as usize, spec.rope_theta),
            spec: spec.clone(),
        }
    }

    /// Logits `[predictions, vocabulary]` by either kind of operations.
    pub(crate) fn forward(&self, kernels: Kernels, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let named = |name: &str| {
            let index = self.layout.tensors().binary_search_by(|tensor| tensor.name.as_str().cmp(name));
            &parameters[index.expect("the layout has every tensor of the model")]
        };
        let table = named("model.embed_tokens.weight");
        let tokens = batch.tokens()?.to_tensor(table.device())?;
        let mut stream = embedding(kernels, table, &tokens)?;
        for layer in 0..self.spec.layers {
            let weight = |part: &str| named(&format!("model.layers.{layer}.{part}.weight"));
            stream = (&stream + self.attend(kernels, &weight, &stream)?)?;
            stream = (&stream + self.feed_forward(kernels, &weight, &stream)?)?;
        }
        let normalised = self.normalise(kernels, &stream, named("model.norm.weight"))?;
        let head = if self.spec.tied_head { table } else { named("lm_head.weight") };
        linear(kernels, &normalised, head)?.reshape((batch.predictions(), ()))
    }

    fn attend<'a>(&self, kernels: Kernels, weight: &impl Fn(&str) -> &'a Tensor, stream: &Tensor) -> Result<Tensor> {
        let normalised = self.normalise(kernels, stream, weight("input_layernorm"))?;
        let query = rotary(kernels, &linear(kernels, &normalised, weight("self_attn.q_proj"))?, &self.rotary)?;
        let key = rotary(kernels, &linear(kernels, &normalised, weight("self_attn.k_proj"))?, &self.rotary)?;
        let value = linear(kernels, &normalised, weight("self_attn.v_proj"))?;
        let heads = self.spec.heads as usize;
        linear(kernels, &attention(kernels, &query, &key, &value, heads)?, weight("self_attn.o_proj"))
    }

    fn feed_forward<'a>(
        &self,
        kernels: Kernels,
        weight: &impl Fn(&str) -> &'a Tensor,
        stream: &Tensor,
    ) -> Result<Tensor> {
        let normalised = self.normalise(kernels, stream, weight("post_attention_layernorm"))?;
        let gate = linear(kernels, &normalised, weight("mlp.gate_proj"))?;
        let up = linear(kernels, &normalised, weight("mlp.up_proj"))?;
        linear(kernels, &swiglu(kernels, &gate, &up)?, weight("mlp.down_proj"))
    }

    fn normalise(&self, kernels: Kernels, stream: &Tensor, scale: &Tensor) -> Result<Tensor> {
        rms_norm(kernels, stream, scale, self.spec.norm_epsilon)
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
        self.forward(Kernels::Composed, parameters, batch)
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        share: f32,
        write: Write,
        gradient: &mut [f32],
    ) -> Result<f64> {
        let variables =
            tensors_of(&self.layout, parameters)?.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
        let tensors: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
        let logits = self.forward(Kernels::Fused, &tensors, batch)?;
        let targets = Tensor::from_slice(batch.targets(), batch.predictions(), logits.device())?;
        let loss = cross_entropy(Kernels::Fused, &logits, &targets)?;
        let gradients = loss.backward()?;
        let predictions = batch.predictions() as f32;
        for (variable, tensor) in variables.iter().zip(self.layout.tensors()) {
            let values = gradients.get(variable).expect("every parameter is used").flatten_all()?.to_vec1::<f32>()?;
            for (place, value) in gradient[tensor.range()].iter_mut().zip(values) {
                let kept = if write == Write::Add { *place } else { 0.0 };
                *place = kept + share * predictions * value;
            }
        }
        Ok(f64::from(loss.to_scalar::<f32>()?) * f64::from(predictions))
    }

    fn evaluate(&self, parameters: &[f32], batch: &Batch) -> Result<Evaluation> {
        let logits = self.forward(Kernels::Fused, &tensors_of(&self.layout, parameters)?, batch)?;
        Evaluation::of(&logits, batch.targets())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TokenBatch;
    use crate::model::{gradients_by_autograd, parameter_count};
    use crate::ops::gradient_check::random_tokens;

    fn specs() -> [ModelSpec; 2] {
        let plain = ModelSpec { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..ModelSpec::default() };
        let tied = ModelSpec { tied_head: true, vocabulary: 300, rope_theta: 500.0, ..plain.clone() };
        [plain, tied]
    }

    fn batch(spec: &ModelSpec) -> Result<Batch> {
        let tokens = |seed| random_tokens(&[3 * 12], spec.vocabulary, seed).to_vec1::<u32>();
        Ok(Batch::Tokens(TokenBatch { inputs: tokens(1)?, targets: tokens(2)?, sequences: 3 }))
    }

    #[test]
    fn every_parameter_receives_the_gradient_of_autograd() -> Result<()> {
        for spec in specs() {
            let mut model = Transformer::new(&spec);
            let parameters = model.initial_parameters(1);
            let mut gradient = vec![f32::NAN; parameters.len()];
            let share = 1.0 / 36.0;
            let loss = model.gradient(&parameters, &batch(&spec)?, share, Write::Replace, &mut gradient)?;
            let variables: Vec<Var> =
                tensors_of(model.layout(), &parameters)?.iter().map(Var::from_tensor).collect::<Result<_>>()?;
            let (expected_loss, expected) = gradients_by_autograd(&model, &variables, &batch(&spec)?)?;
            assert!((loss / 36.0 - f64::from(expected_loss.to_scalar::<f32>()?)).abs() < 1e-5);
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
        }
        Ok(())
    }

    #[test]
    fn gradients_of_parts_add_up() -> Result<()> {
        for spec in specs() {
            let mut model = Transformer::new(&spec);
            let (parameters, batch) = (model.initial_parameters(1), batch(&spec)?);
            let (mut whole, mut parts) = (vec![0.0; parameters.len()], vec![f32::NAN; parameters.len()]);
            let loss = model.gradient(&parameters, &batch, 0.1, Write::Replace, &mut whole)?;
            let first = model.gradient(&parameters, &batch.part(0..1), 0.1, Write::Replace, &mut parts)?;
            let second = model.gradient(&parameters, &batch.part(1..3), 0.1, Write::Add, &mut parts)?;
            assert!((loss - first - second).abs() < 1e-3, "{loss} {first} {second}");
            let error = whole.iter().zip(&parts).fold(0.0_f32, |error, (left, right)| error.max((left - right).abs()));
            assert!(error < 1e-5, "{error}");
        }
        Ok(())
    }

    #[test]
    fn evaluation_agrees_with_the_composed_model() -> Result<()> {
        for spec in specs() {
            let model = Transformer::new(&spec);
            let (parameters, batch) = (model.initial_parameters(1), batch(&spec)?);
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

//! A Llama-style decoder over bytes: RMSNorm, rotary positions, SwiGLU, causal attention, no biases, untied head.
//!
//! Tensors have the names of Hugging Face's Llama checkpoints, so that exported weights load elsewhere.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor, Var};
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::ModelSpec;

use crate::ops::attention::attention;
use crate::ops::cross_entropy::cross_entropy;
use crate::ops::embedding::embedding;
use crate::ops::linear::linear;
use crate::ops::rms_norm::rms_norm;
use crate::ops::rotary::{RotaryTables, rotary};
use crate::ops::swiglu::swiglu;
use crate::ops::{Kernels, storage};

/// One token per byte value.
pub const VOCABULARY: usize = 256;

/// The model with its parameters.
pub struct Transformer {
    layout: Arc<ModelLayout>,
    /// In the order of the layout.
    variables: Vec<Var>,
    embedding: Tensor,
    blocks: Vec<Block>,
    final_norm: Tensor,
    head: Tensor,
    rotary: RotaryTables,
    heads: usize,
    kernels: Kernels,
}

/// One layer's parameters; the same memory as the variables.
struct Block {
    attention_norm: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    feed_forward_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// Number of parameters of such a model.
pub fn parameter_count(spec: &ModelSpec) -> usize {
    transformer_layout(spec).parameters()
}

/// Names and shapes of such a model's parameters.
pub fn transformer_layout(spec: &ModelSpec) -> ModelLayout {
    let (width, inner) = (spec.width as usize, spec.feed_forward as usize);
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, width]),
        ("model.norm.weight".to_owned(), vec![width]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, width]),
    ];
    for layer in 0..spec.layers {
        let parts = [
            ("input_layernorm", vec![width]),
            ("self_attn.q_proj", vec![width, width]),
            ("self_attn.k_proj", vec![width, width]),
            ("self_attn.v_proj", vec![width, width]),
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
    /// The model of `spec` with the flat `parameters` on `device`.
    ///
    /// # Errors
    /// When there is no memory for it on the device.
    ///
    /// # Panics
    /// When `parameters` has not [`parameter_count`] values.
    pub fn new(spec: &ModelSpec, parameters: &[f32], device: &Device, kernels: Kernels) -> Result<Transformer> {
        let layout = transformer_layout(spec);
        assert_eq!(parameters.len(), layout.parameters(), "one value per parameter");
        let variable = |tensor: &murmur_protocol::TensorSpec| {
            Var::from_slice(&parameters[tensor.range()], tensor.shape.as_slice(), device)
        };
        let variables = layout.tensors().iter().map(variable).collect::<Result<Vec<Var>>>()?;
        let named = |name: String| {
            let index = layout.tensors().binary_search_by(|tensor| tensor.name.cmp(&name));
            variables[index.expect("the layout has every tensor of the model")].as_tensor().clone()
        };
        let block = |layer: u32| {
            let part = |part: &str| named(format!("model.layers.{layer}.{part}.weight"));
            Block {
                attention_norm: part("input_layernorm"),
                query: part("self_attn.q_proj"),
                key: part("self_attn.k_proj"),
                value: part("self_attn.v_proj"),
                output: part("self_attn.o_proj"),
                feed_forward_norm: part("post_attention_layernorm"),
                gate: part("mlp.gate_proj"),
                up: part("mlp.up_proj"),
                down: part("mlp.down_proj"),
            }
        };
        Ok(Transformer {
            embedding: named("model.embed_tokens.weight".to_owned()),
            blocks: (0..spec.layers).map(block).collect(),
            final_norm: named("model.norm.weight".to_owned()),
            head: named("lm_head.weight".to_owned()),
            rotary: RotaryTables::new((spec.width / spec.heads) as usize, spec.context as usize),
            heads: spec.heads as usize,
            kernels,
            variables,
            layout: Arc::new(layout),
        })
    }

    /// Logits `[batch, length, 256]` of the byte after each of `tokens` `[batch, length]` (`u32`), `length` at most the
    /// context.
    ///
    /// # Errors
    /// When the shape does not fit or memory runs out.
    pub fn logits(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut stream = embedding(self.kernels, &self.embedding, tokens)?;
        for block in &self.blocks {
            stream = (&stream + self.attend(block, &stream)?)?;
            stream = (&stream + self.feed_forward(block, &stream)?)?;
        }
        linear(self.kernels, &rms_norm(self.kernels, &stream, &self.final_norm)?, &self.head)
    }

    /// Mean cross-entropy of `targets` after `tokens`, both `[batch, length]` (`u32`), in nats per byte: a scalar.
    ///
    /// # Errors
    /// When the shapes do not fit or memory runs out.
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        cross_entropy(self.kernels, &self.logits(tokens)?, targets)
    }

    fn attend(&self, block: &Block, stream: &Tensor) -> Result<Tensor> {
        let kernels = self.kernels;
        let normalised = rms_norm(kernels, stream, &block.attention_norm)?;
        let query = rotary(kernels, &linear(kernels, &normalised, &block.query)?, &self.rotary)?;
        let key = rotary(kernels, &linear(kernels, &normalised, &block.key)?, &self.rotary)?;
        let value = linear(kernels, &normalised, &block.value)?;
        linear(kernels, &attention(kernels, &query, &key, &value, self.heads)?, &block.output)
    }

    fn feed_forward(&self, block: &Block, stream: &Tensor) -> Result<Tensor> {
        let kernels = self.kernels;
        let normalised = rms_norm(kernels, stream, &block.feed_forward_norm)?;
        let gate = linear(kernels, &normalised, &block.gate)?;
        let up = linear(kernels, &normalised, &block.up)?;
        linear(kernels, &swiglu(kernels, &gate, &up)?, &block.down)
    }

    /// Where each parameter lies in the flat vector.
    pub fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    /// The parameters, in the order of the layout.
    pub fn variables(&self) -> &[Var] {
        &self.variables
    }

    /// The device that holds the parameters.
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// All parameters in one fresh flat vector.
    ///
    /// # Errors
    /// When the device fails.
    pub fn gather(&self) -> Result<Vec<f32>> {
        gather(self.variables.iter().map(Var::as_tensor), self.layout.parameters())
    }

    /// Replaces all parameters. Never between a forward and its backward.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When `values` has another length.
    pub fn scatter(&self, values: &[f32]) -> Result<()> {
        assert_eq!(values.len(), self.layout.parameters(), "one value per parameter");
        self.scatter_from(|start, place| place.copy_from_slice(&values[start..start + place.len()]))
    }

    /// As [`scatter`](Self::scatter), where `copy` fills a place with the values from an index on.
    ///
    /// # Errors
    /// When the device fails.
    pub fn scatter_from(&self, copy: impl Fn(usize, &mut [f32])) -> Result<()> {
        for (variable, tensor) in self.variables.iter().zip(self.layout.tensors()) {
            let start = tensor.range().start;
            if self.device().is_cpu() {
                storage::edit_in_place(variable, |place| copy(start, place))?;
            } else {
                let mut values = vec![0.0; tensor.range().len()];
                copy(start, &mut values);
                variable.set(&Tensor::from_vec(values, tensor.shape.as_slice(), self.device())?)?;
            }
        }
        Ok(())
    }
}

/// The values of `tensors`, one after the other: one copy on the CPU.
pub(crate) fn gather<'a>(tensors: impl Iterator<Item = &'a Tensor>, total: usize) -> Result<Vec<f32>> {
    let mut values = Vec::with_capacity(total);
    for tensor in tensors {
        if tensor.device().is_cpu() {
            values.extend_from_slice(&storage::Reading::of(tensor)?);
        } else {
            values.extend(tensor.flatten_all()?.to_vec1::<f32>()?);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::initial::initial_parameters;
    use crate::ops::gradient_check::random_tokens;

    fn spec() -> ModelSpec {
        ModelSpec { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..ModelSpec::default() }
    }

    fn model(kernels: Kernels) -> Result<Transformer> {
        let parameters = initial_parameters(&transformer_layout(&spec()), 2, 1);
        Transformer::new(&spec(), &parameters, &Device::Cpu, kernels)
    }

    fn gradients(kernels: Kernels) -> Result<Vec<(String, Vec<f32>)>> {
        let model = model(kernels)?;
        let (tokens, targets) = (random_tokens(&[3, 12], 256, 1), random_tokens(&[3, 12], 256, 2));
        let gradients = model.loss(&tokens, &targets)?.backward()?;
        let named = model.variables().iter().zip(model.layout().tensors()).map(|(variable, tensor)| {
            let gradient = gradients.get(variable).expect("every parameter has a gradient");
            Ok((tensor.name.clone(), gradient.flatten_all()?.to_vec1()?))
        });
        named.collect()
    }

    #[test]
    fn every_parameter_receives_a_gradient() -> Result<()> {
        for (name, gradient) in gradients(Kernels::Fused)? {
            let zeros = gradient.iter().filter(|value| **value == 0.0).count();
            // Rows of the embedding whose byte does not occur have none.
            assert!(zeros == 0 || name.contains("embed_tokens") && zeros < gradient.len(), "{name}: {zeros} zeros");
        }
        Ok(())
    }

    #[test]
    fn the_whole_model_agrees_with_autograd() -> Result<()> {
        for ((name, fused), (_, composed)) in gradients(Kernels::Fused)?.iter().zip(&gradients(Kernels::Composed)?) {
            let largest = composed.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let pairs = fused.iter().zip(composed);
            let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
            // Errors of a dozen operations in a row add up.
            assert!(error < 1e-4 * largest, "{name}: {error} of {largest}");
        }
        Ok(())
    }

    #[test]
    fn gathered_parameters_scatter_back() -> Result<()> {
        let model = model(Kernels::Fused)?;
        let values: Vec<f32> = (0..model.layout().parameters()).map(|index| index as f32).collect();
        model.scatter(&values)?;
        assert_eq!(model.gather()?, values);
        Ok(())
    }

    #[test]
    fn the_built_in_model_has_its_promised_size() {
        assert_eq!(parameter_count(&ModelSpec::default()), 234_048);
    }
}

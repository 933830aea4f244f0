//! The transformer composed of candle's operations, over weights that are found by their names: on any device, and what the
//! hand-written one is checked against.

use candle_core::{DType, Result, Tensor};
use murmur_protocol::manifest::TransformerModel;

use crate::ops::rotary::RotaryTables;
use crate::ops::{attention, bias, embedding, head_norm, linear, rms_norm, swiglu};

/// A whole model.
pub(super) struct Composed<'a, F> {
    pub(super) spec: &'a TransformerModel,
    pub(super) rotary: &'a RotaryTables,
    /// Finds a weight.
    pub(super) weights: F,
    /// What matrices are multiplied in.
    pub(super) dtype: DType,
}

impl<'a, F: Fn(&str) -> Option<&'a Tensor>> Composed<'a, F> {
    /// The logits `[batch, length, vocabulary]` of `tokens` `[batch, length]`.
    pub(super) fn logits(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut stream = embedding::composed(self.weight("model.embed_tokens.weight"), tokens)?;
        for layer in 0..self.spec.layers {
            let part = |part: &str| self.weight(&format!("model.layers.{layer}.{part}.weight"));
            let normalised = self.normalised(&stream, part("input_layernorm"))?;
            let turned = |projection: &str, norm: &str| {
                let heads = self.project(layer, &normalised, projection)?;
                let heads = if self.spec.head_norm {
                    head_norm::composed(&heads, part(norm), self.spec.norm_epsilon)?
                } else {
                    heads
                };
                if self.spec.has_rope(layer) { self.rotary.composed(&heads) } else { Ok(heads) }
            };
            let query = turned("self_attn.q_proj", "self_attn.q_norm")?;
            let key = turned("self_attn.k_proj", "self_attn.k_norm")?;
            let value = self.project(layer, &normalised, "self_attn.v_proj")?;
            let attended = attention::composed(&query, &key, &value, self.spec.heads as usize)?;
            stream = (stream + self.project(layer, &attended, "self_attn.o_proj")?.to_dtype(DType::F32)?)?;
            let normalised = self.normalised(&stream, part("post_attention_layernorm"))?;
            let gate = linear::composed(&normalised, part("mlp.gate_proj"))?;
            let hidden = swiglu::composed(&gate, &linear::composed(&normalised, part("mlp.up_proj"))?)?;
            stream = (stream + linear::composed(&hidden, part("mlp.down_proj"))?.to_dtype(DType::F32)?)?;
        }
        let head = if self.spec.tied_head { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let normalised = self.normalised(&stream, self.weight("model.norm.weight"))?;
        linear::composed(&normalised, self.weight(head))?.to_dtype(DType::F32)
    }

    /// Through one of attention's four projections.
    fn project(&self, layer: u32, input: &Tensor, name: &str) -> Result<Tensor> {
        let result = linear::composed(input, self.weight(&format!("model.layers.{layer}.{name}.weight")))?;
        match (self.weights)(&format!("model.layers.{layer}.{name}.bias")) {
            Some(bias) => bias::composed(&result, bias),
            None => Ok(result),
        }
    }

    /// What products read of the stream, which itself is `f32`.
    fn normalised(&self, stream: &Tensor, scale: &Tensor) -> Result<Tensor> {
        rms_norm::composed(stream, scale, self.spec.norm_epsilon)?.to_dtype(self.dtype)
    }

    fn weight(&self, name: &str) -> &'a Tensor {
        (self.weights)(name).expect("the layout has every tensor of the model")
    }
}

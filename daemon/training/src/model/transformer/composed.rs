//! The transformer composed of candle's operations, over weights that are found by their names: on any device, what the
//! hand-written one is checked against, and what text is generated with.

use candle_core::{DType, Result, Tensor};
use murmur_protocol::manifest::{AttentionBias, TransformerModel};

use crate::ops::rotary::RotaryTables;
use crate::ops::{bias, embedding, head_norm, rms_norm, swiglu};

/// A whole model.
pub(crate) struct Composed<'a, F> {
    pub(crate) spec: &'a TransformerModel,
    /// Finds a weight.
    pub(crate) weights: F,
    /// What matrices are multiplied in.
    pub(crate) dtype: DType,
    /// An input `[…, inputs]` times the transpose of a weight `[outputs, inputs]`, in the precision of the input.
    pub(crate) multiply: fn(&Tensor, &Tensor) -> Result<Tensor>,
}

impl<'a, F: Fn(&str) -> Option<&'a Tensor>> Composed<'a, F> {
    /// The last stream of `tokens` `[batch, length]` at these `positions`, where `attend` gives what a layer's queries, keys and
    /// values come to, all of them `[batch, length, heads · head width]`.
    pub(crate) fn stream(
        &self,
        tokens: &Tensor,
        positions: &RotaryTables,
        attend: impl Fn(u32, [Tensor; 3]) -> Result<Tensor>,
    ) -> Result<Tensor> {
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
                if self.spec.has_rope(layer) { positions.composed(&heads) } else { Ok(heads) }
            };
            let query = turned("self_attn.q_proj", "self_attn.q_norm")?;
            let key = turned("self_attn.k_proj", "self_attn.k_norm")?;
            let attended = attend(layer, [query, key, self.project(layer, &normalised, "self_attn.v_proj")?])?;
            stream = (stream + self.project(layer, &attended, "self_attn.o_proj")?.to_dtype(DType::F32)?)?;
            let normalised = self.normalised(&stream, part("post_attention_layernorm"))?;
            let gate = (self.multiply)(&normalised, part("mlp.gate_proj"))?;
            let hidden = swiglu::composed(&gate, &(self.multiply)(&normalised, part("mlp.up_proj"))?)?;
            stream = (stream + (self.multiply)(&hidden, part("mlp.down_proj"))?.to_dtype(DType::F32)?)?;
        }
        Ok(stream)
    }

    /// The logits `[…, vocabulary]` of rows of the last stream.
    pub(crate) fn logits(&self, stream: &Tensor) -> Result<Tensor> {
        let head = if self.spec.tied_head { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let normalised = self.normalised(stream, self.weight("model.norm.weight"))?;
        (self.multiply)(&normalised, self.weight(head))?.to_dtype(DType::F32)
    }

    /// Through one of attention's four projections.
    fn project(&self, layer: u32, input: &Tensor, name: &str) -> Result<Tensor> {
        let result = (self.multiply)(input, self.weight(&format!("model.layers.{layer}.{name}.weight")))?;
        // Most models have none: nothing is looked up for them.
        let may_have = self.spec.attention_bias != AttentionBias::None;
        match may_have.then(|| (self.weights)(&format!("model.layers.{layer}.{name}.bias"))).flatten() {
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

//! The transformer composed of candle's operations, over weights that are found by their names: on any device, what the
//! hand-written one is checked against, and what text is generated with.

use candle_core::{DType, Result, Tensor};
use murmur_protocol::manifest::{AttentionBias, ModelSpec};

use crate::ops::rotary::RotaryTables;
use crate::ops::{bias, embedding, head_norm, rms_norm, swiglu};

/// A whole model.
pub(crate) struct Composed<'a, F> {
    pub(crate) spec: &'a ModelSpec,
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
        let mut stream = embedding::composed(self.weight("model.embed_tokens"), tokens)?;
        for layer in 0..self.spec.layers {
            let part = |part: &str| format!("model.layers.{layer}.{part}");
            let normalised = self.normalised(&stream, &part("input_layernorm"))?;
            let turned = |name: &str| {
                let heads = self.project(&normalised, &part(&format!("self_attn.{name}_proj")))?;
                let heads = if self.spec.head_norm {
                    let scale = self.weight(&part(&format!("self_attn.{name}_norm")));
                    head_norm::composed(&heads, scale, self.spec.norm_epsilon)?
                } else {
                    heads
                };
                if self.spec.has_rope(layer) { positions.composed(&heads) } else { Ok(heads) }
            };
            let heads = [turned("q")?, turned("k")?, self.project(&normalised, &part("self_attn.v_proj"))?];
            let added = self.project(&attend(layer, heads)?, &part("self_attn.o_proj"))?;
            stream = (stream + added.to_dtype(DType::F32)?)?;
            let normalised = self.normalised(&stream, &part("post_attention_layernorm"))?;
            let inner = |name: &str| (self.multiply)(&normalised, self.weight(&part(name)));
            let hidden = swiglu::composed(&inner("mlp.gate_proj")?, &inner("mlp.up_proj")?)?;
            let added = (self.multiply)(&hidden, self.weight(&part("mlp.down_proj")))?;
            stream = (stream + added.to_dtype(DType::F32)?)?;
        }
        Ok(stream)
    }

    /// The logits `[…, vocabulary]` of rows of the last stream.
    pub(crate) fn logits(&self, stream: &Tensor) -> Result<Tensor> {
        let head = if self.spec.tied_head { "model.embed_tokens" } else { "lm_head" };
        (self.multiply)(&self.normalised(stream, "model.norm")?, self.weight(head))?.to_dtype(DType::F32)
    }

    /// Through one of attention's four projections.
    fn project(&self, input: &Tensor, name: &str) -> Result<Tensor> {
        let result = (self.multiply)(input, self.weight(name))?;
        // Most models have none: nothing is looked up for them.
        let may_have = self.spec.attention_bias != AttentionBias::None;
        match may_have.then(|| (self.weights)(&format!("{name}.bias"))).flatten() {
            Some(bias) => bias::composed(&result, bias),
            None => Ok(result),
        }
    }

    /// What products read of the stream, which itself is `f32`.
    fn normalised(&self, stream: &Tensor, scale: &str) -> Result<Tensor> {
        rms_norm::composed(stream, self.weight(scale), self.spec.norm_epsilon)?.to_dtype(self.dtype)
    }

    fn weight(&self, name: &str) -> &'a Tensor {
        (self.weights)(&format!("{name}.weight")).expect("the layout has every tensor of the model")
    }
}

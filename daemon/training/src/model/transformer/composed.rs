//! The transformer composed of candle's differentiable operations: on any device, and what the hand-written one is checked
//! against.

use candle_core::{DType, Result, Tensor};

use super::Transformer;
use crate::data::Batch;
use crate::ops::{attention, bias, embedding, head_norm, linear, rms_norm, swiglu};

impl Transformer {
    /// As [`Model::logits`](crate::model::Model::logits).
    pub(super) fn composed_logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let find = |name: &str| self.layout.position(name).map(|place| &parameters[place]);
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

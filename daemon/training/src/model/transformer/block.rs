//! One block, forward and backward on any device: attention and feed-forward, each behind a norm and around the residual
//! stream. What not every family of models has (biases, norms of heads, layers without positions) costs nothing where it is not
//! there.
//!
//! Only what the backward cannot cheaply make again is kept: norms and the feed-forward's hidden values are computed anew.

use std::ops::Range;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::TransformerModel;

use super::operations::{Buffer, Cache, HeadWeights, Operations, Projection};
use super::workspace::{Kept, Scratch};
use crate::ops::rotary::Turn;

/// Where one block's weights lie in the flat vector.
pub(crate) struct Block {
    attention_norm: Range<usize>,
    heads: HeadWeights,
    output: Projection,
    feed_forward_norm: Range<usize>,
    /// Both lie side by side, so they are one matrix `[2 · inner, width]`.
    gate_up: Projection,
    down: Projection,
}

impl Block {
    /// Of the layer of this number.
    pub(super) fn new(layout: &ModelLayout, spec: &TransformerModel, layer: u32) -> Block {
        let find = |part: &str| layout.tensor(&format!("model.layers.{layer}.{part}")).map(|tensor| tensor.range());
        let weight = |part: &str| find(&format!("{part}.weight")).expect("the layout has every tensor of the model");
        let projection = |part: &str, inputs: usize| {
            let (weight, bias) = (weight(part), find(&format!("{part}.bias")));
            Projection { outputs: weight.len() / inputs, weight, bias, inputs }
        };
        let [width, inner, queries] = [spec.width, spec.feed_forward, spec.query_width()].map(|width| width as usize);
        let heads = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(|part| projection(part, width));
        let [gate, up] = ["mlp.gate_proj", "mlp.up_proj"].map(|part| projection(part, width));
        let are_adjacent = |pair: &[Projection]| pair[0].weight.end == pair[1].weight.start;
        assert!(heads.windows(2).all(are_adjacent) && gate.weight.end == up.weight.start, "layer {layer}");
        let norms = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"].map(find);
        Block {
            attention_norm: weight("input_layernorm"),
            heads: HeadWeights {
                projections: heads,
                norms: match norms {
                    [Some(query), Some(key)] => Some([query, key]),
                    _ => None,
                },
                has_rope: spec.has_rope(layer),
            },
            output: projection("self_attn.o_proj", queries),
            feed_forward_norm: weight("post_attention_layernorm"),
            gate_up: Projection { weight: gate.weight.start..up.weight.end, outputs: 2 * inner, ..gate },
            down: projection("mlp.down_proj", inner),
        }
    }

    /// Of the norm that comes first.
    pub(super) fn first_norm(&self) -> &Range<usize> {
        &self.attention_norm
    }

    /// From `input`, which has been normalised, all that the backward needs, and with [`Block::finish`] the output. With a cache
    /// where a text is read part by part.
    pub(super) fn activate<O: Operations>(
        &self,
        device: &O,
        input: &Buffer<O>,
        kept: &mut Kept<O::Memory>,
        cache: Option<&mut Cache<O>>,
        scratch: &mut Scratch<O::Memory>,
    ) -> Result<()> {
        let (Kept { heads, attended, middle, gate_up }, normalised) = (kept, &mut scratch.normalised);
        device.project_heads(&self.heads, normalised, heads)?;
        device.normalise_heads(&self.heads, heads)?;
        device.turn_heads(&self.heads, heads, Turn::Forwards)?;
        device.attend(heads, cache, attended)?;
        let norm = Some(&self.feed_forward_norm);
        device.add_projection(&self.output, attended, input, middle, norm, normalised)?;
        device.project(&self.gate_up, normalised, gate_up)
    }

    /// The output of an activated block; where there is a `next_norm`, also what that makes of it.
    pub(super) fn finish<O: Operations>(
        &self,
        device: &O,
        kept: &Kept<O::Memory>,
        output: &mut Buffer<O>,
        next_norm: Option<&Range<usize>>,
        scratch: &mut Scratch<O::Memory>,
    ) -> Result<()> {
        let Scratch { hidden, normalised, .. } = scratch;
        device.swiglu(&kept.gate_up, hidden)?;
        device.add_projection(&self.down, hidden, &kept.middle, output, next_norm, normalised)
    }

    /// Turns `to_stream`, the gradient of the output, into that of the input. Uses up what was kept.
    pub(super) fn backward<O: Operations>(
        &self,
        device: &mut O,
        input: &Buffer<O>,
        kept: &mut Kept<O::Memory>,
        to_stream: &mut Buffer<O>,
        scratch: &mut Scratch<O::Memory>,
    ) -> Result<()> {
        let Kept { heads, attended, middle, gate_up } = kept;
        let Scratch { normalised, to_normalised, hidden, to_heads } = scratch;
        device.project_swiglu_backward(&self.down, gate_up, hidden, to_stream)?;
        device.normalise(&self.feed_forward_norm, middle, normalised)?;
        device.project_backward(&self.gate_up, normalised, gate_up, to_normalised)?;
        device.normalise_backward(&self.feed_forward_norm, middle, to_normalised, to_stream)?;

        // What was normalised is computed again below.
        let to_attended = &mut *normalised;
        device.project_backward(&self.output, attended, to_stream, to_attended)?;
        device.attend_backward(heads, attended, to_attended, to_heads)?;
        device.turn_heads(&self.heads, to_heads, Turn::Backwards)?;
        device.normalise_heads_backward(&self.heads, heads, to_heads)?;
        device.normalise(&self.attention_norm, input, normalised)?;
        device.project_heads_backward(&self.heads, normalised, to_heads, to_normalised)?;
        device.normalise_backward(&self.attention_norm, input, to_normalised, to_stream)
    }
}

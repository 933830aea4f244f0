//! One block, forward and backward over flat buffers: attention and feed-forward, each behind a norm and around the
//! residual stream. What not every family of models has (biases, norms of heads, layers without positions) costs nothing
//! where it is not there.
//!
//! Only what the backward cannot cheaply make again is kept: norms and the feed-forward's hidden values are computed
//! anew. Gradients of weights go straight to their place in the flat gradient.

use std::ops::Range;

use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::ModelSpec;

use super::frame::Frame;
use super::weights::{Gradient, Weights};
use super::workspace::{Kept, Scratch};
use crate::ops::head_norm::HeadNorm;
use crate::ops::product::{Matrix, MatrixMut, Write};
use crate::ops::rotary::Turn;
use crate::ops::{bias, rms_norm, swiglu};

/// Where one block's weights lie in the flat vector.
pub(super) struct Block {
    attention_norm: Range<usize>,
    query: Range<usize>,
    key: Range<usize>,
    value: Range<usize>,
    output: Range<usize>,
    feed_forward_norm: Range<usize>,
    /// Gate and up lie side by side, so they are one matrix `[2 · inner, width]`.
    gate_up: Range<usize>,
    down: Range<usize>,
    /// Of queries, keys and values.
    joint_biases: Option<[Range<usize>; 3]>,
    output_bias: Option<Range<usize>>,
    /// The scales of queries' heads and of keys' heads.
    head_norms: Option<[Range<usize>; 2]>,
    /// Whether queries and keys are turned by their positions.
    has_rope: bool,
}

impl Block {
    /// Of the layer of this number.
    pub(super) fn new(layout: &ModelLayout, spec: &ModelSpec, layer: u32) -> Block {
        let place = |part: &str| layout.tensor(&format!("model.layers.{layer}.{part}")).map(|tensor| tensor.range());
        let part = |part: &str| place(&format!("{part}.weight")).expect("the layout has every tensor of the model");
        // All three have one, or none has.
        let biases = ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"].map(place);
        let norms = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"].map(place);
        let (gate, up) = (part("mlp.gate_proj"), part("mlp.up_proj"));
        assert_eq!(gate.end, up.start, "a layer has them side by side");
        Block {
            attention_norm: part("input_layernorm"),
            query: part("self_attn.q_proj"),
            key: part("self_attn.k_proj"),
            value: part("self_attn.v_proj"),
            output: part("self_attn.o_proj"),
            feed_forward_norm: part("post_attention_layernorm"),
            gate_up: gate.start..up.end,
            down: part("mlp.down_proj"),
            joint_biases: match biases {
                [Some(query), Some(key), Some(value)] => Some([query, key, value]),
                _ => None,
            },
            output_bias: place("self_attn.o_proj.bias"),
            head_norms: match norms {
                [Some(query), Some(key)] => Some([query, key]),
                _ => None,
            },
            has_rope: spec.has_rope(layer),
        }
    }

    /// From `input` `[rows, width]` all that the backward needs, and with [`Block::finish`] the output.
    pub(super) fn activate(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        input: &[f32],
        kept: &mut Kept,
        scratch: &mut Scratch,
    ) {
        let (rows, width, queries) = (frame.rows(), frame.width, frame.attention.query_width());
        rms_norm::forward(&mut scratch.normalised, input, weights.vector(&self.attention_norm), frame.epsilon);
        let normalised = Matrix::dense(&scratch.normalised, rows, width);
        for (weight, columns) in self.joint(frame) {
            let place = MatrixMut::dense(&mut kept.joint, rows, frame.attention.joint_width());
            let place = place.columns(columns.start, columns.len());
            weights.forward(frame.products, &weight, place, Write::Replace, normalised);
        }
        for (bias, (_, columns)) in self.joint_biases.iter().flatten().zip(self.joint(frame)) {
            bias::forward(&mut kept.joint, frame.attention.joint_width(), columns.start, weights.vector(bias));
        }
        if let Some(norm) = self.head_norm(frame, weights) {
            norm.forward(&frame.attention, &mut kept.joint, &mut kept.raw);
        }
        self.turn(frame, &mut kept.joint, Turn::Forwards);
        frame.attention.forward(&mut kept.attended, &kept.joint);
        kept.middle.copy_from_slice(input);
        let attended = Matrix::dense(&kept.attended, rows, queries);
        let place = MatrixMut::dense(&mut kept.middle, rows, width);
        weights.forward(frame.products, &self.output, place, Write::Add, attended);
        if let Some(bias) = &self.output_bias {
            bias::forward(&mut kept.middle, width, 0, weights.vector(bias));
        }
        let scale = weights.vector(&self.feed_forward_norm);
        rms_norm::forward(&mut scratch.normalised, &kept.middle, scale, frame.epsilon);
        let normalised = Matrix::dense(&scratch.normalised, rows, width);
        let place = MatrixMut::dense(&mut kept.gate_up, rows, 2 * frame.inner);
        weights.forward(frame.products, &self.gate_up, place, Write::Replace, normalised);
    }

    /// The output `[rows, width]` of an activated block.
    pub(super) fn finish(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        kept: &Kept,
        output: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (rows, width, inner) = (frame.rows(), frame.width, frame.inner);
        swiglu::forward(&mut scratch.hidden, &kept.gate_up, inner);
        output.copy_from_slice(&kept.middle);
        let hidden = Matrix::dense(&scratch.hidden, rows, inner);
        weights.forward(frame.products, &self.down, MatrixMut::dense(output, rows, width), Write::Add, hidden);
    }

    /// Turns `stream`, the gradient of the output, into that of the input. Uses up what was kept.
    pub(super) fn backward(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        gradient: &mut Gradient<'_>,
        (input, kept): (&[f32], &mut Kept),
        stream: &mut [f32],
        scratch: &mut Scratch,
    ) {
        self.feed_forward_backward(frame, weights, gradient, kept, stream, scratch);
        self.attention_backward(frame, weights, gradient, (input, kept), stream, scratch);
    }

    fn feed_forward_backward(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        gradient: &mut Gradient<'_>,
        kept: &mut Kept,
        stream: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (rows, width, inner) = (frame.rows(), frame.width, frame.inner);
        let to_output = Matrix::dense(stream, rows, width);
        let to_hidden = MatrixMut::dense(&mut scratch.hidden, rows, inner);
        let low_rank = weights.to_input(frame.products, &self.down, to_hidden, Write::Replace, to_output);
        // From here on `hidden` holds the hidden values and `gate_up` its gradient.
        swiglu::backward(&mut scratch.hidden, &mut kept.gate_up, inner);
        gradient.of_weight(&self.down, to_output, Matrix::dense(&scratch.hidden, rows, inner), low_rank);
        let scale = weights.vector(&self.feed_forward_norm);
        rms_norm::forward(&mut scratch.normalised, &kept.middle, scale, frame.epsilon);
        let to_gate_up = Matrix::dense(&kept.gate_up, rows, 2 * inner);
        let to_normalised = MatrixMut::dense(&mut scratch.to_normalised, rows, width);
        let low_rank = weights.to_input(frame.products, &self.gate_up, to_normalised, Write::Replace, to_gate_up);
        gradient.of_weight(&self.gate_up, to_gate_up, Matrix::dense(&scratch.normalised, rows, width), low_rank);
        let to_scale = gradient.place(&self.feed_forward_norm);
        rms_norm::backward(stream, to_scale, &kept.middle, &scratch.to_normalised, scale, frame.epsilon);
    }

    fn attention_backward(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        gradient: &mut Gradient<'_>,
        (input, kept): (&[f32], &Kept),
        stream: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (rows, width, queries) = (frame.rows(), frame.width, frame.attention.query_width());
        let to_middle = Matrix::dense(stream, rows, width);
        let to_attended = MatrixMut::dense(&mut scratch.to_normalised, rows, queries);
        let low_rank = weights.to_input(frame.products, &self.output, to_attended, Write::Replace, to_middle);
        gradient.of_weight(&self.output, to_middle, Matrix::dense(&kept.attended, rows, queries), low_rank);
        if let Some(bias) = &self.output_bias {
            gradient.of_bias(bias, stream, width, 0);
        }
        frame.attention.backward(&mut scratch.to_joint, &kept.joint, &scratch.to_normalised);
        self.turn(frame, &mut scratch.to_joint, Turn::Backwards);
        if let (Some(norm), Some([query, key])) = (self.head_norm(frame, weights), &self.head_norms) {
            let write = gradient.write;
            let to_scales = gradient.places([query, key]).map(|[query, key]| (query, key, write));
            norm.backward(&frame.attention, &mut scratch.to_joint, &kept.raw, to_scales);
        }
        for (bias, (_, columns)) in self.joint_biases.iter().flatten().zip(self.joint(frame)) {
            gradient.of_bias(bias, &scratch.to_joint, frame.attention.joint_width(), columns.start);
        }
        let scale = weights.vector(&self.attention_norm);
        rms_norm::forward(&mut scratch.normalised, input, scale, frame.epsilon);
        let normalised = Matrix::dense(&scratch.normalised, rows, width);
        let mut write = Write::Replace;
        for (range, columns) in self.joint(frame) {
            let to_joint = Matrix::dense(&scratch.to_joint, rows, frame.attention.joint_width());
            let to_columns = to_joint.columns(columns.start, columns.len());
            let to_normalised = MatrixMut::dense(&mut scratch.to_normalised, rows, width);
            let low_rank = weights.to_input(frame.products, &range, to_normalised, write, to_columns);
            gradient.of_weight(&range, to_columns, normalised, low_rank);
            write = Write::Add;
        }
        let to_scale = gradient.place(&self.attention_norm);
        rms_norm::backward(stream, to_scale, input, &scratch.to_normalised, scale, frame.epsilon);
    }

    /// The weights of queries, keys and values, with the columns that each makes of the joint matrix.
    fn joint(&self, frame: &Frame<'_>) -> [(Range<usize>, Range<usize>); 3] {
        let (query, key) = (frame.attention.query_width(), frame.attention.key_width());
        [
            (self.query.clone(), 0..query),
            (self.key.clone(), query..query + key),
            (self.value.clone(), query + key..query + 2 * key),
        ]
    }

    /// The norm of heads, where there is one.
    fn head_norm<'a>(&self, frame: &Frame<'_>, weights: Weights<'a>) -> Option<HeadNorm<'a>> {
        let [query, key] = self.head_norms.as_ref()?.each_ref().map(|place| weights.vector(place));
        Some(HeadNorm { query, key, epsilon: frame.epsilon })
    }

    /// Queries and keys by their positions.
    fn turn(&self, frame: &Frame<'_>, joint: &mut [f32], turn: Turn) {
        if self.has_rope {
            let turned = frame.attention.query_width() + frame.attention.key_width();
            frame.rotary.turn(joint, frame.attention.joint_width(), turned, frame.attention.length, turn);
        }
    }
}

//! One block, forward and backward over flat buffers: attention and feed-forward, each behind a norm and around the
//! residual stream. What not every family of models has (biases, norms of heads, layers without positions) costs nothing
//! where it is not there.
//!
//! Only what the backward cannot cheaply make again is kept: norms and the feed-forward's hidden values are computed
//! anew. Gradients of weights go straight to their place in the flat gradient.

use std::ops::Range;

use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::ModelSpec;

use super::workspace::{Kept, Scratch};
use crate::ops::attention::Attention;
use crate::ops::head_norm::HeadNorm;
use crate::ops::linear;
use crate::ops::product::{Matrix, MatrixMut, Products, Write};
use crate::ops::rotary::{RotaryTables, Turn};
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

/// What all blocks have in common for the batch at hand.
pub(super) struct Frame<'a> {
    pub(super) attention: Attention,
    /// Of the residual stream.
    pub(super) width: usize,
    /// Inside the feed-forward part.
    pub(super) inner: usize,
    pub(super) epsilon: f32,
    pub(super) rotary: &'a RotaryTables,
    /// Whether blocks keep queries and keys as they were before the norms of heads.
    pub(super) has_head_norm: bool,
    pub(super) products: Products,
}

impl Frame<'_> {
    /// The same, with products shared out among so many threads.
    pub(super) fn on(self, threads: usize) -> Self {
        Frame { products: Products { threads, ..self.products }, ..self }
    }

    pub(super) fn rows(&self) -> usize {
        self.attention.sequences * self.attention.length
    }
}

/// A gradient, whether it is written or added to, and how it is computed.
pub(super) struct Gradient<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) write: Write,
    pub(super) products: Products,
}

impl Gradient<'_> {
    /// Writes the gradient of the weight in `range`, `[outputs, inputs]`, of a product of `input` with it.
    fn of_weight(&mut self, range: &Range<usize>, gradient: Matrix<'_>, input: Matrix<'_>) {
        let place = MatrixMut::dense(&mut self.values[range.clone()], gradient.width(), input.width());
        linear::to_weight(self.products, place, self.write, gradient, input);
    }

    /// Writes the gradient of the bias in `range`, which was added to the columns from `first` on of rows of this width.
    fn of_bias(&mut self, range: &Range<usize>, gradient: &[f32], row_width: usize, first: usize) {
        bias::backward((&mut self.values[range.clone()], self.write), gradient, row_width, first);
    }
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
        parameters: &[f32],
        input: &[f32],
        kept: &mut Kept,
        scratch: &mut Scratch,
    ) {
        let (rows, width, queries) = (frame.rows(), frame.width, frame.attention.query_width());
        rms_norm::forward(&mut scratch.normalised, input, &parameters[self.attention_norm.clone()], frame.epsilon);
        let normalised = Matrix::dense(&scratch.normalised, rows, width);
        for (weight, columns) in self.joint(frame) {
            let place = MatrixMut::dense(&mut kept.joint, rows, frame.attention.joint_width());
            let weight = Matrix::dense(&parameters[weight], columns.len(), width);
            linear::forward(
                frame.products,
                place.columns(columns.start, columns.len()),
                Write::Replace,
                normalised,
                weight,
            );
        }
        for (bias, (_, columns)) in self.joint_biases.iter().flatten().zip(self.joint(frame)) {
            let bias = &parameters[bias.clone()];
            bias::forward(&mut kept.joint, frame.attention.joint_width(), columns.start, bias);
        }
        if let Some(norm) = self.head_norm(frame, parameters) {
            norm.forward(&frame.attention, &mut kept.joint, &mut kept.raw);
        }
        self.turn(frame, &mut kept.joint, Turn::Forwards);
        frame.attention.forward(&mut kept.attended, &kept.joint);
        kept.middle.copy_from_slice(input);
        let attended = Matrix::dense(&kept.attended, rows, queries);
        let weight = Matrix::dense(&parameters[self.output.clone()], width, queries);
        linear::forward(frame.products, MatrixMut::dense(&mut kept.middle, rows, width), Write::Add, attended, weight);
        if let Some(bias) = &self.output_bias {
            bias::forward(&mut kept.middle, width, 0, &parameters[bias.clone()]);
        }
        let scale = &parameters[self.feed_forward_norm.clone()];
        rms_norm::forward(&mut scratch.normalised, &kept.middle, scale, frame.epsilon);
        let normalised = Matrix::dense(&scratch.normalised, rows, width);
        let place = MatrixMut::dense(&mut kept.gate_up, rows, 2 * frame.inner);
        let weight = Matrix::dense(&parameters[self.gate_up.clone()], 2 * frame.inner, width);
        linear::forward(frame.products, place, Write::Replace, normalised, weight);
    }

    /// The output `[rows, width]` of an activated block.
    pub(super) fn finish(
        &self,
        frame: &Frame<'_>,
        parameters: &[f32],
        kept: &Kept,
        output: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (rows, width, inner) = (frame.rows(), frame.width, frame.inner);
        swiglu::forward(&mut scratch.hidden, &kept.gate_up, inner);
        output.copy_from_slice(&kept.middle);
        let weight = Matrix::dense(&parameters[self.down.clone()], width, inner);
        let hidden = Matrix::dense(&scratch.hidden, rows, inner);
        linear::forward(frame.products, MatrixMut::dense(output, rows, width), Write::Add, hidden, weight);
    }

    /// Turns `stream`, the gradient of the output, into that of the input. Uses up what was kept.
    pub(super) fn backward(
        &self,
        frame: &Frame<'_>,
        parameters: &[f32],
        gradient: &mut Gradient<'_>,
        (input, kept): (&[f32], &mut Kept),
        stream: &mut [f32],
        scratch: &mut Scratch,
    ) {
        self.feed_forward_backward(frame, parameters, gradient, kept, stream, scratch);
        self.attention_backward(frame, parameters, gradient, (input, kept), stream, scratch);
    }

    fn feed_forward_backward(
        &self,
        frame: &Frame<'_>,
        parameters: &[f32],
        gradient: &mut Gradient<'_>,
        kept: &mut Kept,
        stream: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (rows, width, inner) = (frame.rows(), frame.width, frame.inner);
        let to_output = Matrix::dense(stream, rows, width);
        let weight = Matrix::dense(&parameters[self.down.clone()], width, inner);
        let to_hidden = MatrixMut::dense(&mut scratch.hidden, rows, inner);
        linear::to_input(frame.products, to_hidden, Write::Replace, to_output, weight);
        // From here on `hidden` holds the hidden values and `gate_up` its gradient.
        swiglu::backward(&mut scratch.hidden, &mut kept.gate_up, inner);
        gradient.of_weight(&self.down, to_output, Matrix::dense(&scratch.hidden, rows, inner));
        let scale = &parameters[self.feed_forward_norm.clone()];
        rms_norm::forward(&mut scratch.normalised, &kept.middle, scale, frame.epsilon);
        let to_gate_up = Matrix::dense(&kept.gate_up, rows, 2 * inner);
        gradient.of_weight(&self.gate_up, to_gate_up, Matrix::dense(&scratch.normalised, rows, width));
        let weight = Matrix::dense(&parameters[self.gate_up.clone()], 2 * inner, width);
        let to_normalised = MatrixMut::dense(&mut scratch.to_normalised, rows, width);
        linear::to_input(frame.products, to_normalised, Write::Replace, to_gate_up, weight);
        let to_scale = (&mut gradient.values[self.feed_forward_norm.clone()], gradient.write);
        rms_norm::backward(stream, to_scale, &kept.middle, &scratch.to_normalised, scale, frame.epsilon);
    }

    fn attention_backward(
        &self,
        frame: &Frame<'_>,
        parameters: &[f32],
        gradient: &mut Gradient<'_>,
        (input, kept): (&[f32], &Kept),
        stream: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (rows, width, queries) = (frame.rows(), frame.width, frame.attention.query_width());
        let to_middle = Matrix::dense(stream, rows, width);
        gradient.of_weight(&self.output, to_middle, Matrix::dense(&kept.attended, rows, queries));
        if let Some(bias) = &self.output_bias {
            gradient.of_bias(bias, stream, width, 0);
        }
        let weight = Matrix::dense(&parameters[self.output.clone()], width, queries);
        let to_attended = MatrixMut::dense(&mut scratch.to_normalised, rows, queries);
        linear::to_input(frame.products, to_attended, Write::Replace, to_middle, weight);
        frame.attention.backward(&mut scratch.to_joint, &kept.joint, &scratch.to_normalised);
        self.turn(frame, &mut scratch.to_joint, Turn::Backwards);
        if let (Some(norm), Some(places)) = (self.head_norm(frame, parameters), &self.head_norms) {
            let scales = gradient.values.get_disjoint_mut(places.clone());
            let [to_query, to_key] = scales.expect("tensors of a layout do not overlap");
            norm.backward(&frame.attention, &mut scratch.to_joint, &kept.raw, (to_query, to_key), gradient.write);
        }
        for (bias, (_, columns)) in self.joint_biases.iter().flatten().zip(self.joint(frame)) {
            gradient.of_bias(bias, &scratch.to_joint, frame.attention.joint_width(), columns.start);
        }
        let scale = &parameters[self.attention_norm.clone()];
        rms_norm::forward(&mut scratch.normalised, input, scale, frame.epsilon);
        let normalised = Matrix::dense(&scratch.normalised, rows, width);
        let mut write = Write::Replace;
        for (range, columns) in self.joint(frame) {
            let to_joint = Matrix::dense(&scratch.to_joint, rows, frame.attention.joint_width());
            let to_columns = to_joint.columns(columns.start, columns.len());
            gradient.of_weight(&range, to_columns, normalised);
            let weight = Matrix::dense(&parameters[range], columns.len(), width);
            let to_normalised = MatrixMut::dense(&mut scratch.to_normalised, rows, width);
            linear::to_input(frame.products, to_normalised, write, to_columns, weight);
            write = Write::Add;
        }
        let to_scale = (&mut gradient.values[self.attention_norm.clone()], gradient.write);
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
    fn head_norm<'a>(&self, frame: &Frame<'_>, parameters: &'a [f32]) -> Option<HeadNorm<'a>> {
        let [query, key] = self.head_norms.as_ref()?.clone().map(|place| &parameters[place]);
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

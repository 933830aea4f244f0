//! What only some families of models have: biases of attention's projections, and norms of its heads. Nothing is launched for
//! the others.

use std::ops::Range;

use candle_core::Result;

use super::workspace::Kept;
use super::{Block, Frame, GpuTransformer, Gradient, Weights};
use crate::gpu::{Argument, Kind, STRIP, Span, of_kind, size};

impl GpuTransformer {
    pub(super) fn add_joint_biases(&self, frame: Frame, weights: &Weights, block: &Block) -> Result<()> {
        let Some(biases) = &block.joint_biases else { return Ok(()) };
        for (bias, columns) in biases.iter().zip(self.joint_columns()) {
            let place = (self.work().joint.span(), self.joint_width(), columns);
            self.add_bias(frame, self.kind, place, weights.exact(bias))?;
        }
        Ok(())
    }

    /// To what attention adds to the stream.
    pub(super) fn add_output_bias(&self, frame: Frame, weights: &Weights, block: &Block, added: Span) -> Result<()> {
        let Some(bias) = &block.output_bias else { return Ok(()) };
        self.add_bias(frame, self.kind, (added, self.width, 0..self.width), weights.exact(bias))
    }

    /// Adds the gradient of the biases, from that of the joint rows.
    pub(super) fn joint_biases_backward(&self, frame: Frame, block: &Block, gradient: Gradient) -> Result<()> {
        let Some(biases) = &block.joint_biases else { return Ok(()) };
        for (bias, columns) in biases.iter().zip(self.joint_columns()) {
            let place = (self.work().joint.span(), self.joint_width(), columns);
            self.bias_backward(frame, self.kind, place, gradient.of(bias))?;
        }
        Ok(())
    }

    /// The same, from the gradient of the stream.
    pub(super) fn output_bias_backward(&self, frame: Frame, block: &Block, gradient: Gradient) -> Result<()> {
        let Some(bias) = &block.output_bias else { return Ok(()) };
        let place = (self.work().to_stream.span(), self.width, 0..self.width);
        self.bias_backward(frame, Kind::F32, place, gradient.of(bias))
    }

    /// Normalises queries and keys in the joint rows, and keeps them as they were.
    pub(super) fn normalise_heads(&self, frame: Frame, weights: &Weights, block: &Block, kept: &Kept) -> Result<()> {
        let (Some([query, key]), Some(raw)) = (&block.head_norms, &kept.raw) else { return Ok(()) };
        let scales = [query, key].map(|place| weights.exact(place));
        let spans = [&[self.work().joint.span(), raw.span()][..], &scales[..]].concat();
        let sizes = [self.heads, self.key_heads, self.head_width()].map(size);
        let arguments: Vec<Argument> =
            spans.into_iter().map(Argument::from).chain(sizes).chain([self.epsilon.into()]).collect();
        let blocks = frame.rows * (self.heads + self.key_heads);
        self.device.launch(&of_kind("head_norm", self.kind), blocks, &arguments)
    }

    /// Turns the gradient of normalised queries and keys into that of what they were, and adds the scales'.
    pub(super) fn head_norm_backward(
        &self,
        frame: Frame,
        weights: &Weights,
        block: &Block,
        kept: &Kept,
        gradient: Gradient,
    ) -> Result<()> {
        let (Some(norms), Some(raw)) = (&block.head_norms, &kept.raw) else { return Ok(()) };
        let (scales, to_scales) = (norms.each_ref().map(|place| weights.exact(place)), norms.each_ref());
        let spans = [&[self.work().joint.span(), raw.span()][..], &scales[..]].concat();
        let to_scales = to_scales.map(|place| Argument::from(gradient.of(place)));
        let sizes = [frame.rows, self.heads, self.key_heads, self.head_width(), STRIP].map(size);
        let arguments: Vec<Argument> =
            spans.into_iter().map(Argument::from).chain(to_scales).chain(sizes).chain([self.epsilon.into()]).collect();
        let blocks = frame.rows.div_ceil(STRIP) * (self.heads + self.key_heads);
        self.device.launch(&of_kind("head_norm_backward", self.kind), blocks, &arguments)
    }

    /// To some columns of rows of a width.
    fn add_bias(&self, frame: Frame, kind: Kind, place: (Span, usize, Range<usize>), bias: Span) -> Result<()> {
        let (values, row_width, columns) = place;
        let sizes = [row_width, columns.start, columns.len()].map(size);
        let arguments = [&[values.into(), bias.into()][..], &sizes[..]].concat();
        self.device.launch(&of_kind("add_bias", kind), frame.rows, &arguments)
    }

    fn bias_backward(
        &self,
        frame: Frame,
        kind: Kind,
        place: (Span, usize, Range<usize>),
        to_bias: Option<Span>,
    ) -> Result<()> {
        let Some(to_bias) = to_bias else { return Ok(()) };
        let (gradient, row_width, columns) = place;
        let sizes = [frame.rows, row_width, columns.start, columns.len(), STRIP].map(size);
        let arguments = [&[gradient.into(), to_bias.into()][..], &sizes[..]].concat();
        let blocks = columns.len().div_ceil(32) * frame.rows.div_ceil(STRIP);
        self.device.launch(&of_kind("bias_backward", kind), blocks, &arguments)
    }
}

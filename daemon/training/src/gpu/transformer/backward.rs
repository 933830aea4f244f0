//! From the gradient of the last stream to that of all weights.

use std::ops::Range;

use candle_core::Result;

use super::{Frame, GpuTransformer, Projections, Weights};
use crate::gpu::{Argument, Kind, Matrix, Product, STRIP, Span, count, launch_for_each, of_kind, size};

impl GpuTransformer {
    /// Adds to the gradients of the stream and of the scale what reaches `to_normalised`.
    pub(super) fn normalise_backward(
        &self,
        frame: Frame,
        weights: Weights,
        stream: Span,
        scale: &Range<usize>,
        gradient: Span,
    ) -> Result<()> {
        let (work, rows, width) = (self.work(), frame.rows, self.width);
        let (to_output, to_stream, factors) = (work.to_normalised.span(), work.to_stream.span(), work.factors.span());
        let spans = [stream, weights.exact.part(scale.clone()), to_output, to_stream, factors].map(Argument::from);
        let arguments = [&spans[..], &[size(width), self.epsilon.into()]].concat();
        self.device.launch("rms_norm_backward", rows, &arguments)?;
        let spans = [stream, to_output, factors, gradient.part(scale.clone())].map(Argument::from);
        let arguments = [&spans[..], &[size(rows), size(width), size(STRIP)]].concat();
        self.device.launch("rms_scale_backward", width.div_ceil(32) * rows.div_ceil(STRIP), &arguments)
    }
    /// The gradient of the stream as products read it.
    pub(super) fn rounded_gradient(&self, frame: Frame) -> Result<Span> {
        let (exact, rounded) = (self.work().to_stream.span(), self.work().rounded.span());
        if self.kind == Kind::F32 {
            return Ok(exact);
        }
        let values = frame.rows * self.width;
        launch_for_each(&*self.device, "to_bf16", values, &[exact.into(), rounded.into(), count(values)])?;
        Ok(rounded)
    }

    pub(super) fn backward(&self, frame: Frame, weights: Weights, gradient: Span) -> Result<()> {
        for layer in (0..self.blocks.len()).rev() {
            if self.recompute {
                self.activate(frame, weights, layer)?;
            }
            self.feed_forward_backward(frame, weights, layer, gradient)?;
            self.attention_backward(frame, weights, layer, gradient)?;
        }
        let Some(embedding) = &self.embedding else { return Ok(()) };
        let spans = [self.work().to_stream.span(), self.pass().tokens.span(), gradient.part(embedding.clone())];
        let arguments = [&spans.map(Argument::from)[..], &[size(self.width)]].concat();
        self.device.launch("embed_backward", frame.rows, &arguments)
    }

    pub(super) fn feed_forward_backward(
        &self,
        frame: Frame,
        weights: Weights,
        layer: usize,
        gradient: Span,
    ) -> Result<()> {
        let (work, block, kept) = (self.work(), &self.blocks[layer], self.kept(layer));
        let (rows, width, inner) = (frame.rows, self.width, self.inner);
        let weight = |place: &Range<usize>, row: usize| Matrix::new(weights.for_products.part(place.clone()), row);
        let to_weight = |place: &Range<usize>, row: usize| Matrix::new(gradient.part(place.clone()), row);
        let to_output = Matrix::new(self.rounded_gradient(frame)?, width);
        self.swiglu(frame, kept)?;
        let hidden = Matrix::new(work.hidden.span(), inner);
        let to_down = Product::new(to_output.transposed(), hidden, to_weight(&block.down, inner), [width, inner, rows]);
        self.multiply(to_down.adds())?;
        let to_hidden = Matrix::new(work.to_hidden.span(), inner);
        self.multiply(Product::new(to_output, weight(&block.down, inner), to_hidden, [rows, inner, width]))?;
        let spans = [kept.gate_up.span().into(), work.to_hidden.span().into()];
        let arguments = [&spans[..], &[size(inner), count(rows * inner)]].concat();
        launch_for_each(&*self.device, &of_kind("swiglu_backward", self.kind), rows * inner, &arguments)?;
        self.normalise(frame, weights, kept.middle.span(), &block.second_norm)?;
        self.project_backward(frame, weights, &self.gate_up(block, kept), gradient)?;
        self.normalise_backward(frame, weights, kept.middle.span(), &block.second_norm, gradient)
    }

    pub(super) fn attention_backward(
        &self,
        frame: Frame,
        weights: Weights,
        layer: usize,
        gradient: Span,
    ) -> Result<()> {
        let (work, block, kept) = (self.work(), &self.blocks[layer], self.kept(layer));
        let (rows, width, queries) = (frame.rows, self.width, self.query_width());
        let weight = Matrix::new(weights.for_products.part(block.output.clone()), queries);
        let to_weight = Matrix::new(gradient.part(block.output.clone()), queries);
        let to_output = Matrix::new(self.rounded_gradient(frame)?, width);
        let attended = Matrix::new(kept.attended.span(), queries);
        let product = Product::new(to_output.transposed(), attended, to_weight, [width, queries, rows]);
        self.multiply(product.adds())?;
        self.output_bias_backward(frame, block, gradient)?;
        // What was normalised is computed again below.
        let to_attended = work.normalised.span();
        let product = Product::new(to_output, weight, Matrix::new(to_attended, queries), [rows, queries, width]);
        self.multiply(product)?;
        self.move_heads(frame, to_attended, true)?;
        self.attend_backward(frame, kept)?;
        self.turn_heads(frame, layer, &work.to_heads, true)?;
        self.head_norm_backward(frame, weights, block, kept, gradient)?;
        self.joint_biases_backward(frame, block, gradient)?;
        let stream = self.pass().streams[layer].span();
        self.normalise(frame, weights, stream, &block.first_norm)?;
        self.project_backward(frame, weights, &self.joint(block), gradient)?;
        self.normalise_backward(frame, weights, stream, &block.first_norm, gradient)
    }
    /// From the gradient of projections to that of their weights, and fills `to_normalised`.
    fn project_backward(
        &self,
        frame: Frame,
        weights: Weights,
        projections: &Projections,
        gradient: Span,
    ) -> Result<()> {
        let (work, rows, width) = (self.work(), frame.rows, self.width);
        let normalised = Matrix::new(work.normalised.span(), width);
        let to_normalised = Matrix::new(work.to_normalised.span(), width);
        for (index, (place, columns)) in projections.parts.iter().enumerate() {
            let to_result = projections.of(columns);
            let to_weight = Matrix::new(gradient.part(place.clone()), width);
            let shape = [columns.len(), width, rows];
            self.multiply(Product::new(to_result.transposed(), normalised, to_weight, shape).adds())?;
            let weight = Matrix::new(weights.for_products.part(place.clone()), width);
            let product = Product::new(to_result, weight, to_normalised, [rows, width, columns.len()]);
            self.multiply(if index == 0 { product } else { product.adds() })?;
        }
        Ok(())
    }
}

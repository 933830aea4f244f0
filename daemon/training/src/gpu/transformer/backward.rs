//! From the gradient of the last stream to that of all weights.

use std::ops::Range;

use candle_core::Result;

use super::{Frame, GpuTransformer, Projection, Weights};
use crate::gpu::{Argument, Kind, Matrix, NORM_STRIP, Product, Span, count, launch_for_each, of_kind, size};

impl GpuTransformer {
    /// Adds to the gradients of the stream, also as it is rounded, and of the scale what reaches `to_normalised`.
    pub(super) fn normalise_backward(
        &self,
        frame: Frame,
        weights: Weights,
        stream: Span,
        scale: &Range<usize>,
        gradient: Span,
    ) -> Result<()> {
        let (to_output, to_stream) = (self.work().to_normalised.span(), self.work().to_stream.span());
        let [exact, to_scale] = [weights.exact, gradient].map(|vector| vector.part(scale.clone()));
        let spans = [stream, exact, to_output, to_stream, self.rounded_gradient(), to_scale].map(Argument::from);
        let sizes = [frame.rows, self.width].map(size);
        let arguments = [&spans[..], &sizes[..], &[self.epsilon.into()]].concat();
        self.device.launch(&of_kind("rms_norm_backward", self.kind), frame.rows.div_ceil(NORM_STRIP), &arguments)
    }

    /// The gradient of the stream as products read it.
    fn rounded_gradient(&self) -> Span {
        if self.kind == Kind::F32 { self.work().to_stream.span() } else { self.work().rounded.span() }
    }

    /// Rounds the gradient of the stream that came from elsewhere.
    pub(super) fn round_gradient(&self, frame: Frame) -> Result<()> {
        if self.kind == Kind::F32 {
            return Ok(());
        }
        let (values, exact) = (frame.rows * self.width, self.work().to_stream.span());
        launch_for_each(
            &*self.device,
            "to_bf16",
            values,
            &[exact.into(), self.rounded_gradient().into(), count(values)],
        )
    }

    pub(super) fn backward(&self, frame: Frame, weights: Weights, gradient: Span) -> Result<()> {
        for layer in (0..self.blocks.len()).rev() {
            if self.recompute {
                let stream = self.pass().streams[layer].span();
                self.normalise(frame, weights, stream, &self.blocks[layer].first_norm)?;
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
        let to_output = Matrix::new(self.rounded_gradient(), width);
        let [hidden, to_hidden] = [work.hidden.span(), work.to_hidden.span()];
        let product =
            Product::new(to_output, weight(&block.down, inner), Matrix::new(to_hidden, inner), [rows, inner, width]);
        self.multiply(product)?;
        let spans = [kept.gate_up.span(), to_hidden, hidden].map(Argument::from);
        let arguments = [&spans[..], &[size(inner)]].concat();
        self.device.launch(&of_kind("swiglu_backward", self.kind), rows, &arguments)?;
        let (hidden, to_down) = (Matrix::new(hidden, inner), to_weight(&block.down, inner));
        self.multiply(Product::new(to_output.transposed(), hidden, to_down, [width, inner, rows]).adds())?;
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
        let to_output = Matrix::new(self.rounded_gradient(), width);
        let attended = Matrix::new(kept.attended.span(), queries);
        let product = Product::new(to_output.transposed(), attended, to_weight, [width, queries, rows]);
        self.multiply(product.adds())?;
        self.output_bias_backward(frame, block, gradient)?;
        // What was normalised is computed again below.
        let to_attended = work.normalised.span();
        let product = Product::new(to_output, weight, Matrix::new(to_attended, queries), [rows, queries, width]);
        self.multiply(product)?;
        self.attend_backward(frame, kept, to_attended)?;
        self.turn_heads(frame, layer, &work.to_heads, true)?;
        self.head_norm_backward(frame, weights, block, kept, gradient)?;
        self.joint_biases_backward(frame, block, gradient)?;
        let stream = self.pass().streams[layer].span();
        self.normalise(frame, weights, stream, &block.first_norm)?;
        self.project_backward(frame, weights, &self.joint(block), gradient)?;
        self.normalise_backward(frame, weights, stream, &block.first_norm, gradient)
    }
    /// From the gradient of a projection to that of its weight, and fills `to_normalised`.
    fn project_backward(&self, frame: Frame, weights: Weights, projection: &Projection, gradient: Span) -> Result<()> {
        let (work, rows, width) = (self.work(), frame.rows, self.width);
        let Projection { place, results: to_results, columns } = projection;
        let normalised = Matrix::new(work.normalised.span(), width);
        let to_weight = Matrix::new(gradient.part(place.clone()), width);
        self.multiply(Product::new(to_results.transposed(), normalised, to_weight, [*columns, width, rows]).adds())?;
        let weight = Matrix::new(weights.for_products.part(place.clone()), width);
        let to_normalised = Matrix::new(work.to_normalised.span(), width);
        self.multiply(Product::new(*to_results, weight, to_normalised, [rows, width, *columns]))
    }
}

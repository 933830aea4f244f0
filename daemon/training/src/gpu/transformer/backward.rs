//! From the gradient of the last stream to that of all weights.

use std::ops::Range;

use candle_core::Result;

use super::{Adapter, Frame, GpuTransformer, Gradient, Projection, Weights};
use crate::gpu::{Argument, Kind, Matrix, NORM_STRIP, Product, Span, count, launch_for_each, of_kind, size};

impl GpuTransformer {
    /// Adds to the gradients of the stream, also as it is rounded, and of the scale what reaches `to_normalised`.
    pub(super) fn normalise_backward(
        &self,
        frame: Frame,
        weights: &Weights,
        stream: Span,
        scale: &Range<usize>,
        gradient: Gradient,
    ) -> Result<()> {
        let (to_output, to_stream) = (self.work().to_normalised.span(), self.work().to_stream.span());
        let spans = [stream, weights.exact(scale), to_output, to_stream, self.rounded_gradient()].map(Argument::from);
        let sizes = [frame.rows, self.width].map(size);
        let arguments = [&spans[..], &[gradient.of(scale).into()], &sizes[..], &[self.epsilon.into()]].concat();
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

    pub(super) fn backward(&self, frame: Frame, weights: &Weights, gradient: Gradient) -> Result<()> {
        for layer in (0..self.blocks.len()).rev() {
            if self.recompute {
                let stream = self.pass().streams[layer].span();
                self.normalise(frame, weights, stream, &self.blocks[layer].first_norm)?;
                self.activate(frame, weights, layer)?;
            }
            self.feed_forward_backward(frame, weights, layer, gradient)?;
            self.attention_backward(frame, weights, layer, gradient)?;
        }
        let Some(to_table) = self.embedding.as_ref().and_then(|place| gradient.of(place)) else { return Ok(()) };
        let spans = [self.work().to_stream.span(), self.pass().tokens.span(), to_table];
        let arguments = [&spans.map(Argument::from)[..], &[size(self.width)]].concat();
        self.device.launch("embed_backward", frame.rows, &arguments)
    }

    pub(super) fn feed_forward_backward(
        &self,
        frame: Frame,
        weights: &Weights,
        layer: usize,
        gradient: Gradient,
    ) -> Result<()> {
        let (work, block, kept) = (self.work(), &self.blocks[layer], self.kept(layer));
        let (inner, down) = (self.inner, self.down(block, self.rounded_gradient()));
        let [hidden, to_hidden] = [work.hidden.span(), work.to_hidden.span()];
        self.project_back(frame, weights, &down, Matrix::new(to_hidden, inner))?;
        let spans = [kept.gate_up.span(), to_hidden, hidden].map(Argument::from);
        let arguments = [&spans[..], &[size(inner)]].concat();
        self.device.launch(&of_kind("swiglu_backward", self.kind), frame.rows, &arguments)?;
        self.add_weights(frame, weights, &down, gradient)?;
        self.normalise(frame, weights, kept.middle.span(), &block.second_norm)?;
        self.project_backward(frame, weights, &self.gate_up(block, kept), gradient)?;
        self.normalise_backward(frame, weights, kept.middle.span(), &block.second_norm, gradient)
    }

    pub(super) fn attention_backward(
        &self,
        frame: Frame,
        weights: &Weights,
        layer: usize,
        gradient: Gradient,
    ) -> Result<()> {
        let (work, block, kept) = (self.work(), &self.blocks[layer], self.kept(layer));
        let output = self.output(block, kept, self.rounded_gradient());
        self.add_weights(frame, weights, &output, gradient)?;
        self.output_bias_backward(frame, block, gradient)?;
        // What was normalised is computed again below.
        let to_attended = work.normalised.span();
        self.project_back(frame, weights, &output, Matrix::new(to_attended, self.query_width()))?;
        self.attend_backward(frame, kept, to_attended)?;
        self.turn_heads(frame, layer, &work.to_heads, true)?;
        self.head_norm_backward(frame, weights, block, kept, gradient)?;
        self.joint_biases_backward(frame, block, gradient)?;
        let stream = self.pass().streams[layer].span();
        self.normalise(frame, weights, stream, &block.first_norm)?;
        self.project_backward(frame, weights, &self.joint(block), gradient)?;
        self.normalise_backward(frame, weights, stream, &block.first_norm, gradient)
    }

    /// From the gradient of a projection of what was normalised to that of its weights, and fills `to_normalised`.
    fn project_backward(
        &self,
        frame: Frame,
        weights: &Weights,
        projection: &Projection,
        gradient: Gradient,
    ) -> Result<()> {
        self.add_weights(frame, weights, projection, gradient)?;
        self.project_back(frame, weights, projection, Matrix::new(self.work().to_normalised.span(), self.width))
    }

    /// Adds the gradient of a projection's weights, or of the adapters beside them.
    fn add_weights(&self, frame: Frame, weights: &Weights, projection: &Projection, gradient: Gradient) -> Result<()> {
        let (rows, [outputs, width], inputs) = (frame.rows, projection.shape, projection.inputs);
        if let Some(to_weight) = gradient.of(&projection.place) {
            let (to_results, to_weight) = (projection.results.transposed(), Matrix::new(to_weight, width));
            return self.multiply(Product::new(to_results, inputs, to_weight, [outputs, width, rows]).adds());
        }
        for adapter in weights.adapters_in(&projection.place) {
            let (outputs, rank) = (adapter.places.outputs(), adapter.places.rank());
            let (to_up, to_down) = gradient.of_adapter(adapter.places);
            let (low, to_results) = (self.lowered(frame, projection, &adapter)?, projection.results_of(&adapter));
            let product = Product::new(to_results.transposed(), low, to_up, [outputs, rank, rows]);
            self.multiply(product.scaled(adapter.scale).adds())?;
            let to_low = self.lowered_gradient(frame, projection, &adapter)?;
            self.multiply(Product::new(to_low.transposed(), inputs, to_down, [rank, width, rows]).adds())?;
        }
        Ok(())
    }

    /// From the gradient of a projection to that of its inputs.
    fn project_back(&self, frame: Frame, weights: &Weights, projection: &Projection, to_inputs: Matrix) -> Result<()> {
        let (rows, [outputs, width]) = (frame.rows, projection.shape);
        let weight = weights.matrix(&projection.place, width);
        self.multiply(Product::new(projection.results, weight, to_inputs, [rows, width, outputs]))?;
        for adapter in weights.adapters_in(&projection.place) {
            let (to_low, rank) = (self.lowered_gradient(frame, projection, &adapter)?, adapter.places.rank());
            self.multiply(Product::new(to_low, adapter.down, to_inputs, [rows, width, rank]).adds())?;
        }
        Ok(())
    }

    /// The gradient of the inputs times Aᵀ, `[rows, rank]`: that of the results times `s·B`.
    fn lowered_gradient(&self, frame: Frame, projection: &Projection, adapter: &Adapter) -> Result<Matrix> {
        let (outputs, rank) = (adapter.places.outputs(), adapter.places.rank());
        let to_low = Matrix::new(self.work().to_low.span(), rank);
        let product = Product::new(projection.results_of(adapter), adapter.up, to_low, [frame.rows, rank, outputs]);
        self.multiply(product.scaled(adapter.scale))?;
        Ok(to_low)
    }
}

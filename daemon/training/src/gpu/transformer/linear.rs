//! Products with a weight of the transformer, and with the adapters beside it.

use std::ops::Range;

use candle_core::Result;

use super::Gpu;
use crate::gpu::weights::Adapter;
use crate::gpu::{Matrix, Product};

/// `results` `[rows, outputs]` = `inputs` `[rows, width]` · Wᵀ. In backward the results are replaced by their gradient.
#[derive(Clone, Copy)]
pub(super) struct Linear<'a> {
    /// Of W, which may be several matrices one below the other, in the model's layout.
    pub(super) place: &'a Range<usize>,
    pub(super) rows: usize,
    pub(super) inputs: Matrix,
    pub(super) results: Matrix,
}

impl Linear<'_> {
    /// Of W: `[outputs, width]`.
    fn shape(&self) -> [usize; 2] {
        [self.results.columns(), self.inputs.columns()]
    }

    /// The columns of the matrix that an adapter is beside.
    fn results_of(&self, adapter: &Adapter) -> Matrix {
        self.results.columns_from(adapter.places.first_output(self.place))
    }
}

impl Gpu<'_> {
    /// Fills the results.
    pub(super) fn linear(&self, linear: Linear) -> Result<()> {
        let (rows, [_, width]) = (linear.rows, linear.shape());
        self.weights.by_panels(&*self.model.device, linear.place, width, |outputs, weight| {
            let results = linear.results.columns_from(outputs.start);
            self.multiply(Product::new(linear.inputs, weight.transposed(), results, [rows, outputs.len(), width]))
        })?;
        for adapter in self.weights.adapters_in(linear.place) {
            let (low, results) = (self.lowered(linear, &adapter)?, linear.results_of(&adapter));
            let shape = [rows, adapter.places.outputs(), adapter.places.rank()];
            self.multiply(Product::new(low, adapter.up.transposed(), results, shape).scaled(adapter.scale).adds())?;
        }
        Ok(())
    }

    /// The inputs times Aᵀ: `[rows, rank]`.
    fn lowered(&self, linear: Linear, adapter: &Adapter) -> Result<Matrix> {
        let (rank, width) = (adapter.places.rank(), adapter.places.inputs());
        let low = Matrix::new(self.scratch.low.span(), rank);
        let down = adapter.down.transposed();
        self.multiply(Product::new(linear.inputs, down, low, [linear.rows, rank, width]))?;
        Ok(low)
    }

    /// Adds the gradient of the weights, or of the adapters beside them.
    pub(super) fn add_weights(&self, linear: Linear) -> Result<()> {
        let (rows, [outputs, width], inputs) = (linear.rows, linear.shape(), linear.inputs);
        if let Some(to_weight) = self.gradient().of(linear.place) {
            let (to_results, to_weight) = (linear.results.transposed(), Matrix::new(to_weight, width));
            return self.multiply(Product::new(to_results, inputs, to_weight, [outputs, width, rows]).adds());
        }
        for adapter in self.weights.adapters_in(linear.place) {
            let (outputs, rank) = (adapter.places.outputs(), adapter.places.rank());
            let (to_up, to_down) = self.gradient().of_adapter(adapter.places);
            let (low, to_results) = (self.lowered(linear, &adapter)?, linear.results_of(&adapter));
            let product = Product::new(to_results.transposed(), low, to_up, [outputs, rank, rows]);
            self.multiply(product.scaled(adapter.scale).adds())?;
            let to_low = self.lowered_gradient(linear, &adapter)?;
            self.multiply(Product::new(to_low.transposed(), inputs, to_down, [rank, width, rows]).adds())?;
        }
        Ok(())
    }

    /// From the gradient of the results to that of the weights, and of the inputs.
    pub(super) fn linear_backward(&self, linear: Linear, to_inputs: Matrix) -> Result<()> {
        self.add_weights(linear)?;
        self.linear_to_inputs(linear, to_inputs)
    }

    /// From the gradient of the results to that of its inputs.
    pub(super) fn linear_to_inputs(&self, linear: Linear, to_inputs: Matrix) -> Result<()> {
        let (rows, [_, width]) = (linear.rows, linear.shape());
        self.weights.by_panels(&*self.model.device, linear.place, width, |outputs, weight| {
            let to_results = linear.results.columns_from(outputs.start);
            let product = Product::new(to_results, weight, to_inputs, [rows, width, outputs.len()]);
            self.multiply(if outputs.start == 0 { product } else { product.adds() })
        })?;
        for adapter in self.weights.adapters_in(linear.place) {
            let (to_low, rank) = (self.lowered_gradient(linear, &adapter)?, adapter.places.rank());
            self.multiply(Product::new(to_low, adapter.down, to_inputs, [rows, width, rank]).adds())?;
        }
        Ok(())
    }

    /// The gradient of the inputs times Aᵀ, `[rows, rank]`: that of the results times `s·B`.
    fn lowered_gradient(&self, linear: Linear, adapter: &Adapter) -> Result<Matrix> {
        let (outputs, rank) = (adapter.places.outputs(), adapter.places.rank());
        let to_low = Matrix::new(self.scratch.to_low.span(), rank);
        let product = Product::new(linear.results_of(adapter), adapter.up, to_low, [linear.rows, rank, outputs]);
        self.multiply(product.scaled(adapter.scale))?;
        Ok(to_low)
    }
}

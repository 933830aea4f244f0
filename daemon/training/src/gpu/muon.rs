//! Muon's step of a matrix in a GPU's memory, as `optimizer/muon.rs` has it on the CPU. Products are of `f32`.

use candle_core::Result;

use super::{Accelerator, Kind, Matrix, Memory, Product, SUM_BLOCKS, Span, count, launch_for_each, size, sizes};
use crate::optimizer::muon::{NORM_MIN, POLYNOMIALS, rate_scale};
use crate::optimizer::{Optimizer, Rule, StepFactors};

/// Memory for one matrix at a time, as large as the largest.
pub(crate) struct MuonMemory {
    update: Memory,
    next: Memory,
    gram: Memory,
    factor: Memory,
}

/// The vectors of one matrix: parameters, gradient and momentum.
pub(crate) struct Vectors {
    pub(crate) values: Span,
    pub(crate) gradient: Span,
    pub(crate) momentum: Span,
}

impl MuonMemory {
    /// `None` where nothing is stepped by Muon.
    pub(crate) fn new(device: &dyn Accelerator, optimizer: &Optimizer) -> Result<Option<MuonMemory>> {
        let shapes = || {
            optimizer.tensors.iter().filter_map(|tensor| match tensor.rule {
                Rule::Muon(shape) => Some(shape),
                Rule::AdamW { .. } => None,
            })
        };
        let Some(values) = shapes().map(|[outputs, inputs]| outputs * inputs).max() else { return Ok(None) };
        let side = shapes().map(|[outputs, inputs]| outputs.min(inputs)).max().unwrap_or_default();
        let allocate = |values| device.allocate(Kind::F32, values);
        Ok(Some(MuonMemory {
            update: allocate(values)?,
            next: allocate(values)?,
            gram: allocate(side * side)?,
            factor: allocate(side * side)?,
        }))
    }

    /// A step of one matrix; `sums` has room for [`SUM_BLOCKS`].
    pub(crate) fn step(
        &self,
        device: &dyn Accelerator,
        vectors: &Vectors,
        shape: [usize; 2],
        momentum: f64,
        factors: &StepFactors,
        sums: Span,
    ) -> Result<()> {
        let values = shape[0] * shape[1];
        let update = self.update.span().first(values);
        let (decay, new) = (momentum as f32, (1.0 - momentum as f32) * factors.clip as f32);
        let arguments = [vectors.gradient.into(), vectors.momentum.into(), update.into(), count(values)];
        let arguments: Vec<_> = arguments.into_iter().chain([decay.into(), new.into()]).collect();
        launch_for_each(device, "muon_look_ahead", values, &arguments)?;
        let update = self.orthogonalise(device, update, shape, sums)?;
        let rate = factors.muon_rate * rate_scale(shape);
        let arguments = [vectors.values.into(), update.into(), count(values)];
        let scalars = [factors.muon_keep as f32, rate as f32];
        let arguments: Vec<_> = arguments.into_iter().chain(scalars.map(Into::into)).collect();
        launch_for_each(device, "muon_step", values, &arguments)
    }

    /// Where the matrix with singular values near 1 lies then.
    fn orthogonalise(
        &self,
        device: &dyn Accelerator,
        matrix: Span,
        [rows, columns]: [usize; 2],
        sums: Span,
    ) -> Result<Span> {
        let values = rows * columns;
        let blocks = values.div_ceil(sizes().threads).clamp(1, SUM_BLOCKS);
        device.launch("sum_squares", blocks, &[matrix.into(), sums.into(), count(values), size(blocks)])?;
        device.launch("muon_norm", 1, &[sums.into(), size(blocks)])?;
        let arguments = [matrix.into(), sums.into(), count(values), NORM_MIN.into()];
        launch_for_each(device, "muon_normalise", values, &arguments)?;
        let (side, is_wide) = (rows.min(columns), rows <= columns);
        let (gram, factor) = (self.gram.span().first(side * side), self.factor.span().first(side * side));
        let square = |span| Matrix::new(span, side);
        let (mut now, mut next) = (matrix, self.next.span().first(values));
        for [a, b, c] in POLYNOMIALS {
            let matrix = Matrix::new(now, columns);
            let (left, right) = if is_wide { (matrix, matrix.transposed()) } else { (matrix.transposed(), matrix) };
            device.multiply(&Product::new(left, right, square(gram), [side, side, rows.max(columns)]))?;
            let arguments = [gram.into(), factor.into(), size(side), a.into(), b.into()];
            launch_for_each(device, "muon_polynomial", side * side, &arguments)?;
            let product = Product::new(square(gram), square(gram), square(factor), [side; 3]);
            device.multiply(&product.scaled(c).adds())?;
            let (left, right) = if is_wide { (square(factor), matrix) } else { (matrix, square(factor)) };
            device.multiply(&Product::new(left, right, Matrix::new(next, columns), [rows, columns, side]))?;
            (now, next) = (next, now);
        }
        Ok(now)
    }
}

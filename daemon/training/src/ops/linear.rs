//! `y = x · Wᵀ`: the matrix product of a layer without bias.

use std::cell::RefCell;

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::base_weights::BaseWeights;
use super::exponential::dot;
use super::product::{Matrix, MatrixMut, Products, Write, multiply_in_parallel};
use super::vector::vectorised;

/// A layer's weight, `[outputs, inputs]`.
#[derive(Clone, Copy)]
pub(crate) enum Weight<'a> {
    /// Where it lies.
    Exact(Matrix<'a>),
    /// To be decoded.
    Stored(StoredMatrix<'a>),
}

/// A matrix in a base's weights.
#[derive(Clone, Copy)]
pub(crate) struct StoredMatrix<'a> {
    pub(crate) weights: &'a BaseWeights,
    /// Its first value.
    pub(crate) first: usize,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
}

/// Values that are decoded at a time, 4 MiB, unless [`PANEL_ROWS_MIN`] rows have more.
pub(crate) const PANEL_VALUES: usize = 1 << 20;

/// A product with fewer outputs would spend its time on packing the other factor.
pub(crate) const PANEL_ROWS_MIN: usize = 256;

/// Values that a task decodes.
const TASK_VALUES: usize = 1 << 14;

thread_local! {
    /// A decoded panel's place, kept: fresh pages would cost as much as decoding.
    static PANEL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl StoredMatrix<'_> {
    /// Decodes some rows at a time, and hands them over with the number of the first.
    fn for_each_panel(&self, threads: usize, mut use_panel: impl FnMut(usize, Matrix<'_>)) {
        let StoredMatrix { weights, first, outputs, inputs } = *self;
        let at_once = (PANEL_VALUES / inputs).max(PANEL_ROWS_MIN).min(outputs);
        // Taken, not borrowed: a thread that waits for others' parts of a product may begin another product.
        let mut panel = PANEL.take();
        panel.resize(panel.len().max(at_once * inputs), 0.0);
        for row in (0..outputs).step_by(at_once) {
            let rows = at_once.min(outputs - row);
            let (values, position) = (&mut panel[..rows * inputs], first + row * inputs);
            if threads > 1 {
                let tasks = values.par_chunks_mut(TASK_VALUES).enumerate();
                tasks.for_each(|(task, values)| weights.read(position + task * TASK_VALUES, values));
            } else {
                weights.read(position, values);
            }
            use_panel(row, Matrix::dense(values, rows, inputs));
        }
        PANEL.set(panel);
    }
}

/// `input` of shape `[…, inputs]` times the transpose of `weight` `[outputs, inputs]`: `[…, outputs]`, composed of
/// candle's operations and in the precision of `input`.
pub(crate) fn composed(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims2()?;
    let mut shape = input.dims().to_vec();
    *shape.last_mut().expect("a layer's input has a last dimension") = outputs;
    let weight = weight.to_dtype(input.dtype())?;
    input.reshape(((), inputs))?.matmul(&weight.t()?)?.reshape(shape)
}

/// The same: rows of `output` `[rows, outputs]` from those of `input` `[rows, inputs]`.
pub(crate) fn forward(
    products: Products,
    mut output: MatrixMut<'_>,
    write: Write,
    input: Matrix<'_>,
    weight: Weight<'_>,
) {
    match weight {
        Weight::Exact(weight) => multiply_by(products, output, write, input, weight),
        Weight::Stored(weight) => weight.for_each_panel(products.threads, |first, panel| {
            multiply_by(products, output.again().columns(first, panel.height()), write, input, panel);
        }),
    }
}

fn multiply_by(products: Products, output: MatrixMut<'_>, write: Write, input: Matrix<'_>, weight: Matrix<'_>) {
    if let (1, None) = (input.height(), products.rounding) {
        multiply_row(products.threads, output, write, input, weight);
    } else {
        multiply_in_parallel(products, output, write, 1.0, input, weight.transposed());
    }
}

/// A product with a single row only reads the matrix once, so it is shared out by the matrix's rows.
fn multiply_row(threads: usize, output: MatrixMut<'_>, write: Write, input: Matrix<'_>, weight: Matrix<'_>) {
    let (row, rows) = (input.row(0), if threads > 1 { TASK_VALUES.div_ceil(weight.width()) } else { weight.height() });
    let tasks: Vec<_> = output.split_columns(rows).collect();
    tasks.into_par_iter().enumerate().for_each(|(task, output)| {
        let output = output.into_row();
        add_products(output, write, weight.rows(task * rows, output.len()), row);
    });
}

vectorised! {
    fn add_products(output: &mut [f32], write: Write, weight: Matrix<'_>, row: &[f32]) {
        for (index, output) in output.iter_mut().enumerate() {
            let product = dot(weight.row(index), row);
            *output = if write == Write::Add { *output + product } else { product };
        }
    }
}

/// The gradient of the input: `dx = g · W`.
pub(crate) fn to_input(
    products: Products,
    mut to_input: MatrixMut<'_>,
    write: Write,
    gradient: Matrix<'_>,
    weight: Weight<'_>,
) {
    match weight {
        Weight::Exact(weight) => multiply_in_parallel(products, to_input, write, 1.0, gradient, weight),
        Weight::Stored(weight) => weight.for_each_panel(products.threads, |first, panel| {
            let (gradient, write) =
                (gradient.columns(first, panel.height()), if first > 0 { Write::Add } else { write });
            multiply_in_parallel(products, to_input.again(), write, 1.0, gradient, panel);
        }),
    }
}

/// The gradient of the weight: `dW = gᵀ · x`.
pub(crate) fn to_weight(
    products: Products,
    to_weight: MatrixMut<'_>,
    write: Write,
    gradient: Matrix<'_>,
    input: Matrix<'_>,
) {
    multiply_in_parallel(products, to_weight, write, 1.0, gradient.transposed(), input);
}

#[cfg(test)]
mod tests {
    use murmur_protocol::layout::ModelLayout;

    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_values, values};

    #[test]
    fn linear_agrees_with_autograd() {
        for (rows, inputs, outputs) in [(1, 1, 1), (10, 7, 3), (99, 16, 48), (300, 40, 290)] {
            let (x, w) = (random(&[rows, inputs], 1), random(&[outputs, inputs], 2));
            let g = random_values(rows * outputs, 3);
            let expected = by_autograd(&[x.clone(), w.clone()], &g, |tensors| composed(&tensors[0], &tensors[1]));
            let (x, w) = (values(&x), values(&w));
            let gradient = Matrix::dense(&g, rows, outputs);
            let (input, weight) = (Matrix::dense(&x, rows, inputs), Weight::Exact(Matrix::dense(&w, outputs, inputs)));
            let mut output = vec![f32::NAN; rows * outputs];
            forward(Products::exact(2), MatrixMut::dense(&mut output, rows, outputs), Write::Replace, input, weight);
            assert_close("output", &output, &expected[0]);
            let (mut dx, mut dw) = (vec![f32::NAN; rows * inputs], vec![f32::NAN; outputs * inputs]);
            to_input(Products::exact(2), MatrixMut::dense(&mut dx, rows, inputs), Write::Replace, gradient, weight);
            assert_close("input", &dx, &expected[1]);
            to_weight(Products::exact(2), MatrixMut::dense(&mut dw, outputs, inputs), Write::Replace, gradient, input);
            assert_close("weight", &dw, &expected[2]);
        }
    }

    #[test]
    fn stored_weights_multiply_as_their_values_do_on_any_number_of_threads() {
        // Rows, inputs and outputs: one panel, several whole ones, and a last one that is smaller.
        for (rows, inputs, outputs) in [(3, 70, 5), (140, 4200, 520), (150, 300, 4000)] {
            let layout = ModelLayout::in_order([
                ("a".to_owned(), vec![7]),
                // Two that are multiplied as one, the first of no whole number of blocks.
                ("b".to_owned(), vec![2, inputs]),
                ("c".to_owned(), vec![outputs - 2, inputs]),
            ]);
            let exact = random_values(layout.parameters(), 1);
            let (x, g) = (random_values(rows * inputs, 2), random_values(rows * outputs, 3));
            for bits in [8, 16] {
                let weights = BaseWeights::from(exact.clone()).in_bits(&layout, bits);
                let decoded = weights.clone().into_exact();
                let products_of = |weight: Weight<'_>, threads| {
                    let (mut y, mut dx) = (vec![0.5; rows * outputs], vec![0.5; rows * inputs]);
                    let (products, input) = (Products::exact(threads), Matrix::dense(&x, rows, inputs));
                    forward(products, MatrixMut::dense(&mut y, rows, outputs), Write::Add, input, weight);
                    let gradient = Matrix::dense(&g, rows, outputs);
                    to_input(products, MatrixMut::dense(&mut dx, rows, inputs), Write::Add, gradient, weight);
                    (y, dx)
                };
                let expected = products_of(Weight::Exact(Matrix::dense(&decoded[7..], outputs, inputs)), 1);
                let stored = Weight::Stored(StoredMatrix { weights: &weights, first: 7, outputs, inputs });
                let found = products_of(stored, 1);
                assert_close("output", &found.0, &expected.0);
                assert_close("input", &found.1, &expected.1);
                assert!(products_of(stored, 3) == found, "{rows} × {inputs} × {outputs}");
            }
        }
    }
}

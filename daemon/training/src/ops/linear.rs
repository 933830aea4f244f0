//! `y = x · Wᵀ`: the matrix product of a layer without bias.

use candle_core::{Result, Tensor};

use super::product::{Matrix, MatrixMut, Products, Write, multiply_in_parallel};

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
pub(crate) fn forward(products: Products, output: MatrixMut<'_>, write: Write, input: Matrix<'_>, weight: Matrix<'_>) {
    multiply_in_parallel(products, output, write, 1.0, input, weight.transposed());
}

/// The gradient of the input: `dx = g · W`.
pub(crate) fn to_input(
    products: Products,
    to_input: MatrixMut<'_>,
    write: Write,
    gradient: Matrix<'_>,
    weight: Matrix<'_>,
) {
    multiply_in_parallel(products, to_input, write, 1.0, gradient, weight);
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
            let (input, weight) = (Matrix::dense(&x, rows, inputs), Matrix::dense(&w, outputs, inputs));
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
}

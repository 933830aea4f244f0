//! Biases of layers whose results lie side by side: added to some columns of each row.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::TASK_ROWS;
use super::product::Write;
use super::vector::vectorised;

/// `input` `[…, outputs]` plus `bias` `[outputs]`, in the precision of `input`, composed of candle's operations.
pub(crate) fn composed(input: &Tensor, bias: &Tensor) -> Result<Tensor> {
    input.broadcast_add(&bias.to_dtype(input.dtype())?)
}

/// The same in place: added to the columns from `first` on of `values`, whose rows are `row_width` wide.
pub(crate) fn forward(values: &mut [f32], row_width: usize, first: usize, bias: &[f32]) {
    values.par_chunks_mut(row_width * TASK_ROWS).for_each(|rows| add_to_rows(rows, row_width, first, bias));
}

/// Writes the bias's gradient, the sum of these columns of `gradient` over its rows.
pub(crate) fn backward((to_bias, write): (&mut [f32], Write), gradient: &[f32], row_width: usize, first: usize) {
    let width = to_bias.len();
    // Each task sums its rows; the tasks' sums are added in their order below.
    let tasks = gradient.par_chunks(row_width * TASK_ROWS);
    let partial_sums: Vec<Vec<f32>> = tasks.map(|rows| sum_of_rows(rows, row_width, first, width)).collect();
    if write == Write::Replace {
        to_bias.fill(0.0);
    }
    for partial in partial_sums {
        to_bias.iter_mut().zip(partial).for_each(|(sum, value)| *sum += value);
    }
}

vectorised! {
    fn add_to_rows(rows: &mut [f32], row_width: usize, first: usize, bias: &[f32]) {
        for row in rows.chunks_exact_mut(row_width) {
            row[first..first + bias.len()].iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    }
}

vectorised! {
    fn sum_of_rows(rows: &[f32], row_width: usize, first: usize, width: usize) -> Vec<f32> {
        let mut sums = vec![0.0; width];
        for row in rows.chunks_exact(row_width) {
            sums.iter_mut().zip(&row[first..first + width]).for_each(|(sum, value)| *sum += value);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_values, values};

    #[test]
    fn biases_agree_with_autograd_and_leave_other_columns_alone() {
        for (rows, width, first, row_width) in [(1, 1, 0, 1), (150, 6, 3, 11), (64, 33, 0, 40)] {
            let (input, bias) = (random(&[rows, row_width], 1), random(&[width], 2));
            let gradient = random_values(rows * row_width, 3);
            let expected = by_autograd(&[input.clone(), bias.clone()], &gradient, |tensors| {
                let part = composed(&tensors[0].narrow(1, first, width)?.contiguous()?, &tensors[1])?;
                let (left, right) = (first, first + width);
                let before = tensors[0].narrow(1, 0, left)?;
                Tensor::cat(&[before, part, tensors[0].narrow(1, right, row_width - right)?], 1)
            });
            let mut output = values(&input);
            forward(&mut output, row_width, first, &values(&bias));
            assert_close("output", &output, &expected[0]);
            let mut to_bias = vec![f32::NAN; width];
            backward((&mut to_bias, Write::Replace), &gradient, row_width, first);
            assert_close("bias", &to_bias, &expected[2]);
            backward((&mut to_bias, Write::Add), &gradient, row_width, first);
            let twice: Vec<f32> = expected[2].iter().map(|value| 2.0 * value).collect();
            assert_close("added", &to_bias, &twice);
        }
    }
}

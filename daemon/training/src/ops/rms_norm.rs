//! RMSNorm: each row divided by its root mean square, times a learned scale (Zhang and Sennrich, arXiv 1910.07467).

use candle_core::{D, Result, Tensor};
use rayon::prelude::*;

use super::TASK_ROWS;
use super::exponential::dot;
use super::product::Write;
use super::vector::vectorised;

/// `input` of shape `[…, width]` normalised row by row and multiplied by `scale` `[width]`, composed of candle's
/// operations; `epsilon` is added to the mean square.
pub(crate) fn composed(input: &Tensor, scale: &Tensor, epsilon: f64) -> Result<Tensor> {
    let mean_square = input.sqr()?.mean_keepdim(D::Minus1)?;
    input.broadcast_div(&(mean_square + epsilon)?.sqrt()?)?.broadcast_mul(scale)
}

/// The same: rows of `input` into `output`, as wide as `scale`.
pub(crate) fn forward(output: &mut [f32], input: &[f32], scale: &[f32], epsilon: f32) {
    let task = scale.len() * TASK_ROWS;
    let rows = output.par_chunks_mut(task).zip(input.par_chunks(task));
    rows.for_each(|(output, input)| forward_rows(output, input, scale, epsilon));
}

/// Adds the input's gradient to `to_input`, writes the scale's to `to_scale` where it is wanted.
///
/// With `r = 1/√(mean x² + ε)` and `h = g · scale`: `dx = r·h − x · r³ · (h·x) / width`, `dscale = Σ g · x · r`.
pub(crate) fn backward(
    to_input: &mut [f32],
    to_scale: Option<(&mut [f32], Write)>,
    input: &[f32],
    gradient: &[f32],
    scale: &[f32],
    epsilon: f32,
) {
    let task = scale.len() * TASK_ROWS;
    // Each task sums its rows; the tasks' sums are added in their order below.
    let partial_sums: Vec<Vec<f32>> = to_input
        .par_chunks_mut(task)
        .zip(input.par_chunks(task))
        .zip(gradient.par_chunks(task))
        .map(|((to_input, input), gradient)| backward_rows(to_input, input, gradient, scale, epsilon))
        .collect();
    let Some((to_scale, write)) = to_scale else { return };
    if write == Write::Replace {
        to_scale.fill(0.0);
    }
    for partial in partial_sums {
        to_scale.iter_mut().zip(partial).for_each(|(sum, value)| *sum += value);
    }
}

#[inline(always)]
fn inverse_root(row: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt()
}

vectorised! {
    fn forward_rows(output: &mut [f32], input: &[f32], scale: &[f32], epsilon: f32) {
        for (output, input) in output.chunks_exact_mut(scale.len()).zip(input.chunks_exact(scale.len())) {
            let inverse = inverse_root(input, epsilon);
            for ((output, input), scale) in output.iter_mut().zip(input).zip(scale) {
                *output = input * inverse * scale;
            }
        }
    }
}

vectorised! {
    /// Adds to `to_input` and returns these rows' gradient of the scale.
    fn backward_rows(to_input: &mut [f32], input: &[f32], gradient: &[f32], scale: &[f32], epsilon: f32) -> Vec<f32> {
        let width = scale.len();
        let (mut to_scale, mut scaled) = (vec![0.0; width], vec![0.0; width]);
        let rows = to_input.chunks_exact_mut(width).zip(input.chunks_exact(width)).zip(gradient.chunks_exact(width));
        for ((to_input, input), gradient) in rows {
            let inverse = inverse_root(input, epsilon);
            let values = to_scale.iter_mut().zip(&mut scaled).zip(scale);
            for (((to_scale, scaled), scale), (gradient, input)) in values.zip(gradient.iter().zip(input)) {
                *to_scale += gradient * input * inverse;
                *scaled = gradient * scale;
            }
            let pull = dot(&scaled, input) * inverse * inverse * inverse / width as f32;
            for ((to_input, scaled), input) in to_input.iter_mut().zip(&scaled).zip(input) {
                *to_input += scaled * inverse - input * pull;
            }
        }
        to_scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_values, values};

    #[test]
    fn rms_norm_agrees_with_autograd() {
        for (rows, width, epsilon) in [(1, 2, 1e-5), (150, 20, 1e-6), (130, 64, 1e-2)] {
            let (input, scale) = (random(&[rows, width], 1), random(&[width], 2));
            let gradient = random_values(rows * width, 3);
            let arguments = [input.clone(), scale.clone()];
            let expected = by_autograd(&arguments, &gradient, |tensors| composed(&tensors[0], &tensors[1], epsilon));
            let (input, scale, epsilon) = (values(&input), values(&scale), epsilon as f32);
            let mut output = vec![0.0; rows * width];
            forward(&mut output, &input, &scale, epsilon);
            assert_close("output", &output, &expected[0]);
            let (mut to_input, mut to_scale) = (vec![0.0; rows * width], vec![f32::NAN; width]);
            let place = Some((&mut to_scale[..], Write::Replace));
            backward(&mut to_input, place, &input, &gradient, &scale, epsilon);
            assert_close("input", &to_input, &expected[1]);
            assert_close("scale", &to_scale, &expected[2]);
        }
    }
}

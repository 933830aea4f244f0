//! RMSNorm: each row divided by its root mean square, times a learned scale (Zhang and Sennrich, arXiv 1910.07467).

use candle_core::{CpuStorage, CustomOp2, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::exponential::dot;
use super::storage::{Reading, floats, shaped_like};
use super::vector::vectorised;
use super::{Kernels, TASK_ROWS};

/// `input` of shape `[…, width]` normalised row by row and multiplied by `scale` `[width]`; `epsilon` is added to the
/// mean square.
pub(crate) fn rms_norm(kernels: Kernels, input: &Tensor, scale: &Tensor, epsilon: f64) -> Result<Tensor> {
    match kernels {
        Kernels::Fused => input.contiguous()?.apply_op2(&scale.contiguous()?, RmsNorm { epsilon: epsilon as f32 }),
        Kernels::Composed => {
            let mean_square = input.sqr()?.mean_keepdim(D::Minus1)?;
            let normalised = input.broadcast_div(&(mean_square + epsilon)?.sqrt()?)?;
            normalised.broadcast_mul(scale)
        }
    }
}

struct RmsNorm {
    epsilon: f32,
}

#[inline(always)]
fn inverse_root(row: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt()
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms norm"
    }

    fn cpu_fwd(
        &self,
        input: &CpuStorage,
        input_layout: &Layout,
        scale: &CpuStorage,
        scale_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (input, scale) = (floats(input, input_layout)?, floats(scale, scale_layout)?);
        let width = scale.len();
        let mut output = vec![0.0; input.len()];
        let rows = output.par_chunks_mut(width * TASK_ROWS).zip(input.par_chunks(width * TASK_ROWS));
        rows.for_each(|(output, input)| forward_rows(output, input, scale, self.epsilon));
        Ok((CpuStorage::F32(output), input_layout.shape().clone()))
    }

    fn bwd(
        &self,
        input: &Tensor,
        scale: &Tensor,
        _output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let (input_values, scale_values, gradient) =
            (Reading::of(input)?, Reading::of(scale)?, Reading::of(&gradient)?);
        let width = scale_values.len();
        let mut to_input = vec![0.0; input_values.len()];
        // Each task sums its rows; the tasks' sums are added in their order below.
        let partial_sums: Vec<Vec<f32>> = to_input
            .par_chunks_mut(width * TASK_ROWS)
            .zip(input_values.par_chunks(width * TASK_ROWS))
            .zip(gradient.par_chunks(width * TASK_ROWS))
            .map(|((to_input, input), gradient)| backward_rows(to_input, input, gradient, &scale_values, self.epsilon))
            .collect();
        let mut to_scale = vec![0.0; width];
        for partial in partial_sums {
            to_scale.iter_mut().zip(partial).for_each(|(sum, value)| *sum += value);
        }
        Ok((Some(shaped_like(to_input, input)?), Some(shaped_like(to_scale, scale)?)))
    }
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
    /// Fills `to_input` and returns these rows' gradient of the scale.
    ///
    /// With `r = 1/√(mean x² + ε)` and `h = g · scale`: `dx = r·h − x · r³ · (h·x) / width`, `dscale = Σ g · x · r`.
    fn backward_rows(to_input: &mut [f32], input: &[f32], gradient: &[f32], scale: &[f32], epsilon: f32) -> Vec<f32> {
        let width = scale.len();
        let mut to_scale = vec![0.0; width];
        let rows = to_input.chunks_exact_mut(width).zip(input.chunks_exact(width)).zip(gradient.chunks_exact(width));
        for ((to_input, input), gradient) in rows {
            let inverse = inverse_root(input, epsilon);
            for index in 0..width {
                to_scale[index] += gradient[index] * input[index] * inverse;
                to_input[index] = gradient[index] * scale[index];
            }
            let pull = dot(to_input, input) * inverse * inverse * inverse / width as f32;
            for (to_input, input) in to_input.iter_mut().zip(input) {
                *to_input = *to_input * inverse - input * pull;
            }
        }
        to_scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{check_gradients, random};

    #[test]
    fn rms_norm_agrees_with_autograd() {
        for (batch, length, width) in [(1, 1, 2), (3, 50, 20), (2, 65, 64)] {
            let arguments = [random(&[batch, length, width], 1), random(&[width], 2)];
            check_gradients(&arguments, |kernels, tensors| rms_norm(kernels, &tensors[0], &tensors[1], 1e-5));
        }
    }
}

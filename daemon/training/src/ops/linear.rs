//! `y = x · Wᵀ`: the matrix product of a layer without bias.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::Kernels;
use super::product::{Matrix, multiply_in_parallel};
use super::storage::{Reading, floats, shaped_like};

/// `input` of shape `[…, inputs]` times the transpose of `weight` `[outputs, inputs]`: `[…, outputs]`.
pub(crate) fn linear(kernels: Kernels, input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    match kernels {
        Kernels::Fused => input.contiguous()?.apply_op2(&weight.contiguous()?, Linear),
        Kernels::Composed => {
            let (outputs, inputs) = weight.dims2()?;
            let mut shape = input.dims().to_vec();
            *shape.last_mut().expect("a layer's input has a last dimension") = outputs;
            input.reshape(((), inputs))?.matmul(&weight.t()?)?.reshape(shape)
        }
    }
}

struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        input: &CpuStorage,
        input_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (input, weight) = (floats(input, input_layout)?, floats(weight, weight_layout)?);
        let (outputs, inputs) = weight_layout.shape().dims2()?;
        let mut shape = input_layout.dims().to_vec();
        match shape.last_mut() {
            Some(last) if *last == inputs => *last = outputs,
            _ => candle_core::bail!("linear: input {:?}, weight [{outputs}, {inputs}]", input_layout.dims()),
        }
        let rows = input.len() / inputs;
        let mut output = vec![0.0; rows * outputs];
        let weight = Matrix::dense(weight, outputs, inputs).transposed();
        multiply_in_parallel(&mut output, Matrix::dense(input, rows, inputs), weight);
        Ok((CpuStorage::F32(output), Shape::from(shape)))
    }

    fn bwd(
        &self,
        input: &Tensor,
        weight: &Tensor,
        _output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let (outputs, inputs) = weight.dims2()?;
        let rows = input.elem_count() / inputs;
        let (input_values, weight_values, gradient) =
            (Reading::of(input)?, Reading::of(weight)?, Reading::of(&gradient)?);
        let gradient = Matrix::dense(&gradient, rows, outputs);
        let (mut to_input, mut to_weight) = (vec![0.0; rows * inputs], vec![0.0; outputs * inputs]);
        multiply_in_parallel(&mut to_input, gradient, Matrix::dense(&weight_values, outputs, inputs));
        multiply_in_parallel(&mut to_weight, gradient.transposed(), Matrix::dense(&input_values, rows, inputs));
        Ok((Some(shaped_like(to_input, input)?), Some(shaped_like(to_weight, weight)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{check_gradients, random};

    #[test]
    fn linear_agrees_with_autograd() {
        for (batch, length, inputs, outputs) in [(1, 1, 1, 1), (2, 5, 7, 3), (3, 33, 16, 48)] {
            let arguments = [random(&[batch, length, inputs], 1), random(&[outputs, inputs], 2)];
            check_gradients(&arguments, |kernels, tensors| linear(kernels, &tensors[0], &tensors[1]));
        }
    }

    #[test]
    fn linear_accepts_views() {
        let arguments = [random(&[6, 4], 1), random(&[6, 5], 2)];
        check_gradients(&arguments, |kernels, tensors| linear(kernels, &tensors[0].t()?, &tensors[1].t()?));
    }
}

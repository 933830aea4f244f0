//! SwiGLU's pointwise part: `silu(gate) · value` (Shazeer, arXiv 2002.05202).

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::Kernels;
use super::exponential::exponential;
use super::storage::{Reading, floats, shaped_like};
use super::vector::vectorised;

/// Values that one task handles: a guess, a few microseconds of work.
const TASK_VALUES: usize = 16 * 1024;

/// `silu(gate) · value`, both of one shape.
pub(crate) fn swiglu(kernels: Kernels, gate: &Tensor, value: &Tensor) -> Result<Tensor> {
    match kernels {
        Kernels::Fused => gate.contiguous()?.apply_op2(&value.contiguous()?, SwiGlu),
        Kernels::Composed => gate.silu()? * value,
    }
}

struct SwiGlu;

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exponential(-x))
}

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        value: &CpuStorage,
        value_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gate, value) = (floats(gate, gate_layout)?, floats(value, value_layout)?);
        if gate.len() != value.len() {
            candle_core::bail!("swiglu: {} gates for {} values", gate.len(), value.len());
        }
        let mut output = vec![0.0; gate.len()];
        let inputs = gate.par_chunks(TASK_VALUES).zip(value.par_chunks(TASK_VALUES));
        output.par_chunks_mut(TASK_VALUES).zip(inputs).for_each(|(output, (gate, value))| {
            forward_values(output, gate, value);
        });
        Ok((CpuStorage::F32(output), gate_layout.shape().clone()))
    }

    fn bwd(
        &self,
        gate: &Tensor,
        value: &Tensor,
        _output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let (gates, values, gradient) = (Reading::of(gate)?, Reading::of(value)?, Reading::of(&gradient)?);
        let (mut to_gate, mut to_value) = (vec![0.0; gates.len()], vec![0.0; gates.len()]);
        let inputs =
            gates.par_chunks(TASK_VALUES).zip(values.par_chunks(TASK_VALUES)).zip(gradient.par_chunks(TASK_VALUES));
        let outputs = to_gate.par_chunks_mut(TASK_VALUES).zip(to_value.par_chunks_mut(TASK_VALUES));
        outputs.zip(inputs).for_each(|((to_gate, to_value), ((gate, value), gradient))| {
            backward_values(to_gate, to_value, gate, value, gradient);
        });
        Ok((Some(shaped_like(to_gate, gate)?), Some(shaped_like(to_value, value)?)))
    }
}

vectorised! {
    fn forward_values(output: &mut [f32], gate: &[f32], value: &[f32]) {
        for ((output, gate), value) in output.iter_mut().zip(gate).zip(value) {
            *output = gate * sigmoid(*gate) * value;
        }
    }
}

vectorised! {
    fn backward_values(to_gate: &mut [f32], to_value: &mut [f32], gate: &[f32], value: &[f32], gradient: &[f32]) {
        let inputs = gate.iter().zip(value).zip(gradient);
        for ((to_gate, to_value), ((gate, value), gradient)) in to_gate.iter_mut().zip(to_value).zip(inputs) {
            let sigmoid = sigmoid(*gate);
            let silu = gate * sigmoid;
            *to_value = gradient * silu;
            *to_gate = gradient * value * (sigmoid + silu * (1.0 - sigmoid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{check_gradients, random};

    #[test]
    fn swiglu_agrees_with_autograd() {
        for shape in [vec![1], vec![3, 7, 11], vec![2, 100, 100]] {
            let arguments = [random(&shape, 1), random(&shape, 2)];
            check_gradients(&arguments, |kernels, tensors| swiglu(kernels, &tensors[0], &tensors[1]));
        }
    }
}

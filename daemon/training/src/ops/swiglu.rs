//! SwiGLU's pointwise part: `silu(gate) · up` (Shazeer, arXiv 2002.05202).

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::TASK_ROWS;
use super::exponential::exponential;
use super::vector::vectorised;

/// `silu(gate) · up`, both of one shape, composed of candle's operations.
pub(crate) fn composed(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.silu()? * up
}

/// The same: rows of `hidden` `[rows, inner]` from those of `gate_up` `[rows, 2 · inner]`, the gate in front.
pub(crate) fn forward(hidden: &mut [f32], gate_up: &[f32], inner: usize) {
    let rows = hidden.par_chunks_mut(inner * TASK_ROWS).zip(gate_up.par_chunks(2 * inner * TASK_ROWS));
    rows.for_each(|(hidden, gate_up)| forward_rows(hidden, gate_up, inner));
}

/// Both ways at once and in place: `gate_up` becomes its gradient, and `hidden`, which comes as the output's gradient,
/// becomes the output, which the next layer's weights need for their own gradient.
pub(crate) fn backward(hidden: &mut [f32], gate_up: &mut [f32], inner: usize) {
    let rows = hidden.par_chunks_mut(inner * TASK_ROWS).zip(gate_up.par_chunks_mut(2 * inner * TASK_ROWS));
    rows.for_each(|(hidden, gate_up)| {
        for (hidden, gate_up) in hidden.chunks_exact_mut(inner).zip(gate_up.chunks_exact_mut(2 * inner)) {
            let (gate, up) = gate_up.split_at_mut(inner);
            backward_row(hidden, gate, up);
        }
    });
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exponential(-x))
}

vectorised! {
    fn forward_rows(hidden: &mut [f32], gate_up: &[f32], inner: usize) {
        for (hidden, gate_up) in hidden.chunks_exact_mut(inner).zip(gate_up.chunks_exact(2 * inner)) {
            let (gate, up) = gate_up.split_at(inner);
            for ((hidden, gate), up) in hidden.iter_mut().zip(gate).zip(up) {
                *hidden = gate * sigmoid(*gate) * up;
            }
        }
    }
}

vectorised! {
    /// One row: three slices that are told apart, or the compiler would go value by value.
    fn backward_row(hidden: &mut [f32], gate: &mut [f32], up: &mut [f32]) {
        for ((hidden, gate), up) in hidden.iter_mut().zip(gate).zip(up) {
            let sigmoid = sigmoid(*gate);
            let silu = *gate * sigmoid;
            let (gradient, value) = (*hidden, *up);
            *hidden = silu * value;
            *up = gradient * silu;
            *gate = gradient * value * (sigmoid + silu * (1.0 - sigmoid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_values, values};

    #[test]
    fn swiglu_agrees_with_autograd() {
        for (rows, inner) in [(1, 1), (21, 11), (200, 100)] {
            let input = random(&[rows, 2 * inner], 1);
            let gradient = random_values(rows * inner, 2);
            let expected = by_autograd(std::slice::from_ref(&input), &gradient, |tensors| {
                composed(&tensors[0].narrow(1, 0, inner)?, &tensors[0].narrow(1, inner, inner)?)
            });
            let (mut gate_up, mut hidden) = (values(&input), vec![0.0; rows * inner]);
            forward(&mut hidden, &gate_up, inner);
            assert_close("output", &hidden, &expected[0]);
            let mut place = gradient.clone();
            backward(&mut place, &mut gate_up, inner);
            assert_eq!(place, hidden);
            assert_close("input", &gate_up, &expected[1]);
        }
    }
}

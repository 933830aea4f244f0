//! The loss: mean cross-entropy of the next byte, in nats.

use candle_core::{CpuStorage, CustomOp2, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::exponential::{exponential_sum, exponentials_in_place};
use super::storage::{Reading, floats, indices, read_indices, shaped_like};
use super::vector::vectorised;
use super::{Kernels, TASK_ROWS};

/// Mean over all positions of `−ln softmax(logits)[target]`: `logits` `[…, vocabulary]`, `targets` `[…]` (`u32`), a
/// scalar in nats.
pub(crate) fn cross_entropy(kernels: Kernels, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    match kernels {
        Kernels::Fused => logits.contiguous()?.apply_op2(&targets.contiguous()?, CrossEntropy),
        Kernels::Composed => {
            let maximum = logits.max_keepdim(D::Minus1)?.detach();
            let shifted = logits.broadcast_sub(&maximum)?;
            let normaliser = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
            let chosen = shifted.gather(&targets.unsqueeze(D::Minus1)?, D::Minus1)?;
            (normaliser - chosen)?.mean_all()
        }
    }
}

struct CrossEntropy;

impl CustomOp2 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (logits, targets) = (floats(logits, logits_layout)?, indices(targets, targets_layout)?);
        let vocabulary = vocabulary(logits.len(), targets)?;
        let partial_sums: Vec<f64> = logits
            .par_chunks(vocabulary * TASK_ROWS)
            .zip(targets.par_chunks(TASK_ROWS))
            .map(|(logits, targets)| loss_rows(logits, targets))
            .collect();
        let mean = partial_sums.iter().sum::<f64>() / targets.len() as f64;
        Ok((CpuStorage::F32(vec![mean as f32]), Shape::from(())))
    }

    fn bwd(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        _output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let values = Reading::of(logits)?;
        let targets = read_indices(targets)?;
        let vocabulary = vocabulary(values.len(), &targets)?;
        let share = gradient.to_scalar::<f32>()? / targets.len() as f32;
        let mut to_logits = values.to_vec();
        let rows = to_logits.par_chunks_mut(vocabulary * TASK_ROWS).zip(targets.par_chunks(TASK_ROWS));
        rows.for_each(|(logits, targets)| gradient_rows(logits, targets, share));
        Ok((Some(shaped_like(to_logits, logits)?), None))
    }
}

vectorised! {
    /// Sum of the rows' losses, in nats.
    fn loss_rows(logits: &[f32], targets: &[u32]) -> f64 {
        let mut total = 0.0;
        for (row, &target) in logits.chunks_exact(logits.len() / targets.len()).zip(targets) {
            let (sum, maximum) = exponential_sum(row);
            total += f64::from(sum).ln() + f64::from(maximum) - f64::from(row[target as usize]);
        }
        total
    }
}

vectorised! {
    /// Replaces logits by their gradient, `share · (softmax − one at the target)`.
    fn gradient_rows(logits: &mut [f32], targets: &[u32], share: f32) {
        let vocabulary = logits.len() / targets.len();
        for (row, &target) in logits.chunks_exact_mut(vocabulary).zip(targets) {
            let (sum, _) = exponentials_in_place(row);
            let factor = share / sum;
            row.iter_mut().for_each(|value| *value *= factor);
            row[target as usize] -= share;
        }
    }
}

/// The length of a row of logits.
fn vocabulary(logits: usize, targets: &[u32]) -> Result<usize> {
    if targets.is_empty() || !logits.is_multiple_of(targets.len()) {
        candle_core::bail!("cross-entropy: {logits} logits for {} targets", targets.len());
    }
    let vocabulary = logits / targets.len();
    match targets.iter().find(|&&target| target as usize >= vocabulary) {
        Some(target) => candle_core::bail!("cross-entropy: target {target} of a vocabulary of {vocabulary}"),
        None => Ok(vocabulary),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{check_gradients, random, random_tokens};

    #[test]
    fn cross_entropy_agrees_with_autograd() {
        for (batch, length, vocabulary) in [(1, 1, 2), (2, 40, 33), (3, 50, 256)] {
            let targets = random_tokens(&[batch, length], vocabulary as u32, 3);
            let logits = [random(&[batch, length, vocabulary], 1)];
            check_gradients(&logits, |kernels, tensors| cross_entropy(kernels, &tensors[0], &targets));
        }
    }

    #[test]
    fn large_logits_do_not_overflow() -> Result<()> {
        let logits = (random(&[4, 8], 1).as_tensor() * 1e4)?;
        let loss = cross_entropy(Kernels::Fused, &logits, &random_tokens(&[4], 8, 3))?.to_scalar::<f32>()?;
        assert!(loss.is_finite());
        Ok(())
    }
}

//! The loss: cross-entropy of the right answers, in nats.

use candle_core::{D, Result, Tensor};
use rayon::prelude::*;

use super::TASK_ROWS;
use super::exponential::{exponential_sum, exponentials_in_place};
use super::vector::vectorised;

/// Mean over all rows of `−ln softmax(logits)[target]`, composed of candle's operations: `logits` `[rows, classes]`,
/// `targets` `[rows]` (`u32`), a scalar in nats.
pub(crate) fn composed(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    of_rows(logits, targets)?.mean_all()
}

/// The same for each row, `[rows, 1]`.
pub(crate) fn of_rows(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let maximum = logits.max_keepdim(D::Minus1)?.detach();
    let shifted = logits.broadcast_sub(&maximum)?;
    let normaliser = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let chosen = shifted.gather(&targets.unsqueeze(D::Minus1)?, D::Minus1)?;
    normaliser - chosen
}

/// Replaces `logits` by the gradient of `share` times the sum of the rows' losses, and returns that sum.
///
/// # Panics
/// When a target is not below the number of classes.
pub(crate) fn loss_and_gradient(logits: &mut [f32], targets: &[u32], share: f32) -> f64 {
    let classes = logits.len() / targets.len();
    let rows = logits.par_chunks_mut(classes * TASK_ROWS).zip(targets.par_chunks(TASK_ROWS));
    let partial_sums: Vec<f64> = rows.map(|(logits, targets)| gradient_rows(logits, targets, share)).collect();
    partial_sums.iter().sum()
}

/// (sum of the rows' losses, rows whose target is the likeliest; of several that are, the first is, as `argmax` has it).
///
/// # Panics
/// When a target is not below the number of classes.
pub(crate) fn loss_and_hits(logits: &[f32], targets: &[u32]) -> (f64, usize) {
    let classes = logits.len() / targets.len();
    let rows = logits.par_chunks(classes * TASK_ROWS).zip(targets.par_chunks(TASK_ROWS));
    let partial_sums: Vec<(f64, usize)> = rows.map(|(logits, targets)| loss_rows(logits, targets)).collect();
    partial_sums.iter().fold((0.0, 0), |(loss, hits), (more_loss, more_hits)| (loss + more_loss, hits + more_hits))
}

vectorised! {
    fn loss_rows(logits: &[f32], targets: &[u32]) -> (f64, usize) {
        let (mut loss, mut hits) = (0.0, 0);
        for (row, &target) in logits.chunks_exact(logits.len() / targets.len()).zip(targets) {
            let (sum, maximum) = exponential_sum(row);
            let logit = row[target as usize];
            loss += f64::from(sum.ln() + (maximum - logit));
            let is_likeliest = logit == maximum && !row[..target as usize].contains(&maximum);
            hits += usize::from(is_likeliest);
        }
        (loss, hits)
    }
}

vectorised! {
    /// Replaces logits by `share · (softmax − one at the target)`.
    fn gradient_rows(logits: &mut [f32], targets: &[u32], share: f32) -> f64 {
        let (mut loss, classes) = (0.0, logits.len() / targets.len());
        for (row, &target) in logits.chunks_exact_mut(classes).zip(targets) {
            let logit = row[target as usize];
            let (sum, maximum) = exponentials_in_place(row);
            loss += f64::from(sum.ln() + (maximum - logit));
            let factor = share / sum;
            row.iter_mut().for_each(|value| *value *= factor);
            row[target as usize] -= share;
        }
        loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_tokens, values};

    #[test]
    fn cross_entropy_agrees_with_autograd() {
        for (rows, classes) in [(1, 2), (80, 33), (150, 256)] {
            let (logits, targets) = (random(&[rows, classes], 1), random_tokens(rows, classes as u32, 3));
            let expected = by_autograd(std::slice::from_ref(&logits), &[1.0], |tensors| {
                composed(&tensors[0], &Tensor::from_slice(&targets, rows, tensors[0].device())?)?.reshape(1)
            });
            let mut gradient = values(&logits);
            let (loss, hits) = loss_and_hits(&gradient, &targets);
            let share = 1.0 / rows as f32;
            assert!((loss_and_gradient(&mut gradient, &targets, share) - loss).abs() < 1e-6 * loss.abs());
            assert_close("loss", &[loss as f32 * share], &expected[0]);
            assert_close("logits", &gradient, &expected[1]);
            let likeliest = logits.argmax(1).and_then(|likeliest| likeliest.to_vec1::<u32>()).expect("indices");
            assert_eq!(hits, likeliest.iter().zip(&targets).filter(|(left, right)| left == right).count());
        }
    }

    #[test]
    fn of_several_likeliest_the_first_alone_is_a_hit() {
        assert_eq!(loss_and_hits(&[0.0; 4], &[1, 1]).1, 0);
        assert_eq!(loss_and_hits(&[0.0; 4], &[1, 0]).1, 1);
        assert_eq!(loss_and_hits(&[0.0, 2.0, 2.0, 1.0, 1.0, 3.0], &[1, 2]).1, 2);
    }

    #[test]
    fn large_logits_do_not_overflow_and_nan_shows() {
        let mut logits: Vec<f32> = values(&random(&[4, 8], 1)).iter().map(|value| value * 1e4).collect();
        let targets = random_tokens(4, 8, 3);
        assert!(loss_and_hits(&logits, &targets).0.is_finite());
        logits[9] = f32::NAN;
        assert!(!loss_and_gradient(&mut logits, &targets, 1.0).is_finite());
    }
}

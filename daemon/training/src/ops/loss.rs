//! What predictions are compared with, and how: the cross-entropy of classes, of which rows may weigh unlike, or the squared
//! error of numbers.
//!
//! The loss of a number is half the squared error, in standard deviations of the target: the negative logarithm of a Gaussian
//! likelihood without its constant, so it is in nats as well.

use candle_core::{Result, Tensor};

use super::cross_entropy;
use crate::data::{Batch, RowBatch, RowTargets};

/// What should have been predicted.
#[derive(Clone, Copy)]
pub(crate) enum Expected<'a> {
    /// A class for each row of logits.
    Classes(&'a [u32]),
    /// The same, and by what each row's loss is multiplied.
    Weighted(&'a [u32], &'a [f32]),
    /// A number for each row of one output.
    Numbers(&'a [f32]),
}

impl<'a> Expected<'a> {
    /// What a batch says.
    pub(crate) fn of(batch: &'a Batch) -> Expected<'a> {
        match batch {
            Batch::Rows(rows) => Expected::of_rows(rows),
            _ => Expected::Classes(batch.targets()),
        }
    }

    pub(crate) fn of_rows(rows: &'a RowBatch) -> Expected<'a> {
        match &rows.targets {
            RowTargets::Classes { labels, weights } => Expected::Weighted(labels, weights),
            RowTargets::Numbers(numbers) => Expected::Numbers(numbers),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Expected::Classes(labels) | Expected::Weighted(labels, _) => labels.len(),
            Expected::Numbers(numbers) => numbers.len(),
        }
    }

    /// Replaces `outputs` by the gradient of `share` times the sum of the rows' losses, and returns that sum.
    ///
    /// # Panics
    /// When a class is not below the number of outputs.
    pub(crate) fn loss_and_gradient(&self, outputs: &mut [f32], share: f32) -> f64 {
        match *self {
            Expected::Classes(labels) => cross_entropy::loss_and_gradient(outputs, labels, share),
            Expected::Weighted(labels, weights) => {
                let classes = outputs.len() / labels.len();
                let rows = outputs.chunks_exact_mut(classes).zip(labels).zip(weights);
                let loss = |((row, label), weight): ((&mut [f32], &u32), &f32)| {
                    let label = std::slice::from_ref(label);
                    f64::from(*weight) * cross_entropy::loss_and_gradient(row, label, share * weight)
                };
                rows.map(loss).sum()
            }
            Expected::Numbers(numbers) => {
                let loss = |(output, number): (&mut f32, &f32)| {
                    let error = *output - number;
                    *output = share * error;
                    half_square(error)
                };
                outputs.iter_mut().zip(numbers).map(loss).sum()
            }
        }
    }

    /// (sum of the rows' losses, rows whose class is the likeliest); rows all weigh alike.
    ///
    /// # Panics
    /// When a class is not below the number of outputs.
    pub(crate) fn loss_and_hits(&self, outputs: &[f32]) -> (f64, usize) {
        match *self {
            Expected::Classes(labels) | Expected::Weighted(labels, _) => cross_entropy::loss_and_hits(outputs, labels),
            Expected::Numbers(numbers) => {
                let errors = outputs.iter().zip(numbers).map(|(output, number)| output - number);
                (errors.map(half_square).sum(), 0)
            }
        }
    }

    /// Mean of the rows' losses, composed of candle's operations: `outputs` `[rows, classes]` or `[rows, 1]`, a scalar in nats.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn composed(&self, outputs: &Tensor) -> Result<Tensor> {
        let (rows, device) = (self.len(), outputs.device());
        match *self {
            Expected::Classes(labels) => cross_entropy::composed(outputs, &Tensor::from_slice(labels, rows, device)?),
            Expected::Weighted(labels, weights) => {
                let losses = cross_entropy::of_rows(outputs, &Tensor::from_slice(labels, rows, device)?)?;
                (losses * Tensor::from_slice(weights, (rows, 1), device)?)?.mean_all()
            }
            Expected::Numbers(numbers) => {
                let errors = (outputs - Tensor::from_slice(numbers, (rows, 1), device)?)?;
                (errors.sqr()?.mean_all()? * 0.5)?.to_dtype(outputs.dtype())
            }
        }
    }
}

fn half_square(error: f32) -> f64 {
    0.5 * f64::from(error) * f64::from(error)
}

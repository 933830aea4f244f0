//! Private training: what leaves this machine tells little of any single record (local DP-SGD; Abadi et al., arXiv 1607.00133).
//!
//! At each step every record is taken with the same probability, by a secret draw; the gradient of each alone is clipped to
//! a norm; their sum gets Gaussian noise and is divided by the number of records that are taken on average. So a model holds its
//! records only by way of noised sums, and so does whatever is computed from it and sent to others.
//!
//! [`accountant`] says how much that tells, [`records`] what a record is, [`secret`] where the randomness comes from.

pub mod accountant;
#[cfg(test)]
mod audit;
mod records;
mod secret;

use candle_core::Result;
use murmur_protocol::RunManifest;
use rayon::prelude::*;

use crate::data::{Batch, Corpus};
use crate::optimizer::{TASK_VALUES, square};
use crate::replica::Replica;

pub use accountant::{Budget, Mechanism, Spending};
pub use records::{NotPrivate, records_in};
pub use secret::SecretKey;

use records::Records;

/// A clipped gradient is shortened by this much more, so that rounding to `f32` does not bring it above the clip norm.
const ROUNDING: f64 = 1e-6;

/// What an owner wants of private steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivateSteps {
    /// The largest norm that the gradient of one record may have, above 0.
    pub clip: f64,
    /// σ: the standard deviation of the noise, in clip norms, above 0.
    pub noise: f64,
}

/// An engine's private part.
pub(crate) struct PrivateTraining {
    records: Records,
    steps: PrivateSteps,
    /// Records that are taken on average.
    batch: u64,
    key: SecretKey,
    /// Steps that were begun: each has randomness of its own.
    begun: u64,
    /// Steps that may be taken.
    permits: u64,
    sum: Vec<f32>,
}

impl PrivateTraining {
    /// # Errors
    /// What of the run cannot be private.
    pub(crate) fn new(
        manifest: &RunManifest,
        corpus: &Corpus,
        steps: PrivateSteps,
        key: SecretKey,
    ) -> std::result::Result<PrivateTraining, NotPrivate> {
        let records = Records::of(manifest, corpus)?;
        let batch = u64::from(manifest.optimizer.batch_sequences);
        if records.count() < batch {
            return Err(NotPrivate::TooFewRecords { records: records.count(), batch });
        }
        Ok(PrivateTraining { records, steps, batch, key, begun: 0, permits: 0, sum: Vec::new() })
    }

    pub(crate) fn mechanism(&self) -> Mechanism {
        Mechanism { records: self.records.count(), batch: self.batch, noise: self.steps.noise }
    }

    /// The same number for every step: how many were taken is a secret.
    pub(crate) fn predictions(&self) -> usize {
        self.batch as usize * self.records.predictions()
    }

    pub(crate) fn permits(&self) -> u64 {
        self.permits
    }

    pub(crate) fn permit(&mut self, steps: u64) {
        self.permits = self.permits.saturating_add(steps);
    }

    /// Uses up a permit; `false` where there is none.
    pub(crate) fn take_permit(&mut self) -> bool {
        let is_permitted = self.permits > 0;
        self.permits = self.permits.saturating_sub(1);
        is_permitted
    }

    /// Gives the replica a noised gradient, of those that `gradient_of` has it compute of each record alone. Returns the mean loss of
    /// the records taken, which is not private: not a number where there is none.
    pub(crate) fn compute_gradient(
        &mut self,
        replica: &mut dyn Replica,
        corpus: &Corpus,
        gradient_of: &mut dyn FnMut(&mut dyn Replica, &Batch) -> Result<f64>,
    ) -> Result<f64> {
        let step = self.begun;
        self.begun += 1;
        let taken = self.key.sample(step, self.records.count(), self.mechanism().probability());
        let (mut losses, mut examples) = (0.0, 0);
        self.sum.clear();
        self.sum.resize(replica.layout().parameters(), 0.0);
        for number in taken {
            let Some(example) = self.records.example(corpus, number, &mut self.key.augmentation(step, number)) else {
                continue;
            };
            losses += gradient_of(replica, &example)?;
            examples += 1;
            add_clipped(&mut self.sum, &replica.gradient()?, self.steps.clip);
        }
        let deviation = self.steps.noise * self.steps.clip;
        self.key.noise(step, deviation, 1.0 / self.batch as f64, &mut self.sum);
        replica.set_gradient(&self.sum)?;
        Ok(losses / f64::from(examples))
    }
}

/// Adds a record's gradient, shortened to the clip norm where it is longer. One that is not finite adds nothing.
fn add_clipped(sum: &mut [f32], gradient: &[f32], clip: f64) {
    let factor = clip_factor(gradient, clip);
    if factor == 0.0 {
        return;
    }
    let tasks = sum.par_chunks_mut(TASK_VALUES).zip(gradient.par_chunks(TASK_VALUES));
    tasks.for_each(|(sums, values)| sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value));
}

/// Euclidean.
fn norm(values: &[f32]) -> f64 {
    square(values).sqrt()
}

fn clip_factor(gradient: &[f32], clip: f64) -> f32 {
    let norm = norm(gradient);
    match norm {
        _ if !norm.is_finite() => 0.0,
        _ if norm <= clip => 1.0,
        _ => (clip / norm * (1.0 - ROUNDING)) as f32,
    }
}

#[cfg(test)]
mod tests;

//! Steps with a watch: where their time goes.

use std::time::{Duration, Instant};

use super::{Engine, StepReport, TrainingError};
use crate::data::Batch;

/// A step, and where its time went.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedStep {
    /// What it did.
    pub report: StepReport,
    /// What it was trained on.
    pub batch: Batch,
    /// Reading the batch.
    pub data: Duration,
    /// Forward and backward.
    pub gradient: Duration,
    /// Norm, clipping and the optimizer.
    pub optimizer: Duration,
}

impl TimedStep {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.data + self.gradient + self.optimizer
    }
}

impl Engine {
    /// As [`Engine::step`], with a watch.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn timed_step(&mut self, progress: f64) -> Result<TimedStep, TrainingError> {
        rayon::scope(|_| {
            let begin = Instant::now();
            let batch = self.sampler.next_batch();
            let data = begin.elapsed();
            let loss = self.replica.compute_gradient(&batch)?;
            self.replica.wait()?;
            let gradient = begin.elapsed() - data;
            let learning_rate = self.learning_rate.at(progress) * self.warm_up_again.factor();
            let report = self.advance(loss, batch.predictions(), learning_rate)?;
            self.replica.wait()?;
            Ok(TimedStep { report, batch, data, gradient, optimizer: begin.elapsed() - data - gradient })
        })
    }

    /// How long the forward on `batch` takes, of an evaluation.
    ///
    /// # Errors
    /// When the device fails.
    pub fn timed_forward(&mut self, batch: &Batch) -> Result<Duration, TrainingError> {
        rayon::scope(|_| {
            self.replica.wait()?;
            let begin = Instant::now();
            self.replica.evaluate(batch)?;
            Ok(begin.elapsed())
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use murmur_protocol::RunManifest;
    use murmur_protocol::manifest::TransformerModel;

    use super::*;
    use crate::Corpus;

    #[test]
    fn a_timed_step_is_a_step() -> Result<(), TrainingError> {
        let model =
            TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
        let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        let engine = || Engine::new(&manifest, Corpus::grammar(), [1; 32], Device::Cpu);
        let (mut plain, mut timed) = (engine()?, engine()?);
        let step = timed.timed_step(3.0)?;
        assert_eq!(step.report, plain.step(3.0)?);
        assert_eq!(timed.save()?, plain.save()?);
        assert!(step.total() >= step.gradient && timed.timed_forward(&step.batch)? > Duration::ZERO);
        Ok(())
    }
}

//! A step in two halves, for what averages gradients instead of models: data-parallel training, the baseline that
//! gossip is measured against.

use super::{Engine, EngineState, StepReport, TrainingError};

/// The gradient of one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchGradient {
    /// One value per parameter, flat in the order of the layout, before clipping.
    pub values: Vec<f32>,
    /// Mean loss of the batch, in nats per byte, token or image.
    pub loss: f64,
    /// Bytes that it was computed from.
    pub tokens: usize,
}

impl Engine {
    /// The gradient of the next batch; moves nothing but the place in the data.
    ///
    /// # Errors
    /// When the device fails.
    pub fn gradient_of_next_batch(&mut self) -> Result<BatchGradient, TrainingError> {
        rayon::scope(|_| {
            let (loss, tokens) = self.compute_gradient()?;
            Ok(BatchGradient { values: self.replica.gradient()?.into_owned(), loss, tokens })
        })
    }

    /// The next batch is to be the last one again, because its gradient went into no step.
    pub fn repeat_batch(&mut self) {
        self.sampler.seek(self.batch_began);
    }

    /// As [`Engine::save`], with the last batch still to be read, because its gradient went into no step.
    ///
    /// # Errors
    /// As [`Engine::save`].
    pub fn save_before_batch(&mut self) -> Result<EngineState, TrainingError> {
        let mut state = self.save()?;
        state.counters.position = self.batch_began;
        Ok(state)
    }

    /// As [`Engine::step`] with a gradient that is given, usually the mean of several nodes'.
    ///
    /// # Errors
    /// [`TrainingError::NotFinite`] when the step had to be skipped.
    ///
    /// # Panics
    /// When the gradient is of another model.
    pub fn step_with(&mut self, gradient: &BatchGradient, progress: f64) -> Result<StepReport, TrainingError> {
        assert_eq!(gradient.values.len(), self.layout().parameters(), "one value per parameter");
        let learning_rate = self.learning_rate.at(progress) * self.warm_up_again.factor();
        rayon::scope(|_| {
            self.replica.set_gradient(&gradient.values)?;
            self.advance(gradient.loss, gradient.tokens, learning_rate)
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
    fn a_step_in_two_halves_is_a_step() -> Result<(), TrainingError> {
        let model =
            TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
        let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        let engine = || Engine::new(&manifest, Corpus::grammar(), [1; 32], Device::Cpu);
        let (mut whole, mut halved) = (engine()?, engine()?);
        for progress in [0.0, 1.0, 2.0] {
            let expected = whole.step(progress)?;
            halved.gradient_of_next_batch()?;
            halved.repeat_batch();
            let gradient = halved.gradient_of_next_batch()?;
            assert_eq!(halved.step_with(&gradient, progress)?, expected);
        }
        assert_eq!(whole.save()?, halved.save()?);
        Ok(())
    }
}

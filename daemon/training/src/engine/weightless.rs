//! An engine for a model that comes from elsewhere.

use candle_core::Device;
use murmur_protocol::RunManifest;

use super::{Engine, TrainingError};
use crate::data::Corpus;
use crate::model::transformer::parameter_count;
use crate::ops::Kernels;

impl Engine {
    /// As [`Engine::new`] with zeros for weights, which take no time to draw: for a node that is about to load a peer's
    /// model or a saved state.
    ///
    /// # Errors
    /// When the device has no memory for the model.
    pub fn without_weights(
        manifest: &RunManifest,
        corpus: Corpus,
        node: [u8; 32],
        device: Device,
    ) -> Result<Engine, TrainingError> {
        let parameters = vec![0.0; parameter_count(&manifest.model)];
        let kernels = Kernels::for_device(&device);
        Engine::with_parameters(manifest, corpus, node, (device, kernels), parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_makes_it_like_an_engine_that_drew_its_weights() -> Result<(), TrainingError> {
        for outer_learning_rate in [0.0, 0.7] {
            let mut manifest = RunManifest::default();
            manifest.gossip.outer_learning_rate = outer_learning_rate;
            let mut drawn = Engine::new(&manifest, Corpus::grammar(), [1; 32], Device::Cpu)?;
            let mut weightless = Engine::without_weights(&manifest, Corpus::grammar(), [1; 32], Device::Cpu)?;
            assert!(weightless.parameters()?.iter().all(|value| *value == 0.0));
            let state = drawn.snapshot(murmur_protocol::Selection::State)?.values;
            weightless.load_state(&[state.to_payload()])?;
            drawn.load_state(&[state.to_payload()])?;
            drawn.step(1.0)?;
            weightless.step(1.0)?;
            assert_eq!(drawn.save()?, weightless.save()?);
        }
        Ok(())
    }
}

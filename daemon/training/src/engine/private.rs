//! An engine whose steps are private: see [`crate::privacy`].

use super::Engine;
use crate::privacy::{Mechanism, NotPrivate, PrivateSteps, PrivateTraining, SecretKey};

impl Engine {
    /// Makes all steps from now on private. Each needs a permit: whoever gives it has written down that the step is taken.
    ///
    /// # Errors
    /// What of the run, its data or the device cannot be private.
    pub fn train_privately(&mut self, steps: PrivateSteps, key: SecretKey) -> Result<Mechanism, NotPrivate> {
        let is_above_zero = |value: f64| value > 0.0 && value.is_finite();
        if !(is_above_zero(steps.clip) && is_above_zero(steps.noise)) {
            return Err(NotPrivate::NoNoise);
        }
        self.begin_private(steps, key)
    }

    /// As [`Engine::train_privately`], also without noise: nothing is promised then.
    pub(crate) fn begin_private(&mut self, steps: PrivateSteps, key: SecretKey) -> Result<Mechanism, NotPrivate> {
        if !self.is_on_cpu {
            return Err(NotPrivate::Device);
        }
        let private = PrivateTraining::new(&self.manifest, self.sampler.corpus(), steps, key)?;
        Ok(self.private.insert(private).mechanism())
    }

    /// Permits so many more private steps.
    pub fn permit(&mut self, steps: u64) {
        if let Some(private) = &mut self.private {
            private.permit(steps);
        }
    }

    /// Private steps that may still be taken; `None` where steps are not private.
    pub fn permits(&self) -> Option<u64> {
        self.private.as_ref().map(PrivateTraining::permits)
    }
}

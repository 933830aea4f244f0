//! `[privacy]` of a node file: what this machine's training may tell of its owner's records.
//!
//! It belongs to a machine and not to a run: the promise is the node's to its owner, holds whatever others do, and others need
//! not know of it.

use murmur_training::privacy::{Budget, PrivateSteps};
use serde::{Deserialize, Serialize};

/// What training may tell of each record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrivacySettings {
    /// ε at which own training ends; 0: training is not private.
    pub epsilon: f64,
    /// δ of that ε.
    pub delta: f64,
    /// The largest norm that the gradient of one record may have.
    pub clip: f64,
    /// The standard deviation of the noise, in clip norms.
    pub noise: f64,
}

impl Default for PrivacySettings {
    fn default() -> Self {
        PrivacySettings { epsilon: 0.0, delta: 1e-5, clip: 1.0, noise: 1.0 }
    }
}

impl PrivacySettings {
    pub(crate) const EPSILON_RULE: &str = "0 (not private), or 0.01 to 100";
    pub(crate) const DELTA_RULE: &str = "1e-12 to 0.01";
    pub(crate) const CLIP_RULE: &str = "0.000001 to 1000000";
    pub(crate) const NOISE_RULE: &str = "0.1 to 1000";

    pub(crate) fn is_epsilon(value: f64) -> bool {
        value == 0.0 || (0.01..=100.0).contains(&value)
    }

    pub(crate) fn is_delta(value: f64) -> bool {
        (1e-12..=0.01).contains(&value)
    }

    pub(crate) fn is_clip(value: f64) -> bool {
        (1e-6..=1e6).contains(&value)
    }

    pub(crate) fn is_noise(value: f64) -> bool {
        (0.1..=1000.0).contains(&value)
    }

    /// Whether training is to be private.
    pub fn is_on(&self) -> bool {
        self.epsilon > 0.0
    }

    /// What may be told.
    pub fn budget(&self) -> Budget {
        Budget { epsilon: self.epsilon, delta: self.delta }
    }

    /// How each step is made private.
    pub fn steps(&self) -> PrivateSteps {
        PrivateSteps { clip: self.clip, noise: self.noise }
    }

    pub(super) fn validate(&self) -> Result<(), (&'static str, String, &'static str)> {
        let checks = [
            ("privacy.epsilon", self.epsilon, Self::is_epsilon(self.epsilon), Self::EPSILON_RULE),
            ("privacy.delta", self.delta, Self::is_delta(self.delta), Self::DELTA_RULE),
            ("privacy.clip", self.clip, Self::is_clip(self.clip), Self::CLIP_RULE),
            ("privacy.noise", self.noise, Self::is_noise(self.noise), Self::NOISE_RULE),
        ];
        match checks.into_iter().find(|(_, _, is_good, _)| !is_good) {
            Some((field, value, _, rule)) => Err((field, value.to_string(), rule)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_held() {
        assert_eq!(PrivacySettings::default().validate(), Ok(()));
        let on = PrivacySettings { epsilon: 3.0, ..PrivacySettings::default() };
        assert!(on.is_on() && on.validate().is_ok() && !PrivacySettings::default().is_on());
        let wrong = [
            (PrivacySettings { epsilon: -1.0, ..on.clone() }, "privacy.epsilon"),
            (PrivacySettings { epsilon: f64::NAN, ..on.clone() }, "privacy.epsilon"),
            (PrivacySettings { delta: 0.0, ..on.clone() }, "privacy.delta"),
            (PrivacySettings { clip: 0.0, ..on.clone() }, "privacy.clip"),
            (PrivacySettings { noise: 0.0, ..on }, "privacy.noise"),
        ];
        for (settings, field) in wrong {
            assert_eq!(settings.validate().expect_err("out of range").0, field);
        }
    }
}

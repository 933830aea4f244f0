//! `[privacy]` of a node file: what this machine's training may tell of its owner's records.
//!
//! It belongs to a machine and not to a run: the promise is the node's to its owner, holds whatever others do, and others need
//! not know of it.

use murmur_training::privacy::{Budget, PrivateSteps};

use super::declaration::section;
use super::flag::Flag;
use super::flag::Taker::Machine;
use super::range::Range;
use crate::cli::headings::PRIVACY;

/// What ε can be.
pub(crate) const EPSILON: Range<f64> = Range::new(0.01, 100.0).or_zero("not private");

/// What δ can be.
pub(crate) const DELTA: Range<f64> = Range::new(1e-12, 0.01);

section! {
    /// What training may tell of each record.
    pub struct PrivacySettings {
        /// Privacy budget: the most that others can learn of one record (ε of differential privacy); training ends there [default:
        /// not private].
        epsilon: f64 = 0.0 => range(EPSILON), flag(Flag::new("epsilon", "EPSILON", PRIVACY).of(&[Machine]));
        /// The delta of that epsilon, below one in as many as there are records.
        delta: f64 = 1e-5 => range(DELTA), flag(Flag::new("delta", "DELTA", PRIVACY).of(&[Machine]));
        /// Norm to which the gradient of each record is clipped, where training is private.
        clip: f64 = 1.0 => range(Range::new(1e-6, 1e6)), flag(Flag::new("clip", "NORM", PRIVACY).of(&[Machine]));
        /// Noise of a private step, in clip norms.
        noise: f64 = 1.0 => range(Range::new(0.1, 1000.0)), flag(Flag::new("noise", "SIGMA", PRIVACY).of(&[Machine]));
    }
}

impl PrivacySettings {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::NodeSettings;

    #[test]
    fn ranges_are_held() {
        let of = |privacy: PrivacySettings| NodeSettings { privacy, ..NodeSettings::default() }.validate();
        assert_eq!(of(PrivacySettings::default()), Ok(()));
        let on = PrivacySettings { epsilon: 3.0, ..PrivacySettings::default() };
        assert!(on.is_on() && of(on.clone()).is_ok() && !PrivacySettings::default().is_on());
        let wrong = [
            (PrivacySettings { epsilon: -1.0, ..on.clone() }, "privacy.epsilon"),
            (PrivacySettings { epsilon: f64::NAN, ..on.clone() }, "privacy.epsilon"),
            (PrivacySettings { delta: 0.0, ..on.clone() }, "privacy.delta"),
            (PrivacySettings { clip: 0.0, ..on.clone() }, "privacy.clip"),
            (PrivacySettings { noise: 0.0, ..on }, "privacy.noise"),
        ];
        for (settings, field) in wrong {
            assert_eq!(of(settings).expect_err("out of range").key, field);
        }
    }
}

//! The outer momentum: a Nesterov step over a round of local training (DiLoCo, Douillard et al., arXiv 2311.08105),
//! kept by each node for itself.

use std::ops::Range;

use murmur_protocol::Correction;
use murmur_protocol::manifest::GossipSpec;

/// φ and u, flat on the host: a round is long, so their place does not matter for speed.
#[derive(Clone, Debug)]
pub struct OuterMomentum {
    learning_rate: f32,
    momentum_decay: f32,
    slow_weights: Vec<f32>,
    momentum: Vec<f32>,
}

impl OuterMomentum {
    /// Begins at the model's parameters, without momentum.
    pub fn new(gossip: &GossipSpec, parameters: Vec<f32>) -> OuterMomentum {
        OuterMomentum {
            learning_rate: gossip.outer_learning_rate as f32,
            momentum_decay: gossip.outer_momentum as f32,
            momentum: vec![0.0; parameters.len()],
            slow_weights: parameters,
        }
    }

    /// φ.
    pub fn slow_weights(&self) -> &[f32] {
        &self.slow_weights
    }

    /// u.
    pub fn momentum(&self) -> &[f32] {
        &self.momentum
    }

    /// `D = θ − φ; u ← μu + D; φ ← φ + α(μu + D)`; returns the new φ, which θ becomes.
    pub fn advance(&mut self, parameters: &[f32]) -> &[f32] {
        let weights = self.slow_weights.iter_mut().zip(&mut self.momentum).zip(parameters);
        for ((slow, momentum), parameter) in weights {
            let progress = parameter - *slow;
            *momentum = self.momentum_decay * *momentum + progress;
            *slow += self.learning_rate * (self.momentum_decay * *momentum + progress);
        }
        &self.slow_weights
    }

    /// `φ += c`, for the parameters in `range`.
    ///
    /// # Panics
    /// When the correction has another length.
    pub fn apply(&mut self, range: Range<usize>, correction: &Correction) {
        correction.add_to(&mut self.slow_weights[range]);
    }

    /// `u += c`, for the parameters in `range`.
    ///
    /// # Panics
    /// When the correction has another length.
    pub fn apply_to_momentum(&mut self, range: Range<usize>, correction: &Correction) {
        correction.add_to(&mut self.momentum[range]);
    }

    /// Begins anew at `parameters`.
    pub fn restart(&mut self, parameters: Vec<f32>) {
        self.momentum.fill(0.0);
        self.slow_weights = parameters;
    }

    /// Continues from saved values of the model's length.
    pub fn restore(&mut self, slow_weights: Vec<f32>, momentum: Vec<f32>) {
        (self.slow_weights, self.momentum) = (slow_weights, momentum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_follows_the_formula() {
        let gossip = GossipSpec { outer_learning_rate: 0.5, outer_momentum: 0.25, ..GossipSpec::default() };
        let mut outer = OuterMomentum::new(&gossip, vec![1.0]);
        // D = 2, u = 2, φ = 1 + 0.5 (0.5 + 2).
        assert_eq!(outer.advance(&[3.0]), [2.25]);
        // D = 1, u = 1.5, φ = 2.25 + 0.5 (0.375 + 1).
        assert_eq!(outer.advance(&[3.25]), [2.9375]);
    }
}

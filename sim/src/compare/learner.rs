//! The engine of one node, as the machines of [`compare`](super) use it.

use std::fmt;

use murmur_protocol::Snapshot;
use murmur_protocol::manifest::GossipSpec;
use murmur_training::engine::BatchGradient;
use murmur_training::{Engine, EngineState};

use super::Setting;

/// An engine.
pub(super) struct Learner {
    engine: Engine,
    tokens: u64,
}

/// All that makes two replicas go on with the same bits, but not whose data comes next.
#[derive(Clone, Debug)]
pub(super) struct Replica(Box<EngineState>);

impl Replica {
    /// Values on the wire: parameters and moments.
    pub(super) fn values(&self) -> usize {
        self.0.parameters.len() + self.0.first_moment.len() + self.0.second_moment.len()
    }
}

impl Learner {
    pub(super) fn new(setting: &Setting, node: usize) -> Learner {
        // What averages is the machine's business; the engine has no outer momentum of its own.
        let gossip = GossipSpec { outer_learning_rate: 0.0, ..GossipSpec::default() };
        let engine = setting.trainer.engine(&gossip, (node, setting.nodes), setting.seed);
        Learner { engine, tokens: setting.tokens_per_step() }
    }

    /// θ.
    pub(super) fn parameters(&self) -> Vec<f32> {
        self.engine.parameters().expect("the CPU's memory can be read")
    }

    /// The gradient of the next batch at θ.
    pub(super) fn gradient(&mut self) -> Vec<f32> {
        self.engine.gradient_of_next_batch().expect("the CPU has memory for a step").values
    }

    /// A step with a gradient that is given.
    pub(super) fn step_with(&mut self, gradient: Vec<f32>, progress: f64) {
        let gradient = BatchGradient { values: gradient, loss: 0.0, tokens: self.tokens as usize };
        // A step that is not finite is left out, as by the daemon.
        let _ = self.engine.step_with(&gradient, progress);
    }

    /// A step on the next batch.
    pub(super) fn step(&mut self, progress: f64) {
        let _ = self.engine.step(progress);
    }

    /// Replaces θ and keeps the optimizer's moments.
    pub(super) fn set_parameters(&mut self, parameters: Vec<f32>) {
        let mut state = self.engine.save().expect("the CPU's memory can be read");
        state.parameters = parameters;
        // What is not finite is refused, and the model stays as it was.
        let _ = self.engine.restore(state);
    }

    pub(super) fn replica(&mut self) -> Replica {
        Replica(Box::new(self.engine.save().expect("the CPU's memory can be read")))
    }

    /// Takes over another node's replica; its own data goes on where it was.
    pub(super) fn take(&mut self, replica: Replica) {
        let own = self.engine.save().expect("the CPU's memory can be read");
        let mut state = *replica.0;
        state.counters.position = own.counters.position;
        let _ = self.engine.restore(state);
    }
}

/// BLAKE3 of a model: equal for equal bits.
pub(super) fn digest(parameters: Vec<f32>) -> blake3::Hash {
    blake3::hash(Snapshot::from(parameters).to_payload().bytes())
}

impl fmt::Debug for Learner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Learner")
    }
}

//! Learning in earnest: the engine that the daemon trains with, on the CPU, inside the simulator.
//!
//! It does what the daemon's training thread does between two looks at its orders (`daemon/src/drivers/trainer.rs`);
//! outer momentum, local progress and the warm-up after a join are the engine's own.

use std::borrow::Cow;
use std::fmt;

use murmur_protocol::manifest::GossipSpec;
use murmur_protocol::{Correction, Ending, Part, Payload, Selection, Snapshot};
use murmur_training::engine::Taken;
use murmur_training::{DeviceChoice, Engine, EngineState, TrainingError};

use super::{Learner, TransformerSpec};
use crate::scenario::HostIndex;

pub(crate) struct Transformer {
    engine: Engine,
    total_steps: f64,
}

impl Transformer {
    /// The engine of `host` of `hosts`: the first model is the run's, the data the host's in every life.
    ///
    /// # Panics
    /// When the specification does not pass [`TransformerSpec::check`].
    pub(crate) fn new(
        spec: &TransformerSpec,
        gossip: &GossipSpec,
        (host, hosts): (HostIndex, usize),
        seed: u64,
    ) -> Transformer {
        let total_steps = spec.schedule.total_steps as f64;
        Transformer { engine: spec.engine(gossip, (host, hosts), seed), total_steps }
    }
}

impl TransformerSpec {
    /// The engine of `host` of `hosts`, as every founder of a run begins.
    ///
    /// # Panics
    /// When the specification does not pass [`check`](Self::check).
    pub fn engine(&self, gossip: &GossipSpec, (host, hosts): (HostIndex, usize), seed: u64) -> Engine {
        let mut node = [0; 32];
        node[..8].copy_from_slice(&(host as u64).to_le_bytes());
        let corpus = self.corpus(host, hosts).expect("the specification was checked");
        let (device, _) = DeviceChoice::Cpu.open().expect("every machine has a CPU");
        Engine::new(&self.manifest(gossip, seed), corpus, node, device).expect("there is memory for the model")
    }
}

impl Learner for Transformer {
    /// A step that is not finite is left out, as in the daemon.
    fn learn(&mut self, progress: f64) -> Option<f64> {
        self.engine.step(progress).ok().map(|report| report.travel)
    }

    fn values(&self) -> Cow<'_, [f32]> {
        Cow::Owned(self.engine.parameters().expect("the CPU's memory can be read"))
    }

    fn snapshot(&mut self, selection: Selection) -> Result<Taken, TrainingError> {
        self.engine.snapshot(selection)
    }

    fn apply(&mut self, part: Part, correction: &Correction) -> Result<(), TrainingError> {
        self.engine.apply(part, correction)
    }

    fn load_state(&mut self, chunks: &[Payload]) -> Result<(), TrainingError> {
        self.engine.load_state(chunks)
    }

    fn save(&mut self) -> Option<Box<EngineState>> {
        Some(Box::new(self.engine.save().expect("the CPU's memory can be read")))
    }

    fn restore(&mut self, state: EngineState) -> Result<(), TrainingError> {
        self.engine.restore(state)
    }

    fn advance_outer(&mut self) -> Result<(), TrainingError> {
        self.engine.advance_outer()
    }

    /// It is trained as a whole, alone or as a team's.
    fn hold(&mut self, _held: Vec<std::ops::Range<usize>>) {}

    fn set_members(&mut self, members: f64) {
        self.engine.set_members(members);
    }

    fn gradient(&mut self) -> Vec<f32> {
        self.engine.gradient_of_next_batch().expect("the CPU has memory for a step").values
    }

    fn step_with_sum(&mut self, sum: &Snapshot, members: u32, progress: f64) {
        // One that is not finite is left out, as by all others.
        let _ = self.engine.step_with_sum(sum.clone(), members, (progress, 1));
    }

    fn load_replica(&mut self, replica: &Payload) -> Result<(), TrainingError> {
        self.engine.load_replica(replica)
    }

    fn finish(&mut self, ending: Ending) {
        self.engine.finish(ending);
    }

    fn is_run_over(&self, progress: f64) -> bool {
        self.total_steps > 0.0 && progress >= self.total_steps
    }
}

impl fmt::Debug for Transformer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Transformer({} parameters)", self.engine.layout().parameters())
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::TransformerModel;

    use super::*;
    use crate::trainer::{Trainer, TrainerSpec};
    use crate::{HostIndex, Scenario};

    /// As a daemon does: moments, the place in the data and the counters are in its checkpoint.
    #[test]
    fn a_trainer_goes_on_from_a_checkpoint_as_if_nothing_had_been() {
        const HOST: HostIndex = 1;
        let model =
            TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 32, context: 32, ..Default::default() };
        let trainer = TrainerSpec::Transformer(TransformerSpec { model, ..TransformerSpec::default() });
        let scenario = Scenario { trainer, ..Scenario::calm(2) };
        let mut one = Trainer::new(&scenario, HOST, (1, 1), true);
        (0..4).for_each(|_| one.step(true, true));
        let saved = one.save();
        let mut other = Trainer::new(&scenario, HOST, (1, 2), true);
        other.resume(&saved);
        for trainer in [&mut one, &mut other] {
            (0..3).for_each(|_| trainer.step(true, true));
        }
        assert!(one.values() == other.values(), "other bits");
        assert_eq!((one.steps, one.progress), (other.steps, other.progress));
    }
}

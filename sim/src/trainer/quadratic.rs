//! Learning without tensors: a noisy quadratic with a known optimum.
//!
//! Every node pulls towards its own optimum, like nodes that read different data; only averaging keeps them together.
//! A step allocates nothing, so that swarms of thousands can be simulated.

use std::borrow::Cow;
use std::ops::Range;

use murmur_protocol::manifest::GossipSpec;
use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{Correction, Ending, Fragments, Holding, Part, Payload, Selection, Snapshot, Vector};
use murmur_training::engine::Taken;
use murmur_training::{LocalProgress, OuterMomentum, TrainingError};

use super::{Learner, QuadraticSpec, gathered, scatter};
use crate::scenario::HostIndex;

/// The centre of all optima, in each coordinate.
pub(crate) const CENTRE: f32 = 1.0;

#[derive(Debug)]
pub(crate) struct Quadratic {
    spec: QuadraticSpec,
    noise: Generator,
    optimum: Vec<f32>,
    values: Vec<f32>,
    fragments: Fragments,
    /// What of the model is shown to others, and taken from them.
    held: Vec<Range<usize>>,
    outer: Option<OuterMomentum>,
    local_progress: LocalProgress,
}

impl Quadratic {
    /// The learner of one life: the first model is the run's, the optimum the host's, the noise that of `life_seed`.
    pub(crate) fn new(
        spec: &QuadraticSpec,
        gossip: &GossipSpec,
        (fragments, holding): (Fragments, Holding),
        host: HostIndex,
        (seed, life_seed): (u64, u64),
    ) -> Quadratic {
        let mut place = stream(seed, "simulated optimum", &[&host.to_le_bytes()]);
        let parameters = fragments.parameters();
        let mut first = stream(seed, "simulated first model", &[]);
        let values: Vec<f32> = (0..parameters).map(|_| first.random_range(-1.0..1.0)).collect();
        Quadratic {
            spec: spec.clone(),
            noise: stream(life_seed, "simulated noise", &[]),
            optimum: (0..parameters).map(|_| CENTRE + spec.spread * place.random_range(-1.0f32..1.0)).collect(),
            outer: (gossip.outer_learning_rate > 0.0).then(|| OuterMomentum::new(gossip, values.clone())),
            local_progress: LocalProgress::new(&values),
            held: fragments.held(holding).collect(),
            fragments,
            values,
        }
    }

    fn selected(&self, selection: Selection) -> Result<Vec<f32>, TrainingError> {
        let outer = || self.outer.as_ref().ok_or(TrainingError::NoOuterMomentum);
        Ok(match selection {
            Selection::Part(Part { vector, fragment }) => {
                let vector = if vector == Vector::Model { &self.values[..] } else { outer()?.momentum() };
                vector[self.fragments.range(fragment)].to_vec()
            }
            Selection::State => gathered(&self.values, &self.held),
            Selection::Values { first, end } => gathered(&self.values, &self.held)[first..end].to_vec(),
            Selection::Replica => self.values.clone(),
        })
    }
}

impl Learner for Quadratic {
    fn learn(&mut self, _progress: f64) -> Option<f64> {
        let mut squares = 0.0;
        for (value, optimum) in self.values.iter_mut().zip(&self.optimum) {
            let noise = self.spec.noise * self.noise.random_range(-1.0f32..1.0);
            let before = *value;
            *value -= self.spec.learning_rate * (*value - optimum + noise);
            squares += (f64::from(*value) - f64::from(before)).powi(2);
        }
        Some(f64::sqrt(squares))
    }

    fn values(&self) -> Cow<'_, [f32]> {
        Cow::Borrowed(&self.values)
    }

    fn snapshot(&mut self, selection: Selection) -> Result<Taken, TrainingError> {
        let values = Snapshot::from(self.selected(selection)?);
        let is_model = matches!(selection, Selection::Part(Part { vector: Vector::Model, .. }));
        let local_progress = if is_model { self.local_progress.measure(&self.values) } else { 0.0 };
        Ok(Taken { values, local_progress })
    }

    fn apply(&mut self, part: Part, correction: &Correction) -> Result<(), TrainingError> {
        let range = self.fragments.range(part.fragment);
        if correction.len() != range.len() {
            let (expected, actual) = (range.len(), correction.len());
            return Err(TrainingError::WrongLength { what: "a correction", expected, actual });
        }
        match (part.vector, &mut self.outer) {
            (Vector::Model, outer) => {
                let before = self.local_progress.sample(&self.values);
                correction.add_to(&mut self.values[range.clone()]);
                self.local_progress.leave_out(&before, &self.values);
                if let Some(outer) = outer {
                    outer.apply(range, correction);
                }
            }
            (Vector::Momentum, Some(outer)) => outer.apply_to_momentum(range, correction),
            (Vector::Momentum, None) => return Err(TrainingError::NoOuterMomentum),
        }
        Ok(())
    }

    fn load_state(&mut self, chunks: &[Payload]) -> Result<(), TrainingError> {
        scatter(chunks, &self.held, &mut self.values)?;
        if let Some(outer) = &mut self.outer {
            outer.restart(self.values.clone());
        }
        self.local_progress = LocalProgress::new(&self.values);
        Ok(())
    }

    fn advance_outer(&mut self) -> Result<(), TrainingError> {
        if let Some(outer) = &mut self.outer {
            let slow_weights = outer.advance(&self.values);
            self.values.copy_from_slice(slow_weights);
        }
        Ok(())
    }

    fn hold(&mut self, held: Vec<Range<usize>>) {
        self.held = held;
    }

    fn gradient(&mut self) -> Vec<f32> {
        let pairs = self.values.iter().zip(&self.optimum);
        pairs
            .map(|(value, optimum)| value - optimum + self.spec.noise * self.noise.random_range(-1.0f32..1.0))
            .collect()
    }

    fn step_with_sum(&mut self, sum: &Snapshot, members: u32, _progress: f64) {
        let rate = self.spec.learning_rate / members as f32;
        self.values.iter_mut().zip(sum.values()).for_each(|(value, sum)| *value -= rate * sum);
    }

    fn load_replica(&mut self, replica: &Payload) -> Result<(), TrainingError> {
        self.load_state(std::slice::from_ref(replica))
    }

    /// Its learning rate is constant.
    fn finish(&mut self, _ending: Ending) {}

    fn is_run_over(&self, _progress: f64) -> bool {
        false
    }
}

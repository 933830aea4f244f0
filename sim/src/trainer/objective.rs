//! How good a model is: one number, the same function for all nodes of a run.

use std::fmt;

use murmur_protocol::manifest::GossipSpec;
use murmur_training::data::Window;
use murmur_training::{DeviceChoice, LanguageModel};

use super::quadratic::CENTRE;
use super::{TrainerSpec, TransformerSpec};

/// Windows that are evaluated at once; no more than fit into a small machine's memory. A guess.
const BATCH_SEQUENCES: usize = 16;

/// What a swarm minimises, as a function of the flat model.
#[derive(Clone)]
pub enum Objective {
    /// ½‖θ − centre‖² / parameters, where all nodes' optima lie around the centre. (The mean of finitely many optima is
    /// not the centre itself: with N nodes it is off by about spread / √(3N) in each coordinate.)
    Quadratic,
    /// Mean loss on held-out windows, nats per byte.
    Transformer {
        /// The model.
        spec: Box<TransformerSpec>,
        /// The run's held-out windows.
        windows: Vec<Window>,
    },
}

impl Objective {
    /// The objective of a run.
    ///
    /// # Panics
    /// When a transformer's specification does not pass [`TransformerSpec::check`].
    pub fn new(trainer: &TrainerSpec, seed: u64) -> Objective {
        match trainer {
            TrainerSpec::Quadratic(_) => Objective::Quadratic,
            TrainerSpec::Transformer(spec) => {
                let corpus = spec.corpus(0, 1).expect("the specification was checked");
                let windows = corpus.validation(&spec.manifest(&GossipSpec::default(), seed));
                Objective::Transformer { spec: Box::new(spec.clone()), windows }
            }
        }
    }

    /// The loss of a model, lower is better.
    ///
    /// # Panics
    /// When `model` has another length than the run's.
    pub fn loss(&self, model: &[f32]) -> f64 {
        match self {
            Objective::Quadratic => {
                let squares = model.iter().map(|value| f64::from(value - CENTRE).powi(2)).sum::<f64>();
                0.5 * squares / model.len() as f64
            }
            Objective::Transformer { spec, windows } => {
                let (device, _) = DeviceChoice::Cpu.open().expect("every machine has a CPU");
                let model = LanguageModel::from_parameters(&spec.model, model, &device);
                let evaluation = model.and_then(|model| model.evaluate(windows, BATCH_SEQUENCES));
                evaluation.expect("there is memory for the model").loss()
            }
        }
    }

    /// The loss of the mean of `models`; not a number where there are none.
    pub fn loss_of_mean(&self, models: &[&[f32]]) -> f64 {
        match models.first() {
            Some(first) => self.loss(&mean(models, first.len())),
            None => f64::NAN,
        }
    }
}

/// The mean of `models`, summed in `f64`.
pub(crate) fn mean(models: &[&[f32]], parameters: usize) -> Vec<f32> {
    let sum = |index: usize| models.iter().map(|model| f64::from(model[index])).sum::<f64>();
    (0..parameters).map(|index| (sum(index) / models.len() as f64) as f32).collect()
}

impl fmt::Debug for Objective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Objective::Quadratic => formatter.write_str("Quadratic"),
            Objective::Transformer { windows, .. } => write!(formatter, "Transformer({} windows)", windows.len()),
        }
    }
}

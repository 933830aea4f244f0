//! What trainers work on: the quadratic for speed, the transformer for the truth.

use std::path::Path;
use std::sync::Arc;

use murmur_protocol::manifest::{
    DataSource, DataSpec, GossipSpec, OptimizerSpec, RunManifest, RunSpec, ScheduleSpec, TransformerModel,
};
use murmur_protocol::{ModelLayout, manifest::ManifestError};
use murmur_training::model::transformer::transformer_layout;
use murmur_training::{Corpus, CorpusError};

/// The problem that all trainers of a swarm work on.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // there is one of it for a whole swarm
pub enum TrainerSpec {
    /// A noisy quadratic with a known optimum: microseconds a step, for large swarms and long runs.
    Quadratic(QuadraticSpec),
    /// A language model on text, trained by the daemon's own engine.
    Transformer(TransformerSpec),
}

/// A noisy quadratic: every step moves a model towards its node's optimum.
///
/// All optima lie around one centre, at 1 in each coordinate. The objective is ½‖θ − centre‖² / parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct QuadraticSpec {
    /// Share of the way to the optimum that one step takes.
    pub learning_rate: f32,
    /// How far the nodes' optima lie from their common centre, in each coordinate.
    pub spread: f32,
    /// Noise of a step, in each coordinate, before the learning rate.
    pub noise: f32,
}

/// A byte-level transformer. What is not said here (outer momentum, seed) the scenario's gossip and the run's seed say.
///
/// The objective is the mean loss on held-out windows in nats per byte, the same for all nodes.
#[derive(Clone, Debug)]
pub struct TransformerSpec {
    /// The model.
    pub model: TransformerModel,
    /// The inner optimizer.
    pub optimizer: OptimizerSpec,
    /// Learning rate over swarm progress. A node without `steps_max` is complete when the progress reaches the end.
    pub schedule: ScheduleSpec,
    /// What is read.
    pub text: Text,
    /// Who reads which part of it.
    pub sharing: Sharing,
    /// Share of the text, at its end, that is only validated on; above 0, at most 0.5. The grammar needs none.
    pub validation_fraction: f64,
    /// Windows that an evaluation reads, 1 to 65,536.
    pub validation_sequences: u32,
}

/// What a transformer reads.
#[derive(Clone, PartialEq, Eq)]
pub enum Text {
    /// The built-in story grammar, endless.
    Grammar,
    /// These bytes.
    Bytes(Arc<[u8]>),
}

/// Who reads which part of a text. (Of the grammar every node has stories of its own, all of one kind.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every node all of it, each in an order of its own: nodes see data of one kind.
    Whole,
    /// Every node its own part, one after the other in the text: nodes see data of different kinds.
    ByNode,
}

/// Why a transformer cannot be trained.
#[derive(Debug, thiserror::Error)]
pub enum TrainerSpecError {
    /// A value is out of its range.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The text is unreadable or too short.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
}

impl TrainerSpec {
    /// The layout of the model; `parameters` is the quadratic's dimension, a transformer has its own.
    pub fn layout(&self, parameters: usize) -> ModelLayout {
        match self {
            TrainerSpec::Quadratic(_) => ModelLayout::new([("model".to_owned(), vec![parameters])]),
            TrainerSpec::Transformer(spec) => transformer_layout(&spec.model),
        }
    }

    /// The objective, on average, of a node at its own optimum: optima are drawn evenly from both sides of the centre, at most the spread
    /// away. A transformer's loss has no such floor that is known.
    pub(crate) fn alone_loss(&self) -> f64 {
        match self {
            TrainerSpec::Quadratic(spec) => f64::from(spec.spread).powi(2) / 6.0,
            TrainerSpec::Transformer(_) => 0.0,
        }
    }
}

impl TransformerSpec {
    /// Checks all that could keep the engines of `hosts` nodes from starting.
    ///
    /// # Errors
    /// A value out of range, or a text too short for the model's context.
    pub fn check(&self, gossip: &GossipSpec, hosts: usize) -> Result<(), TrainerSpecError> {
        self.manifest(gossip, 0).validate()?;
        (0..hosts).try_for_each(|host| self.corpus(host, hosts).map(drop))?;
        Ok(())
    }

    /// The run as a daemon would be told of it.
    pub(crate) fn manifest(&self, gossip: &GossipSpec, seed: u64) -> RunManifest {
        let source = if self.text == Text::Grammar { DataSource::Grammar } else { DataSource::Files };
        RunManifest {
            run: RunSpec { name: "simulated".to_owned(), seed, ..RunSpec::default() },
            model: self.model.clone().into(),
            optimizer: self.optimizer.clone(),
            schedule: self.schedule.clone(),
            data: DataSpec { source, ..self.data() },
            gossip: gossip.clone(),
            ..RunManifest::default()
        }
    }

    /// What `host` of `hosts` reads.
    pub(crate) fn corpus(&self, host: usize, hosts: usize) -> Result<Corpus, CorpusError> {
        let context = self.model.context as usize;
        let corpus = match &self.text {
            Text::Grammar => Corpus::grammar(),
            Text::Bytes(bytes) => Corpus::from_bytes(bytes.to_vec(), &self.data(), context)?,
        };
        match self.sharing {
            Sharing::Whole => Ok(corpus),
            Sharing::ByNode => corpus.into_share(host, hosts, context),
        }
    }

    fn data(&self) -> DataSpec {
        let (validation_fraction, validation_sequences) = (self.validation_fraction, self.validation_sequences);
        DataSpec { validation_fraction, validation_sequences, ..DataSpec::default() }
    }
}

impl Text {
    /// The bytes of a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> Result<Text, CorpusError> {
        let bytes = std::fs::read(path);
        let bytes = bytes.map_err(|source| CorpusError::Unreadable(path.to_owned(), source))?;
        Ok(Text::Bytes(bytes.into()))
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Text::Grammar => formatter.write_str("Grammar"),
            Text::Bytes(bytes) => write!(formatter, "Bytes({}, {:.8})", bytes.len(), blake3::hash(bytes).to_hex()),
        }
    }
}

impl Default for TrainerSpec {
    fn default() -> Self {
        TrainerSpec::Quadratic(QuadraticSpec::default())
    }
}

impl Default for QuadraticSpec {
    fn default() -> Self {
        QuadraticSpec { learning_rate: 0.02, spread: 0.5, noise: 0.5 }
    }
}

impl Default for TransformerSpec {
    /// The built-in run of the daemon.
    fn default() -> Self {
        let RunManifest { optimizer, schedule, data, .. } = RunManifest::default();
        TransformerSpec {
            model: TransformerModel::default(),
            optimizer,
            schedule,
            text: Text::Grammar,
            sharing: Sharing::Whole,
            validation_fraction: data.validation_fraction,
            validation_sequences: data.validation_sequences,
        }
    }
}

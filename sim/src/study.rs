//! The learning study: what gossip costs in loss, against methods that average more or not at all.
//!
//! All methods train the same engines on the same streams of data from the same first model; they differ in what they
//! average and when. Pairwise modular gossip runs in the simulator, with the real node and the real numerics; the
//! [baselines] average exactly and without a network. A run is a [`Setting`] and gives an [`Outcome`].

pub mod baselines;
pub mod gossip;
pub mod plan;
mod stages;
pub mod table;

use murmur_protocol::manifest::{GossipKind, OptimizerKind, OptimizerSpec, ScheduleSpec, TransformerModel};
use serde::{Deserialize, Serialize};

use crate::{Objective, Sharing, Text, TrainerSpec, TransformerSpec};

/// Sequences in a node's batch: with [`CONTEXT`] 512 bytes a step, as in the study that the method comes from.
const BATCH_SEQUENCES: u32 = 4;

/// Bytes of context.
const CONTEXT: u32 = 128;

/// Warm-up and the cosine's end, as shares of the run and of the peak. Guesses.
const WARMUP_FRACTION: f64 = 0.1;
const FINAL_FRACTION: f64 = 0.1;

/// Held-out windows: 16 KiB of text tell models apart that differ by half a percent, since all read the same.
const VALIDATION_SEQUENCES: u32 = 128;

/// What one run trains, and how. Everything that decides its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// How nodes learn from each other.
    pub method: Method,
    /// Name of the text, for people and for telling runs apart.
    pub text: String,
    /// Whether every node reads a part of the text of its own.
    pub by_node: bool,
    /// Parameters of the model.
    pub parameters: usize,
    /// Nodes.
    pub nodes: usize,
    /// In how many fragments, at layers, models are exchanged.
    #[serde(default = "one")]
    pub fragments: u16,
    /// How many of the nodes, the last ones, are teams of two machines, of which one holds the fragment in the middle and the
    /// other the rest: each exchanges what it holds by itself.
    #[serde(default)]
    pub teams: usize,
    /// Steps of each node, of 512 bytes; with unequal speeds the mean over all nodes.
    pub steps: u64,
    /// Peak learning rate of AdamW.
    pub learning_rate: f64,
    /// What else makes steps of gradients.
    #[serde(default)]
    pub treatment: Treatment,
    /// Seeds the model, the order of the data and the network.
    pub seed: u64,
}

fn one() -> u16 {
    1
}

/// What makes steps of gradients, beside AdamW's learning rate. By default AdamW alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Treatment {
    /// Which optimizer.
    pub kind: OptimizerKind,
    /// Peak learning rate of Muon.
    pub muon_learning_rate: f64,
    /// Whether AdamW's second moments are matched to all nodes' batches.
    pub match_batch: bool,
}

impl Default for Treatment {
    fn default() -> Self {
        let OptimizerSpec { kind, muon_learning_rate, match_batch, .. } = OptimizerSpec::default();
        Treatment { kind, muon_learning_rate, match_batch }
    }
}

/// How nodes learn from each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Method {
    /// Gradients of all nodes are averaged in every step.
    DataParallel,
    /// Synchronous DiLoCo (Douillard et al., arXiv 2311.08105): models of all nodes are averaged every `interval`
    /// steps, with an outer Nesterov momentum.
    Diloco {
        /// H.
        interval: u32,
        /// α.
        outer_learning_rate: f64,
        /// μ.
        outer_momentum: f64,
    },
    /// As [`Method::DataParallel`], with gradients of the model of one update ago.
    Delayed,
    /// Every node is two machines that hold a half of the layers each; random pairs average exactly.
    TwoStages {
        /// H.
        interval: u32,
        /// Whether each batch goes on to a machine that is drawn, not to the one of the same node.
        is_wiring_random: bool,
    },
    /// Nothing is averaged.
    LocalOnly,
    /// Gossip in the simulator.
    Gossip {
        /// What partners send.
        #[serde(default)]
        kind: GossipKind,
        /// H.
        interval: u32,
        /// α; 0 for none.
        outer_learning_rate: f64,
        /// μ.
        outer_momentum: f64,
        /// 16-bit codes with fine steps instead of 8-bit codes, see
        /// [`WorkerSpec::full_precision`](crate::WorkerSpec::full_precision).
        full_precision: bool,
        /// What makes it hard.
        conditions: Conditions,
    },
}

/// What nodes and network of a swarm are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conditions {
    /// Equal speeds on a calm network.
    #[default]
    Calm,
    /// Speeds 1 : 1 : ½ : ¼, half a step of delay, and a tenth of all messages and payloads lost.
    Uneven,
    /// Equal speeds; in each eighth of the run a fifth of the nodes is killed, and strangers without a model come in
    /// their places; a tenth of all messages and payloads is lost.
    Churn,
}

/// What a run came to. Losses are nats per byte on held-out text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The run.
    pub setting: Setting,
    /// Mean over the nodes' models at the end, after the final exchanges where there are any.
    pub loss: f64,
    /// The best and the worst node.
    pub loss_range: (f64, f64),
    /// Of the mean of all models.
    pub loss_of_mean: f64,
    /// Mean over the nodes when the fastest had taken its last step, before its final exchanges.
    pub loss_before_settling: Option<f64>,
    /// Bytes that a node sends for each parameter in the whole run: measured for gossip, for baselines computed from
    /// what an implementation would send (a ring all-reduce, gradients in bfloat16, models in 8 bits).
    pub bytes_per_parameter: f64,
    /// Exchanges that a node completed as starter.
    pub exchanges: f64,
    /// Bytes of text trained on, by all nodes together.
    pub tokens: u64,
    /// Real time that the run took, where somebody measured it.
    pub seconds: f64,
}

impl Setting {
    /// What the nodes train: `text` as named, over `total_steps` of swarm progress.
    pub(crate) fn trainer(&self, text: &Text, total_steps: u64) -> TransformerSpec {
        TransformerSpec {
            model: model(),
            optimizer: OptimizerSpec {
                kind: self.treatment.kind,
                learning_rate: self.learning_rate,
                muon_learning_rate: self.treatment.muon_learning_rate,
                match_batch: self.treatment.match_batch,
                batch_sequences: BATCH_SEQUENCES,
                ..OptimizerSpec::default()
            },
            schedule: ScheduleSpec {
                total_steps,
                warmup_steps: (total_steps as f64 * WARMUP_FRACTION) as u64,
                final_fraction: FINAL_FRACTION,
                ..ScheduleSpec::default()
            },
            text: text.clone(),
            sharing: if self.by_node { Sharing::ByNode } else { Sharing::Whole },
            validation_sequences: VALIDATION_SEQUENCES,
            ..TransformerSpec::default()
        }
    }

    /// Runs it.
    ///
    /// # Panics
    /// When `text` is too short for the model's context.
    pub fn run(&self, text: &Text) -> Outcome {
        match self.method {
            Method::DataParallel => baselines::data_parallel(self, text),
            Method::Diloco { .. } => baselines::diloco(self, text),
            Method::Delayed => stages::delayed(self, text),
            Method::TwoStages { .. } => stages::two_stages(self, text),
            Method::LocalOnly => baselines::local_only(self, text),
            Method::Gossip { .. } => gossip::run(self, text),
        }
    }

    /// The outcome of these models.
    pub(crate) fn outcome(&self, trainer: &TransformerSpec, models: &[Vec<f32>]) -> Outcome {
        let objective = Objective::new(&TrainerSpec::Transformer(trainer.clone()), self.seed);
        let losses: Vec<f64> = models.iter().map(|model| objective.loss(model)).collect();
        let views: Vec<&[f32]> = models.iter().map(Vec::as_slice).collect();
        let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
        let most = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Outcome {
            setting: self.clone(),
            loss: losses.iter().sum::<f64>() / losses.len() as f64,
            loss_range: (least, most),
            loss_of_mean: objective.loss_of_mean(&views),
            loss_before_settling: None,
            bytes_per_parameter: 0.0,
            exchanges: 0.0,
            tokens: self.nodes as u64 * self.steps * tokens_per_step(),
            seconds: 0.0,
        }
    }
}

/// The study's model: a byte-level transformer of about 0.4M parameters.
pub fn model() -> TransformerModel {
    TransformerModel { layers: 3, width: 96, heads: 4, feed_forward: 256, context: CONTEXT, ..Default::default() }
}

/// Bytes that a node trains on in one step.
pub(crate) fn tokens_per_step() -> u64 {
    u64::from(BATCH_SEQUENCES) * u64::from(CONTEXT)
}

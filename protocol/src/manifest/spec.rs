//! The sections of a run manifest, with ranges and defaults. The defaults together are the built-in run, but for its
//! optimizer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bounds::{FRAGMENT_PARAMETERS, FRAGMENTS_MAX};
use crate::shards::ShardHash;

/// The run's name and seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSpec {
    /// For people; 1 to 64 characters.
    pub name: String,
    /// Seeds initial weights, data assignment and the validation slice.
    pub seed: u64,
    /// Peer id of who may finish the run (`murmur finish`); filled in by the founder where it is empty.
    pub founder: String,
}

/// Which optimizers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// AdamW (Loshchilov and Hutter, arXiv 1711.05101) for all parameters.
    AdamW,
    /// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for the matrices between two layers, AdamW for the rest:
    /// embedding, head, norms, biases, convolutions and adapters.
    Muon,
}

/// What turns gradients into steps, with clipping of the gradient's norm and decoupled weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSpec {
    /// The optimizer of the hidden matrices.
    pub kind: OptimizerKind,
    /// AdamW's peak learning rate, above 0, at most 1.
    pub learning_rate: f64,
    /// Muon's peak learning rate, above 0, at most 1. A matrix `[outputs, inputs]` moves by this times √max(1, outputs /
    /// inputs), in each of its directions about alike.
    pub muon_learning_rate: f64,
    /// Decay of Muon's momentum, 0 to below 1.
    pub muon_momentum: f64,
    /// Decay of the first moment, 0 to below 1.
    pub beta1: f64,
    /// Decay of the second moment, 0 to below 1.
    pub beta2: f64,
    /// Whether AdamW's second moment is that of the batches of all members together: of an average over so many own gradients
    /// as there are members, instead of each gradient.
    pub match_batch: bool,
    /// Added to the denominator, above 0.
    pub epsilon: f64,
    /// Decoupled decay of matrices (never of norms), 0 to 10.
    pub weight_decay: f64,
    /// The gradient is scaled down to this Euclidean norm, above 0.
    pub gradient_norm_max: f64,
    /// Sequences or images in a node's batch, 1 to 65,536.
    pub batch_sequences: u32,
}

/// Warm-up, a stable rate, and a decay that falls like half a cosine (Hu et al., arXiv 2404.06395); all follow swarm
/// progress (steps, averaged along with the models). Without a length the rate stays at its peak until the founder asks
/// for the decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSpec {
    /// Swarm progress, in steps per node, at which the run is complete; 0 sets no end.
    pub total_steps: u64,
    /// Steps of linear warm-up, at most `total_steps` where that is set.
    pub warmup_steps: u64,
    /// Share of the steps between warm-up and `total_steps` over which the rate falls, above 0, at most 1; 1 is a cosine
    /// without a stable part.
    pub decay_fraction: f64,
    /// The decay ends at this fraction of the peak, 0 to 1.
    pub final_fraction: f64,
}

/// Where training data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataSource {
    /// The built-in story grammar: endless, seeded, with a known entropy rate.
    Grammar,
    /// Text files and folders of them: each node's own (`data.files` in its node file), or with `share` the founder's.
    Files,
    /// JSON Lines with a text field, gzip-compressed or not.
    JsonLines,
    /// Parquet with a text column.
    Parquet,
    /// Pairs of IDX files (MNIST and its family), gzip-compressed or not: images, labels.
    Idx,
    /// Folders with a sub-folder of PNG or JPEG images for each class.
    ImageFolders,
    /// Rows of CSV, JSON Lines or Parquet, the first two gzip-compressed or not.
    Table,
}

impl DataSource {
    /// Whether it gives images with labels, instead of text.
    pub fn gives_images(self) -> bool {
        matches!(self, DataSource::Idx | DataSource::ImageFolders)
    }

    /// Whether it gives the text of files.
    pub fn gives_text_of_files(self) -> bool {
        matches!(self, DataSource::Files | DataSource::JsonLines | DataSource::Parquet)
    }
}

/// What the model reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataSpec {
    /// Built-in text or the nodes' files.
    pub source: DataSource,
    /// BLAKE3 of the corpus in hexadecimal when all nodes must hold the same; empty when each may hold its own.
    pub digest: String,
    /// Where the files are that `digest` names, for members who agree to load them: up to 8 addresses that begin with
    /// `https://`, `s3://` or `hf://`, of at most 512 bytes, without keys.
    pub remote: Vec<String>,
    /// Field of JSON Lines, or column of Parquet, that holds the text; 1 to 128 characters.
    pub field: String,
    /// Precedes each text of JSON Lines or Parquet, such as "<s>" for a tokenizer that knows it, and each prompt of
    /// `murmur sample`; up to 64 characters.
    pub prefix: String,
    /// Follows each text of JSON Lines or Parquet, such as "<|endoftext|>" for a tokenizer that knows it; up to 64
    /// characters.
    pub separator: String,
    /// BLAKE3 of the `tokenizer.json` that reads the text, in hexadecimal; empty: the text is read as bytes.
    pub tokenizer: String,
    /// Names of the classes in order, where sub-folders are classes or a table's target has classes; empty lets the founder
    /// list its sub-folders, or the values of its target.
    pub class_names: Vec<String>,
    /// α of a Dirichlet distribution from which each node draws how much of each class it reads (Hsu et al.,
    /// arXiv 1909.06335), 0.01 to 1,000; small is skewed. 0: every node reads all images.
    pub label_skew: f64,
    /// Training images are shifted by up to this many pixels in each direction, anew each time; 0 to 8.
    pub shift_pixels: u32,
    /// Share of the corpus that is only ever validated on; above 0, at most 0.5. Of text files their end; of documents
    /// and images a draw that the run's seed makes.
    pub validation_fraction: f64,
    /// Sequences or images of the fixed held-out slice that an evaluation reads, 1 to 65,536.
    pub validation_sequences: u32,
    /// Whether members fetch the corpus from each other. `false`: data never leaves a node.
    pub share: bool,
    /// Bytes of a shard where data is shared: a power of two, 256 bytes to 1 GiB, above the model's context; 0 lets the
    /// founder choose.
    pub shard_bytes: u64,
    /// Length of the shared corpus in bytes; filled in by the founder.
    pub corpus_bytes: u64,
    /// The shards of the shared corpus by hash, in order; filled in by the founder.
    pub shards: Vec<ShardHash>,
}

impl DataSpec {
    /// How many bytes of a corpus of this length are trained on: those in front. The rest is held out.
    pub fn training_bytes(&self, corpus_bytes: u64) -> u64 {
        let held_out = (corpus_bytes as f64 * self.validation_fraction) as u64;
        corpus_bytes - held_out.min(corpus_bytes)
    }
}

/// What partners send each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GossipKind {
    /// Partners are drawn anew each time, and send all parameters on a grid, modulo 2^bits.
    Pairs,
    #[default]
    /// A node keeps a few partners, and with each a common reference of two bytes a parameter; they send the signs of what
    /// differs from it, one bit a parameter.
    Links,
}

/// What ratios of disagreement to local progress mean: how far models are apart, over how far own training moves one between
/// two own exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioBand {
    /// Below it nodes exchange more often than they need to.
    pub low: f64,
    /// Up to it runs learn as they should.
    pub high: f64,
    /// Above it models drift apart.
    pub drifting: f64,
}

impl Default for RatioBand {
    fn default() -> RatioBand {
        GossipKind::default().ratio_band()
    }
}

impl GossipKind {
    /// As measured: of pairs, transformers learn best between 0.4 and 0.8. On links an exchange carries an eighth of the bits
    /// and comes more often, so that own training moves less in between: of four nodes whose models end equal, each is at 2.3
    /// to 4 for nearly all of the run. What is too far there is a guess.
    pub fn ratio_band(self) -> RatioBand {
        match self {
            GossipKind::Pairs => RatioBand { low: 0.4, high: 0.8, drifting: 1.5 },
            GossipKind::Links => RatioBand { low: 0.4, high: 4.0, drifting: 8.0 },
        }
    }
}

impl fmt::Display for GossipKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            GossipKind::Pairs => "pairs",
            GossipKind::Links => "links",
        })
    }
}

/// Where a model is cut into fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FragmentCut {
    /// Into equal shares.
    #[default]
    Blocks,
    /// Between layers, so that who has some layers alone holds whole fragments.
    Layers,
}

/// How nodes average: gossip in pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GossipSpec {
    /// What partners send.
    pub kind: GossipKind,
    /// H: steps between the exchanges that a node starts, 1 to 10,000; drawn anew each time within ±20 %. Where nodes
    /// begin: each then finds the smallest that a quarter of its uplink (or its owner's cap) and its processor bear, within
    /// the two limits below.
    pub interval_steps: u32,
    /// The least that H may become, 1 to `interval_steps`.
    pub interval_steps_min: u32,
    /// The most that H may become, `interval_steps` to 10,000.
    pub interval_steps_max: u32,
    /// Bits of a code: 8, or 6 for a lean wire (0.76 instead of 1.01 bytes a parameter; wants a step fraction of 0.5).
    pub bits: u8,
    /// A model is exchanged in so many fragments, one per exchange, 1 to 64. In a run file 0 leaves it to the model's size
    /// ([`GossipSpec::sized`]); elsewhere it is one.
    pub fragments: u16,
    /// Where fragments end.
    pub cut: FragmentCut,
    /// γ, the share of the difference that each partner gives way, above 0, at most 0.5 (meeting in the middle).
    pub gamma: f64,
    /// A block's scale (the step of its grid) is this fraction of its running rms difference; above 0, at most 1.
    pub step_fraction: f64,
    /// Corrections are clipped at this multiple of the median of recent norms; 1 to 100.
    pub clip_factor: f64,
    /// α, the outer learning rate, 0 to 1; 0 turns the outer momentum off.
    pub outer_learning_rate: f64,
    /// μ, the outer momentum, 0 to below 0.9; in a synchronous run 0 to 0.95.
    pub outer_momentum: f64,
    /// Bits with which the outer momentum is averaged among members that trust each other: 0 (not at all) or 4.
    pub momentum_bits: u8,
    /// Exchanges of each fragment at learning rate zero after the last step, 0 to 100.
    pub final_exchanges: u32,
}

impl GossipSpec {
    /// With the number of fragments that a model of so many parameters wants, where it is left open: none has more than
    /// [`FRAGMENT_PARAMETERS`], up to [`FRAGMENTS_MAX`] of them. The intervals are then shared among them, so that each is
    /// exchanged as often as all of the model would be, though with at most one exchange a step.
    #[must_use]
    pub fn sized(mut self, parameters: usize) -> GossipSpec {
        if self.fragments == 0 {
            let count = parameters.div_ceil(FRAGMENT_PARAMETERS).clamp(1, FRAGMENTS_MAX.into()) as u16;
            self.fragments = count;
            for steps in [&mut self.interval_steps, &mut self.interval_steps_min, &mut self.interval_steps_max] {
                *steps = steps.div_ceil(count.into());
            }
        }
        self
    }
}

impl Default for RunSpec {
    fn default() -> Self {
        RunSpec { name: "stories".to_owned(), seed: 1, founder: String::new() }
    }
}

impl Default for OptimizerSpec {
    fn default() -> Self {
        OptimizerSpec {
            kind: OptimizerKind::AdamW,
            learning_rate: 4e-3,
            // Both as in Muon's own publication.
            muon_learning_rate: 0.02,
            muon_momentum: 0.95,
            beta1: 0.9,
            beta2: 0.99,
            match_batch: false,
            epsilon: 1e-8,
            weight_decay: 0.1,
            gradient_norm_max: 1.0,
            batch_sequences: 8,
        }
    }
}

impl OptimizerSpec {
    /// Muon for the hidden matrices, at rates that are good beside each other, and matched batches: what learns a text best by
    /// the clock where a model begins with random weights.
    pub fn muon() -> OptimizerSpec {
        OptimizerSpec { kind: OptimizerKind::Muon, learning_rate: 8e-3, match_batch: true, ..OptimizerSpec::default() }
    }

    /// The same at another of AdamW's rates; Muon's goes with it.
    pub fn at_rate(&self, learning_rate: f64) -> OptimizerSpec {
        let muon_learning_rate = (self.muon_learning_rate * learning_rate / self.learning_rate).min(1.0);
        OptimizerSpec { learning_rate, muon_learning_rate, ..self.clone() }
    }
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        ScheduleSpec { total_steps: 0, warmup_steps: 100, decay_fraction: 1.0, final_fraction: 0.1 }
    }
}

impl Default for DataSpec {
    fn default() -> Self {
        DataSpec {
            source: DataSource::Grammar,
            digest: String::new(),
            remote: Vec::new(),
            field: "text".to_owned(),
            prefix: String::new(),
            separator: "\n\n".to_owned(),
            tokenizer: String::new(),
            class_names: Vec::new(),
            label_skew: 0.0,
            shift_pixels: 0,
            validation_fraction: 0.1,
            validation_sequences: 64,
            share: false,
            shard_bytes: 0,
            corpus_bytes: 0,
            shards: Vec::new(),
        }
    }
}

impl Default for GossipSpec {
    fn default() -> Self {
        GossipSpec {
            kind: GossipKind::Links,
            interval_steps: 4,
            interval_steps_min: 2,
            interval_steps_max: 100,
            bits: 8,
            fragments: 0,
            cut: FragmentCut::Blocks,
            gamma: 0.5,
            step_fraction: 0.2,
            clip_factor: 2.5,
            outer_learning_rate: 0.0,
            outer_momentum: 0.5,
            momentum_bits: 0,
            final_exchanges: 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_models_have_fragments_that_share_the_interval() {
        let open = GossipSpec { interval_steps: 24, interval_steps_min: 3, ..GossipSpec::default() };
        let sized = |gossip: &GossipSpec, parameters| {
            let GossipSpec { fragments, interval_steps, interval_steps_min, interval_steps_max, .. } =
                gossip.clone().sized(parameters);
            (fragments, interval_steps, interval_steps_min, interval_steps_max)
        };
        for small in [1, FRAGMENT_PARAMETERS] {
            assert_eq!(sized(&open, small), (1, 24, 3, 100));
        }
        assert_eq!(sized(&open, FRAGMENT_PARAMETERS + 1), (2, 12, 2, 50));
        assert_eq!(sized(&open, 100_000_000), (8, 3, 1, 13));
        assert_eq!(sized(&open, usize::MAX).0, FRAGMENTS_MAX);
        let given = GossipSpec { fragments: 1, ..open };
        assert_eq!(sized(&given, 100_000_000), (1, 24, 3, 100));
    }
}

//! The run manifest: what a swarm trains, the same on every node.
//!
//! Its canonical text is one `section.field = value` line per field, sorted: valid TOML, hashed into the [`RunId`],
//! sent to joiners as it is, and compared line by line to name the fields in which two runs differ.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// The longest canonical text accepted from a peer, in bytes. Ours are about 1 KiB.
pub const MANIFEST_BYTES_MAX: usize = 16 * 1024;

/// BLAKE3 of a manifest's canonical text. Only nodes of one run id talk to each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct RunId(pub [u8; 32]);

impl fmt::Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// What a swarm trains. Every field has a default: an empty file is the built-in run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunManifest {
    /// Names the run and seeds everything in it.
    pub run: RunSpec,
    /// The model.
    pub model: ModelSpec,
    /// The inner optimizer, AdamW.
    pub optimizer: OptimizerSpec,
    /// Learning rate over swarm progress, and the run's length.
    pub schedule: ScheduleSpec,
    /// What the model reads.
    pub data: DataSpec,
    /// How nodes average.
    pub gossip: GossipSpec,
}

/// The run's name and seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSpec {
    /// For people; 1 to 64 characters.
    pub name: String,
    /// Seeds initial weights, data assignment and the validation slice.
    pub seed: u64,
}

/// Which kinds of model there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Llama-style decoder over bytes: RMSNorm, rotary positions, SwiGLU, no biases, untied head.
    Transformer,
}

/// The model's kind and size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSpec {
    /// Which architecture.
    pub kind: ModelKind,
    /// Number of blocks, 1 to 128.
    pub layers: u32,
    /// Width of the residual stream, a multiple of `heads`, up to 16,384.
    pub width: u32,
    /// Attention heads; `width / heads` must be even, for the rotary positions.
    pub heads: u32,
    /// Width inside the feed-forward part.
    pub feed_forward: u32,
    /// Bytes of context, 8 to 65,536.
    pub context: u32,
}

/// AdamW (Loshchilov and Hutter, arXiv 1711.05101) with clipping of the gradient's norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSpec {
    /// Peak learning rate, above 0, at most 1.
    pub learning_rate: f64,
    /// Decay of the first moment, 0 to below 1.
    pub beta1: f64,
    /// Decay of the second moment, 0 to below 1.
    pub beta2: f64,
    /// Added to the denominator, above 0.
    pub epsilon: f64,
    /// Decoupled decay of matrices (never of norms), 0 to 10.
    pub weight_decay: f64,
    /// The gradient is scaled down to this Euclidean norm, above 0.
    pub gradient_norm_max: f64,
    /// Sequences in a node's batch, 1 to 65,536.
    pub batch_sequences: u32,
}

/// Warm-up, then a cosine; both follow swarm progress (steps, averaged along with the models).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSpec {
    /// Swarm progress, in steps per node, at which the run is complete.
    pub total_steps: u64,
    /// Steps of linear warm-up, at most `total_steps`.
    pub warmup_steps: u64,
    /// The cosine ends at this fraction of the peak, 0 to 1.
    pub final_fraction: f64,
}

/// Where training data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataSource {
    /// The built-in story grammar: endless, seeded, with a known entropy rate.
    Grammar,
    /// Each node's own files, read as bytes (`data.files` in its node file).
    Files,
}

/// What the model reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataSpec {
    /// Built-in text or the nodes' files.
    pub source: DataSource,
    /// BLAKE3 of the corpus in hexadecimal when all nodes must hold the same; empty when each may hold its own.
    pub digest: String,
    /// Share of the corpus, at its end, that is only ever validated on; above 0, at most 0.5.
    pub validation_fraction: f64,
    /// Sequences of the fixed held-out slice that an evaluation reads, 1 to 65,536.
    pub validation_sequences: u32,
}

/// How nodes average: pairwise modular gossip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GossipSpec {
    /// H: steps between the exchanges that a node starts, 1 to 10,000; drawn anew each time within ±20 %.
    pub interval_steps: u32,
    /// Bits of a code: 8.
    pub bits: u8,
    /// γ, the share of the difference that each partner gives way, above 0, at most 0.5 (meeting in the middle).
    pub gamma: f64,
    /// A step size is this fraction of its block's running rms difference; above 0, at most 1.
    pub step_fraction: f64,
    /// Corrections are clipped at this multiple of the median of recent norms; 1 to 100.
    pub clip_factor: f64,
    /// α, the outer learning rate, 0 to 1; 0 turns the outer momentum off.
    pub outer_learning_rate: f64,
    /// μ, the outer momentum, 0 to below 0.9.
    pub outer_momentum: f64,
    /// Exchanges at learning rate zero after the last step, 0 to 100.
    pub final_exchanges: u32,
}

impl Default for RunSpec {
    fn default() -> Self {
        RunSpec {
            name: "stories".to_owned(),
            seed: 1,
        }
    }
}

impl Default for ModelSpec {
    fn default() -> Self {
        // About 0.2M parameters: four daemons on two cores finish the built-in run in under three minutes.
        ModelSpec {
            kind: ModelKind::Transformer,
            layers: 4,
            width: 64,
            heads: 4,
            feed_forward: 176,
            context: 128,
        }
    }
}

impl Default for OptimizerSpec {
    fn default() -> Self {
        OptimizerSpec {
            learning_rate: 4e-3,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            gradient_norm_max: 1.0,
            batch_sequences: 8,
        }
    }
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        ScheduleSpec {
            total_steps: 600,
            warmup_steps: 50,
            final_fraction: 0.1,
        }
    }
}

impl Default for DataSpec {
    fn default() -> Self {
        DataSpec {
            source: DataSource::Grammar,
            digest: String::new(),
            validation_fraction: 0.1,
            validation_sequences: 64,
        }
    }
}

impl Default for GossipSpec {
    fn default() -> Self {
        GossipSpec {
            interval_steps: 10,
            bits: 8,
            gamma: 0.5,
            step_fraction: 0.2,
            clip_factor: 2.5,
            outer_learning_rate: 0.0,
            outer_momentum: 0.5,
            final_exchanges: 10,
        }
    }
}

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ManifestError {
    /// A value lies outside its range.
    #[error("{field} = {value} is out of range: {rule}")]
    OutOfRange {
        /// The field, as `section.field`.
        field: &'static str,
        /// The value given.
        value: String,
        /// What holds for the field.
        rule: &'static str,
    },
    /// The text is no manifest.
    #[error("not a run manifest: {0}")]
    Malformed(String),
    /// The text is longer than [`MANIFEST_BYTES_MAX`].
    #[error("a run manifest of {0} bytes: the limit is {MANIFEST_BYTES_MAX}")]
    TooLong(usize),
}

impl RunManifest {
    /// Checks every range.
    ///
    /// # Errors
    /// The first field out of its range.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let RunManifest {
            run,
            model,
            optimizer,
            schedule,
            data,
            gossip,
        } = self;
        let characters = run.name.chars().count();
        check(
            "run.name",
            &run.name,
            (1..=64).contains(&characters),
            "1 to 64 characters",
        )?;
        check(
            "model.layers",
            model.layers,
            (1..=128).contains(&model.layers),
            "1 to 128",
        )?;
        check("model.heads", model.heads, (1..=256).contains(&model.heads), "1 to 256")?;
        let even_heads = model.width.is_multiple_of(model.heads) && (model.width / model.heads).is_multiple_of(2);
        let width_holds = (2..=16_384).contains(&model.width) && even_heads;
        check(
            "model.width",
            model.width,
            width_holds,
            "2 to 16384, and width / heads a whole even number",
        )?;
        let feed_forward_holds = (1..=65_536).contains(&model.feed_forward);
        check(
            "model.feed_forward",
            model.feed_forward,
            feed_forward_holds,
            "1 to 65536",
        )?;
        check(
            "model.context",
            model.context,
            (8..=65_536).contains(&model.context),
            "8 to 65536",
        )?;
        within(
            "optimizer.learning_rate",
            optimizer.learning_rate,
            f64::MIN_POSITIVE,
            1.0,
            "above 0, at most 1",
        )?;
        within("optimizer.beta1", optimizer.beta1, 0.0, 0.999_999, "0 to below 1")?;
        within("optimizer.beta2", optimizer.beta2, 0.0, 0.999_999, "0 to below 1")?;
        within(
            "optimizer.epsilon",
            optimizer.epsilon,
            f64::MIN_POSITIVE,
            1.0,
            "above 0, at most 1",
        )?;
        within("optimizer.weight_decay", optimizer.weight_decay, 0.0, 10.0, "0 to 10")?;
        let norm = optimizer.gradient_norm_max;
        within(
            "optimizer.gradient_norm_max",
            norm,
            f64::MIN_POSITIVE,
            1e6,
            "above 0, at most 1000000",
        )?;
        let batch = optimizer.batch_sequences;
        check(
            "optimizer.batch_sequences",
            batch,
            (1..=65_536).contains(&batch),
            "1 to 65536",
        )?;
        let total = schedule.total_steps;
        check(
            "schedule.total_steps",
            total,
            (1..=1_000_000_000).contains(&total),
            "1 to 1000000000",
        )?;
        let warmup = schedule.warmup_steps;
        check(
            "schedule.warmup_steps",
            warmup,
            warmup <= total,
            "at most schedule.total_steps",
        )?;
        within("schedule.final_fraction", schedule.final_fraction, 0.0, 1.0, "0 to 1")?;
        let hexadecimal = data.digest.len() == 64 && data.digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        check(
            "data.digest",
            &data.digest,
            data.digest.is_empty() || hexadecimal,
            "empty or 64 hexadecimal digits",
        )?;
        let fraction = data.validation_fraction;
        within(
            "data.validation_fraction",
            fraction,
            f64::MIN_POSITIVE,
            0.5,
            "above 0, at most 0.5",
        )?;
        let sequences = data.validation_sequences;
        check(
            "data.validation_sequences",
            sequences,
            (1..=65_536).contains(&sequences),
            "1 to 65536",
        )?;
        let interval = gossip.interval_steps;
        check(
            "gossip.interval_steps",
            interval,
            (1..=10_000).contains(&interval),
            "1 to 10000",
        )?;
        check("gossip.bits", gossip.bits, gossip.bits == 8, "8")?;
        within(
            "gossip.gamma",
            gossip.gamma,
            f64::MIN_POSITIVE,
            0.5,
            "above 0, at most 0.5",
        )?;
        within("gossip.step_fraction", gossip.step_fraction, 1e-3, 1.0, "0.001 to 1")?;
        within("gossip.clip_factor", gossip.clip_factor, 1.0, 100.0, "1 to 100")?;
        within(
            "gossip.outer_learning_rate",
            gossip.outer_learning_rate,
            0.0,
            1.0,
            "0 (off) to 1",
        )?;
        // At 0.9 short runs end worse than without any gossip.
        within(
            "gossip.outer_momentum",
            gossip.outer_momentum,
            0.0,
            0.899_999,
            "0 to below 0.9",
        )?;
        check(
            "gossip.final_exchanges",
            gossip.final_exchanges,
            gossip.final_exchanges <= 100,
            "0 to 100",
        )
    }

    /// The canonical text: `section.field = value` lines, sorted, each with a newline. Equal manifests give equal
    /// bytes on every machine.
    pub fn canonical_text(&self) -> String {
        let table = toml::Table::try_from(self).expect("a manifest holds only numbers and strings");
        let mut lines = Vec::new();
        for (section, fields) in &table {
            let fields = fields.as_table().expect("every part of a manifest is a section");
            lines.extend(
                fields
                    .iter()
                    .map(|(field, value)| format!("{section}.{field} = {}\n", canonical_value(value))),
            );
        }
        lines.sort();
        lines.concat()
    }

    /// Reads a canonical text, or any TOML of the same content.
    ///
    /// # Errors
    /// When it is too long, is no manifest or has a value out of range.
    pub fn from_text(text: &str) -> Result<RunManifest, ManifestError> {
        if text.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLong(text.len()));
        }
        let manifest: RunManifest =
            toml::from_str(text).map_err(|error| ManifestError::Malformed(error.message().to_owned()))?;
        manifest.validate()?;
        Ok(manifest)
    }

    /// BLAKE3 of the canonical text.
    pub fn run_id(&self) -> RunId {
        let mut hasher = blake3::Hasher::new_derive_key("murmuration 2026 run manifest");
        hasher.update(self.canonical_text().as_bytes());
        RunId(*hasher.finalize().as_bytes())
    }

    /// The fields in which two runs differ, as `section.field: ours here, theirs there`, sorted by field.
    pub fn differences(&self, theirs: &RunManifest) -> Vec<String> {
        let (ours, theirs) = (self.canonical_text(), theirs.canonical_text());
        let pairs = ours
            .lines()
            .zip(theirs.lines())
            .filter(|(our_line, their_line)| our_line != their_line);
        pairs
            .filter_map(|(our_line, their_line)| {
                let (field, our_value) = our_line.split_once(" = ")?;
                let (_, their_value) = their_line.split_once(" = ")?;
                Some(format!("{field}: {our_value} here, {their_value} there"))
            })
            .collect()
    }
}

/// A value as TOML, formatted by this function alone so that no library's taste can change a run id.
fn canonical_value(value: &toml::Value) -> String {
    match value {
        // `{:?}` is the shortest text that reads back as the same bits.
        toml::Value::Float(number) => format!("{number:?}"),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Boolean(truth) => truth.to_string(),
        toml::Value::String(text) => {
            let escaped: String = text
                .chars()
                .map(|character| match character {
                    '"' | '\\' => format!("\\{character}"),
                    other if other.is_control() => format!("\\u{:04X}", u32::from(other)),
                    other => other.to_string(),
                })
                .collect();
            format!("\"{escaped}\"")
        }
        other => unreachable!("a manifest field is a number, a string or a boolean, not {other:?}"),
    }
}

fn check(field: &'static str, value: impl fmt::Display, holds: bool, rule: &'static str) -> Result<(), ManifestError> {
    if holds {
        Ok(())
    } else {
        Err(ManifestError::OutOfRange {
            field,
            value: value.to_string(),
            rule,
        })
    }
}

/// Also refuses NaN, which compares false.
fn within(field: &'static str, value: f64, low: f64, high: f64, rule: &'static str) -> Result<(), ManifestError> {
    check(field, value, (low..=high).contains(&value), rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canonical_text_reads_back_as_the_same_run() {
        let mut manifest = RunManifest::default();
        manifest.run.name = "quote \" backslash \\ tab \t é".to_owned();
        manifest.optimizer.epsilon = 1e-12;
        let again = RunManifest::from_text(&manifest.canonical_text());
        assert_eq!(again, Ok(manifest.clone()));
        assert_eq!(again.map(|manifest| manifest.run_id()), Ok(manifest.run_id()));
    }

    #[test]
    fn differing_fields_are_named_with_both_values() {
        let ours = RunManifest::default();
        let mut theirs = ours.clone();
        theirs.model.layers = 6;
        theirs.run.seed = 2;
        assert_eq!(
            ours.differences(&theirs),
            ["model.layers: 4 here, 6 there", "run.seed: 1 here, 2 there"]
        );
        assert_ne!(ours.run_id(), theirs.run_id());
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let mut manifest = RunManifest::default();
        manifest.optimizer.learning_rate = f64::NAN;
        let message = manifest.validate().expect_err("NaN").to_string();
        assert_eq!(
            message,
            "optimizer.learning_rate = NaN is out of range: above 0, at most 1"
        );
        let mut odd = RunManifest::default();
        odd.model.heads = 5;
        assert!(odd.validate().is_err());
        assert_eq!(RunManifest::default().validate(), Ok(()));
    }

    #[test]
    fn hostile_manifests_are_refused() {
        assert!(matches!(
            RunManifest::from_text(&"#".repeat(MANIFEST_BYTES_MAX + 1)),
            Err(ManifestError::TooLong(_))
        ));
        assert!(matches!(
            RunManifest::from_text("model.layers = []"),
            Err(ManifestError::Malformed(_))
        ));
        assert!(matches!(
            RunManifest::from_text("model.layerz = 1"),
            Err(ManifestError::Malformed(_))
        ));
    }
}

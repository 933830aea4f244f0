//! The run manifest: what a swarm trains, the same on every node.
//!
//! Its canonical text is one `section.field = value` line per field, sorted: valid TOML, hashed into the [`RunId`],
//! sent to joiners as it is, and compared line by line to name the fields in which two runs differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::bounds::FRAGMENTS_MAX;
use crate::peer::PeerId;
use crate::text::{foreign, is_unprintable};

mod kinds;
mod model;
mod remote;
mod sharing;
mod spec;
mod synchronous;
mod table;
mod transformer;
mod tuning;

pub use model::{CnnModel, MlpModel, ModelSpec};
pub use spec::*;
pub use synchronous::{SynchronousSpec, Topology};
pub use table::{CATEGORIES_MAX, MissingNumbers, TABLE_COLUMNS_MAX, TableSpec, TableTask};
pub use transformer::{AttentionBias, RopeScaling, TransformerModel};
pub use tuning::{BaseSpec, LORA_TARGETS, LoraSpec};

/// The longest canonical text accepted from a peer, in bytes. Ours are about 1 KiB, and 10 KiB with the most shards.
pub const MANIFEST_BYTES_MAX: usize = 16 * 1024;

/// BLAKE3 of a manifest's canonical text. Only nodes of one run id talk to each other.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
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

/// What a swarm trains. Every field has a default: an empty file is the built-in run, but with AdamW.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunManifest {
    /// Names the run and seeds everything in it.
    pub run: RunSpec,
    /// The model.
    pub model: ModelSpec,
    /// What it begins from.
    pub base: BaseSpec,
    /// Which of its weights are trained.
    pub lora: LoraSpec,
    /// The inner optimizer.
    pub optimizer: OptimizerSpec,
    /// Learning rate over swarm progress, and the run's length.
    pub schedule: ScheduleSpec,
    /// What the model reads.
    pub data: DataSpec,
    /// How a table is read, where it reads one.
    pub table: TableSpec,
    /// How nodes average.
    pub gossip: GossipSpec,
    /// Whether all average at once instead, waiting for each other.
    pub synchronous: SynchronousSpec,
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
    /// What is trained where nobody gives a run file: a small transformer, by Muon, on the built-in stories.
    pub fn built_in() -> RunManifest {
        RunManifest { optimizer: OptimizerSpec::muon(), ..RunManifest::default() }
    }

    /// Members that step together have one batch: there is nothing to match.
    pub fn drop_needless_matching(&mut self) {
        self.optimizer.match_batch &= !self.synchronous.is_on();
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first field out of its range.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let RunManifest { run, model, base, lora, optimizer, schedule, data, gossip, .. } = self;
        let is_name = (1..=64).contains(&run.name.chars().count()) && !run.name.contains(is_unprintable);
        check("run.name", format!("{:?}", run.name), is_name, "1 to 64 characters that can be seen")?;
        let founder_holds = run.founder.is_empty() || run.founder.parse::<PeerId>().is_ok();
        check("run.founder", &run.founder, founder_holds, "a peer id, which begins with 12D3KooW, or nothing")?;
        model.validate()?;
        tuning::validate(base, lora)?;
        within("optimizer.learning_rate", optimizer.learning_rate, f64::MIN_POSITIVE, 1.0, "above 0, at most 1")?;
        let muon_rate = optimizer.muon_learning_rate;
        within("optimizer.muon_learning_rate", muon_rate, f64::MIN_POSITIVE, 1.0, "above 0, at most 1")?;
        within("optimizer.muon_momentum", optimizer.muon_momentum, 0.0, 0.999_999, "0 to below 1")?;
        within("optimizer.beta1", optimizer.beta1, 0.0, 0.999_999, "0 to below 1")?;
        within("optimizer.beta2", optimizer.beta2, 0.0, 0.999_999, "0 to below 1")?;
        within("optimizer.epsilon", optimizer.epsilon, 1e-30, 1.0, "1e-30 to 1")?;
        within("optimizer.weight_decay", optimizer.weight_decay, 0.0, 10.0, "0 to 10")?;
        let norm = optimizer.gradient_norm_max;
        within("optimizer.gradient_norm_max", norm, f64::MIN_POSITIVE, 1e6, "above 0, at most 1000000")?;
        let batch = optimizer.batch_sequences;
        check("optimizer.batch_sequences", batch, (1..=65_536).contains(&batch), "1 to 65536")?;
        let total = schedule.total_steps;
        check("schedule.total_steps", total, total <= 1_000_000_000, "0 (no end set) to 1000000000")?;
        let warmup = schedule.warmup_steps;
        let warmup_holds = warmup <= if total == 0 { 1_000_000_000 } else { total };
        check("schedule.warmup_steps", warmup, warmup_holds, "at most schedule.total_steps, or 1000000000")?;
        let decay = schedule.decay_fraction;
        within("schedule.decay_fraction", decay, f64::MIN_POSITIVE, 1.0, "above 0, at most 1")?;
        within("schedule.final_fraction", schedule.final_fraction, 0.0, 1.0, "0 to 1")?;
        let hexadecimal = data.digest.len() == 64 && data.digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        check("data.digest", &data.digest, data.digest.is_empty() || hexadecimal, "empty or 64 hexadecimal digits")?;
        let fraction = data.validation_fraction;
        within("data.validation_fraction", fraction, f64::MIN_POSITIVE, 0.5, "above 0, at most 0.5")?;
        let sequences = data.validation_sequences;
        check("data.validation_sequences", sequences, (1..=65_536).contains(&sequences), "1 to 65536")?;
        remote::validate(data)?;
        kinds::validate(model, data)?;
        sharing::validate(data, model.context())?;
        table::validate(self)?;
        let interval = gossip.interval_steps;
        check("gossip.interval_steps", interval, (1..=10_000).contains(&interval), "1 to 10000")?;
        let (least, most) = (gossip.interval_steps_min, gossip.interval_steps_max);
        check("gossip.interval_steps_min", least, (1..=interval).contains(&least), "1 to gossip.interval_steps")?;
        let most_holds = (interval..=10_000).contains(&most);
        check("gossip.interval_steps_max", most, most_holds, "gossip.interval_steps to 10000")?;
        check("gossip.bits", gossip.bits, matches!(gossip.bits, 6 | 8), "6 or 8")?;
        let fragments = gossip.fragments;
        check("gossip.fragments", fragments, fragments <= FRAGMENTS_MAX, "0 (by size) to 64")?;
        let momentum_bits = gossip.momentum_bits;
        check("gossip.momentum_bits", momentum_bits, matches!(momentum_bits, 0 | 4), "0 (off) or 4")?;
        within("gossip.gamma", gossip.gamma, f64::MIN_POSITIVE, 0.5, "above 0, at most 0.5")?;
        within("gossip.step_fraction", gossip.step_fraction, 1e-3, 1.0, "0.001 to 1")?;
        within("gossip.clip_factor", gossip.clip_factor, 1.0, 100.0, "1 to 100")?;
        within("gossip.outer_learning_rate", gossip.outer_learning_rate, 0.0, 1.0, "0 (off) to 1")?;
        // In short runs that gossip 0.9 ends worse than without any; DiLoCo takes it, averaging all members at once.
        let (most, rule) = match self.synchronous.is_on() {
            true => (0.95, "0 to 0.95 in a synchronous run"),
            false => (0.899_999, "0 to below 0.9"),
        };
        within("gossip.outer_momentum", gossip.outer_momentum, 0.0, most, rule)?;
        check("gossip.final_exchanges", gossip.final_exchanges, gossip.final_exchanges <= 100, "0 to 100")?;
        synchronous::validate(self)
    }

    /// The canonical text: `section.field = value` lines, sorted, each with a newline. Equal manifests give equal
    /// bytes on every machine.
    pub fn canonical_text(&self) -> String {
        let table = toml::Table::try_from(self).expect("a manifest holds only numbers, strings and lists of them");
        let mut lines = Vec::new();
        for (section, fields) in &table {
            let fields = fields.as_table().expect("every part of a manifest is a section");
            if table::is_left_out(self.data.source, section) {
                continue;
            }
            let told = fields.iter().filter(|(field, value)| {
                !tuning::is_left_out(&self.base, &self.lora, section, field)
                    && !synchronous::is_left_out(&self.synchronous, section, field)
                    && !sharing::is_left_out(&self.data, section, field)
                    && !kinds::is_left_out(section, field, value)
            });
            lines.extend(told.map(|(field, value)| format!("{section}.{field} = {}\n", canonical_value(value))));
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

    /// What its model predicts, for people: a "byte", a "token", an "image" or a "row".
    pub fn prediction(&self) -> &'static str {
        match self.model.reads_text() {
            true if self.data.tokenizer.is_empty() => "byte",
            true => "token",
            false if self.data.source == DataSource::Table => "row",
            false => "image",
        }
    }

    /// Whether the model chooses among classes of whole examples: not a next token, and no number.
    pub fn classifies(&self) -> bool {
        !self.model.reads_text() && self.model.classes() > 1
    }

    /// BLAKE3 of the canonical text.
    pub fn run_id(&self) -> RunId {
        let mut hasher = blake3::Hasher::new_derive_key("murmuration 2026 run manifest");
        hasher.update(self.canonical_text().as_bytes());
        RunId(*hasher.finalize().as_bytes())
    }

    /// The fields in which two runs differ, as `section.field: ours here, theirs there`, sorted by field.
    pub fn differences(&self, theirs: &RunManifest) -> Vec<String> {
        self.differences_in(theirs, ["here", "there"])
    }

    /// The same, with words for where ours and theirs are.
    pub fn differences_in(&self, theirs: &RunManifest, [here, there]: [&str; 2]) -> Vec<String> {
        let (ours, theirs) = (self.canonical_text(), theirs.canonical_text());
        let (ours, theirs) = (fields_of(&ours), fields_of(&theirs));
        let fields: BTreeSet<&str> = ours.keys().chain(theirs.keys()).copied().collect();
        let differing = fields.into_iter().filter(|field| ours.get(field) != theirs.get(field));
        let shown = |value: Option<&&str>| value.map_or("nothing".to_owned(), |value| sharing::shortened(value));
        differing
            .map(|field| {
                let (ours, theirs) = (shown(ours.get(field)), shown(theirs.get(field)));
                foreign(&format!("{field}: {ours} {here}, {theirs} {there}"))
            })
            .collect()
    }
}

/// The lines of a canonical text, by field.
fn fields_of(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(" = ")).collect()
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
        toml::Value::Array(values) => {
            format!("[{}]", values.iter().map(canonical_value).collect::<Vec<_>>().join(", "))
        }
        other => unreachable!("a manifest field is a number, a string, a boolean or a list, not {other:?}"),
    }
}

fn check(field: &'static str, value: impl fmt::Display, holds: bool, rule: &'static str) -> Result<(), ManifestError> {
    if holds { Ok(()) } else { Err(ManifestError::OutOfRange { field, value: value.to_string(), rule }) }
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
        manifest.run.name = "quote \" backslash \\ é".to_owned();
        manifest.optimizer.epsilon = 1e-12;
        let again = RunManifest::from_text(&manifest.canonical_text());
        assert_eq!(again, Ok(manifest.clone()));
        assert_eq!(again.map(|manifest| manifest.run_id()), Ok(manifest.run_id()));
    }

    #[test]
    fn a_run_is_not_called_what_a_terminal_obeys() {
        for name in ["\u{1b}[2J", "a\tb", "a\nb", "\u{9b}31m", "\u{202e}nur"] {
            let mut manifest = RunManifest::default();
            manifest.run.name = name.to_owned();
            let error = manifest.validate().expect_err(name).to_string();
            assert!(!error.contains(is_unprintable) && error.contains("can be seen"), "{error}");
        }
        let forged = "\"\\u001B]0;x\\u0007\\nerror: run\" = 1";
        let error = foreign(&RunManifest::from_text(forged).expect_err("no such key").to_string());
        assert!(!error.contains(is_unprintable), "{error:?}");
    }

    #[test]
    fn differing_fields_are_named_with_both_values() {
        let ours = RunManifest::default();
        let mut theirs = ours.clone();
        theirs.model = TransformerModel { layers: 6, ..TransformerModel::default() }.into();
        theirs.run.seed = 2;
        assert_eq!(ours.differences(&theirs), ["model.layers: 4 here, 6 there", "run.seed: 1 here, 2 there"]);
        assert_ne!(ours.run_id(), theirs.run_id());
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let mut manifest = RunManifest::default();
        manifest.optimizer.learning_rate = f64::NAN;
        let message = manifest.validate().expect_err("NaN").to_string();
        assert_eq!(message, "optimizer.learning_rate = NaN is out of range: above 0, at most 1");
        let model = TransformerModel { heads: 5, ..TransformerModel::default() }.into();
        let odd = RunManifest { model, ..RunManifest::default() };
        assert!(odd.validate().is_err());
        assert_eq!(RunManifest::default().validate(), Ok(()));
    }

    #[test]
    fn hostile_manifests_are_refused() {
        assert!(matches!(RunManifest::from_text(&"#".repeat(MANIFEST_BYTES_MAX + 1)), Err(ManifestError::TooLong(_))));
        assert!(matches!(RunManifest::from_text("model.layers = []"), Err(ManifestError::Malformed(_))));
        assert!(matches!(RunManifest::from_text("model.layerz = 1"), Err(ManifestError::Malformed(_))));
    }
}

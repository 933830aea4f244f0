//! Options of the commands that use a checkpoint: `sample`, `eval`, `export`.

use std::path::PathBuf;

use clap::Args;

use super::headings::{DATA, OUTPUT};
use super::numbers::{decimal, whole};
use crate::console::Console;

/// Options of `sample`.
#[derive(Debug, Args)]
pub struct SampleOptions {
    /// A run: its name, its folder, or one checkpoint in it [default: the run used last].
    pub checkpoint: Option<PathBuf>,
    /// Text to go on from.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prompt: String,
    /// Tokens to generate; for a model of bytes, bytes.
    #[arg(long, alias = "bytes", default_value = "500", value_name = "N",
        value_parser = whole::<u64>(1..=1_000_000, ""))]
    pub tokens: u64,
    /// From 0 to 10: 0 takes the likeliest token, 1 draws from the model's distribution.
    #[arg(long, default_value = "0.8", value_name = "T",
        value_parser = decimal(|value| (0.0..=10.0).contains(&value), "a number from 0 to 10"))]
    pub temperature: f64,
    /// Draw only among the likeliest tokens that together have this probability.
    #[arg(long, default_value = "1", value_name = "P",
        value_parser = decimal(|value| value > 0.0 && value <= 1.0, "a number above 0, at most 1"))]
    pub top_p: f64,
    /// Equal seeds give equal texts.
    #[arg(long, default_value = "1", value_name = "N", value_parser = whole::<u64>(0..=u64::MAX, ""))]
    pub seed: u64,
    /// auto (a GPU, where the model fits it), cpu or cuda:N.
    #[arg(long, env = "MURMUR_DEVICE", default_value = "auto")]
    pub device: String,
    /// Folder of the base model, where the run trains adapters on one.
    #[arg(long, env = "MURMUR_BASE", value_name = "FOLDER", help_heading = DATA)]
    pub base: Option<PathBuf>,
    /// The run's tokenizer.json, where it has one [default: the one beside the base].
    #[arg(long, env = "MURMUR_TOKENIZER", value_name = "FILE", help_heading = DATA)]
    pub tokenizer: Option<PathBuf>,
}

/// Options of `eval`.
#[derive(Debug, Args)]
pub struct EvalOptions {
    /// A run: its name, its folder, or one checkpoint in it [default: the run used last].
    pub checkpoint: Option<PathBuf>,
    /// The run's files, where it has any.
    #[arg(long, env = "MURMUR_DATA", value_name = "FILE", num_args = 1.., help_heading = DATA)]
    pub data: Vec<PathBuf>,
    /// The run's tokenizer.json, where it has one.
    #[arg(long, env = "MURMUR_TOKENIZER", value_name = "FILE", help_heading = DATA)]
    pub tokenizer: Option<PathBuf>,
    /// Folder of the base model, where the run trains adapters on one.
    #[arg(long, env = "MURMUR_BASE", value_name = "FOLDER", help_heading = DATA)]
    pub base: Option<PathBuf>,
    /// text: lines for people; json: one object.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// Options of `export`.
#[derive(Debug, Args)]
pub struct ExportOptions {
    /// A run: its name, its folder, or one checkpoint in it [default: the run used last].
    pub checkpoint: Option<PathBuf>,
    /// The folder to write: config.json and model.safetensors, with a tokenizer where one is given or beside the base.
    #[arg(long, value_name = "FOLDER", help_heading = DATA)]
    pub to: PathBuf,
    /// Replace the model in a folder that exists.
    #[arg(long, help_heading = DATA)]
    pub force: bool,
    /// Type of the weights: f32, f16 or bf16.
    #[arg(long, value_enum, default_value = "f32", help_heading = DATA, hide_possible_values = true)]
    pub dtype: WeightType,
    /// Folder of the base model: needed where the run trains adapters, which are merged into it; else for its tokenizer.
    #[arg(long, env = "MURMUR_BASE", value_name = "FOLDER", help_heading = DATA)]
    pub base: Option<PathBuf>,
    /// The run's tokenizer.json, to be written beside the model [default: the one beside the base].
    #[arg(long, env = "MURMUR_TOKENIZER", value_name = "FILE", help_heading = DATA)]
    pub tokenizer: Option<PathBuf>,
    /// Write the adapters by themselves, for PEFT: adapter_config.json and adapter_model.safetensors. Needs no base.
    #[arg(long, help_heading = DATA)]
    pub adapters: bool,
}

/// The types in which weights can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WeightType {
    /// 32 bits, as trained.
    F32,
    /// 16 bits, the finer ones.
    F16,
    /// 16 bits with the range of 32.
    Bf16,
}

//! Options of `bench`.

use std::path::PathBuf;

use clap::Args;

use murmur_training::{DeviceChoice, Precision};

use crate::console::Console;
use crate::settings::THREADS_MAX;

/// Options of `bench`.
#[derive(Debug, Default, Args)]
pub struct BenchOptions {
    /// The run file [default: the built-in stories].
    pub run: Option<PathBuf>,
    /// CPU threads; 0 takes all cores.
    #[arg(long, env = "MURMUR_THREADS", value_parser = threads)]
    pub threads: Option<usize>,
    /// "auto", "cpu" or "cuda:N".
    #[arg(long, env = "MURMUR_DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// In what a GPU multiplies matrices: f32 or bf16.
    #[arg(long, default_value = "f32")]
    pub precision: Precision,
    /// Steps of each of the five rounds.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub steps: u64,
    /// A Python with PyTorch, to run the same model in turn.
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// Compare the losses of 50 steps with PyTorch's, from the same weights over the same tokens.
    #[arg(long, requires = "python")]
    pub parity: bool,
    /// Files to train on instead of the built-in stories.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// Compute activations again in the backward: less memory, more arithmetic.
    #[arg(long)]
    pub recompute: bool,
    /// Sequences computed at once [default: as the engine likes it].
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub micro_batch: Option<usize>,
    /// Lines for people, or JSON.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Console,
}

fn threads(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count <= THREADS_MAX).ok_or_else(|| format!("0 (all cores) to {THREADS_MAX}"))
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a whole number of at least 1".to_owned())
}

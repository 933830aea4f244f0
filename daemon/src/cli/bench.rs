//! Options of `bench`.

use std::path::PathBuf;

use clap::Args;

use super::headings::{DATA, OUTPUT, TRAINING};
use super::numbers::whole;
use crate::console::Console;
use crate::settings::{Bench, Flags};

/// Options of `bench`.
#[derive(Debug, Default, Args)]
pub struct BenchOptions {
    /// The run file [default: the model of the built-in stories, by AdamW].
    pub run: Option<PathBuf>,
    /// auto, cpu or cuda:N.
    #[arg(long, env = "MURMUR_DEVICE", default_value = "auto", help_heading = TRAINING)]
    pub device: String,
    /// What of it is a setting.
    #[command(flatten)]
    pub settings: Flags<Bench>,
    /// Steps of each of the five rounds.
    #[arg(long, value_name = "N", default_value = "10", help_heading = TRAINING,
        value_parser = whole::<u64>(1..=100_000, ""))]
    pub steps: u64,
    /// Sequences computed at once [default: as the engine likes it].
    #[arg(long, value_name = "N", help_heading = TRAINING, value_parser = whole::<usize>(1..=1_000_000, ""))]
    pub micro_batch: Option<usize>,
    /// Files to train on instead of the built-in stories.
    #[arg(long, env = "MURMUR_DATA", value_name = "FILE", num_args = 1.., help_heading = DATA)]
    pub data: Vec<PathBuf>,
    /// A Python with PyTorch, to run the same model in turn, where the run has AdamW without match_batch.
    #[arg(long, value_name = "PYTHON", help_heading = "Comparison")]
    pub python: Option<PathBuf>,
    /// Compare the losses of 50 steps with PyTorch's, from the same weights over the same tokens.
    #[arg(long, requires = "python", help_heading = "Comparison")]
    pub parity: bool,
    /// text: lines for people; json: one object.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

//! Options of the commands for tables: `predict` and `statistics`.

use std::path::PathBuf;

use clap::Args;

use super::headings::{DATA, OUTPUT, PRIVACY};
use crate::console::Console;
use crate::settings::{DELTA, EPSILON};

/// Options of `predict`.
#[derive(Debug, Args)]
pub struct PredictOptions {
    /// A run: its name, its folder, or one checkpoint in it [default: the run used last].
    pub checkpoint: Option<PathBuf>,
    /// Tables with the rows to predict: CSV, JSON Lines or Parquet. Where they have the target as well, the predictions are scored.
    #[arg(long, env = "MURMUR_DATA", value_name = "FILE", num_args = 1.., required = true, help_heading = DATA)]
    pub data: Vec<PathBuf>,
    /// text: CSV, a row for each row; json: one object, with scores.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// Options of `statistics`.
#[derive(Debug, Args)]
pub struct StatisticsOptions {
    /// The run file, as its founder has it.
    pub run: PathBuf,
    /// This machine's tables.
    #[arg(long, env = "MURMUR_DATA", value_name = "FILE", num_args = 1.., required = true, help_heading = DATA)]
    pub data: Vec<PathBuf>,
    /// Add noise, so that they tell of each row no more than this; it adds to what training spends. 0 adds none.
    #[arg(long, env = "MURMUR_EPSILON", default_value = "0", value_name = "E", help_heading = PRIVACY,
        hide_default_value = true, value_parser = EPSILON.parser(""))]
    pub epsilon: f64,
    /// δ of that ε [default: 0.00001].
    #[arg(long, env = "MURMUR_DELTA", default_value = "0.00001", value_name = "D", help_heading = PRIVACY,
        hide_default_value = true, value_parser = DELTA.parser(""))]
    pub delta: f64,
}

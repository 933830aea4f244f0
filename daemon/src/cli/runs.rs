//! Options of the commands on the runs of this machine: `list`, `remove`.

use std::path::PathBuf;

use clap::Args;

use super::headings::OUTPUT;
use crate::console::Console;

/// Options of `list`.
#[derive(Debug, Args)]
pub struct ListOptions {
    /// text: a table for people; json: one object a line.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// Options of `remove`.
#[derive(Debug, Args)]
pub struct RemoveOptions {
    /// The run: its folder, or its name in `murmur list`.
    pub run: PathBuf,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

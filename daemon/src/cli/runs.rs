//! Options of the commands on the runs of this machine: `list`, `stop`, `logs`, `remove`, `service`.

use std::path::PathBuf;

use clap::Args;

use super::headings::OUTPUT;
use super::numbers::whole;
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

/// Options of `stop`.
#[derive(Debug, Args)]
pub struct StopOptions {
    /// The run: its folder or its name [default: the daemon of this machine, where one runs].
    pub run: Option<PathBuf>,
}

/// Options of `logs`.
#[derive(Debug, Args)]
pub struct LogsOptions {
    /// The run: its folder or its name [default: of the daemons that run, the one that started last; else the one that has logged
    /// last].
    pub run: Option<PathBuf>,
    /// Go on with what is logged from now on, until the daemon ends.
    #[arg(long, short)]
    pub follow: bool,
    /// Lines to begin with, from the end.
    #[arg(long, short = 'n', default_value = "100", value_name = "N", value_parser = whole::<usize>(0..=10_000_000, ""))]
    pub lines: usize,
}

/// Options of `service`.
#[derive(Debug, Args)]
pub struct ServiceOptions {
    /// Folder of the node; with --run or --ticket it is made where it is missing.
    #[arg(long, value_name = "FOLDER")]
    pub data_dir: PathBuf,
    /// The run file to found a swarm with [default: what the folder belongs to, else the built-in stories].
    #[arg(long, value_name = "FILE", conflicts_with = "ticket")]
    pub run: Option<PathBuf>,
    /// The ticket of a swarm to join.
    #[arg(long)]
    pub ticket: Option<String>,
    /// This machine's settings.
    #[arg(long, value_name = "FILE")]
    pub node: Option<PathBuf>,
    /// For the whole machine and this user, instead of for the user's own systemd.
    #[arg(long, value_name = "USER")]
    pub system: Option<String>,
}

//! Options of `local`.

use std::path::PathBuf;

use clap::builder::{ArgPredicate, Resettable};
use clap::{Args, FromArgMatches};
use murmur_protocol::team::bounds::HELPERS_MAX;

use super::headings::{DATA, OUTPUT, TRAINING};
use super::numbers::whole;
use crate::console::Console;
use crate::settings::{Flags, Local, THREADS};

/// What a local swarm is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Against {
    /// The same daemons without each other.
    Alone,
}

/// Options of `local`.
#[derive(Clone, Debug, Args)]
pub struct LocalOptions {
    /// The run file [default: the built-in stories].
    pub run: Option<PathBuf>,
    /// Number of daemons; with helpers 1 unless said otherwise.
    #[arg(short = 'n', long = "nodes", default_value = "4", default_value_if("helpers", ArgPredicate::IsPresent, "1"),
        value_name = "N", help_heading = TRAINING, value_parser = whole::<u16>(1..=64, ""))]
    pub nodes: u16,
    /// Helpers of the first daemon, which is then the captain of a team: each holds some of the model's layers.
    #[arg(long = "helper", value_name = "N", conflicts_with = "against", help_heading = TRAINING,
        value_parser = whole::<u8>(1..=HELPERS_MAX as u64, "; leave it out for a swarm without a team"))]
    pub helpers: Option<u8>,
    /// Steps of each daemon, 1 to 1000000000 [default: the run's schedule.total_steps, or 1200].
    #[arg(long, value_name = "N", help_heading = TRAINING,
        value_parser = whole::<u64>(1..=1_000_000_000, "; leave it out for the run's own"))]
    pub steps: Option<u64>,
    /// What the swarm is compared with: alone trains the same seeds, data and steps again, each daemon for itself.
    #[arg(long, value_enum, value_name = "WHAT", help_heading = TRAINING, hide_possible_values = true)]
    pub against: Option<Against>,
    /// Runs of each kind that are compared, each with a seed of its own.
    #[arg(long, value_name = "N", default_value = "3", requires = "against", help_heading = TRAINING,
        value_parser = whole::<u64>(3..=20, "; fewer say nothing of chance"))]
    pub seeds: u64,
    /// CPU threads of each daemon [default: the cores, shared out].
    #[arg(long, value_name = "N", help_heading = TRAINING,
        value_parser = THREADS.parser(""))]
    pub threads: Option<usize>,
    /// What of it is a setting of all daemons.
    #[command(flatten)]
    pub settings: Flags<Local>,
    /// Where the daemons keep their data [default: a new folder in the user's data directory].
    #[arg(long, value_name = "FOLDER", help_heading = DATA)]
    pub directory: Option<PathBuf>,
    /// text: a view for people; json: one object a line.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
    /// Stop when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

impl Default for LocalOptions {
    /// What is taken where nothing is typed, whatever the environment says.
    fn default() -> LocalOptions {
        let command =
            LocalOptions::augment_args(clap::Command::new("local")).mut_args(|arg| arg.env(Resettable::Reset));
        let nothing = command.try_get_matches_from(["local"]).and_then(|typed| LocalOptions::from_arg_matches(&typed));
        nothing.expect("every option has a default")
    }
}

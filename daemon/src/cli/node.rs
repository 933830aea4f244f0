//! Options of the commands that run a daemon, or look at a machine as a daemon would. What is not given comes from the node
//! file, then from defaults.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use super::headings::{DATA, OUTPUT, TRAINING};
use super::numbers::decimal;
use crate::console::{Console, quoted};
use crate::limits::pace::Pace;
use crate::settings::{Daemon, Flags, Machine};

/// Options of `start`.
#[derive(Debug, Args)]
pub struct StartOptions {
    /// The run file [default: the built-in stories; texts given with --data instead of them].
    pub run: Option<PathBuf>,
    /// Hours from now, above 0 and at most 8784 (a year), after which the whole run is complete; the last sixth is the decay. For
    /// a run that this node founds.
    #[arg(long, value_name = "N", help_heading = TRAINING,
        value_parser = decimal(|hours| hours > 0.0 && hours <= 8784.0, "hours: above 0, at most 8784 (a year)"))]
    pub hours: Option<f64>,
    /// Tokens (images for models of images) of all members together from now on, 1 to 1e18 and such as 5e9, after which the whole
    /// run is complete; the last sixth is the decay. For a run that this node founds.
    #[arg(long, value_name = "N", help_heading = TRAINING, conflicts_with = "hours",
        value_parser = decimal(|tokens| tokens >= 1.0 && tokens <= 1e18, "tokens: at least 1, at most 1e18, such as 5e9"))]
    pub tokens: Option<f64>,
    /// What `murmur statistics` has written of other members' tables: a founder standardises by them and its own.
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = DATA)]
    pub statistics: Vec<PathBuf>,
    /// Begin at step 0 where all checkpoints are damaged; what they held is lost.
    #[arg(long, help_heading = TRAINING)]
    pub begin_anew: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeOptions,
}

/// Options of `join`.
#[derive(Debug, Args)]
pub struct JoinOptions {
    /// The string that a member printed; - reads it from standard input. An address goes after --bootstrap instead.
    pub ticket: Option<String>,
    /// The node.
    #[command(flatten)]
    pub node: NodeOptions,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// The swarm to ask; - reads its ticket from standard input. Without it (and --bootstrap) only this machine is looked at.
    pub ticket: Option<String>,
    /// The run file to look at instead of a swarm's run, also where the environment or the node file names a swarm (network.bootstrap)
    /// [default: as `start` has it].
    #[arg(long, value_name = "FILE", conflicts_with = "ticket", help_heading = TRAINING)]
    pub run: Option<PathBuf>,
    /// What `murmur statistics` has written of other members' tables, as `start` takes it.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "ticket", help_heading = DATA)]
    pub statistics: Vec<PathBuf>,
    /// Lines that `murmur lend` has printed on other machines: compares this machine alone with a team of them all.
    #[arg(long, visible_alias = "helper", env = "MURMUR_HELPER", value_name = "LINE", num_args = 1.., value_delimiter = ',',
        help_heading = TRAINING)]
    pub team: Vec<String>,
    /// The machine.
    #[command(flatten)]
    pub machine: MachineOptions,
}

/// Options of `start` and `join`.
#[derive(Debug, Default, Args)]
pub struct NodeOptions {
    /// The machine.
    #[command(flatten)]
    pub machine: MachineOptions,
    /// What only a running daemon has.
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

/// Options that a node does not need again: its folder, its files and its model, which are named anyway, its end, and whom it has
/// met since.
const NOT_AGAIN: [&str; 7] = ["data-dir", "data", "tokenizer", "base", "steps", "bootstrap", "closed"];

impl NodeOptions {
    /// What was typed that a later start of the same node needs again: words of a command line, each behind a space.
    pub(crate) fn again(&self) -> String {
        let node = self.machine.node.iter().map(|file| format!("--node={}", file.display()).into());
        let typed = [self.machine.settings.typed_words(&NOT_AGAIN), self.daemon.settings.typed_words(&NOT_AGAIN)];
        let words = node.chain(typed.into_iter().flatten());
        // What is printed may be kept by others: a helper's line has a secret.
        let shown = |word: OsString| match word.to_str().is_some_and(|word| word.starts_with("--helper=")) {
            true => " --helper LINE".to_owned(),
            false => format!(" {}", quoted(Path::new(&word))),
        };
        words.map(shown).collect()
    }
}

/// The machine, its data and its network, as a daemon there would use them.
#[derive(Debug, Default, Args)]
pub struct MachineOptions {
    /// This machine's settings: the node file that `murmur init` writes.
    #[arg(long, env = "MURMUR_NODE", value_name = "FILE")]
    pub node: Option<PathBuf>,

    /// What of it is a setting.
    #[command(flatten)]
    pub settings: Flags<Machine>,

    /// text: lines for people; json: one object a line [default: text].
    #[arg(long, env = "MURMUR_FORMAT", value_enum, help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Option<Console>,
}

/// How a daemon runs.
#[derive(Debug, Default, Args)]
pub struct DaemonOptions {
    /// What of it is a setting.
    #[command(flatten)]
    pub settings: Flags<Daemon>,

    /// Record all that the node's core is told and decides, for `murmur replay`: a new file of 256 MiB at most.
    #[arg(long, env = "MURMUR_RECORD_CORE", value_name = "FILE", help_heading = OUTPUT)]
    pub record_core: Option<PathBuf>,
    /// Go on in the background once it is ready; `murmur stop` ends it, `murmur logs` shows its log.
    #[arg(short = 'd', long, help_heading = OUTPUT)]
    pub detach: bool,
    /// What `--detach` starts.
    #[arg(long, env = crate::process::background::IN_BACKGROUND, hide = true)]
    pub in_background: bool,
    /// Stop when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
    /// Seconds that a step takes at least, for a daemon that stands for another machine.
    #[arg(long, hide = true)]
    pub pace: Option<Pace>,
}

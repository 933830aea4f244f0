//! The command line: what can be typed. The options of a daemon are also environment variables, `MURMUR_…`.
//!
//! A file for each family of commands; `headings` has the sections and the examples of `--help`.

mod asking;
mod bench;
mod checkpoints;
mod compare;
pub(crate) mod headings;
mod journals;
mod lend;
mod local;
mod node;
mod numbers;
mod runs;
mod simulation;
mod tables;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use murmur_network::team::TEAM_VERSION;
use murmur_protocol::handshake::PROTOCOL_VERSION;

use crate::console::{output, wants_ascii, with_ascii};
use crate::environment;
pub use asking::{BlockOptions, FinishOptions, IdOptions, StatusOptions};
pub use bench::BenchOptions;
pub use checkpoints::{EvalOptions, ExportOptions, SampleOptions, WeightType};
pub use compare::CompareOptions;
pub use journals::{ReplayOptions, ReportOptions, WatchOptions};
pub use lend::LendOptions;
pub use local::LocalOptions;
pub use node::{DaemonOptions, DoctorOptions, JoinOptions, MachineOptions, NodeOptions, StartOptions};
pub use runs::{ListOptions, LogsOptions, RemoveOptions, ServiceOptions, StopOptions};
pub(crate) use simulation::SEED_MAX;
pub use simulation::{
    SeedOptions, Seeds, SetOption, SimCheckDeterminismOptions, SimCommand, SimCompareOptions, SimReplayOptions,
    SimRunOptions, SimShowOptions, WorkOptions,
};
pub use tables::{PredictOptions, StatisticsOptions};

/// Warnings, but not that a founder's lookup table is still empty, nor how streams and packets of a connection end: what of that
/// matters is told in words of our own.
pub const DEFAULT_LOG: &str = "warn,libp2p_kad=error,yamux=error,quinn=error,quinn_proto=error,quinn_udp=error";

/// What `murmur --version` prints: daemons that differ in the wire, or captain and helper in teams, refuse each other.
static VERSIONS: LazyLock<String> =
    LazyLock::new(|| format!("{} (wire {PROTOCOL_VERSION}, teams {TEAM_VERSION})", env!("CARGO_PKG_VERSION")));

/// Train one model together on machines that come and go: no coordinator, no barrier.
#[derive(Debug, Parser)]
#[command(name = "murmur", version, long_version = VERSIONS.as_str(), max_term_width = 100, after_help = headings::MURMUR)]
pub struct Cli {
    /// Logged on stderr: off, error, warn, info, debug, trace, or by module: murmur_network=debug [default: warn].
    #[arg(long, global = true, env = "MURMUR_LOG", default_value = DEFAULT_LOG, value_name = "FILTER",
        value_parser = log_filter, help_heading = headings::OUTPUT, hide_default_value = true,
        display_order = 900)]
    pub log: String,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write annotated run.toml and node.toml files to begin with.
    #[command(after_help = headings::INIT)]
    Init(InitOptions),
    /// Found a swarm, or resume as a member of one; prints the line with which others join.
    #[command(after_help = headings::START)]
    Start(StartOptions),
    /// Join a running swarm by a ticket or an address; the run and the model come from peers.
    #[command(after_help = headings::JOIN)]
    Join(JoinOptions),
    /// Run several real daemons on this machine with one merged view.
    #[command(after_help = headings::LOCAL)]
    Local(LocalOptions),
    /// Lend this machine's memory and time to a captain, whose model does not fit its own machine.
    #[command(after_help = headings::LEND)]
    Lend(LendOptions),
    /// Simulate a swarm on a virtual clock: the same decisions and arithmetic, any faults, replayed from a seed.
    #[command(subcommand, after_help = headings::SIM)]
    Sim(SimCommand),
    /// Ways to train together, side by side: gossip, all-reduce, parameter servers, DiLoCo, simulated on your links and text.
    #[command(after_help = headings::COMPARE)]
    Compare(CompareOptions),
    /// Will this machine work, and what will it contribute: device, speed, ports, network, disk.
    #[command(after_help = headings::DOCTOR)]
    Doctor(DoctorOptions),
    /// How fast this machine trains, beside its own matrix products and beside PyTorch.
    #[command(after_help = headings::BENCH)]
    Bench(BenchOptions),
    /// Ask a running daemon how it goes.
    #[command(after_help = headings::STATUS)]
    Status(StatusOptions),
    /// Watch running daemons on this terminal, or play a journal again.
    #[command(after_help = headings::WATCH)]
    Watch(WatchOptions),
    /// Write what came of a run as one page, from the journals of its nodes.
    #[command(after_help = headings::REPORT)]
    Report(ReportOptions),
    /// Check that a recorded node decides the same again, event by event.
    #[command(after_help = headings::REPLAY)]
    Replay(ReplayOptions),
    /// Finish a run without a set end: the whole swarm lowers its learning rate, then averages once more.
    #[command(after_help = headings::FINISH)]
    Finish(FinishOptions),
    /// Disconnect peers from a running daemon and refuse them from now on, also after a restart.
    #[command(after_help = headings::BLOCK)]
    Block(BlockOptions),
    /// Let peers in again that `block` has shut out.
    #[command(after_help = headings::UNBLOCK)]
    Unblock(BlockOptions),
    /// Print who this node is, and where it is found while it runs.
    #[command(after_help = headings::ID)]
    Id(IdOptions),
    /// Print a fresh ticket of a running daemon, and the line with which others join.
    #[command(after_help = headings::TICKET)]
    Ticket(StatusOptions),
    /// Stop a running daemon in order: a last exchange, a last checkpoint.
    #[command(after_help = headings::STOP)]
    Stop(StopOptions),
    /// Show what a daemon in the background has logged.
    #[command(after_help = headings::LOGS)]
    Logs(LogsOptions),
    /// List the runs of this machine: steps, loss, running or not, size.
    #[command(after_help = headings::LIST)]
    List(ListOptions),
    /// Delete a run of this machine: its checkpoints, identity and data.
    #[command(after_help = headings::REMOVE)]
    Remove(RemoveOptions),
    /// Generate text from a checkpoint.
    #[command(after_help = headings::SAMPLE)]
    Sample(SampleOptions),
    /// Evaluate a checkpoint on the held-out slice of its run.
    #[command(after_help = headings::EVAL)]
    Eval(EvalOptions),
    /// Predict the target of new rows with a model of tables.
    #[command(after_help = headings::PREDICT)]
    Predict(PredictOptions),
    /// Write statistics of this machine's tables, without any row, for the founder of a run.
    #[command(after_help = headings::STATISTICS)]
    Statistics(StatisticsOptions),
    /// Write a checkpoint's model as a folder that the transformers library of Hugging Face loads.
    #[command(after_help = headings::EXPORT)]
    Export(ExportOptions),
    /// Print a systemd unit that keeps a daemon running.
    #[command(after_help = headings::SERVICE)]
    Service(ServiceOptions),
    /// Print what a shell needs to complete murmur's commands and options.
    #[command(after_help = headings::COMPLETIONS)]
    Completions(CompletionsOptions),
    /// Write a man page for each command.
    #[command(after_help = headings::MAN)]
    Man(ManOptions),
}

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsOptions {
    /// bash, elvish, fish, powershell or zsh.
    #[arg(value_enum, hide_possible_values = true)]
    pub shell: clap_complete::Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManOptions {
    /// The folder to write murmur.1, murmur-start.1 and so on into.
    pub directory: PathBuf,
}

/// Options of `init`.
#[derive(Debug, Args)]
pub struct InitOptions {
    /// Where to write the files.
    #[arg(default_value = ".")]
    pub directory: PathBuf,
    /// Overwrite files that exist.
    #[arg(long)]
    pub force: bool,
}

/// Everything that can be typed, with what holds for all options of all commands.
pub fn command() -> clap::Command {
    for_all_options(Cli::command())
}

/// The line that `start` prints, pasted behind `murmur join`, says so twice.
fn without_repetition(mut typed: Vec<OsString>) -> Vec<OsString> {
    if typed.get(1..4).is_some_and(|words| words == ["join", "murmur", "join"]) {
        typed.drain(1..3);
    }
    typed
}

/// What was typed. Ends the process where it cannot be understood (exit code 2), and after `--help` and `--version`.
pub fn parse() -> Cli {
    let typed: Vec<OsString> = without_repetition(std::env::args_os().collect());
    understood(&typed).unwrap_or_else(|error| {
        let error = environment::named_in(&command(), error, &typed, |variable| std::env::var_os(variable).is_some());
        let error = environment::shortened_in(error);
        // `--help` and `--version` go to standard output.
        if let Err(error) = print(&error) {
            output::failed(&error);
        }
        std::process::exit(error.exit_code())
    })
}

/// Prints it as clap does; where there is ASCII alone, in that and without colours.
fn print(error: &clap::Error) -> io::Result<()> {
    if !wants_ascii() {
        return error.print();
    }
    let text = with_ascii(error.render().to_string().into()).into_owned();
    if error.use_stderr() { io::stderr().write_all(text.as_bytes()) } else { io::stdout().write_all(text.as_bytes()) }
}

/// What words mean.
///
/// # Errors
/// When they cannot be understood, and for `--help` and `--version`.
fn understood<Word: AsRef<OsStr>>(typed: &[Word]) -> Result<Cli, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(typed.iter().map(|word| word.as_ref()))?;
    asking::refuse_two_places(&mut command, &matches)?;
    Cli::from_arg_matches(&matches)
}

/// A negative number is a value, so that it is refused with the range of its option instead of as an unknown option. The
/// names of environment variables follow from the options' and would take half of the screen: a sentence at the end names them.
fn for_all_options(command: clap::Command) -> clap::Command {
    let takes_values = |arg: &clap::Arg| arg.get_action().takes_values();
    let examples = command.get_after_help().map(ToString::to_string);
    let variables = environment::sentence(&command);
    let notes: Vec<String> = examples.into_iter().chain(variables).collect();
    command
        .mut_args(|arg| if takes_values(&arg) { arg.allow_negative_numbers(true) } else { arg }.hide_env(true))
        .after_help(notes.join("\n\n"))
        .mut_subcommands(for_all_options)
}

/// Checks a filter for the log; a word alone is a level, though the filter's own grammar takes it for a module.
fn log_filter(text: &str) -> Result<String, String> {
    use tracing_subscriber::filter::{EnvFilter, LevelFilter};
    let rule = "it takes error, warn, info, debug, trace or off, also by module, as in warn,murmur_network=debug";
    let is_level = |part: &str| part.contains(['=', '[']) || part.parse::<LevelFilter>().is_ok();
    let is_valid = text.split(',').all(|part| is_level(part.trim())) && EnvFilter::try_new(text).is_ok();
    if is_valid { Ok(text.to_owned()) } else { Err(rule.to_owned()) }
}

#[cfg(test)]
mod tests;

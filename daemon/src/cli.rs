//! The command line: what can be typed. The options of a daemon are also environment variables, `MURMUR_…`.

mod bench;
mod simulation;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::console::Console;
pub use bench::BenchOptions;
pub use simulation::{
    SeedOptions, Seeds, SimCheckDeterminismOptions, SimCommand, SimCompareOptions, SimReplayOptions, SimRunOptions,
    SimShowOptions, WorkOptions,
};

/// Warnings, but not that a founder's lookup table is still empty.
pub const DEFAULT_LOG: &str = "warn,libp2p_kad=error";

/// Train one model together on machines that come and go: no coordinator, no barrier.
#[derive(Debug, Parser)]
#[command(name = "murmur", version, max_term_width = 100)]
pub struct Cli {
    /// What to log on stderr: error, warn, info, debug, or per module as in murmur_network=debug.
    #[arg(long, global = true, env = "MURMUR_LOG", default_value = DEFAULT_LOG, value_name = "FILTER")]
    pub log: String,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write annotated run.toml and node.toml files to begin with.
    Init(InitOptions),
    /// Found a swarm, or resume as a member of one; prints the line with which others join.
    Start(StartOptions),
    /// Join a running swarm by a ticket or an address; the run and the model come from peers.
    Join(JoinOptions),
    /// Run several real daemons on this machine with one merged view.
    Local(LocalOptions),
    /// Simulate a swarm on a virtual clock: the same decisions and arithmetic, any faults, replayed from a seed.
    #[command(subcommand)]
    Sim(SimCommand),
    /// Will this machine work, and what will it contribute: device, speed, ports, network, disk.
    Doctor(DoctorOptions),
    /// How fast this machine trains, beside its own matrix products and beside PyTorch.
    Bench(BenchOptions),
    /// Ask a running daemon how it goes.
    Status(StatusOptions),
    /// Print who this node is, and where it is found while it runs.
    Id(IdOptions),
    /// Print a fresh ticket of a running daemon, and the line with which others join.
    Ticket(StatusOptions),
    /// Generate text from a checkpoint.
    Sample(SampleOptions),
    /// Evaluate a checkpoint on the held-out slice of its run.
    Eval(EvalOptions),
    /// Write a checkpoint's model as a folder that the transformers library of Hugging Face loads.
    Export(ExportOptions),
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

/// Options of every command that runs a daemon. What is not given comes from the node file, then from defaults.
#[derive(Debug, Default, Args)]
pub struct NodeOptions {
    /// This machine's settings.
    #[arg(long, env = "MURMUR_NODE", value_name = "FILE")]
    pub node: Option<PathBuf>,
    /// Identity, known peers and checkpoints [default: murmur/<run> in the user's data directory].
    #[arg(long, env = "MURMUR_DATA_DIR", value_name = "DIRECTORY")]
    pub data_dir: Option<PathBuf>,
    /// auto, cpu or cuda:N; several as cuda:0,cuda:1 train as one node.
    #[arg(long, env = "MURMUR_DEVICE")]
    pub device: Option<String>,
    /// CPU threads that train; 0 takes all cores.
    #[arg(long, env = "MURMUR_THREADS")]
    pub threads: Option<usize>,
    /// Folder of a Llama model (config.json, safetensors) to begin from.
    #[arg(long, env = "MURMUR_BASE", value_name = "FOLDER")]
    pub base: Option<PathBuf>,
    /// Files and folders to train on, in this order; a run that shares its data brings them along.
    #[arg(long, env = "MURMUR_DATA", value_name = "FILE", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// The tokenizer.json that reads the text, the same on all nodes of a run.
    #[arg(long, env = "MURMUR_TOKENIZER", value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Where tokens and decoded images are kept [default: prepared in the data directory].
    #[arg(long, env = "MURMUR_DATA_CACHE", value_name = "DIRECTORY")]
    pub data_cache: Option<PathBuf>,
    /// Multiaddress to listen on; may be given several times.
    #[arg(long, env = "MURMUR_LISTEN", value_name = "MULTIADDR", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Multiaddress of a member; may be given several times.
    #[arg(long, env = "MURMUR_BOOTSTRAP", value_name = "MULTIADDR", value_delimiter = ',')]
    pub bootstrap: Vec<String>,
    /// Let in only who has a ticket: it holds a secret that is drawn once and kept in the data directory.
    #[arg(long, env = "MURMUR_CLOSED")]
    pub closed: bool,
    /// File with a membership secret to use instead: 64 hexadecimal digits.
    #[arg(long, env = "MURMUR_SECRET_FILE", value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Peer id that may connect; with one given, nobody else may. May be given several times.
    #[arg(long, env = "MURMUR_ALLOW", value_name = "PEER", value_delimiter = ',')]
    pub allow: Vec<String>,
    /// Peer id that may not connect; may be given several times.
    #[arg(long, env = "MURMUR_BLOCK", value_name = "PEER", value_delimiter = ',')]
    pub block: Vec<String>,
    /// Megabits a second that it sends at most, over all peers; 0 sets no cap.
    #[arg(long, env = "MURMUR_UPLOAD_MBIT", value_name = "MBIT")]
    pub upload_mbit: Option<f64>,
    /// Megabits a second that it receives at most.
    #[arg(long, env = "MURMUR_DOWNLOAD_MBIT", value_name = "MBIT")]
    pub download_mbit: Option<f64>,
    /// Gigabytes a day, both ways together, after which it rests; 0 sets no budget.
    #[arg(long, env = "MURMUR_DAILY_GIGABYTES", value_name = "GB")]
    pub daily_gigabytes: Option<f64>,
    /// When it rests every day, such as 22:00-07:00.
    #[arg(long, env = "MURMUR_QUIET_HOURS", value_name = "HOURS")]
    pub quiet_hours: Option<String>,
    /// Of those hours and days, such as Europe/Berlin or +02:00 [default: this machine's].
    #[arg(long, env = "MURMUR_TIME_ZONE", value_name = "ZONE", allow_hyphen_values = true)]
    pub time_zone: Option<String>,
    /// Loopback address for `murmur status`, or off.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS", value_name = "ADDRESS")]
    pub status_address: Option<String>,
    /// Steps after which this node is done, whatever the swarm's progress.
    #[arg(long, env = "MURMUR_STEPS", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Stay once the run is complete, and give the model to whoever joins.
    #[arg(long)]
    pub serve: bool,
    /// Lines for people, or one JSON object a line.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text")]
    pub format: Option<Console>,
    /// Stop when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Options of `start`.
#[derive(Debug, Args)]
pub struct StartOptions {
    /// The run file [default: the built-in stories].
    pub run: Option<PathBuf>,
    /// The node.
    #[command(flatten)]
    pub node: NodeOptions,
}

/// Options of `join`.
#[derive(Debug, Args)]
pub struct JoinOptions {
    /// The string that a member printed.
    #[arg(required_unless_present = "bootstrap")]
    pub ticket: Option<String>,
    /// The node.
    #[command(flatten)]
    pub node: NodeOptions,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// The swarm to ask; without it (and without --bootstrap) only this machine is looked at.
    pub ticket: Option<String>,
    /// The run file to look at instead of a swarm's run [default: the built-in stories].
    #[arg(long, value_name = "FILE", conflicts_with = "ticket")]
    pub run: Option<PathBuf>,
    /// The node.
    #[command(flatten)]
    pub node: NodeOptions,
}

/// Options of `local`.
#[derive(Debug, Args)]
pub struct LocalOptions {
    /// The run file [default: the built-in stories].
    pub run: Option<PathBuf>,
    /// Number of daemons.
    #[arg(short = 'n', long = "nodes", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// Files and folders to train on; with the built-in run, texts to read instead of its stories.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// Folder of a Llama model to begin from.
    #[arg(long, value_name = "FOLDER")]
    pub base: Option<PathBuf>,
    /// The tokenizer.json that reads the text.
    #[arg(long, env = "MURMUR_TOKENIZER", value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Steps of each daemon [default: the run's schedule.total_steps].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub steps: Option<u64>,
    /// Where the daemons keep their data [default: a new folder in the user's data directory].
    #[arg(long, value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// CPU threads of each daemon [default: the cores, shared out].
    #[arg(long)]
    pub threads: Option<usize>,
    /// A view for people, or one JSON object a line.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Console,
}

/// Options of `status` and `ticket`.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// The run: its folder or its name [default: of the daemons on this machine, the one that started last].
    pub run: Option<PathBuf>,
    /// Where the daemon answers, where no run is given.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS")]
    pub address: Option<String>,
    /// Lines for people, or JSON.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Console,
}

/// Options of `id`.
#[derive(Debug, Args)]
pub struct IdOptions {
    /// Folder of the node [default: the daemon that runs on this machine].
    #[arg(long, env = "MURMUR_DATA_DIR", value_name = "DIRECTORY")]
    pub data_dir: Option<PathBuf>,
    /// Where that daemon answers.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS")]
    pub address: Option<String>,
    /// Lines for people, or JSON.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Console,
}

/// Options of `sample`.
#[derive(Debug, Args)]
pub struct SampleOptions {
    /// A data directory, or one checkpoint in it [default: the built-in run's].
    pub checkpoint: Option<PathBuf>,
    /// Text to go on from.
    #[arg(long, default_value = "")]
    pub prompt: String,
    /// Tokens to generate; for a model of bytes, bytes.
    #[arg(long, alias = "bytes", default_value = "500", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub tokens: u64,
    /// 0 takes the likeliest token, 1 draws from the model's distribution.
    #[arg(long, default_value = "0.8", value_parser = temperature)]
    pub temperature: f64,
    /// Draw only among the likeliest tokens that together have this probability, above 0, at most 1.
    #[arg(long, default_value = "1", value_parser = top_p)]
    pub top_p: f64,
    /// Folder of the base model, where the run trains adapters on one.
    #[arg(long, env = "MURMUR_BASE", value_name = "FOLDER")]
    pub base: Option<PathBuf>,
    /// The run's tokenizer.json, where it has one [default: the one beside the base].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Equal seeds give equal texts.
    #[arg(long, default_value = "1")]
    pub seed: u64,
}

/// Options of `eval`.
#[derive(Debug, Args)]
pub struct EvalOptions {
    /// A data directory, or one checkpoint in it [default: the built-in run's].
    pub checkpoint: Option<PathBuf>,
    /// The run's files, where it has any.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// Folder of the base model, where the run trains adapters on one.
    #[arg(long, env = "MURMUR_BASE", value_name = "FOLDER")]
    pub base: Option<PathBuf>,
    /// The run's tokenizer.json, where it has one.
    #[arg(long, env = "MURMUR_TOKENIZER", value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Lines for people, or JSON.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Console,
}

/// Options of `export`.
#[derive(Debug, Args)]
pub struct ExportOptions {
    /// A data directory, or one checkpoint in it [default: the built-in run's].
    pub checkpoint: Option<PathBuf>,
    /// The folder to write: config.json and model.safetensors, with the base's tokenizer.
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
    /// Folder of the base model: needed where the run trains adapters, which are merged into it; else for its tokenizer.
    #[arg(long, env = "MURMUR_BASE", value_name = "FOLDER")]
    pub base: Option<PathBuf>,
    /// Type of the weights.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: WeightType,
    /// Replace the model in a folder that exists.
    #[arg(long)]
    pub force: bool,
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

fn top_p(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value > 0.0 && value <= 1.0 { Ok(value) } else { Err("above 0, at most 1".to_owned()) }
}

fn temperature(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=10.0).contains(&value) { Ok(value) } else { Err("0 to 10".to_owned()) }
}

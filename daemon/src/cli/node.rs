//! Options of the commands that run a daemon, or look at a machine as a daemon would. What is not given comes from the node
//! file, then from defaults.

use std::path::PathBuf;

use clap::Args;

use super::caps::CapOptions;
use super::headings::{DATA, LIMITS, NETWORK, OUTPUT, PRIVACY, STAY, TRACKING, TRAINING};
use super::numbers::{decimal, whole};
use crate::console::Console;
use crate::limits::pace::Pace;
use crate::settings::{LimitsSettings, PrivacySettings, Split, StaySettings, THREADS_MAX};

/// Options of `start`.
#[derive(Debug, Args)]
pub struct StartOptions {
    /// The run file [default: the built-in stories].
    pub run: Option<PathBuf>,
    /// Hours from now after which the whole run is complete; the last sixth is the decay. For a run that this node founds.
    #[arg(long, value_name = "N", help_heading = TRAINING,
        value_parser = decimal(|hours| hours > 0.0 && hours <= 8784.0, "hours: above 0, at most 8784 (a year)"))]
    pub hours: Option<f64>,
    /// Tokens (images for models of images) of all members together from now on, after which the whole run is complete, such
    /// as 5e9; the last sixth is the decay. For a run that this node founds.
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
    /// The run file to look at instead of a swarm's run [default: the built-in stories].
    #[arg(long, value_name = "FILE", conflicts_with = "ticket", help_heading = TRAINING)]
    pub run: Option<PathBuf>,
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

/// The machine, its data and its network, as a daemon there would use them.
#[derive(Debug, Default, Args)]
pub struct MachineOptions {
    /// This machine's settings: the node file that `murmur init` writes.
    #[arg(long, env = "MURMUR_NODE", value_name = "FILE")]
    pub node: Option<PathBuf>,

    /// auto, cpu or cuda:N; several as cuda:0,cuda:1 train as one node.
    #[arg(long, env = "MURMUR_DEVICE", help_heading = TRAINING)]
    pub device: Option<String>,
    /// Several devices have all of the model each (replicate), or some of its layers each (pipeline); auto cuts it where it
    /// does not fit each.
    #[arg(long, env = "MURMUR_SPLIT", value_enum, value_name = "HOW", help_heading = TRAINING, hide_possible_values = true)]
    pub split: Option<Split>,
    /// CPU threads that train; 0 takes all cores.
    #[arg(long, env = "MURMUR_THREADS", value_name = "N", help_heading = TRAINING,
        value_parser = whole::<usize>(0..=THREADS_MAX as u64, "; 0 takes all cores"))]
    pub threads: Option<usize>,
    /// Folder of a model of Hugging Face (config.json, safetensors) to begin from, or hf://OWNER/NAME.
    #[arg(long, env = "MURMUR_BASE", value_name = "FOLDER", help_heading = TRAINING)]
    pub base: Option<PathBuf>,

    /// Files and folders to train on, in this order; also https://…, s3://BUCKET/PREFIX, hf://datasets/OWNER/NAME/PATH.
    #[arg(long, env = "MURMUR_DATA", value_name = "FILE", num_args = 1.., help_heading = DATA)]
    pub data: Vec<PathBuf>,
    /// Load what a run names (data.remote, base.remote), without this node's keys.
    #[arg(long, env = "MURMUR_ACCEPT_REMOTE", help_heading = DATA)]
    pub accept_remote: bool,
    /// The tokenizer.json of a run that has one.
    #[arg(long, env = "MURMUR_TOKENIZER", value_name = "FILE", help_heading = DATA)]
    pub tokenizer: Option<PathBuf>,
    /// Identity, known peers and checkpoints [default: murmur/<run> in the user's data directory].
    #[arg(long, env = "MURMUR_DATA_DIR", value_name = "FOLDER", help_heading = DATA)]
    pub data_dir: Option<PathBuf>,
    /// Tokens and decoded images [default: prepared in the data directory].
    #[arg(long, env = "MURMUR_DATA_CACHE", value_name = "FOLDER", help_heading = DATA)]
    pub data_cache: Option<PathBuf>,

    /// Address of a member, such as /ip4/192.0.2.7/tcp/4711; may be repeated.
    #[arg(long, env = "MURMUR_BOOTSTRAP", value_name = "MULTIADDR", value_delimiter = ',', help_heading = NETWORK)]
    pub bootstrap: Vec<String>,
    /// Address to listen on, such as /ip4/0.0.0.0/tcp/4711; may be repeated.
    #[arg(long, env = "MURMUR_LISTEN", value_name = "MULTIADDR", value_delimiter = ',', help_heading = NETWORK)]
    pub listen: Vec<String>,
    /// Port to listen on, TCP and QUIC, on every IPv4 address [default: 4711, or the next free one].
    #[arg(long, env = "MURMUR_PORT", value_name = "PORT", conflicts_with = "listen", help_heading = NETWORK,
        value_parser = whole::<u16>(1..=65_535, "; leave it out for 4711 or the next free one"))]
    pub port: Option<u16>,

    /// What it takes of its lines.
    #[command(flatten)]
    pub caps: CapOptions,

    /// What own training may tell of each record of the data, as differential privacy's epsilon; it ends there. 0: not private.
    #[arg(long, env = "MURMUR_EPSILON", value_name = "EPSILON", help_heading = PRIVACY,
        value_parser = decimal(PrivacySettings::is_epsilon, PrivacySettings::EPSILON_RULE))]
    pub epsilon: Option<f64>,
    /// The delta of that epsilon, below one in as many as there are records [default: 1e-5].
    #[arg(long, env = "MURMUR_DELTA", value_name = "DELTA", help_heading = PRIVACY,
        value_parser = decimal(PrivacySettings::is_delta, PrivacySettings::DELTA_RULE))]
    pub delta: Option<f64>,
    /// Norm to which the gradient of each record is clipped, where training is private [default: 1].
    #[arg(long, env = "MURMUR_CLIP", value_name = "NORM", help_heading = PRIVACY,
        value_parser = decimal(PrivacySettings::is_clip, PrivacySettings::CLIP_RULE))]
    pub clip: Option<f64>,
    /// Noise of a private step, in clip norms [default: 1].
    #[arg(long, env = "MURMUR_NOISE", value_name = "SIGMA", help_heading = PRIVACY,
        value_parser = decimal(PrivacySettings::is_noise, PrivacySettings::NOISE_RULE))]
    pub noise: Option<f64>,
    /// Membership secret of a closed run: 64 hexadecimal digits.
    #[arg(long, env = "MURMUR_SECRET_FILE", value_name = "FILE", help_heading = PRIVACY)]
    pub secret_file: Option<PathBuf>,

    /// text: lines for people; json: one object a line [default: text].
    #[arg(long, env = "MURMUR_FORMAT", value_enum, help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Option<Console>,
}

/// How a daemon runs.
#[derive(Debug, Default, Args)]
pub struct DaemonOptions {
    /// The line that `murmur lend` printed on another machine, which is to hold some of the model's layers; may be repeated.
    #[arg(long = "helper", env = "MURMUR_HELPER", value_name = "LINE", value_delimiter = ',', help_heading = TRAINING)]
    pub helpers: Vec<String>,
    /// Own steps after which this node is done, whatever the swarm's progress; in a synchronous run no later than all.
    #[arg(long, env = "MURMUR_STEPS", value_name = "N", help_heading = TRAINING, display_order = 0,
        value_parser = whole::<u64>(1..=u64::MAX, "; leave it out to set no limit"))]
    pub steps: Option<u64>,
    /// End once the run is complete, instead of staying to give the model to whoever joins; for scripts.
    #[arg(long, env = "MURMUR_EXIT", help_heading = TRAINING)]
    pub exit: bool,

    /// Where it answers `murmur status`: a loopback address, or off [default: 127.0.0.1:4780, or the next free port].
    #[arg(long, env = "MURMUR_STATUS_ADDRESS", value_name = "ADDRESS", help_heading = NETWORK)]
    pub status_address: Option<String>,

    /// Of the time, training steps take at most so much, in percent: for machines that are used for other things, too.
    #[arg(long, env = "MURMUR_TRAINING_PERCENT", value_name = "PERCENT", help_heading = LIMITS, display_order = 0,
        value_parser = decimal(LimitsSettings::is_percent, LimitsSettings::PERCENT_RULE))]
    pub training_percent: Option<f64>,
    /// Gigabytes a day, both ways together, after which it rests; 0 sets no budget.
    #[arg(long, env = "MURMUR_DAILY_GIGABYTES", value_name = "GB", help_heading = LIMITS,
        value_parser = decimal(LimitsSettings::is_budget, LimitsSettings::BUDGET_RULE))]
    pub daily_gigabytes: Option<f64>,
    /// When it rests every day, such as 22:00-07:00.
    #[arg(long, env = "MURMUR_QUIET_HOURS", value_name = "HOURS", help_heading = LIMITS)]
    pub quiet_hours: Option<String>,
    /// Of those hours and days, such as Europe/Berlin or +02:00 [default: this machine's].
    #[arg(long, env = "MURMUR_TIME_ZONE", value_name = "ZONE", allow_hyphen_values = true, help_heading = LIMITS)]
    pub time_zone: Option<String>,

    /// Leave when a clock next shows this, such as 06:00.
    #[arg(long, env = "MURMUR_UNTIL", value_name = "TIME", help_heading = STAY)]
    pub until: Option<String>,
    /// Leave after so many hours; 0 sets no limit.
    #[arg(long, env = "MURMUR_MAX_HOURS", value_name = "N", help_heading = STAY,
        value_parser = decimal(StaySettings::is_hours, StaySettings::HOURS_RULE))]
    pub max_hours: Option<f64>,
    /// Leave after so many gigabytes, both ways together; 0 sets no limit.
    #[arg(long, env = "MURMUR_MAX_GIGABYTES", value_name = "GB", help_heading = STAY,
        value_parser = decimal(StaySettings::is_gigabytes, StaySettings::GIGABYTES_RULE))]
    pub max_gigabytes: Option<f64>,

    /// What others see beside this node's id: at most 32 bytes that can be seen.
    #[arg(long, env = "MURMUR_NAME", value_name = "NAME", help_heading = NETWORK)]
    pub name: Option<String>,

    /// Let in only who has a ticket: it holds a secret that is kept in the data directory.
    #[arg(long, env = "MURMUR_CLOSED", help_heading = PRIVACY, display_order = 0)]
    pub closed: bool,
    /// Peer id that may connect; with one given, nobody else may; may be repeated.
    #[arg(long, env = "MURMUR_ALLOW", value_name = "PEER", value_delimiter = ',', help_heading = PRIVACY)]
    pub allow: Vec<String>,
    /// Peer id that may not connect; may be repeated.
    #[arg(long, env = "MURMUR_BLOCK", value_name = "PEER", value_delimiter = ',', help_heading = PRIVACY)]
    pub block: Vec<String>,

    /// Write event files for TensorBoard into a folder of this node below this one.
    #[arg(long, env = "MURMUR_TENSORBOARD", value_name = "FOLDER", help_heading = TRACKING)]
    pub tensorboard: Option<PathBuf>,
    /// Address of an MLflow server that is told how this node does, such as http://127.0.0.1:5000.
    #[arg(long, env = "MURMUR_MLFLOW", value_name = "URL", help_heading = TRACKING)]
    pub mlflow: Option<String>,

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

//! Options of `compare`.

use std::path::PathBuf;

use clap::Args;

use super::headings::{DATA, NETWORK, OUTPUT, TRAINING};
use super::numbers::{decimal, whole};

/// Options of `compare`.
#[derive(Debug, Args)]
pub struct CompareOptions {
    /// A run file, for its model and optimizer [default: a small transformer on stories].
    pub file: Option<PathBuf>,
    /// Names, separated by commas; see --list.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub methods: Vec<String>,
    /// Explain every method and end.
    #[arg(long)]
    pub list: bool,
    /// Train with real daemons on this machine as well, by the methods that they have: each in a network namespace with the
    /// rates of the links where that can be had (Linux, root, ip and tc), and through the faults.
    #[arg(long)]
    pub real: bool,
    /// Nodes.
    #[arg(long, value_name = "N", default_value = "8", help_heading = TRAINING, value_parser = whole::<usize>(2..=64, ""))]
    pub nodes: usize,
    /// Steps of each node, on average.
    #[arg(long, value_name = "N", default_value = "160", help_heading = TRAINING,
        value_parser = whole::<u64>(1..=1_000_000_000, ""))]
    pub steps: u64,
    /// Time of one step on a node of speed 1, simulated and, at least, of real daemons.
    #[arg(long, value_name = "SECONDS", default_value = "1", help_heading = TRAINING,
        value_parser = decimal(|number| (1e-3..=3600.0).contains(&number), "seconds from 0.001 to 3600"))]
    pub step_seconds: f64,
    /// Speeds of the nodes, such as 1,1,0.5; repeated for more nodes.
    #[arg(long, value_name = "SPEEDS", value_delimiter = ',', default_value = "1", help_heading = TRAINING,
        value_parser = decimal(|number| (0.01..=100.0).contains(&number), "numbers from 0.01 to 100"))]
    pub speeds: Vec<f64>,
    /// Seeds without faults.
    #[arg(long, value_name = "N", default_value = "3", help_heading = TRAINING, value_parser = whole::<u64>(1..=100, ""))]
    pub seeds: u64,
    /// The loss that times are told for [default: what every method but alone reaches].
    #[arg(long, value_name = "LOSS", help_heading = TRAINING,
        value_parser = decimal(|number| number > 0.0 && number < 100.0, "a number above 0, below 100"))]
    pub target: Option<f64>,
    /// A text to train on instead of stories.
    #[arg(long, env = "MURMUR_DATA", value_name = "TEXT", help_heading = DATA)]
    pub data: Option<PathBuf>,
    /// lan, home, world, or a file with up_mbit, down_mbit, latency_ms and loss.
    #[arg(long, value_name = "LINKS", default_value = "home", help_heading = NETWORK)]
    pub links: String,
    /// What goes wrong, each in runs of its own: kill, kill-first, straggler, partition; or none.
    #[arg(long, value_name = "FAULTS", value_delimiter = ',', default_value = "kill,straggler,partition",
        help_heading = NETWORK)]
    pub faults: Vec<String>,
    /// Runs at once [default: the cores].
    #[arg(long, value_name = "N", help_heading = OUTPUT, value_parser = whole::<u16>(1..=1024, ""))]
    pub jobs: Option<u16>,
    /// Where report.html, table.csv, curves.csv and summary.txt go.
    #[arg(long, value_name = "FOLDER", default_value = "compare", help_heading = OUTPUT)]
    pub output: PathBuf,
}

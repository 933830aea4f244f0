//! Options of the commands that read journals and recordings: `watch`, `report`, `replay`.

use std::path::PathBuf;

use clap::Args;

use super::headings::OUTPUT;
use super::numbers::decimal;

/// Options of `watch`.
#[derive(Debug, Args)]
pub struct WatchOptions {
    /// Addresses, runs, folders or journal files [default: the daemons that run on this machine].
    #[arg(value_name = "WHAT")]
    pub what: Vec<String>,
    /// Seconds of a journal that go by in a second.
    #[arg(long, value_name = "TIMES", default_value = "1", help_heading = OUTPUT,
        value_parser = decimal(|speed| (0.1..=100_000.0).contains(&speed), "0.1 to 100000"))]
    pub speed: f64,
    /// Only ASCII characters, for terminals and fonts without others [default: where the locale is not of UTF-8].
    #[arg(long, help_heading = OUTPUT)]
    pub ascii: bool,
}

/// Options of `report`.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// Runs, data directories or journal files, of one node or of several of one run [default: the run used last].
    #[arg(value_name = "WHAT")]
    pub what: Vec<PathBuf>,
    /// Where the page goes; - is standard output.
    #[arg(long, value_name = "FILE", default_value = "report.html", help_heading = OUTPUT)]
    pub output: PathBuf,
    /// Replace ids and names of peers, addresses and paths, to show the page to strangers.
    #[arg(long, help_heading = OUTPUT)]
    pub redact: bool,
}

/// Options of `replay`.
#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// A recording of `murmur start --record-core FILE`.
    #[arg(long, value_name = "FILE", required = true)]
    pub check: PathBuf,
}

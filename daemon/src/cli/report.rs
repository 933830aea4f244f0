//! Options of `report`.

use std::path::PathBuf;

use clap::Args;

use super::headings::OUTPUT;

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

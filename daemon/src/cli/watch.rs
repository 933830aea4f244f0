//! Options of `watch`.

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
        value_parser = decimal(is_speed, "0.1 to 100000"))]
    pub speed: f64,
    /// Only ASCII characters, for terminals and fonts without others.
    #[arg(long, help_heading = OUTPUT)]
    pub ascii: bool,
}

fn is_speed(speed: f64) -> bool {
    (0.1..=100_000.0).contains(&speed)
}

//! Options of the commands that ask a running daemon: `status`, `ticket`, `finish`, `block`, `unblock`, `id`.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use super::headings::OUTPUT;
use crate::console::Console;

/// Options of `status` and `ticket`.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// The run: its folder or its name [default: of the daemons on this machine, the one that started last].
    pub run: Option<PathBuf>,
    /// The daemon's status address, instead of a run.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS")]
    pub address: Option<String>,
    /// text: lines for people; json: one object.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// Options of `finish`.
#[derive(Debug, Args)]
pub struct FinishOptions {
    /// The run: its folder or its name [default: of the daemons on this machine, the founder of the run that started last].
    pub run: Option<PathBuf>,
    /// Time until the run is complete, such as 20m or 2h30m [default: a fifth of the steps so far; at least 20 steps].
    #[arg(long = "in", value_name = "TIME", value_parser = seconds, allow_hyphen_values = true)]
    pub seconds: Option<f64>,
    /// The daemon's status address, instead of a run.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS")]
    pub address: Option<String>,
    /// text: lines for people; json: one object.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// Options of `block` and `unblock`.
#[derive(Debug, Args)]
pub struct BlockOptions {
    /// A peer's id, or the last eight characters of a known one's [default: none; show who is blocked].
    #[arg(value_name = "PEER")]
    pub peers: Vec<String>,
    /// The run: its folder or its name; after --run, for the words without an option are peers here [default: of the daemons on
    /// this machine, the one that started last].
    #[arg(long)]
    pub run: Option<PathBuf>,
    /// The daemon's status address, instead of a run.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS")]
    pub address: Option<String>,
    /// text: lines for people; json: one object.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// The longest time that a decay may be asked to take: a year.
const SECONDS_MAX: f64 = 365.0 * 24.0 * 3600.0;

fn seconds(text: &str) -> Result<f64, String> {
    let rule = "it takes a time such as 90s, 20m or 2h30m, up to a year";
    let seconds = text.parse::<jiff::SignedDuration>().map_err(|_| rule.to_owned())?.as_secs_f64();
    if seconds > 0.0 && seconds <= SECONDS_MAX { Ok(seconds) } else { Err(rule.to_owned()) }
}

/// Options of `id`.
#[derive(Debug, Args)]
pub struct IdOptions {
    /// The run: its folder or its name [default: of the daemons on this machine, the one that started last].
    pub run: Option<PathBuf>,
    /// The same, as `start` takes it.
    #[arg(long, env = "MURMUR_DATA_DIR", value_name = "FOLDER", hide = true)]
    pub data_dir: Option<PathBuf>,
    /// The daemon's status address, instead of a run.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS")]
    pub address: Option<String>,
    /// text: lines for people; json: one object.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// Refuses a command line that names a daemon twice, by its run and by its address, or has `doctor` look at a run file and at a
/// swarm: one of them would be ignored. An address from the environment is for where no run is typed.
///
/// # Errors
/// When both are typed.
pub(super) fn refuse_two_places(command: &mut clap::Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((name, typed)) = matches.subcommand() else { return Ok(()) };
    let is_typed = |id: &str| {
        let is_known = typed.try_contains_id(id).unwrap_or(false);
        is_known && typed.value_source(id) == Some(ValueSource::CommandLine)
    };
    let address = if name == "doctor" { "bootstrap" } else { "address" };
    let Some(place) = ["run", "data_dir"].into_iter().find(|place| is_typed(place)) else { return Ok(()) };
    if !is_typed(address) {
        return Ok(());
    }
    command.build();
    let command = command.find_subcommand_mut(name).expect("what was typed");
    let shown = |id: &str| {
        let argument = command.get_arguments().find(|argument| argument.get_id() == id);
        argument.expect("an argument that was typed").to_string()
    };
    let message = format!("the argument '{}' cannot be used with '{}'", shown(address), shown(place));
    Err(command.error(clap::error::ErrorKind::ArgumentConflict, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them_and_refused_with_the_rule() {
        assert_eq!((seconds("90s"), seconds("20m"), seconds("2h30m")), (Ok(90.0), Ok(1200.0), Ok(9000.0)));
        for wrong in ["", "20", "-5m", "0s", "banana", "2y"] {
            assert!(seconds(wrong).is_err_and(|rule| rule.contains("such as 90s, 20m or 2h30m")), "{wrong}");
        }
    }
}

//! What can be typed after `murmur sim`.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use murmur_sim::file::NODES;

use super::headings::{self, OUTPUT};
use super::numbers::whole;
use crate::console::Console;

/// Seeds of one command: their reports are held in memory until its end.
const SEEDS_MAX: u64 = 100_000;

/// The commands of the simulator.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run a scenario for one seed or many, and hold every run to its checks.
    #[command(after_help = headings::SIM_RUN)]
    Run(SimRunOptions),
    /// Run one seed again, with its trace and what its checks found.
    #[command(after_help = headings::SIM_REPLAY)]
    Replay(SimReplayOptions),
    /// Run or read two or more, and show them side by side.
    #[command(after_help = headings::SIM_COMPARE)]
    Compare(SimCompareOptions),
    /// Run one seed twice, and see whether the two runs are the same.
    #[command(after_help = headings::SIM_CHECK_DETERMINISM)]
    CheckDeterminism(SimCheckDeterminismOptions),
    /// The built-in scenarios.
    #[command(after_help = headings::SIM_LIST)]
    List,
    /// Print a scenario's annotated file, to begin one's own with.
    #[command(after_help = headings::SIM_SHOW)]
    Show(SimShowOptions),
}

/// Options of `sim run`.
#[derive(Debug, Args)]
pub struct SimRunOptions {
    /// A built-in scenario (see `murmur sim list`), or a file.
    pub scenario: String,
    /// Which seeds.
    #[command(flatten)]
    pub seeds: SeedOptions,
    /// The machine's share in it.
    #[command(flatten)]
    pub work: WorkOptions,
    /// Nodes of the swarm instead of the file's.
    #[arg(long, value_name = "N", value_parser = whole::<usize>(NODES, ""))]
    pub nodes: Option<usize>,
    /// Other values in the place of the scenario's: several values of a key, or several keys, are run in every
    /// combination.
    #[arg(long, value_name = "KEY=VALUE[,VALUE…]")]
    pub set: Vec<SetOption>,
    /// Print every change of state, a line each.
    #[arg(long, help_heading = OUTPUT)]
    pub trace: bool,
}

/// Options of `sim replay`.
#[derive(Debug, Args)]
pub struct SimReplayOptions {
    /// A built-in scenario or a file, then the seed; a seed alone is one of `everything`.
    #[arg(required = true, num_args = 1..=2, value_names = ["SCENARIO", "SEED"])]
    pub which: Vec<String>,
    /// The seed.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..=SEED_MAX, ""))]
    pub seed: Option<u64>,
    /// Nodes of the swarm instead of the file's: as in the run that is replayed.
    #[arg(long, value_name = "N", value_parser = whole::<usize>(NODES, ""))]
    pub nodes: Option<usize>,
    /// A value in the place of the scenario's: as in the run that is replayed.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<SetOption>,
    /// Write results, plots and a page over the seeds there.
    #[arg(long, value_name = "FOLDER", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,
}

/// Options of `sim compare`.
#[derive(Debug, Args)]
pub struct SimCompareOptions {
    /// Scenarios to run, or results of `sim run --output`: a results.json or its directory.
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    pub runs: Vec<String>,
    /// Which seeds of the scenarios.
    #[command(flatten)]
    pub seeds: SeedOptions,
    /// The machine's share in it.
    #[command(flatten)]
    pub work: WorkOptions,
    /// Nodes of the scenarios instead of the files'.
    #[arg(long, value_name = "N", value_parser = whole::<usize>(NODES, ""))]
    pub nodes: Option<usize>,
}

/// Options of `sim check-determinism`.
#[derive(Debug, Args)]
pub struct SimCheckDeterminismOptions {
    /// A built-in scenario, or a file.
    pub scenario: String,
    /// The seed.
    #[arg(long, default_value = "0", value_name = "N", value_parser = whole::<u64>(0..=SEED_MAX, ""))]
    pub seed: u64,
    /// Nodes of the swarm instead of the file's.
    #[arg(long, value_name = "N", value_parser = whole::<usize>(NODES, ""))]
    pub nodes: Option<usize>,
    /// A value in the place of the scenario's.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<SetOption>,
    /// text: lines for people; json: one object.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// Options of `sim show`.
#[derive(Debug, Args)]
pub struct SimShowOptions {
    /// A built-in scenario.
    pub scenario: String,
}

/// Which seeds.
#[derive(Debug, Args)]
pub struct SeedOptions {
    /// From the first seed, up to but without the second [default: 0..10].
    #[arg(long, value_name = "A..B")]
    pub seeds: Option<Seeds>,
    /// One seed alone.
    #[arg(long, value_name = "N", conflicts_with = "seeds", value_parser = whole::<u64>(0..=SEED_MAX, ""))]
    pub seed: Option<u64>,
}

/// The machine's share in a run.
#[derive(Debug, Args)]
pub struct WorkOptions {
    /// Seeds that run at once [default: the cores].
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024, ""))]
    pub jobs: Option<u16>,
    /// Write results and plots there; `run` writes a page over its seeds as well, index.html.
    #[arg(long, value_name = "FOLDER", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,
    /// text: lines for people; json: one object a line.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// The last seed that has one after it, where a range with it ends.
pub(crate) const SEED_MAX: u64 = u64::MAX - 1;

/// A range of seeds that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Range<u64>);

impl SeedOptions {
    /// What was asked for.
    pub fn range(&self) -> Range<u64> {
        match (&self.seeds, self.seed) {
            (Some(Seeds(range)), _) => range.clone(),
            (None, Some(seed)) => seed..seed + 1,
            (None, None) => 0..10,
        }
    }
}

/// A key of a scenario and the values that it takes in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetOption {
    /// `section.key`.
    pub key: String,
    /// As they were typed, at least one.
    pub values: Vec<String>,
}

impl FromStr for SetOption {
    type Err = String;

    fn from_str(text: &str) -> Result<SetOption, String> {
        let (key, values) = text.split_once('=').ok_or("it is written as gossip.gamma=0.3,0.5")?;
        let is_key = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
        if key.is_empty() || !key.chars().all(is_key) {
            return Err(format!("{key:?} is no key of a scenario; it is written as gossip.gamma=0.3,0.5"));
        }
        let values = at_commas(values);
        if values.iter().any(String::is_empty) {
            return Err("a value is empty".to_owned());
        }
        Ok(SetOption { key: key.to_owned(), values })
    }
}

/// The parts between commas, but for those in brackets or quotes.
fn at_commas(text: &str) -> Vec<String> {
    let (mut parts, mut depth, mut quote) = (vec![String::new()], 0, None);
    for character in text.chars() {
        match (character, quote) {
            ('"' | '\'', None) => quote = Some(character),
            (_, Some(open)) if character == open => quote = None,
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            (',', None) if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("at least one").push(character);
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let (from, to) =
            text.split_once("..").ok_or("a range is written as 0..100; one seed alone goes after --seed")?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no whole number from 0"));
        let (from, to) = (number(from)?, number(to)?);
        if from >= to {
            return Err(format!("there is no seed in it; {from}..{} has one", from.saturating_add(1)));
        }
        if to - from > SEEDS_MAX {
            return Err(format!("these are {} seeds; at most {SEEDS_MAX} at a time", to - from));
        }
        Ok(Seeds(from..to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_set_to_values_between_commas_and_lists_stay_whole() {
        let read = |text: &str| text.parse::<SetOption>().map(|option| (option.key, option.values));
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        assert_eq!(read("a.b=1, 2"), Ok(("a.b".to_owned(), values(&["1", "2"]))));
        assert_eq!(read("a.b=[1,2],\"x,y\""), Ok(("a.b".to_owned(), values(&["[1,2]", "\"x,y\""]))));
        for wrong in ["a.b", "=1", "a b=1", "a.b=", "a.b=1,,2", "a.b=1,"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_of_seeds_are_read_and_mistakes_named() {
        assert_eq!("3..7".parse(), Ok(Seeds(3..7)));
        let mistake = |text: &str| text.parse::<Seeds>().expect_err("a mistake");
        assert_eq!(mistake("5..5"), "there is no seed in it; 5..6 has one");
        assert_eq!(mistake("7..3"), "there is no seed in it; 7..8 has one");
        assert!(mistake("7").contains("--seed"));
        assert!(mistake("-1..3").contains("\"-1\""));
        assert!(mistake("0..18446744073709551615").contains("at most 100000"));
    }
}

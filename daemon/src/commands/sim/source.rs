//! Where a scenario comes from, a name or a file; every mistake in it is found before any work.

use std::path::Path;

use murmur_sim::file::{BuiltIn, Drawn, MEMORY_BYTES_MAX, Mistake, ScenarioFile, built_in, built_ins};

use super::setting::{EXAMPLE, Setting};
use crate::console::human_bytes;
use crate::failure::{ExitCode, Failure};
use crate::settings::{bounded, fault, line_of_field, nearest, of_other_kind, parse, too_long};

/// The largest scenario file read, in bytes. Ours are about 5 KiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A scenario that has passed its checks.
pub(super) struct Source {
    /// What the user called it.
    pub(super) name: String,
    pub(super) file: ScenarioFile,
    /// What the file says, with what was set in its place.
    pub(super) text: String,
    /// Nodes instead of the file's.
    pub(super) nodes: Option<usize>,
    /// Values instead of the file's.
    pub(super) settings: Vec<Setting>,
}

impl Source {
    /// Reads a scenario and checks it, for `jobs` seeds at once.
    pub(super) fn load(
        name: &str,
        nodes: Option<usize>,
        settings: Vec<Setting>,
        jobs: usize,
    ) -> Result<Source, Failure> {
        if nodes.is_some() && settings.iter().any(|setting| setting.key == "swarm.nodes") {
            let message = "--nodes and --set swarm.nodes say the same: give one of them";
            return Err(Failure::new(ExitCode::CommandLine, message));
        }
        let (place, mut text) = match built_in(name) {
            Some(scenario) => (format!("{name} (built in)"), scenario.text.to_owned()),
            None => (name.to_owned(), read(name)?),
        };
        let mut file: ScenarioFile = parse(Path::new(&place), &text, EXAMPLE)
            .map_err(|failure| of_other_kind(Path::new(&place), &text, "scenario", failure))?;
        if toml::from_str::<toml::Table>(&text).is_ok_and(|table| table.is_empty()) {
            let message = format!("{place} is no scenario: it sets nothing");
            return Err(Failure::new(ExitCode::Settings, message).hint(
                "`murmur sim show everything` prints an annotated one to begin with; `calm` is a swarm without faults",
            ));
        }
        if !settings.is_empty() {
            (file, text) = with_settings(&place, &text, &settings)?;
        }
        if let Some(nodes) = nodes {
            file.swarm.nodes = Drawn::fixed(nodes);
        }
        file.validate().map_err(|mistake| refused(&place, &text, &settings, &mistake))?;
        let bytes = file.memory_bytes().saturating_mul(jobs as u64);
        if bytes > MEMORY_BYTES_MAX {
            let (estimate, most) = (human_bytes(bytes), human_bytes(MEMORY_BYTES_MAX));
            let message = format!("{place}: {jobs} seeds at once may take {estimate} of memory; the most is {most}");
            let remedy = "lower swarm.nodes, swarm.parameters, crowd.share or the length of the phases, or --jobs";
            return Err(Failure::new(ExitCode::Settings, message).hint(remedy));
        }
        Ok(Source { name: name.to_owned(), file, text, nodes, settings })
    }

    /// The line that runs one of its seeds again.
    pub(super) fn replay_command(&self, seed: u64) -> String {
        let settings = self.settings.iter().map(Setting::to_string);
        format!("murmur sim replay {} --seed {seed}{}", quoted(&self.name), self.options(settings))
    }

    /// The line that runs these seeds again: from the first, up to but without the second.
    pub(super) fn run_command(&self, seeds: (u64, u64)) -> String {
        self.command_with(seeds, self.settings.iter().map(Setting::to_string))
    }

    /// The same with other values.
    pub(super) fn command_with(&self, (from, to): (u64, u64), settings: impl Iterator<Item = String>) -> String {
        format!("murmur sim run {} --seeds {from}..{to}{}", quoted(&self.name), self.options(settings))
    }

    /// Such as `gossip.gamma=0.5 swarm.nodes=8`.
    pub(super) fn settings_line(&self) -> String {
        self.settings.iter().map(Setting::to_string).collect::<Vec<_>>().join(" ")
    }

    fn options(&self, settings: impl Iterator<Item = String>) -> String {
        let nodes = self.nodes.map(|nodes| format!(" --nodes {nodes}"));
        nodes.into_iter().chain(settings.map(|setting| format!(" --set {}", quoted(&setting)))).collect()
    }
}

/// A scenario with other values, and its text, of which comments are gone.
fn with_settings(place: &str, text: &str, settings: &[Setting]) -> Result<(ScenarioFile, String), Failure> {
    let unusable = |error: String| Failure::new(ExitCode::Settings, format!("{place} with --set: {error}"));
    let mut table: toml::Table = toml::from_str(text).map_err(|error| unusable(error.message().to_owned()))?;
    settings.iter().for_each(|setting| setting.put_into(&mut table));
    let text = toml::to_string(&table).map_err(|error| unusable(error.to_string()))?;
    let file = table.try_into().map_err(|error| unusable(error.message().to_owned()))?;
    Ok((file, text))
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_alphanumeric() || "._-/=:,+@".contains(character);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// A built-in scenario.
pub(super) fn built_in_named(name: &str) -> Result<BuiltIn, Failure> {
    built_in(name).ok_or_else(|| unknown(name))
}

fn read(name: &str) -> Result<String, Failure> {
    let path = Path::new(name);
    if !path.exists() && !name.contains(['/', '\\', '.']) {
        return Err(unknown(name));
    }
    let unreadable = |error: std::io::Error| {
        Failure::new(ExitCode::Settings, format!("cannot read the scenario file {name}: {error}"))
            .hint("`murmur sim show everything` prints an annotated one to begin with")
    };
    bounded(path, FILE_BYTES_MAX).map_err(unreadable)?.ok_or_else(|| too_long(path, "scenario", FILE_BYTES_MAX))
}

fn unknown(name: &str) -> Failure {
    let names: Vec<&str> = built_ins().iter().map(|scenario| scenario.name).collect();
    let failure = Failure::new(ExitCode::Settings, format!("there is no scenario `{name}`"));
    match nearest(name, &names) {
        Some(nearest) => failure.hint(format!("did you mean `{nearest}`?")),
        None => failure.hint(format!("a file, or one of {}", names.join(", "))),
    }
}

fn refused(place: &str, text: &str, settings: &[Setting], mistake: &Mistake) -> Failure {
    let Mistake { key, value, rule } = mistake;
    let place = match line_of_field(text, key) {
        _ if settings.iter().any(|setting| setting.key == *key) => "--set".to_owned(),
        // The lines are not the file's any more.
        _ if !settings.is_empty() => place.to_owned(),
        Some(line) => format!("{place}:{line}"),
        None => place.to_owned(),
    };
    Failure::new(ExitCode::Settings, format!("{place}: {key} = {value} {}", fault(value))).hint(rule.clone())
}

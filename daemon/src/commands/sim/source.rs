//! Where a scenario comes from, a name or a file; every mistake in it is found before any work.

use std::path::Path;

use murmur_sim::file::{BuiltIn, Drawn, MEMORY_BYTES_MAX, Mistake, ScenarioFile, built_in, built_ins};

use crate::console::human_bytes;
use crate::failure::{ExitCode, Failure};
use crate::settings::{line_of_field, nearest, parse};

/// The largest scenario file read, in bytes. Ours are about 5 KiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Shows an annotated scenario.
pub(super) const EXAMPLE: &str = "murmur sim show everything";

/// A scenario that has passed its checks.
pub(super) struct Source {
    /// What the user called it.
    pub(super) name: String,
    pub(super) file: ScenarioFile,
    /// What the file says.
    pub(super) text: String,
    /// Nodes instead of the file's.
    pub(super) nodes: Option<usize>,
}

impl Source {
    /// Reads a scenario and checks it, for `jobs` seeds at once.
    pub(super) fn load(name: &str, nodes: Option<usize>, jobs: usize) -> Result<Source, Failure> {
        let (place, text) = match built_in(name) {
            Some(scenario) => (format!("{name} (built in)"), scenario.text.to_owned()),
            None => (name.to_owned(), read(name)?),
        };
        let mut file: ScenarioFile = parse(Path::new(&place), &text, EXAMPLE)?;
        if let Some(nodes) = nodes {
            file.swarm.nodes = Drawn::fixed(nodes);
        }
        file.validate().map_err(|mistake| refused(&place, &text, nodes, &mistake))?;
        let bytes = file.memory_bytes().saturating_mul(jobs as u64);
        if bytes > MEMORY_BYTES_MAX {
            let (estimate, most) = (human_bytes(bytes), human_bytes(MEMORY_BYTES_MAX));
            let message = format!("{place}: {jobs} seeds at once may take {estimate} of memory; the most is {most}");
            let remedy = "lower swarm.nodes, swarm.parameters, crowd.share or the length of the phases, or --jobs";
            return Err(Failure::new(ExitCode::Settings, message).hint(remedy));
        }
        Ok(Source { name: name.to_owned(), file, text, nodes })
    }

    /// The line that runs one of its seeds again.
    pub(super) fn replay_command(&self, seed: u64) -> String {
        format!("murmur sim replay {} --seed {seed}{}", quoted(&self.name), self.nodes_option())
    }

    /// The line that runs these seeds again: from the first, up to but without the second.
    pub(super) fn run_command(&self, (from, to): (u64, u64)) -> String {
        format!("murmur sim run {} --seeds {from}..{to}{}", quoted(&self.name), self.nodes_option())
    }

    fn nodes_option(&self) -> String {
        self.nodes.map_or(String::new(), |nodes| format!(" --nodes {nodes}"))
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("'{word}'") } else { word.to_owned() }
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
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > FILE_BYTES_MAX {
        return Err(Failure::new(ExitCode::Settings, format!("{name} has {length} bytes: that is no scenario file")));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn unknown(name: &str) -> Failure {
    let names: Vec<&str> = built_ins().iter().map(|scenario| scenario.name).collect();
    let failure = Failure::new(ExitCode::Settings, format!("there is no scenario `{name}`"));
    match nearest(name, &names) {
        Some(nearest) => failure.hint(format!("did you mean `{nearest}`?")),
        None => failure.hint(format!("a file, or one of {}", names.join(", "))),
    }
}

fn refused(place: &str, text: &str, nodes: Option<usize>, mistake: &Mistake) -> Failure {
    let Mistake { key, value, rule } = mistake;
    let place = match line_of_field(text, key) {
        _ if nodes.is_some() && *key == "swarm.nodes" => "--nodes".to_owned(),
        Some(line) => format!("{place}:{line}"),
        None => place.to_owned(),
    };
    Failure::new(ExitCode::Settings, format!("{place}: {key} = {value} is out of range")).hint(rule.clone())
}

//! Several combinations of values of one scenario: each over the same seeds, then all in one table.

use std::ops::Range;
use std::sync::atomic::Ordering;

use murmur_sim::report::{About, Compared, Swept, sweep_lines, sweep_page, sweep_series};
use serde_json::json;

use super::interrupted;
use super::interruption::on_interruption;
use super::output::Output;
use super::run::{Telling, simulate, write};
use super::source::Source;
use crate::console::{Console, note, print_line};
use crate::failure::{ExitCode, Failure};

/// Letters of a folder's name that say what was set.
const FOLDER_LETTERS_MAX: usize = 80;

/// Runs each source over the seeds; all are of one scenario, with other values.
pub(super) fn run(
    sources: &[Source],
    seeds: Range<u64>,
    jobs: usize,
    telling: &Telling,
    output: Option<&Output>,
) -> anyhow::Result<()> {
    let interruption = on_interruption()?;
    let (mut swept, mut begun): (Vec<Swept>, usize) = (Vec::new(), 0);
    for (index, source) in sources.iter().enumerate() {
        if telling.format == Console::Text {
            print_line(&format!("{}{}", if index > 0 { "\n" } else { "" }, source.settings_line()));
        }
        let report = simulate(source, seeds.clone(), jobs, telling, &interruption);
        begun = index + 1;
        // Interrupted before one had ended: of none there are no figures. That one is missing is told of those before.
        if report.seeds.is_empty() {
            swept.iter_mut().for_each(|earlier| earlier.report.interrupted = true);
            break;
        }
        let folder = folder(index, &source.settings_line());
        if let Some(output) = output {
            write(source, &report, &output.below(&folder)?)?;
        }
        swept.push(Swept { folder, report });
        if interruption.load(Ordering::Relaxed) {
            break;
        }
    }
    let in_combination = format!("interrupted in combination {begun} of {}", sources.len());
    if swept.is_empty() {
        return Err(interrupted(in_combination).into());
    }
    let lines = sweep_lines(&swept);
    match telling.format {
        Console::Json => {
            let row = |one: &Swept| json!({ "settings": one.report.settings, "means": Compared::new("", &one.report) });
            print_line(&json!({ "sweep": swept.iter().map(row).collect::<Vec<_>>() }).to_string());
        }
        Console::Text => {
            print_line("");
            lines.iter().for_each(|line| print_line(line));
        }
    }
    if let Some(output) = output {
        note(&format!("wrote a folder for each of {} combinations", swept.len()));
        output.write("summary.txt", &(lines.join("\n") + "\n"))?;
        output.write("sweep.csv", &sweep_series(&swept))?;
        let about = About { command: command(sources, &seeds), settings: sources[0].text.clone() };
        output.write("index.html", &sweep_page(&sources[0].name, &swept, &about))?;
    }
    if interruption.load(Ordering::Relaxed) {
        return Err(interrupted(in_combination).into());
    }
    let failed = swept.iter().zip(sources).find_map(|(one, source)| Some((source, one.report.failed().next()?.seed)));
    match failed {
        None => Ok(()),
        Some((source, seed)) => {
            let count = swept.iter().filter(|one| one.report.failed().next().is_some()).count();
            let message = format!("in {count} of {} combinations a seed fails a check", swept.len());
            Err(Failure::new(ExitCode::Failure, message).hint(source.replay_command(seed)).into())
        }
    }
}

/// A name for a folder on every system, and no two are the same.
fn folder(index: usize, settings: &str) -> String {
    let plain =
        |character: char| if character.is_ascii_alphanumeric() || "._=-".contains(character) { character } else { '_' };
    let settings: String = settings.chars().map(plain).take(FOLDER_LETTERS_MAX).collect();
    format!("{:02}-{settings}", index + 1)
}

/// The line that does all of it again.
fn command(sources: &[Source], seeds: &Range<u64>) -> String {
    let mut values: Vec<(&str, Vec<&str>)> = Vec::new();
    for setting in sources.iter().flat_map(|source| &source.settings) {
        match values.iter_mut().find(|(key, _)| *key == setting.key) {
            Some((_, of_key)) if of_key.contains(&&*setting.value) => {}
            Some((_, of_key)) => of_key.push(&setting.value),
            None => values.push((&setting.key, vec![&setting.value])),
        }
    }
    let options = values.iter().map(|(key, of_key)| format!("{key}={}", of_key.join(",")));
    sources[0].command_with((seeds.start, seeds.end), options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_names_for_every_system_and_never_the_same() {
        assert_eq!(folder(0, "gossip.kind=links swarm.nodes=[4, 8]"), "01-gossip.kind=links_swarm.nodes=_4__8_");
        assert_ne!(folder(1, &"é/".repeat(90)), folder(2, &"é/".repeat(90)));
    }
}

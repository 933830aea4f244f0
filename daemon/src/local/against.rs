//! `murmur local --against alone`: did it help to train together?
//!
//! Each seed is trained twice by the same daemons, with the same run file, identities, and so data and order, threads and length:
//! once as a swarm, and once each for itself, all at the same time as well. So the machine is as busy, and equal swarm progress
//! and equal time are compared alike. A run ends by the swarm's progress: who comes a moment later takes over what the first has
//! learned, and makes fewer steps of its own. What is said is the least and the greatest difference over the seeds, and where their signs
//! differ, that nothing can be measured. A seed in which a daemon died is left out: its last loss is of another time than the others'.
//! Of fewer than three seeds nothing can be measured either.

use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;
use murmur_sim::report::Table;
use serde_json::json;

use super::{Ended, Purpose, Summary, new_folder, prune, run_in};
use crate::cli::LocalOptions;
use crate::console::{Console, note, print_fitted, print_line};
use crate::failure::{ExitCode, Failure};
use crate::history::comparison::{Compared, Side, Trained};
use crate::history::{Ended as Ending, History, NodeHistory};
use crate::observe::journal::{Reading, files_at};
use crate::settings::NodeSettings;
use crate::store::{COMPARISON_FILE, Series, write_atomically};

/// Trains all seeds and says what came of it.
pub(super) fn run(options: &LocalOptions, settings: &NodeSettings, manifest: &RunManifest) -> anyhow::Result<()> {
    if options.nodes < 2 {
        return Err(Failure::new(ExitCode::CommandLine, "one daemon alone has no swarm to be compared with")
            .hint("ask for more with --nodes")
            .into());
    }
    let mut trained = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut series = None;
    for number in 0..options.seeds {
        let mut manifest = manifest.clone();
        manifest.run.seed = manifest.run.seed.wrapping_add(number);
        let mut side = |name: &str, index: u64, twins: Option<PathBuf>| -> anyhow::Result<Option<Ended>> {
            let folder = match &options.directory {
                Some(directory) => directory.join(format!("seed-{}-{name}", manifest.run.seed)),
                None => new_folder(index),
            };
            note(&format!(
                "run {} of {}: seed {}, {name}",
                2 * number + index + 1,
                2 * options.seeds,
                manifest.run.seed
            ));
            // Of a run of before there is a journal, which would be read as this one's.
            if folder.exists() {
                let message = format!("{} is there already", folder.display());
                return Err(Failure::new(ExitCode::CommandLine, message)
                    .hint("choose another folder with --directory")
                    .into());
            }
            let own = LocalOptions { directory: Some(folder.clone()), ..options.clone() };
            let first = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = series.get_or_insert(first).clone();
            let series = Series { name, alone: twins.is_some() };
            let purpose = Purpose { series: Some(series), twins, trial: None };
            run_in(own, settings, manifest.clone(), folder, purpose)
        };
        let interrupted = || Failure::new(ExitCode::Interrupted, "interrupted: there is no comparison");
        let seed = manifest.run.seed;
        let together = side("together", 0, None)?.ok_or_else(interrupted)?;
        let Some(of_together) = read(&together.folder, &together.summary, options.nodes, seed)? else { continue };
        let alone = side("alone", 1, Some(together.folder.clone()))?.ok_or_else(interrupted)?;
        let Some(of_alone) = read(&alone.folder, &alone.summary, options.nodes, seed)? else { continue };
        trained.push(Trained { together: of_together, alone: of_alone });
        folders.push(together.folder);
    }
    if trained.is_empty() {
        let message = "in no seed did all daemons come to the run's end, so there is nothing to compare";
        return Err(Failure::new(ExitCode::Failure, message).hint("their logs say why").into());
    }
    let compared = Compared::new(&trained).ok_or_else(|| {
        Failure::new(ExitCode::Failure, "some daemon has not been evaluated, so there is nothing to compare")
            .hint("train for more steps")
    })?;
    for folder in &folders {
        write_atomically(&folder.join(COMPARISON_FILE), &serde_json::to_vec(&compared)?)?;
    }
    if let Some(last) = folders.last().filter(|_| options.directory.is_none()) {
        prune(last);
    }
    if options.format == Console::Json {
        print_line(&json!({ "against_alone": compared }).to_string());
        return Ok(());
    }
    show(&compared);
    note(&format!("  murmur report {}", folders.first().map_or(Path::new("."), |folder| folder).display()));
    Ok(())
}

fn show(compared: &Compared) {
    print_line("");
    print_fitted(&compared.sentence(), 2);
    let mut table = Table::new(&["", "together", "alone", "difference", "least", "most", "measurable"]);
    for row in compared.rows() {
        table.row(row);
    }
    table.lines().iter().for_each(|line| print_line(line));
    print_line("");
}

/// What the journals of a swarm's daemons say, and the table of its run. Where one has not come to the run's end, that is told,
/// and there is nothing.
fn read(folder: &Path, summary: &Summary, nodes: u16, seed: u64) -> anyhow::Result<Option<Vec<Side>>> {
    let history = |number: u16| -> anyhow::Result<History> {
        let mut history = History::default();
        Reading::new(files_at(&folder.join(format!("node-{number}")))?).for_each(|record| history.apply(&record));
        Ok(history)
    };
    let histories: Vec<History> = (0..nodes).map(history).collect::<Result<_, _>>()?;
    let nodes: Vec<Option<&NodeHistory>> = histories.iter().map(|history| history.nodes.values().next()).collect();
    let has_ended = |node: &NodeHistory| matches!(node.endings().last(), Some((_, Ending::InOrder(true))));
    if let Some(number) = nodes.iter().position(|node| !node.is_some_and(has_ended)) {
        let place = folder.join(format!("node-{number}"));
        note(&format!("seed {seed} is left out: node {number} has not come to the run's end ({})", place.display()));
        return Ok(None);
    }
    let begin = nodes.iter().flatten().filter_map(|node| node.begin()).fold(f64::INFINITY, f64::min);
    let side = |(number, node): (u16, &Option<&NodeHistory>)| {
        node.map(|node| Side::of(node, begin, speed(summary, number))).unwrap_or_default()
    };
    Ok(Some((0..).zip(&nodes).map(side).collect()))
}

fn speed(summary: &Summary, number: u16) -> f64 {
    let node = summary.nodes.iter().find(|node| node.node == usize::from(number));
    node.map_or(f64::NAN, |node| node.tokens_per_second)
}

/// Makes a daemon the twin of another one, which has run before: the same identity reads the same data in the same order.
pub(super) fn share_identity(twin: &Path, directory: &Path) -> anyhow::Result<()> {
    const FILE: &str = "identity.key";
    std::fs::create_dir_all(directory)?;
    let copied = std::fs::copy(twin.join(FILE), directory.join(FILE));
    copied.map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot copy the identity in {}: {error}", twin.display()))
            .hint("choose another folder with --directory")
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Record;
    use crate::observe::record::{Body, EndFacts, RunFacts, Sample, VERSION};

    /// The journal of a daemon that was evaluated once.
    fn write_journal(folder: &Path, number: u16, end: Option<EndFacts>) {
        let run = Body::Run(RunFacts { session: 1, ..RunFacts::default() });
        let sample = Body::Sample(Box::new(Sample { steps: 10, validation_loss: Some(2.5), ..Sample::default() }));
        let record = |(seq, body): (u64, Body)| {
            let (up, t) = (seq as f64, 1_700_000_000_000 + 1000 * seq as i64);
            Record { v: VERSION, seq, t, up, node: format!("node {number}"), body }.line() + "\n"
        };
        let lines: String = (1..).zip([run, sample].into_iter().chain(end.map(Body::End))).map(record).collect();
        let journal = folder.join(format!("node-{number}/journal"));
        std::fs::create_dir_all(&journal).expect("created");
        std::fs::write(journal.join("00000001.jsonl"), lines).expect("written");
    }

    #[test]
    fn a_seed_in_which_a_daemon_died_or_failed_is_not_compared() {
        let place = tempfile::tempdir().expect("a folder");
        let summary =
            Summary { nodes: Vec::new(), disagreement: None, bytes_per_parameter_per_exchange: None, seconds: 1.0 };
        let losses = |end: Option<EndFacts>| {
            write_journal(place.path(), 0, Some(EndFacts { complete: true, ..EndFacts::default() }));
            write_journal(place.path(), 1, end);
            let sides = read(place.path(), &summary, 2, 7).expect("journals")?;
            Some(sides.iter().map(|side| side.losses.len()).collect::<Vec<_>>())
        };
        assert_eq!(losses(Some(EndFacts { complete: true, ..EndFacts::default() })), Some(vec![1, 1]));
        assert_eq!(losses(None), None, "it was killed");
        let failure = Some("the loss is no number".to_owned());
        assert_eq!(losses(Some(EndFacts { complete: true, failure, ..EndFacts::default() })), None);
        assert_eq!(losses(Some(EndFacts::default())), None, "it was stopped");
    }
}

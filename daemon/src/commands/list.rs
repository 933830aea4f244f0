//! `murmur list`: the runs of this machine, the one used last on top.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::client;
use crate::cli::ListOptions;
use crate::console::figures::count;
use crate::console::{Console, human_bytes, note, print_line};
use crate::observe::report::NodeReport;
use crate::store::{DataDirectory, Outline, Run, RunningDaemon, bytes_in, is_in_use};

/// One node, as `--format json` shows it.
#[derive(Debug, Serialize)]
struct Entry {
    /// As the other commands take it.
    name: String,
    directory: PathBuf,
    /// As its run file calls it.
    run: Option<String>,
    /// Own steps.
    steps: Option<u64>,
    /// On the held-out slice, when it was last evaluated.
    loss: Option<f64>,
    /// Its daemons that run.
    running: usize,
    /// Its data directories.
    nodes: usize,
    bytes: u64,
}

impl Entry {
    fn new(run: &Run) -> Entry {
        let of_nodes: Vec<(Option<u64>, Option<f64>)> = run.nodes.iter().map(|node| steps_and_loss(node)).collect();
        let losses: Vec<f64> = of_nodes.iter().filter_map(|(_, loss)| *loss).collect();
        let manifest = run.nodes.first().and_then(|node| DataDirectory::claimed_manifest(node));
        Entry {
            name: run.name(),
            directory: run.directory.clone(),
            run: manifest.map(|manifest| manifest.run.name),
            steps: of_nodes.iter().filter_map(|(steps, _)| *steps).max(),
            loss: (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64),
            running: run.nodes.iter().filter(|node| is_in_use(node)).count(),
            nodes: run.nodes.len(),
            bytes: bytes_in(&run.directory),
        }
    }

    fn state(&self) -> String {
        match (self.running, self.nodes) {
            (0, _) => "–".to_owned(),
            (1, 1) => "running".to_owned(),
            (running, nodes) => format!("{running} of {nodes} running"),
        }
    }
}

/// Of a node now where its daemon answers, else of its newest checkpoint.
fn steps_and_loss(node: &Path) -> (Option<u64>, Option<f64>) {
    let outline = Outline::latest(node);
    let kept_loss = outline.as_ref().and_then(|outline| Some(outline.evaluation?.loss));
    match RunningDaemon::of(node).and_then(|daemon| client::ask::<NodeReport>(&daemon, "status")) {
        Some(report) => (Some(report.steps), report.validation_loss.or(kept_loss)),
        None => (outline.map(|outline| outline.steps), kept_loss),
    }
}

pub(super) fn run(options: &ListOptions) -> anyhow::Result<()> {
    let entries: Vec<Entry> = Run::all().iter().map(Entry::new).collect();
    if options.format == Console::Json {
        for entry in &entries {
            print_line(&serde_json::to_string(entry)?);
        }
        return Ok(());
    }
    if entries.is_empty() {
        note(&format!("no runs in {}", DataDirectory::default_base().display()));
        note("hint: `murmur local` and `murmur start` begin one");
        return Ok(());
    }
    let width = entries.iter().map(|entry| entry.name.chars().count()).max().unwrap_or(0).max("run".len());
    print_line(&format!("{:<width$}  {:>9}  {:>7}  {:>9}  state", "run", "own steps", "loss", "size"));
    for entry in &entries {
        let steps = entry.steps.map_or_else(|| "–".to_owned(), count);
        let loss = entry.loss.map_or_else(|| "–".to_owned(), |loss| format!("{loss:.4}"));
        let size = human_bytes(entry.bytes);
        print_line(&format!("{:<width$}  {steps:>9}  {loss:>7}  {size:>9}  {}", entry.name, entry.state()));
    }
    note(&format!("names are within {}", DataDirectory::default_base().display()));
    Ok(())
}

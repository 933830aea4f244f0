//! `murmur compare --real`: the methods that daemons have, trained by real daemons of this machine as well.

use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;
use murmur_sim::compare::report::{Figures, Measured};
use murmur_sim::compare::{Kind, Method, Plan};

use crate::cli::{CompareOptions, LocalOptions};
use crate::commands::sim::interrupted;
use crate::console::{Console, note};
use crate::failure::{ExitCode, Failure};
use crate::local::{self, NodeSummary, Summary};

/// The folder of all swarms in that of the comparison; each may be read with `murmur report`.
const FOLDER: &str = "real";

/// Trains by every method that daemons have, at the learning rate that was its best in the simulator, with the first seed.
/// Alone are those of another swarm, so that they read the same data in the same order.
pub(super) fn run(plan: &Plan, figures: &Figures, options: &CompareOptions) -> anyhow::Result<Vec<Measured>> {
    let unwritable = |error: std::io::Error| {
        Failure::new(ExitCode::Files, format!("cannot write in {}: {error}", options.output.display()))
            .hint("choose another folder with --output")
    };
    let folder = options.output.join(FOLDER);
    // Of an earlier comparison, in a folder that is known to be this command's.
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(unwritable)?;
    }
    std::fs::create_dir_all(&folder).map_err(unwritable)?;
    let mut rows: Vec<(Method, RunManifest)> = figures
        .rows
        .iter()
        .filter_map(|row| Some((row.method, manifest(plan, row.method.kind, row.learning_rate)?)))
        .collect();
    rows.sort_by_key(|(method, _)| method.kind == Kind::Alone);
    let mut measured = Vec::new();
    let mut twins = None;
    for (number, (method, manifest)) in rows.iter().enumerate() {
        note(&format!("real swarm {} of {}: {}", number + 1, rows.len(), method.name));
        let file = folder.join(format!("{}.toml", method.name));
        std::fs::write(&file, manifest.canonical_text()).map_err(unwritable)?;
        let own = folder.join(method.name);
        let twins = twins.replace(own.clone()).filter(|_| method.kind == Kind::Alone);
        let summary = local::train(daemons(options, file, &own), &own, twins.as_deref())?
            .ok_or_else(|| interrupted("interrupted: there is no comparison".to_owned()))?;
        measured.push(figures_of(*method, &summary, plan));
    }
    Ok(measured)
}

/// The run of daemons that train as the simulated nodes do; `None` for a method that they do not have.
fn manifest(plan: &Plan, kind: Kind, learning_rate: f64) -> Option<RunManifest> {
    let (gossip, synchronous) = kind.of_daemons()?;
    let trainer = &plan.base.trainer;
    let mut manifest = RunManifest {
        model: trainer.model.clone(),
        optimizer: trainer.optimizer.clone(),
        schedule: trainer.schedule.clone(),
        gossip,
        synchronous,
        ..RunManifest::default()
    };
    manifest.run.seed = plan.base.seed;
    manifest.optimizer.learning_rate = learning_rate;
    manifest.optimizer.match_batch &= !manifest.synchronous.is_on();
    if manifest.synchronous.is_fixed() {
        // As the simulated ones they all begin at the first step.
        manifest.synchronous.members_min = plan.base.nodes as u32;
    }
    Some(manifest)
}

fn daemons(options: &CompareOptions, run: PathBuf, folder: &Path) -> LocalOptions {
    LocalOptions {
        run: Some(run),
        nodes: options.nodes as u16,
        helpers: 0,
        steps: None,
        against: None,
        seeds: 1,
        threads: None,
        base: None,
        data: options.data.iter().cloned().collect(),
        accept_remote: false,
        tokenizer: None,
        directory: Some(folder.to_owned()),
        tensorboard: None,
        mlflow: None,
        format: Console::Text,
    }
}

fn figures_of(method: Method, summary: &Summary, plan: &Plan) -> Measured {
    let nodes = &summary.nodes;
    let steps_per_second = |node: &NodeSummary| node.steps as f64 / node.seconds_in_training;
    Measured {
        method,
        losses: nodes.iter().filter_map(|node| node.validation_loss).collect(),
        sent_bytes: nodes.iter().map(|node| node.bytes_sent).collect(),
        steps_per_second: nodes.iter().map(steps_per_second).collect(),
        is_complete: nodes.len() == plan.base.nodes,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use murmur_sim::compare::{ALL, LEARNING_RATES};

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::compare::wanted;

    #[test]
    fn every_method_that_daemons_have_is_a_run_that_they_take() {
        let Command::Compare(options) = Cli::parse_from(["murmur", "compare", "--real"]).command else { panic!() };
        let plan = wanted::plan(&options).expect("a plan");
        let mut real = 0;
        for method in ALL {
            for manifest in LEARNING_RATES.iter().filter_map(|rate| manifest(&plan, method.kind, *rate)) {
                manifest.validate().unwrap_or_else(|error| panic!("{}: {error}", method.name));
                assert_eq!(RunManifest::from_text(&manifest.canonical_text()), Ok(manifest), "{}", method.name);
                real += 1;
            }
        }
        assert!(real >= 9 * LEARNING_RATES.len(), "{real}");
    }
}

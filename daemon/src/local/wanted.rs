//! What a local swarm is to train: the run, with what the command line says about it, and what holds for all daemons.

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::DataSource;
use murmur_training::Corpus;

use crate::cli::LocalOptions;
use crate::remote::{self, Allowance};
use crate::settings::{NodeSettings, load_run_manifest};
use crate::setup::base_model::take_tokenizer;
use crate::setup::corpus::{built_in_run, corpus_failure};

/// Steps of each daemon where the run sets no end: about a minute of the built-in run on two cores.
const STEPS: u64 = 1200;

/// What holds for all daemons. What is remote is loaded once, and then local for all of them.
pub(super) fn brought(options: &LocalOptions, mut settings: NodeSettings) -> anyhow::Result<NodeSettings> {
    let manifest =
        options.run.as_deref().map(load_run_manifest).transpose()?.unwrap_or_else(|| built_in_run(&settings));
    if remote::is_wanted(&settings, &manifest) {
        remote::bring(&mut settings, &manifest, true, Allowance::unlimited())?;
    }
    take_tokenizer(&mut settings, &manifest)?;
    settings.data.accept_remote = false;
    Ok(settings)
}

/// The run file, with what the command line says about data and steps.
pub(super) fn manifest(options: &LocalOptions, settings: &NodeSettings) -> anyhow::Result<RunManifest> {
    let mut manifest = match &options.run {
        Some(path) => load_run_manifest(path)?,
        None => built_in_run(settings),
    };
    if manifest.schedule.total_steps == 0 {
        manifest.schedule.total_steps = STEPS;
    }
    let complete = |manifest| settings.data.place(None).complete(manifest).map_err(|error| corpus_failure(&error));
    if !settings.data.files.is_empty() {
        if manifest.data.source == DataSource::Grammar {
            manifest.data.source = DataSource::Files;
        }
        manifest.data.digest =
            Corpus::digest_of(manifest.data.source, &settings.data.files).map_err(|error| corpus_failure(&error))?;
        manifest = complete(manifest)?;
    }
    if let Some(steps) = options.steps {
        manifest.schedule.total_steps = steps;
        manifest.schedule.warmup_steps = manifest.schedule.warmup_steps.min(steps / 10);
    }
    Ok(manifest)
}

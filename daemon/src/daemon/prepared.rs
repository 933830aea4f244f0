//! From a plan to a model on its devices, with its data: all that can fail before a daemon shows itself to others.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use murmur_protocol::manifest::DataSource;
use murmur_protocol::{HelperLine, RunManifest, Start};
use murmur_training::team::TeamBase;
use murmur_training::{Corpus, Engine, PretrainedBase, TrainingOptions, clear_prepared};

use super::Plan;
use super::configured::start;
use super::length::unix_seconds;
use crate::console::figures::counted;
use crate::console::{Console, FinishedRun, note, quoted};
use crate::doctor::own_speed;
use crate::failure::{ExitCode, Failure};
use crate::limits::daily_traffic;
use crate::limits::expected_traffic::ExpectedTraffic;
use crate::limits::memory_check::{self, checkpoint_bytes};
use crate::setup::arrangement::{Arranged, Arrangement, Fitted, arrange};
use crate::setup::base_model::{self, ReadBase};
use crate::setup::corpus::open_corpus;
use crate::setup::devices::Devices;
use crate::setup::privacy;
use crate::setup::sharing::{self, SharedData};
use crate::store::{
    Checkpoint, Length, PrivacyLedger, Refused, checkpoints_in, known_end, load_latest, other_than_before,
};
use crate::team::captain::{self, Helpers, Own};

/// How much a file's time of change may be behind the clock: some disks count in two seconds.
const CLOCK_MARGIN: Duration = Duration::from_secs(4);

/// What a daemon trains with, before its drivers start.
pub(super) struct Prepared {
    pub(super) engine: murmur_training::Engine,
    /// Of the checkpoint that it goes on from, in steps of the swarm.
    pub(super) progress: f64,
    /// Whether there is one.
    pub(super) resumed: bool,
    /// For people.
    pub(super) device: String,
    pub(super) device_warning: Option<String>,
    /// What it is expected to send, where that is known.
    pub(super) traffic: Option<ExpectedTraffic>,
    /// Where the run shares its data.
    pub(super) shared: Option<SharedData>,
    /// Where its steps are private.
    pub(super) privacy: Option<PrivacyLedger>,
    /// Where the run was over before this process began.
    pub(super) finished: Option<FinishedRun>,
    /// Where other machines hold a part of the model.
    pub(super) helpers: Option<Helpers>,
}

/// Opens devices, data and the newest checkpoint, and sets up the model, with what is there already.
///
/// # Errors
/// Whatever of these is missing, damaged, too large or not the run's, with its remedy.
pub(super) fn prepare(plan: &Plan, ReadBase { weights: base, fitted }: ReadBase) -> anyhow::Result<Prepared> {
    let training = &plan.settings.training;
    // Before anything is computed.
    let end = known_end(plan.directory.root(), &plan.manifest)?;
    Length::known(plan.directory.root(), unix_seconds())?;
    let (devices, arranged) = match fitted {
        Some(Fitted { devices, arranged }) => (devices, Some(arranged)),
        None => (Devices::open(training)?, None),
    };
    if let Some(warning) = &devices.warning {
        note(&format!("warning: {warning}"));
    }
    let shared = sharing::open(&plan.manifest, &plan.settings, &plan.directory)?;
    if !plan.entry.joins && shared.as_ref().is_some_and(|shared| shared.held.is_empty()) {
        note("warning: none of this run's data is here");
        note("hint: give its files with --data FILE…; until then members that have it are waited for");
    }
    let corpus = match &shared {
        Some(shared) => shared.corpus(),
        None => own_corpus(plan)?,
    };
    let options = devices.options(training);
    let lines = captain::lines(&plan.settings)?;
    // Before the checkpoint takes its memory: steps are tried with a model of their own.
    let arranged = lines.is_empty().then(|| arrange_and_try(plan, (&devices, arranged), &options)).transpose()?;
    let checkpoint = latest_checkpoint(plan)?;
    let resumed = checkpoint.is_some();
    if let Some(before) = other_than_before(plan.directory.root(), &plan.settings.data.files)
        && resumed
    {
        let (before, now) = (named(&before), named(&plan.settings.data.files));
        note(&format!("warning: the model of this folder has learned from {before}, and goes on with {now}"));
        note("hint: give a model of its own to other data: choose another folder with --data-dir");
    }
    let shared = shared.map(|shared| {
        let store = shared.store.keeping_free(checkpoint_bytes(&plan.manifest, options.moments_in_8_bits));
        SharedData { store, ..shared }
    });
    let has_model = resumed || start(plan, resumed) == Start::FromPeer;
    let options = TrainingOptions { weightless: has_model, ..options };
    let (mut engine, helpers, traffic) = match arranged {
        Some((arrangement, traffic)) => (whole(plan, base, &arrangement, corpus, options)?, None, traffic),
        None => {
            let (engine, helpers) = in_team(plan, base, &devices, (corpus, lines), options)?;
            (engine, Some(helpers), None)
        }
    };
    let mut progress = 0.0;
    if let Some(checkpoint) = checkpoint {
        progress = checkpoint.progress;
        engine.restore(checkpoint.state).context("cannot resume from the checkpoint")?;
    }
    let privacy = privacy::begin(&mut engine, &plan.manifest, &plan.settings, plan.directory.root())?;
    let is_over = resumed && end.at().is_some_and(|end| progress >= end);
    // A team is not evaluated before it is there.
    let is_over = is_over && helpers.is_none();
    let finished = is_over.then(|| FinishedRun::look(&mut engine, &plan.manifest, progress)).transpose()?;
    let (device, device_warning) = (devices.name, devices.warning);
    Ok(Prepared { engine, progress, resumed, device, device_warning, traffic, shared, privacy, finished, helpers })
}

/// Files in words.
fn named(files: &[PathBuf]) -> String {
    match files {
        [] => "nothing".to_owned(),
        [only] => quoted(only),
        [first, more @ ..] => format!("{} and {}", quoted(first), counted(more.len() as u64, "more file")),
    }
}

/// The data from this machine's files. Of the folder that only this node uses, what belongs to other data goes.
fn own_corpus(plan: &Plan) -> Result<Corpus, Failure> {
    let own = plan.directory.prepared_path();
    let is_own = plan.settings.data.cache.as_os_str().is_empty();
    let begin = SystemTime::now();
    if is_own {
        // What a killed process has left may take the room that is needed now.
        clear_prepared(&own, SystemTime::UNIX_EPOCH);
    }
    let corpus = open_corpus(&plan.manifest, &plan.settings, Some(own.clone()))?;
    if is_own {
        clear_prepared(&own, begin - CLOCK_MARGIN);
    }
    Ok(corpus)
}

/// A run that is over, or this node's own part of it, where this node was given none of the files that it needs to evaluate the model
/// once more.
///
/// # Errors
/// When it cannot be said whether it is over, or the checkpoint is of another run.
pub(super) fn over_without_data(plan: &Plan) -> Result<Option<FinishedRun>, Failure> {
    let Plan { manifest, settings, directory, .. } = plan;
    let needs_files = manifest.data.source != DataSource::Grammar && !manifest.data.share;
    if !needs_files || !settings.data.files.is_empty() {
        return Ok(None);
    }
    let (end, own_end) = (known_end(directory.root(), manifest)?.at(), settings.training.steps);
    if end.is_none() && own_end == 0 {
        return Ok(None);
    }
    let folder = directory.checkpoints_path();
    let Some(checkpoint) = load_latest(&folder).0 else { return Ok(None) };
    check_run(&checkpoint, manifest, &folder)?;
    let steps = checkpoint.state.counters.steps;
    let (progress, prediction) = (checkpoint.progress, manifest.prediction());
    let is_over = end.is_some_and(|end| progress >= end);
    let has_ended = own_end > 0 && steps >= own_end;
    let finished = FinishedRun { steps, progress, validation_loss: None, scores: None, prediction, is_own: !is_over };
    Ok((is_over || has_ended).then_some(finished))
}

/// Whether a checkpoint in this folder is of the run: another one would be trained on as if it had learned this one's data.
fn check_run(checkpoint: &Checkpoint, manifest: &RunManifest, folder: &Path) -> Result<(), Failure> {
    let of = |manifest: &RunManifest| format!("{:?} ({})", manifest.run.name, manifest.run_id());
    if checkpoint.manifest.run_id() == manifest.run_id() {
        return Ok(());
    }
    let differences = manifest.differences_in(&checkpoint.manifest, ["in the run", "in the checkpoint"]).join("; ");
    let message = format!(
        "the newest checkpoint in {} is of the run {}, and this is {}: {differences}",
        folder.display(),
        of(&checkpoint.manifest),
        of(manifest)
    );
    Err(Failure::new(ExitCode::Files, message).hint(
        "where that is the right run, write the text of `manifest` in its checkpoint.json to run.toml beside that folder; else \
         move the checkpoint away",
    ))
}

/// How the model lies on this machine's devices, and what the node is expected to send.
fn arrange_and_try(
    plan: &Plan,
    (devices, arranged): (&Devices, Option<Arranged>),
    options: &TrainingOptions,
) -> anyhow::Result<(Arrangement, Option<ExpectedTraffic>)> {
    let arrange = || arrange(&plan.manifest, &plan.settings.training, devices);
    let Arranged { arrangement, line } = arranged.map_or_else(arrange, Ok)?;
    line.iter().for_each(|line| note(line));
    check_disk(plan, options)?;
    // A daemon that another program has started, such as `murmur local`, is no news to its owner.
    let expected = (!plan.until_stdin_closes || plan.console == Console::Text)
        .then(|| daily_traffic::tell(&plan.manifest, &plan.settings, &arrangement));
    Ok((arrangement, expected.flatten()))
}

/// The model on this machine's devices.
fn whole(
    plan: &Plan,
    base: Option<PretrainedBase>,
    arrangement: &Arrangement,
    corpus: Corpus,
    options: TrainingOptions,
) -> anyhow::Result<Engine> {
    let weights = base_model::weights(&plan.manifest, &plan.settings, base, options.weightless)?;
    let engine = arrangement.engine(&plan.manifest, weights, corpus, node(plan), options);
    engine.context("cannot set up the model on its device")
}

/// The model on this machine and on its helpers'.
fn in_team(
    plan: &Plan,
    base: Option<PretrainedBase>,
    devices: &Devices,
    (corpus, lines): (Corpus, Vec<HelperLine>),
    options: TrainingOptions,
) -> anyhow::Result<(Engine, Helpers)> {
    let Plan { manifest, settings, identity, console, .. } = plan;
    captain::check(manifest, settings)?;
    check_disk(plan, &options)?;
    let base = match settings.model.base() {
        // Each machine has its layers' weights alone.
        Some(folder) if manifest.lora.is_on() => TeamBase::Folder(folder.to_owned(), manifest.lora.base_bits),
        _ => base_model::weights(manifest, settings, base, options.weightless)?.map_or(TeamBase::None, TeamBase::Held),
    };
    let own = Own { identity, manifest, settings, device: &devices.all[0], options, console: *console };
    // What a team is compared with, as `murmur doctor` measures it.
    note("measuring   some steps of the run's model on this machine alone");
    let speed = own_speed(manifest, settings, devices);
    let (mut team, helpers) = captain::prepare(&own, lines)?;
    team.place.operations_per_second = speed.unwrap_or(team.place.operations_per_second);
    let engine = Engine::in_team(manifest, base, corpus, node(plan), team, options);
    Ok((engine.context("cannot set up the model in a team")?, helpers))
}

/// Whether there is room for checkpoints.
fn check_disk(plan: &Plan, options: &TrainingOptions) -> Result<(), Failure> {
    let needed = checkpoint_bytes(&plan.manifest, options.moments_in_8_bits);
    let there = checkpoints_in(&plan.directory.checkpoints_path());
    let warning = memory_check::check_disk(plan.directory.root(), needed, (plan.settings.checkpoint.keep, there))?;
    warning.iter().for_each(|warning| note(warning));
    Ok(())
}

fn node(plan: &Plan) -> [u8; 32] {
    *murmur_network::peer_id(&plan.identity).as_bytes()
}

/// The newest checkpoint that can be used. One that may be sound is neither passed over nor put aside. Where there are some and all
/// are damaged, a node of a swarm copies the model anew, and one that is alone does not begin at step 0 unasked: its owner may have a
/// backup.
fn latest_checkpoint(plan: &Plan) -> Result<Option<Checkpoint>, Failure> {
    let folder = plan.directory.checkpoints_path();
    Checkpoint::clear_interrupted(&folder);
    let (checkpoint, refused) = load_latest(&folder);
    for refused in &refused {
        note(&format!("warning: checkpoint refused: {}", refused.error));
    }
    checkpoint.iter().try_for_each(|checkpoint| check_run(checkpoint, &plan.manifest, &folder))?;
    if refused.is_empty() {
        return Ok(checkpoint);
    }
    if let Some((refused, remedy)) = refused.iter().find_map(|refused| Some((refused, refused.error.remedy()?))) {
        let message = format!("the checkpoint in {} cannot be used now", refused.path().display());
        return Err(Failure::new(ExitCode::Files, message).hint(remedy));
    }
    let way = match &checkpoint {
        Some(_) => "the one before it is used",
        None if start(plan, false) == Start::FromPeer => "there is no other one; the model is copied from a member",
        None if plan.entry.begins_anew => "there is no other one; the run begins anew at step 0",
        None => {
            let message = format!("no checkpoint in {} can be used", folder.display());
            return Err(Failure::new(ExitCode::Files, message).hint(format!(
                "restore that folder from a backup; or join the run's other members with `murmur join TICKET --data-dir \
                 {}`, which copies the model from them; or lose what was learned and begin at step 0 with --begin-anew",
                plan.directory.root().display()
            )));
        }
    };
    refused.iter().for_each(Refused::set_aside);
    note(&format!("hint: {way}"));
    Ok(checkpoint)
}

#[cfg(test)]
mod tests {
    use murmur_training::{Counters, EngineState};

    use super::*;

    #[test]
    fn a_checkpoint_of_another_run_is_refused_with_both_names() {
        let mut manifest = RunManifest::default();
        manifest.run.name = "ours".to_owned();
        let state = EngineState {
            parameters: Vec::new(),
            first_moment: Vec::new(),
            second_moment: Vec::new(),
            gradient_average: None,
            coded_moments: Default::default(),
            slow_weights: None,
            outer_momentum: None,
            counters: Counters::default(),
        };
        let mut checkpoint = Checkpoint { manifest: manifest.clone(), progress: 7.0, state, evaluation: None };
        let check = |checkpoint: &Checkpoint| check_run(checkpoint, &manifest, Path::new("node/checkpoints"));
        assert!(check(&checkpoint).is_ok());
        checkpoint.manifest.run.name = "theirs".to_owned();
        let failure = check(&checkpoint).expect_err("another run");
        let told = failure.to_string();
        assert!(failure.code() == ExitCode::Files && told.contains("ours") && told.contains("theirs"), "{told}");
        assert!(failure.remedy().contains("checkpoint.json"), "{}", failure.remedy());
    }
}

//! From a plan to a model on its devices, with its data: all that can fail before a daemon shows itself to others.

use anyhow::Context;
use murmur_protocol::Start;
use murmur_training::optimizer::moment_lengths;
use murmur_training::{PretrainedBase, TrainingOptions};

use super::Plan;
use super::configured::start;
use crate::console::{Console, FinishedRun, note};
use crate::failure::{ExitCode, Failure};
use crate::limits::{daily_traffic, memory_check};
use crate::setup::arrangement::{Arranged, arrange};
use crate::setup::corpus::open_corpus;
use crate::setup::devices::Devices;
use crate::setup::sharing::{self, SharedData};
use crate::setup::{base_model, privacy};
use crate::store::{Checkpoint, PrivacyLedger, Refused, known_end, load_latest};

/// What a daemon trains with, before its drivers start.
pub(super) struct Prepared {
    pub(super) engine: murmur_training::Engine,
    /// Of the checkpoint that it goes on from, in steps of the swarm.
    pub(super) progress: f64,
    /// Whether there is one.
    pub(super) resumed: bool,
    /// For people.
    pub(super) device: String,
    /// Where the run shares its data.
    pub(super) shared: Option<SharedData>,
    /// Where its steps are private.
    pub(super) privacy: Option<PrivacyLedger>,
    /// Where the run was over before this process began.
    pub(super) finished: Option<FinishedRun>,
}

/// Opens devices, data and the newest checkpoint, and sets up the model; `base` where it has been read already.
///
/// # Errors
/// Whatever of these is missing, damaged, too large or not the run's, with its remedy.
pub(super) fn prepare(plan: &Plan, base: Option<PretrainedBase>) -> anyhow::Result<Prepared> {
    let training = &plan.settings.training;
    let devices = Devices::open(training)?;
    if let Some(warning) = &devices.warning {
        note(&format!("warning: {warning}"));
    }
    let shared = sharing::open(&plan.manifest, &plan.settings, &plan.directory)?;
    if !plan.joins && shared.as_ref().is_some_and(|shared| shared.held.is_empty()) {
        note("warning: none of this run's data is here");
        note("hint: give its files with --data FILE…; until then members that have it are waited for");
    }
    let corpus = match &shared {
        Some(shared) => shared.corpus(),
        None => open_corpus(&plan.manifest, &plan.settings, Some(plan.directory.prepared_path()))?,
    };
    let node = *murmur_network::peer_id(&plan.identity).as_bytes();
    let checkpoint = latest_checkpoint(plan)?;
    let resumed = checkpoint.is_some();
    let Arranged { arrangement, line } = arrange(&plan.manifest, training, &devices)?;
    line.iter().for_each(|line| note(line));
    let options = devices.options(training);
    let layout = murmur_training::trained_layout(&plan.manifest);
    let moments = moment_lengths(&plan.manifest.optimizer, &layout, options.moments_in_8_bits);
    memory_check::check_disk(plan.directory.root(), (4 * layout.parameters() + moments.bytes()) as u64)?;
    if plan.console == Console::Text {
        daily_traffic::tell(&plan.manifest, &plan.settings, &arrangement);
    }
    let has_model = resumed || start(plan, resumed) == Start::FromPeer;
    let weights = base_model::weights(&plan.manifest, &plan.settings, base, has_model)?;
    let options = TrainingOptions { weightless: has_model, ..options };
    let mut engine = (arrangement.engine(&plan.manifest, weights, corpus, node, options))
        .context("cannot set up the model on its device")?;
    let mut progress = 0.0;
    if let Some(checkpoint) = checkpoint {
        progress = checkpoint.progress;
        engine.restore(checkpoint.state).context("cannot resume from the checkpoint")?;
    }
    let privacy = privacy::begin(&mut engine, &plan.manifest, &plan.settings, plan.directory.root())?;
    let is_over = resumed && known_end(plan.directory.root(), &plan.manifest).at().is_some_and(|end| progress >= end);
    let finished = is_over.then(|| FinishedRun::look(&mut engine, &plan.manifest, progress)).transpose()?;
    Ok(Prepared { engine, progress, resumed, device: devices.name, shared, privacy, finished })
}

/// The newest checkpoint that can be used. Where there are some and all are damaged, a node of a swarm copies the model
/// anew, and one that is alone does not begin at step 0 unasked: its owner may have a backup.
fn latest_checkpoint(plan: &Plan) -> Result<Option<Checkpoint>, Failure> {
    let folder = plan.directory.checkpoints_path();
    let (checkpoint, refused) = load_latest(&folder);
    for refused in &refused {
        note(&format!("warning: checkpoint refused: {}", refused.error));
    }
    if refused.is_empty() {
        return Ok(checkpoint);
    }
    let way = match &checkpoint {
        Some(_) => "the one before it is used",
        None if start(plan, false) == Start::FromPeer => "there is no other one; the model is copied from a member",
        None if plan.begins_anew => "there is no other one; the run begins anew at step 0",
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

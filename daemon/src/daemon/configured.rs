//! What a plan means for the core and for the trainer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use murmur_protocol::{Config, Holding, Name, Start, TrainingReport, bounds};

use super::{Plan, leaving};
use crate::drivers::TrainerSettings;
use crate::failure::Failure;
use crate::settings::NodeSettings;
use crate::store::{PrivacyLedger, known_end};

/// Without a checkpoint, but with a swarm that it belongs to, a cold start would drag that swarm back.
pub(super) fn start(plan: &Plan, resumed: bool) -> Start {
    let has_swarm = plan.entry.joins || (!plan.entry.begins_anew && !plan.directory.remembered_peers().is_empty());
    if !resumed && has_swarm { Start::FromPeer } else { Start::WithModel }
}

pub(super) fn node_config(plan: &Plan, resumed: bool, training: TrainingReport) -> Result<Config, Failure> {
    let remembered = plan.directory.remembered_peers();
    let microseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    Ok(Config {
        name: Name::new(&plan.settings.network.name),
        gossip: plan.manifest.gossip.clone(),
        synchronous: plan.manifest.synchronous.clone(),
        weighs_members: plan.manifest.table.weighs_members(),
        end: known_end(plan.directory.root(), &plan.manifest)?,
        holding: Holding::ALL,
        start: start(plan, resumed),
        training,
        bootstrap: plan.entry.bootstrap.clone(),
        remembered,
        first_number: u64::try_from(microseconds).unwrap_or(u64::MAX / 2),
        state_chunk: bounds::STATE_CHUNK_VALUES,
        upload_bytes_per_second: plan.settings.limits.caps().upload.map(|rate| rate as f64),
        leaving_max: leaving::exchange_max(plan.settings.stay.leave_seconds),
    })
}

pub(super) fn trainer_settings(plan: &Plan, progress: f64, privacy: Option<PrivacyLedger>) -> TrainerSettings {
    let NodeSettings { training, checkpoint, limits, .. } = &plan.settings;
    TrainerSettings {
        manifest: plan.manifest.clone(),
        progress,
        steps_max: (training.steps > 0).then_some(training.steps),
        evaluate_every: (training.evaluate_every > 0).then_some(training.evaluate_every),
        checkpoint_period: (checkpoint.every_seconds > 0).then(|| Duration::from_secs(checkpoint.every_seconds)),
        privacy,
        training_percent: limits.training_percent,
        pace: plan.pace,
    }
}

/// For a core, that decides every random choice that it will ever make.
pub(crate) fn random_seed() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("the system gives no randomness: {error}"))?;
    Ok(u64::from_le_bytes(bytes))
}

//! How fast machines compute a run's model: a team with one helper trains a model of fewer layers for some steps, on data that is
//! made up. Layers are alike, so two of them tell of all, whatever memory the whole takes.

use std::time::{Duration, Instant};

use murmur_protocol::manifest::ModelSpec;
use murmur_protocol::{HelperLine, RunManifest};
use murmur_training::team::TeamBase;
use murmur_training::{Corpus, Engine, TrainingError};

use super::captain::{Own, prepare};
use crate::failure::{ExitCode, Failure};

/// Layers that are tried.
const LAYERS: u32 = 2;

/// Steps are taken for about this long, at least [`STEPS_MIN`].
const MEASURING: Duration = Duration::from_secs(3);

/// The first one is slow.
const STEPS_MIN: u32 = 4;

/// At most so many: tiny models take microseconds.
const STEPS_MAX: u32 = 500;

/// Without a step for so long, the helper is none. It loads its layers first.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The run with so few layers that any machine of use has room for it.
pub(crate) fn shortened(manifest: &RunManifest) -> RunManifest {
    let mut manifest = manifest.clone();
    if let ModelSpec::Transformer(model) = &mut manifest.model {
        model.layers = model.layers.min(LAYERS);
        model.layers_without_rope.retain(|layer| *layer < LAYERS);
    }
    manifest
}

/// Operations a second that a helper reaches with the run's layers. `own.manifest` is the shortened run's.
///
/// # Errors
/// When the helper does not take a stage, or is lost.
pub(crate) fn helper_speed(own: &Own<'_>, line: HelperLine) -> anyhow::Result<f64> {
    let (helper, manifest) = (line.helper, own.manifest);
    let (mut team, helpers) = prepare(own, vec![line])?;
    // Whatever it takes is given away.
    team.place.operations_per_second = 1.0;
    team.on_notice = Box::new(|_| {});
    let view = team.view.clone();
    let base = match manifest.lora.is_on() {
        true => TeamBase::Held(murmur_training::model::drawn_base(manifest)),
        false => TeamBase::None,
    };
    let mut engine = Engine::in_team(manifest, base, Corpus::made_up(manifest), [0; 32], team, own.options)?;
    let (mut steps, mut begin, mut last) = (0, None, Instant::now());
    while steps < STEPS_MIN || (steps < STEPS_MAX && begin.is_some_and(|begin: Instant| begin.elapsed() < MEASURING)) {
        match engine.step(0.0) {
            // A step that is skipped for its numbers takes as long.
            Ok(_) | Err(TrainingError::NotFinite { .. }) => {
                steps += 1;
                last = Instant::now();
                begin.get_or_insert(last);
            }
            Err(TrainingError::TeamWaits(why)) if last.elapsed() > WAIT_MAX => {
                return Err(Failure::new(ExitCode::Network, format!("it computes nothing: {why}"))
                    .hint("see what `murmur lend` says there; it needs memory for two layers at least")
                    .into());
            }
            Err(TrainingError::TeamWaits(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let places = view.status().map(|status| status.places).unwrap_or_default();
    drop(engine);
    drop(helpers);
    let place = places.into_iter().find(|(machine, _)| *machine == helper);
    let (_, place) = place.ok_or_else(|| Failure::new(ExitCode::Network, "it is gone").hint("try again"))?;
    Ok(place.operations_per_second)
}

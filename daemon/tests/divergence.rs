//! The training driver with a model whose loss is no longer a number, that a peer's replaces, or that goes on with the others' alone.

use std::path::Path;
use std::time::Duration;

use murmur::drivers::TrainerSettings;
use murmur::store::load_latest;
use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_protocol::{Correction, Holding, Part, RequestId, Snapshot, TrainerOrder, bounds};

use crate::trainer::{Driven, engine, manifest, settings};

/// A trainer that writes into `folder` often, and how many parameters its model has.
fn start(folder: &Path) -> (Driven, usize) {
    let manifest = manifest();
    let settings = TrainerSettings { checkpoint_period: Some(Duration::from_millis(20)), ..settings(&manifest) };
    let engine = engine(&manifest);
    let parameters = engine.layout().parameters();
    (Driven::start(folder, engine, settings), parameters)
}

#[test]
fn a_diverged_model_ends_training_and_leaves_the_last_good_checkpoint() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (mut driven, parameters) = start(folder.path());
    driven.trainer.try_order(TrainerOrder::Begin).expect("room");
    driven.wait_for(|view| view.steps > 30 && load_latest(folder.path()).0.is_some());

    // Weights so large that every product overflows.
    let blocks = parameters.div_ceil(BLOCK);
    let correction = Correction::new(Codes::Narrow(vec![1; parameters]), vec![f32::MAX / 2.0; blocks]);
    let order =
        TrainerOrder::ApplyCorrection { request: RequestId(1), part: Part::MODEL, correction, progress_shift: 0.0 };
    driven.trainer.try_order(order).expect("room");
    let view = driven.wait_for(|view| view.failure.is_some());
    let reason = view.failure.expect("as waited for");
    assert!(reason.contains(&format!("diverged at step {}", view.steps + 1)), "{reason}");
    assert!(reason.contains("gradient norm NaN"), "{reason}");

    // Also where the run would have ended with an evaluation and a last checkpoint.
    driven.trainer.finish(true).expect("nothing was to be written");
    let (checkpoint, refused) = load_latest(folder.path());
    let state = checkpoint.expect("the last good one").state;
    assert!(refused.is_empty() && state.counters.steps <= view.steps);
    assert!(state.parameters.iter().all(|value| value.abs() < 1e3), "the model of before");
}

#[test]
fn a_model_that_a_peer_s_replaces_is_kept_beside_the_checkpoints() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let checkpoints = folder.path().join("checkpoints");
    std::fs::create_dir(&checkpoints).expect("a temporary directory can be written");
    let replaced = folder.path().join("replaced");
    let (mut driven, parameters) = start(&checkpoints);
    let state = |value: f32| {
        let values = bounds::state_bytes(parameters) / 4;
        TrainerOrder::LoadState {
            request: RequestId(1),
            chunks: vec![Snapshot::from(vec![value; values]).to_payload()],
            holding: Holding::ALL,
            progress: 500.0,
        }
    };
    // A joiner's first copy replaces nothing that anybody has learned.
    driven.trainer.try_order(state(0.01)).expect("room");
    driven.trainer.try_order(TrainerOrder::Begin).expect("room");
    let before = driven.wait_for(|view| view.steps > 10 && view.progress > 500.0).steps;
    assert!(!replaced.exists());

    driven.trainer.try_order(state(0.02)).expect("room");
    driven.wait_for(|_| load_latest(&replaced).0.is_some());
    // Others doubt the copy, and it gives way to another one: what it was is nobody's work.
    driven.trainer.try_order(state(0.03)).expect("room");
    driven.trainer.finish(false).expect("the disk has room");
    let (kept, _) = load_latest(&replaced);
    let kept = kept.expect("as waited for").state;
    assert!(kept.counters.steps >= before, "{} and {before}", kept.counters.steps);
    assert!(kept.parameters.iter().any(|value| (value - 0.02).abs() > 0.005), "the model of before");
}

/// A founder orders the run's end by what it shows, also where its own steps are over.
#[test]
fn who_has_ended_shows_how_far_exchanges_bring_it() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let manifest = manifest();
    let engine = engine(&manifest);
    let parameters = engine.layout().parameters();
    let settings = TrainerSettings { steps_max: Some(3), ..settings(&manifest) };
    let mut driven = Driven::start(folder.path(), engine, settings);
    driven.trainer.try_order(TrainerOrder::Begin).expect("room");
    driven.wait_for(|view| view.steps == 3);
    driven.trainer.try_order(TrainerOrder::Complete).expect("room");
    driven.wait_for(|view| view.completed);
    let correction = Correction::new(Codes::Narrow(vec![0; parameters]), vec![0.0; parameters.div_ceil(BLOCK)]);
    let order =
        TrainerOrder::ApplyCorrection { request: RequestId(1), part: Part::MODEL, correction, progress_shift: 50.0 };
    driven.trainer.try_order(order).expect("room");
    let view = driven.wait_for(|view| view.progress >= 53.0);
    assert_eq!((view.steps, view.completed), (3, true), "what else is shown stays");
    driven.trainer.finish(false).expect("nothing was to be written");
}

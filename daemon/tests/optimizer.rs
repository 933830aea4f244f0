//! The training driver of a run whose second moments follow the number of members.

use murmur::drivers::TrainerSettings;
use murmur::store::load_latest;
use murmur_protocol::TrainerOrder;
use murmur_protocol::manifest::OptimizerKind;

use crate::trainer::{Driven, engine, manifest, settings};

const STEPS: u64 = 12;

#[test]
fn the_optimizer_is_told_with_how_many_members_its_model_is_averaged() {
    let mut manifest = manifest();
    (manifest.optimizer.kind, manifest.optimizer.match_batch) = (OptimizerKind::Muon, true);
    let expected = |members: f64| {
        let mut engine = engine(&manifest);
        engine.set_members(members);
        for step in 0..STEPS {
            engine.step(step as f64).expect("a step");
        }
        engine.save().expect("a state")
    };

    let folder = tempfile::tempdir().expect("a temporary directory");
    let settings = TrainerSettings { steps_max: Some(STEPS), ..settings(&manifest) };
    let mut driven = Driven::start(folder.path(), engine(&manifest), settings);
    driven.trainer.try_order(TrainerOrder::MatchBatch { members: 8.0 }).expect("room");
    driven.trainer.try_order(TrainerOrder::Begin).expect("room");
    driven.wait_for(|view| view.steps >= STEPS);
    driven.trainer.finish(true).expect("written");
    let (checkpoint, refused) = load_latest(folder.path());
    let state = checkpoint.expect("the last one").state;
    assert!(refused.is_empty() && state == expected(8.0));
    assert!(state.parameters != expected(1.0).parameters, "it makes a difference");
}

//! The training driver of a run whose second moments follow the number of members.

use std::time::{Duration, Instant};

use murmur::drivers::{Trainer, TrainerSettings};
use murmur::store::{CheckpointWriter, load_latest};
use murmur_protocol::manifest::{OptimizerKind, TransformerModel};
use murmur_protocol::{RunManifest, TrainerOrder};
use murmur_training::{Corpus, Device, Engine};
use tokio::sync::mpsc;

/// Everything here happens within this, or fails.
const DEADLINE: Duration = Duration::from_secs(60);

const STEPS: u64 = 12;

#[test]
fn the_optimizer_is_told_with_how_many_members_its_model_is_averaged() {
    let model =
        TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    (manifest.optimizer.kind, manifest.optimizer.match_batch) = (OptimizerKind::Muon, true);
    let engine = || Engine::new(&manifest, Corpus::grammar(), [1; 32], Device::Cpu).expect("an engine");
    let expected = |members: f64| {
        let mut engine = engine();
        engine.set_members(members);
        for step in 0..STEPS {
            engine.step(step as f64).expect("a step");
        }
        engine.save().expect("a state")
    };

    let folder = tempfile::tempdir().expect("a temporary directory");
    let (events, _facts) = mpsc::channel(64);
    let (_shards, arrivals) = mpsc::channel(1);
    let trained = engine();
    let writer = CheckpointWriter::start(folder.path().to_owned(), trained.layout().clone(), 2);
    let settings = TrainerSettings {
        manifest: manifest.clone(),
        progress: 0.0,
        steps_max: Some(STEPS),
        evaluate_every: None,
        checkpoint_period: None,
        privacy: None,
        training_percent: 100.0,
        pace: None,
    };
    let trainer = Trainer::start(trained, settings, events, writer, arrivals);
    trainer.try_order(TrainerOrder::MatchBatch { members: 8.0 }).expect("room");
    trainer.try_order(TrainerOrder::Begin).expect("room");
    let begin = Instant::now();
    while trainer.view().borrow().steps < STEPS {
        assert!(begin.elapsed() < DEADLINE, "{:?}", trainer.view().borrow());
        std::thread::sleep(Duration::from_millis(5));
    }
    trainer.finish(true).expect("written");
    let (checkpoint, refused) = load_latest(folder.path());
    let state = checkpoint.expect("the last one").state;
    assert!(refused.is_empty() && state == expected(8.0));
    assert!(state.parameters != expected(1.0).parameters, "it makes a difference");
}

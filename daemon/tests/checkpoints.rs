//! Checkpoints of the training driver that somebody asks for.

use std::time::{Duration, Instant};

use murmur::drivers::{CheckpointRequests, NotSaved, SavedCheckpoint, Trainer, TrainerSettings};
use murmur::store::{Checkpoint, CheckpointWriter};
use murmur_protocol::manifest::TransformerModel;
use murmur_protocol::{Event, RunManifest, TrainerOrder};
use murmur_training::{Corpus, Device, Engine};
use tokio::sync::mpsc;

/// Everything in these tests happens within this, or fails.
const DEADLINE: Duration = Duration::from_secs(60);

fn trainer(folder: &std::path::Path) -> (Trainer, mpsc::Receiver<Event>, mpsc::Sender<murmur::drivers::Arrival>) {
    let model =
        TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
    let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    let engine = Engine::new(&manifest, Corpus::grammar(), [1; 32], Device::Cpu).expect("an engine");
    let (sender, events) = mpsc::channel(64);
    let (shards, arrivals) = mpsc::channel(1);
    let writer = CheckpointWriter::start(folder.to_owned(), engine.layout().clone(), 2);
    // Only on request: nothing is due by itself while the test runs.
    let settings = TrainerSettings {
        manifest,
        progress: 0.0,
        steps_max: None,
        evaluate_every: None,
        checkpoint_period: None,
        privacy: None,
        training_percent: 100.0,
        pace: None,
    };
    (Trainer::start(engine, settings, sender, writer, arrivals), events, shards)
}

async fn ask(requests: &CheckpointRequests) -> Result<SavedCheckpoint, NotSaved> {
    tokio::time::timeout(DEADLINE, requests.write()).await.expect("an answer in time")
}

#[tokio::test]
async fn a_checkpoint_is_written_on_request_while_training_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (trainer, mut events, _shards) = trainer(folder.path());
    let requests = trainer.checkpoints();
    assert_eq!(ask(&requests).await, Err(NotSaved::NoModel), "a joiner has nothing to save");

    trainer.try_order(TrainerOrder::Begin).expect("room");
    let begin = Instant::now();
    while trainer.view().borrow().steps < 5 {
        while events.try_recv().is_ok() {}
        assert!(begin.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let saved = ask(&requests).await.expect("written");
    let checkpoint = Checkpoint::read(&saved.path).expect("whole, and on disk before the answer");
    assert_eq!(checkpoint.state.counters.steps, saved.steps);
    assert!(saved.steps >= 5);
    let later = trainer.view().borrow().steps;
    let again = ask(&requests).await.expect("written");
    assert!(again.steps >= later, "each is of its own moment");

    // Whoever still holds the handle neither keeps the trainer running nor waits for it.
    tokio::task::spawn_blocking(|| trainer.finish(true)).await.expect("no panic").expect("written");
    assert_eq!(ask(&requests).await, Err(NotSaved::Ended));
}

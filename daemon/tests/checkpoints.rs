//! Checkpoints of the training driver that somebody asks for.

use murmur::drivers::{CheckpointRequests, NotSaved, SavedCheckpoint};
use murmur::store::Checkpoint;
use murmur_protocol::TrainerOrder;

use crate::trainer::{DEADLINE, Driven, engine, manifest, settings};

async fn ask(requests: &CheckpointRequests) -> Result<SavedCheckpoint, NotSaved> {
    tokio::time::timeout(DEADLINE, requests.write()).await.expect("an answer in time")
}

#[tokio::test]
async fn a_checkpoint_is_written_on_request_while_training_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let manifest = manifest();
    let mut driven = Driven::start(folder.path(), engine(&manifest), settings(&manifest));
    let requests = driven.trainer.checkpoints();
    assert_eq!(ask(&requests).await, Err(NotSaved::NoModel), "a joiner has nothing to save");

    driven.trainer.try_order(TrainerOrder::Begin).expect("room");
    driven.wait_for(|view| view.steps >= 5);
    let saved = ask(&requests).await.expect("written");
    let checkpoint = Checkpoint::read(&saved.path).expect("whole, and on disk before the answer");
    assert_eq!(checkpoint.state.counters.steps, saved.steps);
    assert!(saved.steps >= 5);
    let later = driven.trainer.view().borrow().steps;
    let again = ask(&requests).await.expect("written");
    assert!(again.steps >= later, "each is of its own moment");

    // Whoever still holds the handle neither keeps the trainer running nor waits for it.
    tokio::task::spawn_blocking(|| driven.trainer.finish(true)).await.expect("no panic").expect("written");
    assert_eq!(ask(&requests).await, Err(NotSaved::Ended));
}

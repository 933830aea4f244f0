//! Checkpoints of the training driver that somebody asks for.

use murmur::drivers::{CheckpointRequests, NotSaved, SavedCheckpoint};
use murmur::store::Checkpoint;
use murmur_protocol::{Ending, FinishOrder, TrainerOrder};

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

/// The founder may set a later end when some have come to the earlier one.
#[test]
fn who_trains_on_to_a_later_end_writes_its_last_checkpoint_anew() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let manifest = manifest();
    let mut driven = Driven::start(folder.path(), engine(&manifest), settings(&manifest));
    for (serial, until) in [(1, 4.0), (2, 8.0)] {
        let order = FinishOrder { serial, ending: Ending { from: 2.0, until }, signature: [0; 64] };
        driven.trainer.try_order(TrainerOrder::Finish(order)).expect("room");
        driven.trainer.try_order(TrainerOrder::Begin).expect("room");
        driven.wait_for(|view| view.progress >= until);
        driven.trainer.try_order(TrainerOrder::Complete).expect("room");
        driven.wait_for(|view| view.completed);
    }
    driven.trainer.finish(false).expect("it ends");
    let steps = |entry: std::io::Result<std::fs::DirEntry>| {
        Checkpoint::read(&entry.expect("readable").path()).expect("whole").state.counters.steps
    };
    let mut written: Vec<u64> = std::fs::read_dir(folder.path()).expect("there").map(steps).collect();
    written.sort_unstable();
    assert_eq!(written, [4, 8]);
}

/// A disk that is full when the run is over, and has room again before the daemon ends.
#[test]
fn a_last_checkpoint_that_could_not_be_written_is_written_when_the_node_leaves() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let checkpoints = folder.path().join("checkpoints");
    let manifest = manifest();
    for is_mended in [true, false] {
        // Nothing can be written there.
        std::fs::write(&checkpoints, "").expect("written");
        let mut driven = Driven::start(&checkpoints, engine(&manifest), settings(&manifest));
        let order = FinishOrder { serial: 1, ending: Ending { from: 2.0, until: 4.0 }, signature: [0; 64] };
        driven.trainer.try_order(TrainerOrder::Finish(order)).expect("room");
        driven.trainer.try_order(TrainerOrder::Begin).expect("room");
        driven.wait_for(|view| view.progress >= 4.0);
        driven.trainer.try_order(TrainerOrder::Complete).expect("room");
        driven.wait_for(|view| view.completed);
        if is_mended {
            std::fs::remove_file(&checkpoints).expect("there");
            // The writer, which tries again, may have made it by now.
            std::fs::create_dir_all(&checkpoints).expect("made");
        }
        assert_eq!(driven.trainer.finish(true).is_ok(), is_mended);
        if is_mended {
            assert_eq!(std::fs::read_dir(&checkpoints).expect("there").count(), 1);
            std::fs::remove_dir_all(&checkpoints).expect("removed");
        }
    }
}

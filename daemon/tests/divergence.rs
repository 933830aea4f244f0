//! The training driver with a model whose loss is no longer a number, or that a peer's replaces.

use std::path::Path;
use std::time::{Duration, Instant};

use murmur::drivers::{Trainer, TrainerSettings, TrainingView};
use murmur::store::{CheckpointWriter, load_latest};
use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_protocol::manifest::TransformerModel;
use murmur_protocol::{Correction, Event, Holding, Part, RequestId, RunManifest, Snapshot, TrainerOrder, bounds};
use murmur_training::{Corpus, Device, Engine};
use tokio::sync::mpsc;

/// Everything in these tests happens within this, or fails.
const DEADLINE: Duration = Duration::from_secs(60);

/// A trainer that writes into `folder`, and what keeps it going.
struct Bench {
    trainer: Trainer,
    parameters: usize,
    events: mpsc::Receiver<Event>,
    _shards: mpsc::Sender<murmur::drivers::Arrival>,
}

impl Bench {
    fn start(folder: &Path) -> Bench {
        let model =
            TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
        let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        let engine = Engine::new(&manifest, Corpus::grammar(), [1; 32], Device::Cpu).expect("an engine");
        let layout = engine.layout().clone();
        let (sender, events) = mpsc::channel(64);
        let (shards, arrivals) = mpsc::channel(1);
        let writer = CheckpointWriter::start(folder.to_owned(), layout.clone(), 2);
        let settings = TrainerSettings {
            manifest,
            progress: 0.0,
            steps_max: None,
            evaluate_every: None,
            checkpoint_period: Some(Duration::from_millis(20)),
            privacy: None,
            training_percent: 100.0,
            pace: None,
        };
        let trainer = Trainer::start(engine, settings, sender, writer, arrivals);
        Bench { trainer, parameters: layout.parameters(), events, _shards: shards }
    }

    /// Waits for the view to be so, taking the facts off the queue meanwhile.
    fn wait_for(&mut self, what: impl Fn(&TrainingView) -> bool) -> TrainingView {
        let begin = Instant::now();
        loop {
            while self.events.try_recv().is_ok() {}
            let view = self.trainer.view().borrow().clone();
            if what(&view) {
                return view;
            }
            assert!(begin.elapsed() < DEADLINE, "{view:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_diverged_model_ends_training_and_leaves_the_last_good_checkpoint() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut bench = Bench::start(folder.path());
    bench.trainer.try_order(TrainerOrder::Begin).expect("room");
    bench.wait_for(|view| view.steps > 30 && load_latest(folder.path()).0.is_some());

    // Weights so large that every product overflows.
    let blocks = bench.parameters.div_ceil(BLOCK);
    let correction = Correction::new(Codes::Narrow(vec![1; bench.parameters]), vec![f32::MAX / 2.0; blocks]);
    let order =
        TrainerOrder::ApplyCorrection { request: RequestId(1), part: Part::MODEL, correction, progress_shift: 0.0 };
    bench.trainer.try_order(order).expect("room");
    let view = bench.wait_for(|view| view.failure.is_some());
    let reason = view.failure.expect("as waited for");
    assert!(reason.contains(&format!("diverged at step {}", view.steps + 1)), "{reason}");
    assert!(reason.contains("gradient norm NaN"), "{reason}");

    // Also where the run would have ended with an evaluation and a last checkpoint.
    bench.trainer.finish(true).expect("nothing was to be written");
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
    let mut bench = Bench::start(&checkpoints);
    let state = |bench: &Bench, value: f32| {
        let values = bounds::state_bytes(bench.parameters) / 4;
        TrainerOrder::LoadState {
            request: RequestId(1),
            chunks: vec![Snapshot::from(vec![value; values]).to_payload()],
            holding: Holding::ALL,
            progress: 500.0,
        }
    };
    // A joiner's first copy replaces nothing that anybody has learned.
    let first = state(&bench, 0.01);
    bench.trainer.try_order(first).expect("room");
    bench.trainer.try_order(TrainerOrder::Begin).expect("room");
    let before = bench.wait_for(|view| view.steps > 10 && view.progress > 500.0).steps;
    assert!(!replaced.exists());

    let second = state(&bench, 0.02);
    bench.trainer.try_order(second).expect("room");
    bench.wait_for(|_| load_latest(&replaced).0.is_some());
    // Others doubt the copy, and it gives way to another one: what it was is nobody's work.
    let third = state(&bench, 0.03);
    bench.trainer.try_order(third).expect("room");
    bench.trainer.finish(false).expect("the disk has room");
    let (kept, _) = load_latest(&replaced);
    let kept = kept.expect("as waited for").state;
    assert!(kept.counters.steps >= before, "{} and {before}", kept.counters.steps);
    assert!(kept.parameters.iter().any(|value| (value - 0.02).abs() > 0.005), "the model of before");
}

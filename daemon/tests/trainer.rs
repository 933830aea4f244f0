//! A training driver under test: a small model, and what keeps it going.

use std::path::Path;
use std::time::{Duration, Instant};

use murmur::drivers::{Arrival, Trainer, TrainerSettings, TrainingView};
use murmur::store::CheckpointWriter;
use murmur_protocol::manifest::TransformerModel;
use murmur_protocol::{Event, RunManifest};
use murmur_training::{Corpus, Device, Engine};
use tokio::sync::mpsc;

/// Everything in tests of trainers happens within this, or fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A run of so small a model that a step takes about a millisecond.
pub(crate) fn manifest() -> RunManifest {
    let model =
        TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
    RunManifest { model: model.into(), ..RunManifest::default() }
}

/// On the built-in stories, before any step.
pub(crate) fn engine(manifest: &RunManifest) -> Engine {
    Engine::new(manifest, Corpus::grammar(), [1; 32], Device::Cpu).expect("an engine")
}

/// With these nothing is due by itself while a test runs.
pub(crate) fn settings(manifest: &RunManifest) -> TrainerSettings {
    TrainerSettings {
        manifest: manifest.clone(),
        progress: 0.0,
        steps_max: None,
        evaluate_every: None,
        checkpoint_period: None,
        privacy: None,
        training_percent: 100.0,
        pace: None,
    }
}

/// A trainer that has not begun.
pub(crate) struct Driven {
    pub(crate) trainer: Trainer,
    pub(crate) events: mpsc::Receiver<Event>,
    _shards: mpsc::Sender<Arrival>,
}

impl Driven {
    /// It writes its checkpoints into this folder.
    pub(crate) fn start(checkpoints: &Path, engine: Engine, settings: TrainerSettings) -> Driven {
        let (sender, events) = mpsc::channel(64);
        let (shards, arrivals) = mpsc::channel(1);
        let writer = CheckpointWriter::start(checkpoints.to_owned(), engine.layout().clone(), 2);
        Driven { trainer: Trainer::start(engine, settings, sender, writer, arrivals), events, _shards: shards }
    }

    /// Waits for the view to be so, taking the facts off the queue meanwhile.
    pub(crate) fn wait_for(&mut self, what: impl Fn(&TrainingView) -> bool) -> TrainingView {
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

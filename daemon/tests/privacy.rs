//! The trainer with private steps: all of them are in the ledger before they are taken, and it ends at the budget.

use std::path::Path;
use std::time::Instant;

use murmur::drivers::{NotSaved, TrainerSettings};
use murmur::store::{PRIVACY_FILE, PrivacyLedger};
use murmur_protocol::manifest::DataSource;
use murmur_protocol::{Event, TrainerOrder};
use murmur_training::privacy::{Budget, Mechanism, PrivateSteps, SecretKey};
use murmur_training::{Corpus, Device, Engine};

use crate::trainer::{DEADLINE, Driven, manifest, settings};

const BUDGET: Budget = Budget { epsilon: 1.2, delta: 1e-5 };

struct Bench {
    driven: Driven,
    mechanism: Mechanism,
}

impl Bench {
    fn start(folder: &Path) -> Bench {
        Bench::start_after(folder, || ())
    }

    /// `before` the first step, with the ledger open already.
    fn start_after(folder: &Path, before: impl FnOnce()) -> Bench {
        let mut manifest = manifest();
        manifest.data.source = DataSource::Files;
        manifest.optimizer.batch_sequences = 2;
        let bytes = (0..4000).map(|index| (index * 7 % 251) as u8).collect();
        let corpus = Corpus::from_bytes(bytes, &manifest.data, 16).expect("text");
        let mut engine = Engine::new(&manifest, corpus, [1; 32], Device::Cpu).expect("an engine");
        let steps = PrivateSteps { clip: 1.0, noise: 1.0 };
        let mechanism = engine.train_privately(steps, SecretKey::new([8; 32])).expect("text");
        let ledger = PrivacyLedger::open(folder, mechanism, BUDGET).expect("a ledger");
        let settings = TrainerSettings { privacy: Some(ledger), ..settings(&manifest) };
        let driven = Driven::start(&folder.join("checkpoints"), engine, settings);
        before();
        driven.trainer.try_order(TrainerOrder::Begin).expect("room");
        Bench { driven, mechanism }
    }

    /// As a process that ends: once this returns, nobody writes to the ledger any more.
    fn end(self) {
        self.driven.trainer.finish(false).expect("nothing was to be saved");
    }

    /// Waits until training is complete or a moment of it is as wished, and looks at the ledger meanwhile. Returns own steps.
    fn run(&mut self, folder: &Path, is_enough: impl Fn(u64) -> bool) -> u64 {
        let begin = Instant::now();
        loop {
            // Taken first: what is written later counts more steps, never fewer.
            let taken = self.driven.trainer.report().steps;
            let counted = PrivacyLedger::open(folder, self.mechanism, BUDGET).expect("a ledger").steps();
            assert!(counted >= taken, "{taken} steps taken, {counted} counted");
            match self.driven.events.try_recv() {
                Ok(Event::TrainingCompleted(report)) => return report.steps,
                _ if is_enough(taken) => return taken,
                _ => std::thread::yield_now(),
            }
            assert!(begin.elapsed() < DEADLINE, "{taken} steps");
        }
    }
}

#[test]
fn training_ends_at_the_budget_whatever_the_checkpoint_that_it_goes_on_from() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let folder = folder.path();
    let mut bench = Bench::start(folder);
    let all = PrivacyLedger::open(folder, bench.mechanism, BUDGET).expect("a ledger");
    let budgeted = all.steps_left() + all.steps();
    assert!(budgeted > 60, "{budgeted}");
    let first = bench.run(folder, |steps| steps >= 20);
    let mechanism = bench.mechanism;
    bench.end();
    // Ended, and begun again from a checkpoint of before the first step.
    let counted = PrivacyLedger::open(folder, mechanism, BUDGET).expect("a ledger").steps();
    assert!(counted >= first && counted <= budgeted);
    let mut bench = Bench::start(folder);
    let second = bench.run(folder, |_| false);
    assert_eq!(counted + second, budgeted, "what was counted once is spent");
    let ledger = PrivacyLedger::open(folder, bench.mechanism, BUDGET).expect("a ledger");
    assert!(ledger.epsilon() <= BUDGET.epsilon && ledger.steps_left() == 0);
    let report = bench.driven.trainer.view().borrow().privacy.expect("steps are private");
    assert_eq!((report.steps_left, report.epsilon), (0, ledger.epsilon()));
    bench.end();
    assert_eq!(Bench::start(folder).run(folder, |_| false), 0, "a third life takes no step");
}

#[test]
fn no_step_is_taken_while_the_ledger_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // A folder in the ledger's place cannot be replaced by a file.
    let obstacle = folder.path().join(PRIVACY_FILE);
    let mut bench = Bench::start_after(folder.path(), || std::fs::create_dir(&obstacle).expect("made"));
    let checkpoints = bench.driven.trainer.checkpoints();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ask =
        || runtime.block_on(async { tokio::time::timeout(DEADLINE, checkpoints.write()).await }).expect("in time");
    while ask() == Err(NotSaved::NoModel) {}
    // It has begun: it writes checkpoints, and has had many occasions for a step.
    for _ in 0..3 {
        assert_eq!(ask().map(|saved| saved.steps), Ok(0));
    }
    std::fs::remove_dir(&obstacle).expect("removed");
    assert!(bench.run(folder.path(), |steps| steps > 0) > 0);
}

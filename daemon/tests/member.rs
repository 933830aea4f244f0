//! The training driver of a synchronous run: which batch a contribution is of.

use std::time::Instant;

use murmur::drivers::TrainerSettings;
use murmur_protocol::manifest::{SynchronousSpec, Topology};
use murmur_protocol::scheme::Scheme;
use murmur_protocol::{Event, RequestId, RunManifest, Snapshot, TrainerOrder};
use murmur_training::Engine;

use crate::trainer::{DEADLINE, Driven, engine, manifest, settings};

struct Member {
    driven: Driven,
    asked: u64,
}

impl Member {
    async fn reply(&mut self, order: impl FnOnce(RequestId) -> TrainerOrder) -> Event {
        self.order(order);
        self.next_reply().await
    }

    fn order(&mut self, order: impl FnOnce(RequestId) -> TrainerOrder) {
        self.asked += 1;
        self.driven.trainer.try_order(order(RequestId(self.asked))).expect("room");
    }

    async fn next_reply(&mut self) -> Event {
        loop {
            let fact = tokio::time::timeout(DEADLINE, self.driven.events.recv()).await.expect("in time");
            match fact.expect("the trainer lives") {
                Event::StepsCompleted(_) => {}
                reply => return reply,
            }
        }
    }

    async fn contribution(&mut self) -> Snapshot {
        self.order(|request| TrainerOrder::Contribute { request });
        self.contributed().await
    }

    async fn contributed(&mut self) -> Snapshot {
        match self.next_reply().await {
            Event::Contributed { contribution, .. } => contribution,
            other => panic!("{other:?}"),
        }
    }

    /// Its first contribution. Asked for before it begins: until it is asked it steps by itself.
    async fn first_contribution(&mut self) -> Snapshot {
        self.order(|request| TrainerOrder::Contribute { request });
        self.driven.trainer.try_order(TrainerOrder::Begin).expect("room");
        self.contributed().await
    }

    async fn load(&mut self, replica: &Snapshot, progress: f64) {
        let replica = replica.to_payload();
        let loaded = self.reply(|request| TrainerOrder::LoadReplica { request, replica, progress }).await;
        assert!(matches!(loaded, Event::StateLoaded { accepted: true, .. }), "{loaded:?}");
    }
}

/// A member with this pace that has not begun, its engine before any step, and the folder of its checkpoints. `steps`: of the run,
/// and of its own.
fn new_member(pace: Option<&str>, steps: Option<(u64, u64)>) -> (Member, impl Fn() -> Engine, tempfile::TempDir) {
    let mut manifest = manifest();
    manifest.synchronous = SynchronousSpec { topology: Topology::Ring, ..SynchronousSpec::default() };
    manifest.schedule.total_steps = steps.map_or(manifest.schedule.total_steps, |(total, _)| total);
    let settings = TrainerSettings {
        steps_max: steps.map(|(_, own)| own),
        pace: pace.map(|pace| pace.parse().expect("a pace")),
        ..settings(&manifest)
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let driven = Driven::start(&folder.path().join("checkpoints"), engine(&manifest), settings);
    (Member { driven, asked: 0 }, move || engine(&manifest), folder)
}

#[tokio::test]
async fn a_contribution_takes_as_long_as_its_pace_says_and_longer_once_it_says_so() {
    let (mut member, _, _folder) = new_member(Some("0.1,0.15,0.4"), None);
    member.driven.trainer.try_order(TrainerOrder::Begin).expect("room");
    let begin = Instant::now();
    let mut took = Vec::new();
    for _ in 0..4 {
        let before = begin.elapsed().as_secs_f64();
        member.contribution().await;
        took.push(begin.elapsed().as_secs_f64() - before);
    }
    // The second begins a tenth of a second after the first, the third later than it may be fast.
    assert!(took[..2].iter().all(|took| *took >= 0.1) && took[2..].iter().all(|took| *took >= 0.4), "{took:?}");
    member.driven.trainer.finish(false).expect("it ends");
}

#[tokio::test]
async fn what_is_begun_anew_is_of_the_same_batch_and_what_was_averaged_is_of_the_next_one() {
    let (mut member, engine, _folder) = new_member(None, None);
    let beginning = engine().replica().expect("on the CPU");
    let first = member.first_contribution().await;
    assert_eq!(member.contribution().await, first, "the all-reduce is begun anew");
    member.load(&beginning, 0.0).await;
    assert_eq!(member.contribution().await, first, "with another member's replica of the same progress");
    member.load(&beginning, 1.0).await;
    let second = member.contribution().await;
    assert_ne!(second, first, "the others have taken up the first batch");

    member
        .driven
        .trainer
        .try_order(TrainerOrder::TakeUp { sum: second.clone(), members: 1, progress: 2.0 })
        .expect("room");
    let third = member.contribution().await;
    member.load(&beginning, 2.0).await;
    let third_from_the_beginning = member.contribution().await;
    assert_ne!(third, third_from_the_beginning, "the model has moved in between");
    let mut expected = engine();
    for batch in [&first, &second, &third_from_the_beginning] {
        assert_eq!(&Snapshot::from(expected.gradient_of_next_batch().expect("on the CPU").values), batch);
    }
    member.driven.trainer.finish(false).expect("it ends");
}

/// Whoever is back first after a power cut goes on with what it has, and the others copy that.
#[tokio::test]
async fn a_model_that_an_older_one_replaces_is_kept() {
    let (mut member, engine, folder) = new_member(None, None);
    let replica = engine().replica().expect("on the CPU");
    member.first_contribution().await;
    member.load(&replica, 5.0).await;
    let replaced = folder.path().join("replaced");
    assert!(!replaced.exists(), "a newer one costs nothing that the others have not");
    member.load(&replica, 2.0).await;
    member.driven.trainer.finish(false).expect("it ends");
    assert_eq!(std::fs::read_dir(&replaced).expect("kept").count(), 1);
}

#[tokio::test]
async fn its_speed_is_that_of_all_who_wait_for_each_other() {
    let (mut member, _, _folder) = new_member(None, None);
    // From the beginning: else it would step by itself until it is asked.
    member.driven.trainer.try_order(TrainerOrder::Average(Scheme::AllReduce)).expect("room");
    member.driven.trainer.try_order(TrainerOrder::Begin).expect("room");
    let wait = std::time::Duration::from_millis(300);
    for step in 1..=3 {
        let sum = member.contribution().await;
        // The slowest member's is not here yet.
        tokio::time::sleep(wait).await;
        let progress = f64::from(step);
        member.driven.trainer.try_order(TrainerOrder::TakeUp { sum, members: 1, progress }).expect("room");
    }
    member.contribution().await;
    let view = member.driven.trainer.view().borrow().clone();
    assert!(view.steps == 3 && view.step_seconds >= wait.as_secs_f64(), "{view:?}");
    let told = view.tokens_per_second * view.step_seconds;
    let batch = RunManifest::default().optimizer.batch_sequences * 16;
    assert!((told - f64::from(batch)).abs() < 1.0, "{told} of {batch}");
    member.driven.trainer.finish(false).expect("it ends");
}

/// Nobody is left to take more of its own steps with.
#[tokio::test]
async fn who_came_late_ends_with_its_run_whatever_own_steps_it_was_given() {
    let (mut member, engine, _folder) = new_member(None, Some((2, 2)));
    member.first_contribution().await;
    member.load(&engine().replica().expect("on the CPU"), 1.0).await;
    let sum = member.contribution().await;
    match member.reply(|_| TrainerOrder::TakeUp { sum, members: 1, progress: 2.0 }).await {
        Event::TrainingCompleted(report) => assert_eq!((report.steps, report.progress), (1, 2.0)),
        other => panic!("{other:?}"),
    }
    member.driven.trainer.finish(false).expect("it ends");
}

//! A node whose owner wants the network left alone: it goes on training, and neither starts nor answers anything large.

use std::time::Duration;

use murmur_protocol::message::RejectReason;
use murmur_protocol::*;

use crate::driven::{Driven, first, propose, proposes, said, standing};

#[test]
fn a_resting_node_trains_on_and_starts_no_exchange_until_its_rest_is_over() {
    let mut driven = Driven::new(Start::WithModel);
    driven.tell(Event::RestBegan);
    assert!(driven.node.status().is_resting);
    for _ in 0..20 {
        let effects = driven.train();
        assert!(!proposes(&effects), "{effects:?}");
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::End))));
    }
    driven.tell(Event::RestEnded);
    assert!((0..3).any(|_| proposes(&driven.train())), "it takes part again");
}

#[test]
fn a_resting_node_asks_to_be_left_alone_for_a_while_and_gives_no_model() {
    let mut driven = Driven::new(Start::WithModel);
    driven.tell(Event::RestBegan);
    let effects = driven.hear(propose(1, 16, standing()));
    let rejected = first!(said(effects.iter()), (_, Message::Reject(reject)) => reject.clone());
    let rejected = rejected.expect("an answer");
    assert_eq!((rejected.reason, rejected.retry_after_ms), (RejectReason::Resting, 30_000));
    let effects = driven
        .hear(Message::RequestState { request: 4, chunks: murmur_protocol::message::Chunks { first: 0, count: 1 } });
    assert!(effects.iter().any(|effect| matches!(
        effect,
        Effect::Network(NetworkOrder::Send { message: Message::RefuseState { .. }, .. })
    )));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::TakeSnapshot { .. }))));
    driven.tell(Event::RestEnded);
    let effects = driven.hear(propose(2, 16, standing()));
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Accept(_), .. })))
    );
}

#[test]
fn a_resting_joiner_asks_nobody_and_does_not_wake_up_for_nothing() {
    let mut driven = Driven::new(Start::FromPeer);
    driven.tell(Event::RestBegan);
    driven.wait(Duration::from_secs(60));
    for _ in 0..100 {
        let deadline = driven.node.next_deadline().expect("membership goes on");
        assert!(deadline > driven.now, "a deadline in the past would be met over and over");
        driven.now = deadline;
        let effects = driven.tell(Event::TimePassed);
        let asks = |effect: &Effect| {
            matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::RequestState { .. }, .. }))
        };
        assert!(!effects.iter().any(asks));
    }
}

#[test]
fn a_resting_node_at_the_end_of_its_run_does_not_wait_for_last_exchanges() {
    let mut driven = Driven::new(Start::WithModel);
    driven.tell(Event::RestBegan);
    let effects = driven.tell(Event::TrainingCompleted(TrainingReport { steps: 200, ..TrainingReport::default() }));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::Complete))), "{effects:?}");
    assert_eq!(told_of_the_end(&effects), [Some(true)], "and that is said");
    let effects = driven.tell(Event::RestEnded);
    assert_eq!(told_of_the_end(&effects), [None], "they are made up for");
    assert!(proposes(&effects), "{effects:?}");
}

/// What is said of the end: `None` that last exchanges begin, else that it is there, and whether at rest.
fn told_of_the_end(effects: &[Effect]) -> Vec<Option<bool>> {
    let told = effects.iter().filter_map(|effect| match effect {
        Effect::Notice(Notice::Settling) => Some(None),
        Effect::Notice(Notice::RunCompleted { is_resting }) => Some(Some(*is_resting)),
        _ => None,
    });
    told.collect()
}

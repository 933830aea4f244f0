//! A node whose owner wants the network left alone: it goes on training, and neither starts nor answers anything large.

use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::message::{Propose, RejectReason, Standing};
use murmur_protocol::*;

struct Setting {
    node: Node,
    peer: PeerId,
    now: Time,
    steps: u64,
}

impl Setting {
    fn new(start: Start) -> Setting {
        let layout = Arc::new(ModelLayout::new([("weights".to_owned(), vec![300])]));
        let config = Config { start, ..Config::founder(&RunManifest::default()) };
        let [me, peer] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
        let node = Node::new(config, me, layout, 1, Time::ZERO);
        let mut setting = Setting { node, peer, now: Time::ZERO, steps: 0 };
        setting.tell(Event::PeerConnected { peer, addresses: vec![] });
        setting
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        let mut effects: Vec<Effect> = std::iter::from_fn(|| self.node.poll_effect()).collect();
        self.node.handle(self.now, event);
        effects.extend(std::iter::from_fn(|| self.node.poll_effect()));
        effects
    }

    /// A second and a hundred steps later.
    fn train(&mut self) -> Vec<Effect> {
        self.now = self.now + Duration::from_secs(1);
        self.steps += 100;
        let report = TrainingReport {
            steps: self.steps,
            progress: self.steps as f64,
            tokens_per_second: 1000.0,
            ..TrainingReport::default()
        };
        self.tell(Event::StepsCompleted(report))
    }

    fn proposed(&mut self, exchange: u64) -> Vec<Effect> {
        let standing = Standing { weight: 1000.0, clip: 1.0, gamma: 0.5, progress: 10.0 };
        let part = murmur_protocol::Part::MODEL;
        let propose = Propose { exchange, part, nonce: 1, bits: 16, reference: 0, standing, deadline_ms: 20_000 };
        self.tell(Event::MessageReceived { peer: self.peer, message: Message::Propose(propose) })
    }
}

fn proposes(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Propose(_), .. })))
}

#[test]
fn a_resting_node_trains_on_and_starts_no_exchange_until_its_rest_is_over() {
    let mut setting = Setting::new(Start::WithModel);
    setting.tell(Event::RestBegan);
    assert!(setting.node.status().is_resting);
    for _ in 0..20 {
        let effects = setting.train();
        assert!(!proposes(&effects), "{effects:?}");
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::End))));
    }
    setting.tell(Event::RestEnded);
    assert!((0..3).any(|_| proposes(&setting.train())), "it takes part again");
}

#[test]
fn a_resting_node_asks_to_be_left_alone_for_a_while_and_gives_no_model() {
    let mut setting = Setting::new(Start::WithModel);
    setting.tell(Event::RestBegan);
    let effects = setting.proposed(1);
    let rejected = effects.iter().find_map(|effect| match effect {
        Effect::Network(NetworkOrder::Send { message: Message::Reject(reject), .. }) => Some(reject.clone()),
        _ => None,
    });
    let rejected = rejected.expect("an answer");
    assert_eq!((rejected.reason, rejected.retry_after_ms), (RejectReason::Resting, 30_000));
    let effects = setting.tell(Event::MessageReceived {
        peer: setting.peer,
        message: Message::RequestState { request: 4, chunks: murmur_protocol::message::Chunks { first: 0, count: 1 } },
    });
    assert!(effects.iter().any(|effect| matches!(
        effect,
        Effect::Network(NetworkOrder::Send { message: Message::RefuseState { .. }, .. })
    )));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::TakeSnapshot { .. }))));
    setting.tell(Event::RestEnded);
    let effects = setting.proposed(2);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Accept(_), .. })))
    );
}

#[test]
fn a_resting_joiner_asks_nobody_and_does_not_wake_up_for_nothing() {
    let mut setting = Setting::new(Start::FromPeer);
    setting.tell(Event::RestBegan);
    setting.now = setting.now + Duration::from_secs(60);
    setting.tell(Event::TimePassed);
    for _ in 0..100 {
        let deadline = setting.node.next_deadline().expect("membership goes on");
        assert!(deadline > setting.now, "a deadline in the past would be met over and over");
        setting.now = deadline;
        let effects = setting.tell(Event::TimePassed);
        let asks = |effect: &Effect| {
            matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::RequestState { .. }, .. }))
        };
        assert!(!effects.iter().any(asks));
    }
}

#[test]
fn a_resting_node_at_the_end_of_its_run_does_not_wait_for_last_exchanges() {
    let mut setting = Setting::new(Start::WithModel);
    setting.tell(Event::RestBegan);
    let effects = setting.tell(Event::TrainingCompleted(TrainingReport { steps: 200, ..TrainingReport::default() }));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::Complete))), "{effects:?}");
}

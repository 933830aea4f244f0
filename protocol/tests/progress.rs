//! Swarm progress belongs to the trainer: whatever a node says of it is what the trainer last said.

use std::sync::Arc;

use murmur_protocol::message::{Propose, Standing};
use murmur_protocol::*;

const LAYOUT: [(&str, usize); 1] = [("weights", 300)];

fn layout() -> Arc<ModelLayout> {
    Arc::new(ModelLayout::new(LAYOUT.map(|(name, length)| (name.to_owned(), vec![length]))))
}

fn at(progress: f64) -> TrainingReport {
    TrainingReport { steps: progress as u64, progress, tokens_per_second: 1000.0, travel: 1.0, local_progress: 1.0 }
}

fn tell(node: &mut Node, event: Event) -> Vec<Effect> {
    let mut effects: Vec<Effect> = std::iter::from_fn(|| node.poll_effect()).collect();
    node.handle(Time::ZERO, event);
    effects.extend(std::iter::from_fn(|| node.poll_effect()));
    effects
}

/// What the node says of its progress to a partner that stands at 5,000.
fn progress_told(node: &mut Node, peer: PeerId) -> Option<f64> {
    let standing = Standing { weight: 1000.0, clip: 1.0, gamma: 0.5, progress: 5000.0 };
    let propose = Propose {
        exchange: 1,
        part: murmur_protocol::Part::MODEL,
        nonce: 1,
        bits: 8,
        reference: 0,
        standing,
        deadline_ms: 20_000,
    };
    let effects = tell(node, Event::MessageReceived { peer, message: Message::Propose(propose) });
    effects.iter().find_map(|effect| match effect {
        Effect::Network(NetworkOrder::Send { message: Message::Accept(accept), .. }) => Some(accept.standing.progress),
        _ => None,
    })
}

#[test]
fn a_resumed_node_stands_where_its_checkpoint_does_before_its_first_step() {
    let [me, peer] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
    let config = Config { training: at(5000.0), ..Config::founder(&RunManifest::default()) };
    let mut node = Node::new(config, me, layout(), 1, Time::ZERO);
    tell(&mut node, Event::PeerConnected { peer, addresses: vec![] });
    assert_eq!(progress_told(&mut node, peer), Some(5000.0));
}

#[test]
fn a_joiner_stands_where_its_donor_did_before_its_first_step() {
    let [me, peer] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
    let config = Config { start: Start::FromPeer, ..Config::founder(&RunManifest::default()) };
    let mut node = Node::new(config, me, layout(), 1, Time::ZERO);
    tell(&mut node, Event::PeerConnected { peer, addresses: vec![] });
    assert_eq!(progress_told(&mut node, peer), None, "no model, no exchange");
    let header = TransferHeader::State { request: 0, chunk: 0, progress: 5000.0, layout: *layout().digest() };
    let payload = Snapshot::from(vec![0.5; 300]).to_payload();
    let effects = tell(&mut node, Event::TransferReceived { peer, header, payload });
    let request = effects.iter().find_map(|effect| match effect {
        Effect::Trainer(TrainerOrder::LoadState { request, .. }) => Some(*request),
        _ => None,
    });
    let request = request.expect("the state is loaded");
    tell(&mut node, Event::StateLoaded { request, accepted: true, report: at(5000.0) });
    assert_eq!(progress_told(&mut node, peer), Some(5000.0));
}

#[test]
fn corrections_after_the_last_step_count() {
    let [me, peer] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
    let mut node = Node::new(Config::founder(&RunManifest::default()), me, layout(), 1, Time::ZERO);
    tell(&mut node, Event::PeerConnected { peer, addresses: vec![] });
    tell(&mut node, Event::TrainingCompleted(at(600.0)));
    tell(&mut node, Event::CorrectionApplied { request: RequestId(99), report: at(500.0) });
    assert_eq!(node.status().training.progress, 500.0);
}

//! A node that holds some fragments of the model alone: what it copies, gives and exchanges, and with whom.

mod changes;

use murmur_protocol::message::{Accept, Chunks, Descriptor, KnownPeer, Propose, Reject, RejectReason};
use murmur_protocol::*;

use crate::driven::{Driven, first, peer, proposal, said, standing};
use crate::joining::requests;

/// Two fragments of two blocks each, the second a little shorter: five chunks and five.
const PARAMETERS: usize = 1000;
const FIRST: usize = 512;
const CHUNK: usize = 110;

fn config(start: Start, holding: Holding) -> Config {
    let mut manifest = RunManifest::default();
    manifest.gossip.fragments = 2;
    Config { start, holding, state_chunk: CHUNK, ..Config::founder(&manifest) }
}

fn fragment(index: u16) -> Part {
    Part { vector: Vector::Model, fragment: Fragment { index, count: 2 } }
}

impl Driven {
    /// A peer that connects and says what it holds.
    fn meet(&mut self, key: u8, holding: Holding) -> Vec<Effect> {
        let mut effects = self.tell(Event::PeerConnected { peer: peer(key), addresses: vec![] });
        let addresses = vec![Address::new(format!("sim/{key}")).expect("short")];
        let known = KnownPeer { peer: peer(key), addresses };
        let profile = Profile { holding, ..Profile::default() };
        let peers = vec![Descriptor { known, age_seconds: 0, profile }];
        let shuffle = Message::Shuffle { peers, wants_reply: false };
        effects.extend(self.tell(Event::MessageReceived { peer: peer(key), message: shuffle }));
        effects
    }

    fn hear_from(&mut self, key: u8, message: Message) -> Vec<Message> {
        sent(&self.tell(Event::MessageReceived { peer: peer(key), message }))
    }
}

fn sent(effects: &[Effect]) -> Vec<Message> {
    said(effects.iter()).map(|(_, message)| message.clone()).collect()
}

fn proposed(effects: &[Effect]) -> Option<(PeerId, Propose)> {
    first!(said(effects.iter()), (peer, Message::Propose(propose)) => (peer, propose.clone()))
}

#[test]
fn a_joiner_copies_what_it_holds_from_those_who_have_it() {
    let (mut joiner, _) = Driven::with(config(Start::FromPeer, Holding::of([1])), PARAMETERS, 0);
    // Before they describe themselves, it asks whoever connects; who holds nothing of it refuses.
    let asked = requests(&joiner.meet(1, Holding::of([0])));
    assert_eq!(asked, [(peer(1), 0, Chunks { first: 5, count: 5 })]);
    joiner.tell(Event::MessageReceived {
        peer: peer(1),
        message: Message::RefuseState { request: 0, retry_after_ms: 500 },
    });
    joiner.meet(2, Holding::of([1]));
    let asked = requests(&joiner.wait(std::time::Duration::from_secs(1)));
    assert_eq!(asked, [(peer(2), 1, Chunks { first: 5, count: 5 })], "and nobody else");
    let values: Vec<f32> = (FIRST..PARAMETERS).map(|place| place as f32).collect();
    let layout = *crate::driven::layout(PARAMETERS).digest();
    let header = TransferHeader::State { request: 1, chunk: 5, progress: 7.0, layout };
    let payload = Snapshot::from(values.clone()).to_payload();
    let effects = joiner.tell(Event::TransferReceived { peer: peer(2), header, payload });
    let loaded = effects.iter().find_map(|effect| match effect {
        Effect::Trainer(TrainerOrder::LoadState { chunks, .. }) => {
            Snapshot::from_chunks(chunks, PARAMETERS - FIRST).map(|state| state.values().to_vec())
        }
        _ => None,
    });
    assert_eq!(loaded, Some(values), "its half, and nothing else");
}

#[test]
fn whose_part_is_another_is_refused_without_blame() {
    let (mut node, _) = Driven::with(config(Start::WithModel, Holding::of([1])), PARAMETERS, 1);
    let propose = |exchange, index| {
        let propose = Propose { part: fragment(index), ..proposal(exchange, standing()) };
        Message::Propose(propose)
    };
    let refused = node.hear_from(1, propose(1, 0));
    let is_not_held =
        |message: &Message| matches!(message, Message::Reject(Reject { reason: RejectReason::NotHeld, .. }));
    assert!(refused.iter().any(is_not_held), "{refused:?}");
    let accepted = node.hear_from(1, propose(2, 1));
    assert!(accepted.iter().any(|message| matches!(message, Message::Accept(_))), "{accepted:?}");
    let asks = |request, first, count| Message::RequestState { request, chunks: Chunks { first, count } };
    for (first, count) in [(0, 5), (4, 2)] {
        let refused = node.hear_from(1, asks(first.into(), first, count));
        assert!(refused.iter().any(|message| matches!(message, Message::RefuseState { .. })), "{refused:?}");
    }
    assert_eq!(node.node.status().misbehaviours.len(), 0, "nobody can know it before it is told");
    let effects = node.tell(Event::MessageReceived { peer: peer(1), message: asks(9, 6, 2) });
    let snapshot = first!(
        effects.iter(),
        Effect::Trainer(TrainerOrder::TakeSnapshot { request, selection: Selection::State }) => *request
    );
    let request = snapshot.expect("it has these chunks");
    let snapshot = (FIRST..PARAMETERS).map(|place| place as f32).collect::<Vec<f32>>().into();
    let effects = node.tell(Event::SnapshotTaken { request, snapshot, report: TrainingReport::default() });
    let payload = effects.iter().find_map(|effect| match effect {
        Effect::Network(NetworkOrder::StartTransfer {
            header: TransferHeader::State { chunk: 6, .. },
            payload,
            ..
        }) => Snapshot::from_chunks(std::slice::from_ref(payload), CHUNK),
        _ => None,
    });
    let first = payload.map(|payload| payload.values()[0]);
    assert_eq!(first, Some((FIRST + CHUNK) as f32), "by their place in the whole model");
}

#[test]
fn an_exchange_is_of_what_both_hold() {
    let (mut node, _) = Driven::with(config(Start::WithModel, Holding::ALL), PARAMETERS, 0);
    node.meet(1, Holding::of([1]));
    for exchange in 0..3 {
        let (partner, propose) = proposed(&node.train()).expect("one is due");
        assert_eq!((partner, propose.part), (peer(1), fragment(1)), "exchange {exchange}");
        let reject = Reject { exchange: propose.exchange, reason: RejectReason::Busy, retry_after_ms: 0 };
        node.tell(Event::MessageReceived { peer: peer(1), message: Message::Reject(reject) });
    }
    node.tell(Event::PeerDisconnected { peer: peer(1) });
    node.meet(2, Holding::of([0]));
    let (partner, propose) = proposed(&node.train()).expect("one is due");
    assert_eq!((partner, propose.part), (peer(2), fragment(0)));
}

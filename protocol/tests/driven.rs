//! A node whose driver is the test: it is told events and shows what it orders.

use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::message::{Propose, Standing};
use murmur_protocol::*;

/// Of the model, where a test has none of its own.
pub(crate) const PARAMETERS: usize = 300;

/// What the first of these of a form holds.
macro_rules! first {
    ($among:expr, $form:pat => $held:expr) => {
        $among.find_map(|one| if let $form = one { Some($held) } else { None })
    };
}
pub(crate) use first;

/// What each of these of a form holds.
macro_rules! each {
    ($among:expr, $form:pat => $held:expr) => {
        $among.filter_map(|one| if let $form = one { Some($held) } else { None })
    };
}
pub(crate) use each;

/// The messages among these effects, and to whom.
pub(crate) fn said<'a>(effects: impl Iterator<Item = &'a Effect>) -> impl Iterator<Item = (PeerId, &'a Message)> {
    each!(effects, Effect::Network(NetworkOrder::Send { peer, message }) => (*peer, message))
}

/// A node, and the first peer that is connected to it.
pub(crate) struct Driven {
    pub(crate) node: Node,
    pub(crate) peer: PeerId,
    pub(crate) now: Time,
}

impl Driven {
    /// A node of a small model with one peer.
    pub(crate) fn new(start: Start) -> Driven {
        Driven::with(Config { start, ..Config::founder(&RunManifest::default()) }, PARAMETERS, 1).0
    }

    /// A node that is connected to the first so many peers, and what it has ordered for that.
    pub(crate) fn with(config: Config, parameters: usize, peers: u8) -> (Driven, Vec<Effect>) {
        let node = Node::new(config, peer(100), Arc::new(layout(parameters)), 1, Time::ZERO);
        let mut driven = Driven { node, peer: peer(1), now: Time::ZERO };
        let connected = (1..=peers).map(|key| Event::PeerConnected { peer: peer(key), addresses: vec![] });
        let effects = connected.flat_map(|event| driven.tell(event)).collect();
        (driven, effects)
    }

    pub(crate) fn tell(&mut self, event: Event) -> Vec<Effect> {
        let mut effects: Vec<Effect> = std::iter::from_fn(|| self.node.poll_effect()).collect();
        self.node.handle(self.now, event);
        effects.extend(std::iter::from_fn(|| self.node.poll_effect()));
        effects
    }

    pub(crate) fn hear(&mut self, message: Message) -> Vec<Effect> {
        self.tell(Event::MessageReceived { peer: self.peer, message })
    }

    pub(crate) fn receive(&mut self, header: TransferHeader, payload: Payload) -> Vec<Effect> {
        self.tell(Event::TransferReceived { peer: self.peer, header, payload })
    }

    pub(crate) fn wait(&mut self, time: Duration) -> Vec<Effect> {
        self.now = self.now + time;
        self.tell(Event::TimePassed)
    }

    /// A second and a hundred steps later.
    pub(crate) fn train(&mut self) -> Vec<Effect> {
        self.now = self.now + Duration::from_secs(1);
        let steps = self.node.status().training.steps + 100;
        let report = TrainingReport { steps, progress: steps as f64, tokens_per_second: 1e3, ..Default::default() };
        self.tell(Event::StepsCompleted(report))
    }
}

pub(crate) fn peer(key: u8) -> PeerId {
    PeerId::from_public_key([key; 32])
}

/// Of a model with one tensor.
pub(crate) fn layout(parameters: usize) -> ModelLayout {
    ModelLayout::new([("weights".to_owned(), vec![parameters])])
}

/// How a usual partner stands.
pub(crate) fn standing() -> Standing {
    Standing { weight: 1000.0, clip: 1.0, gamma: 0.5, progress: 10.0 }
}

/// A proposal to average the whole model in codes of 16 bits within 20 s, whatever is left of the other's step.
pub(crate) fn proposal(exchange: u64, standing: Standing) -> Propose {
    let (part, step_left_max_ms) = (murmur_protocol::Part::MODEL, u32::MAX);
    Propose { exchange, part, nonce: 1, bits: 16, reference: 0, standing, deadline_ms: 20_000, step_left_max_ms }
}

/// The same in codes of so many bits, on its way.
pub(crate) fn propose(exchange: u64, bits: u8, standing: Standing) -> Message {
    Message::Propose(Propose { bits, ..proposal(exchange, standing) })
}

pub(crate) fn proposes(effects: &[Effect]) -> bool {
    let proposes =
        |effect: &Effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Propose(_), .. }));
    effects.iter().any(proposes)
}

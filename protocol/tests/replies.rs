//! What becomes of a responder's replies while they are on their way.

use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::bounds::REPLY_CACHE_MAX;
use murmur_protocol::message::{Propose, RejectReason, Standing};
use murmur_protocol::numerics::{Buffers, CodeWidth, EncodeJob, encode, merge};
use murmur_protocol::*;

const PARAMETERS: usize = 300;
const EXCHANGE: u64 = 1;
const NONCE: u64 = 1;

/// A responder in the middle of a swarm of starters.
struct Setting {
    node: Node,
}

impl Setting {
    fn new() -> Setting {
        let layout = Arc::new(ModelLayout::new([("weights".to_owned(), vec![PARAMETERS])]));
        let config = Config::founder(&RunManifest::default());
        let me = PeerId::from_public_key([255; 32]);
        Setting { node: Node::new(config, me, layout, 1, Time::ZERO) }
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        let mut effects: Vec<Effect> = std::iter::from_fn(|| self.node.poll_effect()).collect();
        self.node.handle(Time::ZERO, event);
        effects.extend(std::iter::from_fn(|| self.node.poll_effect()));
        effects
    }

    fn hear_proposal(&mut self, peer: PeerId, patience: Duration) -> Vec<Effect> {
        let standing = Standing { weight: 1000.0, clip: 1.0, gamma: 0.5, age_steps: 1, progress: 10.0 };
        let (part, deadline_ms) = (murmur_protocol::Part::MODEL, patience.as_millis() as u32);
        let propose = Propose { exchange: EXCHANGE, part, nonce: NONCE, bits: 16, standing, deadline_ms };
        self.tell(Event::MessageReceived { peer, message: Message::Propose(propose) })
    }

    /// Takes part in an exchange up to the moment at which the reply leaves, and gives its transfer.
    fn answer(&mut self, peer: PeerId, patience: Duration) -> TransferId {
        self.tell(Event::PeerConnected { peer, addresses: vec![] });
        self.hear_proposal(peer, patience);
        let header = TransferHeader::ProposalCodes { exchange: EXCHANGE };
        let model = Snapshot::from(vec![1.0; PARAMETERS]);
        let job = EncodeJob { nonce: NONCE, width: CodeWidth::Sixteen, steps: None };
        let payload = encode(&model, &job, &Buffers::new());
        let effects = self.tell(Event::TransferReceived { peer, header, payload });
        let request = effects.iter().find_map(|effect| match effect {
            Effect::TakeSnapshot { request, .. } => Some(*request),
            _ => None,
        });
        let request = request.expect("a snapshot is taken");
        let report = TrainingReport::default();
        let effects = self.tell(Event::SnapshotTaken { request, snapshot: model, report });
        let (request, snapshot, job) = effects
            .into_iter()
            .find_map(|effect| match effect {
                Effect::Merge { request, snapshot, job } => Some((request, snapshot, job)),
                _ => None,
            })
            .expect("the codes are merged");
        let result = merge(&snapshot, &job, &Buffers::new());
        let effects = self.tell(Event::Merged { request, result });
        reply(&effects, peer).expect("the reply leaves")
    }
}

fn reply(effects: &[Effect], to: PeerId) -> Option<TransferId> {
    effects.iter().find_map(|effect| match effect {
        Effect::StartTransfer { transfer, peer, header: TransferHeader::ReplyCodes { .. }, .. } if *peer == to => {
            Some(*transfer)
        }
        _ => None,
    })
}

fn starter(key: usize) -> PeerId {
    PeerId::from_public_key([key as u8; 32])
}

#[test]
fn a_reply_on_its_way_outlives_those_that_have_arrived() {
    let mut setting = Setting::new();
    for key in 0..REPLY_CACHE_MAX {
        let transfer = setting.answer(starter(key), Duration::from_secs(60));
        setting.tell(Event::TransferFinished { transfer });
    }
    // The least patient starter of all, so that its deadline comes first.
    let last = starter(REPLY_CACHE_MAX);
    let transfer = setting.answer(last, Duration::from_secs(20));
    setting.tell(Event::TransferFailed { transfer, reason: "the way broke".to_owned() });
    let effects = setting.hear_proposal(last, Duration::from_secs(20));
    assert!(reply(&effects, last).is_some(), "a reply that broke off is sent again: {effects:?}");
    let forgotten = (0..REPLY_CACHE_MAX).filter(|key| {
        let effects = setting.hear_proposal(starter(*key), Duration::from_secs(60));
        effects.iter().any(|effect| match effect {
            Effect::Send { message: Message::Reject(reject), .. } => reject.reason == RejectReason::Over,
            _ => false,
        })
    });
    assert_eq!(forgotten.count(), 1, "the cache is as bounded as before");
}

//! What a peer may do wrong, one test each: it becomes a count and a notice, the node goes on, and nothing of it reaches
//! the model.

use std::sync::Arc;

use murmur_protocol::message::{Descriptor, KnownPeer, Propose, Standing};
use murmur_protocol::numerics::{Buffers, CodeWidth, EncodeJob, EncodeRole, encode, merge};
use murmur_protocol::*;

const PARAMETERS: usize = 300;

/// A node, a peer that is connected to it, and what the node has ordered since.
struct Setting {
    node: Node,
    peer: PeerId,
    now: Time,
}

impl Setting {
    fn new(start: Start) -> Setting {
        let layout = Arc::new(ModelLayout::new([("weights".to_owned(), vec![PARAMETERS])]));
        let config = Config { start, ..Config::founder(&RunManifest::default()) };
        let [me, peer] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
        let mut setting = Setting { node: Node::new(config, me, layout, 1, Time::ZERO), peer, now: Time::ZERO };
        setting.tell(Event::PeerConnected { peer, addresses: vec![] });
        setting
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        let mut effects: Vec<Effect> = std::iter::from_fn(|| self.node.poll_effect()).collect();
        self.node.handle(self.now, event);
        effects.extend(std::iter::from_fn(|| self.node.poll_effect()));
        effects
    }

    fn hear(&mut self, message: Message) -> Vec<Effect> {
        self.tell(Event::MessageReceived { peer: self.peer, message })
    }

    fn receive(&mut self, header: TransferHeader, payload: Payload) -> Vec<Effect> {
        self.tell(Event::TransferReceived { peer: self.peer, header, payload })
    }

    /// Lets a joiner ask for the model, and gives the number of its request.
    fn request(&mut self) -> u64 {
        let later = self.now + std::time::Duration::from_secs(1);
        self.now = later;
        let effects = self.tell(Event::TimePassed);
        let asked = effects.iter().find_map(|effect| match effect {
            Effect::Network(NetworkOrder::Send { message: Message::RequestState { request, .. }, .. }) => {
                Some(*request)
            }
            _ => None,
        });
        asked.unwrap_or(0)
    }

    fn count(&self) -> u64 {
        self.node.status().misbehaviours.values().sum()
    }
}

fn misbehaviour(effects: &[Effect]) -> Option<Misbehaviour> {
    effects.iter().find_map(|effect| match effect {
        Effect::Notice(Notice::PeerMisbehaved { misbehaviour, .. }) => Some(misbehaviour.clone()),
        _ => None,
    })
}

fn standing() -> Standing {
    Standing { weight: 1000.0, clip: 1.0, gamma: 0.5, progress: 10.0 }
}

fn propose(exchange: u64, standing: Standing) -> Message {
    Message::Propose(Propose {
        exchange,
        part: murmur_protocol::Part::MODEL,
        nonce: 1,
        bits: 8,
        reference: 0,
        standing,
        deadline_ms: 20_000,
    })
}

fn state(request: u64, layout: [u8; 32]) -> TransferHeader {
    TransferHeader::State { request, chunk: 0, progress: 5.0, layout }
}

fn layout_digest() -> [u8; 32] {
    *ModelLayout::new([("weights".to_owned(), vec![PARAMETERS])]).digest()
}

#[test]
fn numbers_that_are_none_are_refused_before_any_model_moves() {
    let bad = [
        Standing { weight: f32::NAN, ..standing() },
        Standing { weight: -1.0, ..standing() },
        Standing { clip: f32::INFINITY, ..standing() },
        Standing { progress: f64::NAN, ..standing() },
        Standing { progress: -1.0, ..standing() },
        Standing { progress: 1e300, ..standing() },
    ];
    for bad in bad {
        let mut setting = Setting::new(Start::WithModel);
        let effects = setting.hear(propose(1, bad));
        assert!(matches!(misbehaviour(&effects), Some(Misbehaviour::OutOfRange(_))), "{bad:?}");
        assert!(!effects.iter().any(|effect| matches!(
            effect,
            Effect::Network(NetworkOrder::Send { .. }) | Effect::Trainer(TrainerOrder::TakeSnapshot { .. })
        )));
        assert_eq!(setting.count(), 1);
        let effects = setting.hear(propose(2, standing()));
        let accepted = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Accept(_), .. })));
        assert!(accepted, "one slip does not shut a peer out");
    }
}

#[test]
fn a_peer_that_goes_on_sending_nonsense_is_banned() {
    let mut setting = Setting::new(Start::WithModel);
    let nonsense = Standing { weight: f32::NAN, ..standing() };
    let effects: Vec<Effect> = (1..=3).flat_map(|number| setting.hear(propose(number, nonsense))).collect();
    let is_ban = |effect: &Effect| matches!(effect, Effect::Notice(murmur_protocol::Notice::PeerBanned { .. }));
    assert!(effects.iter().any(is_ban), "{effects:?}");
    let status = setting.node.status();
    assert!(
        status.banned.contains_key(&setting.peer) && status.offences.contains_key(&setting.peer),
        "with its reason"
    );
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Network(NetworkOrder::Disconnect { .. }))));
}

/// Takes part in an exchange that the peer has proposed with these steps and codes; what the node says in the end.
fn exchange(setting: &mut Setting, steps: Payload, codes: Payload) -> Vec<Effect> {
    setting.hear(propose(1, standing()));
    let effects = setting.receive(TransferHeader::Scales { exchange: 1 }, steps);
    let request = effects.iter().find_map(|effect| match effect {
        Effect::Trainer(TrainerOrder::TakeSnapshot { request, .. }) => Some(*request),
        _ => None,
    });
    let (snapshot, report) = (Snapshot::from(vec![1.0; PARAMETERS]), TrainingReport::default());
    let request = request.expect("the node wants to encode");
    let effects = setting.tell(Event::SnapshotTaken { request, snapshot, report });
    let encoded = effects.iter().find_map(|effect| match effect {
        Effect::Worker(WorkerOrder::Encode { request, snapshot, job }) => {
            Some((*request, encode(snapshot, job, &Buffers::new())))
        }
        _ => None,
    });
    let (request, result) = encoded.expect("an order to encode");
    let is_refused = result.is_err();
    let effects = setting.tell(Event::Encoded { request, result });
    if is_refused {
        return effects;
    }
    let effects = setting.receive(TransferHeader::ProposalCodes { exchange: 1 }, codes);
    let merged = effects.iter().find_map(|effect| match effect {
        Effect::Worker(WorkerOrder::Merge { request, job }) => Some((*request, merge(job, &Buffers::new()))),
        _ => None,
    });
    let (request, result) = merged.expect("an order to merge");
    setting.tell(Event::Merged { request, result })
}

#[test]
fn scales_and_codes_of_a_wrong_length_never_reach_the_model() {
    let role = EncodeRole::Starter { scales: None };
    let job = EncodeJob { role, nonce: 1, width: CodeWidth::Eight };
    let honest = encode(&vec![1.0; PARAMETERS].into(), &job, &Buffers::new()).expect("own scales");
    let short = |payload: &Payload| payload.slice(0..payload.len() - 1).expect("not empty");
    let cases = [
        (honest.scales.clone(), honest.codes.clone(), true),
        (short(&honest.scales), honest.codes.clone(), false),
        (honest.scales.clone(), short(&honest.codes), false),
    ];
    for (scales, codes, is_honest) in cases {
        let effects = exchange(&mut Setting::new(Start::WithModel), scales, codes);
        let is_refused = matches!(misbehaviour(&effects), Some(Misbehaviour::WrongLength { .. }));
        let is_applied =
            effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::ApplyCorrection { .. })));
        assert_eq!((is_refused, is_applied), (!is_honest, is_honest), "{effects:?}");
    }
}

#[test]
fn a_model_of_another_layout_or_length_is_not_loaded() {
    for (layout, bytes, expected) in [
        ([0; 32], 4 * PARAMETERS, Misbehaviour::WrongLayout),
        (layout_digest(), 4, Misbehaviour::WrongLength { expected: 4 * PARAMETERS as u64, actual: 4 }),
    ] {
        let mut setting = Setting::new(Start::FromPeer);
        let request = setting.request();
        let effects = setting.receive(state(request, layout), vec![0; bytes].into());
        assert_eq!(misbehaviour(&effects), Some(expected));
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::LoadState { .. }))));
        assert_eq!(setting.node.status().phase, Phase::Joining, "it asks somebody else");
    }
}

#[test]
fn a_model_that_is_not_finite_is_not_trained_on() {
    let mut setting = Setting::new(Start::FromPeer);
    let request = setting.request();
    let payload = Snapshot::from(vec![f32::NAN; PARAMETERS]).to_payload();
    let effects = setting.receive(state(request, layout_digest()), payload.clone());
    let request = effects.iter().find_map(|effect| match effect {
        Effect::Trainer(TrainerOrder::LoadState { request, .. }) => Some(*request),
        _ => None,
    });
    // What the trainer does with it.
    let accepted = Snapshot::from_payload(&payload, PARAMETERS).is_some();
    let effects = setting.tell(Event::StateLoaded {
        request: request.expect("loaded"),
        accepted,
        report: TrainingReport::default(),
    });
    assert_eq!(misbehaviour(&effects), Some(Misbehaviour::OutOfRange("parameter".into())));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::Begin))));
}

#[test]
fn what_nobody_asked_for_is_dropped() {
    let mut setting = Setting::new(Start::WithModel);
    let effects = setting.receive(state(77, layout_digest()), vec![0; 4 * PARAMETERS].into());
    assert_eq!(misbehaviour(&effects), Some(Misbehaviour::Unsolicited));
    let effects = setting.receive(TransferHeader::ProposalCodes { exchange: 5 }, vec![0; 10].into());
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::TakeSnapshot { .. }))));
}

#[test]
fn endless_lists_of_peers_are_refused() {
    let mut setting = Setting::new(Start::WithModel);
    let known = |key: u8| KnownPeer { peer: PeerId::from_public_key([key; 32]), addresses: vec![] };
    let peers =
        (0..17).map(|key| Descriptor { known: known(key), age_seconds: 0, profile: Profile::default() }).collect();
    let effects = setting.hear(Message::Shuffle { peers, wants_reply: false });
    assert!(matches!(misbehaviour(&effects), Some(Misbehaviour::OutOfRange(_))));
    assert!(setting.node.status().known.is_empty());
}

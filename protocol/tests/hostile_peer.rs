//! What a peer may do wrong, one test each: it becomes a count and a notice, the node goes on, and nothing of it reaches
//! the model.

use std::time::Duration;

use murmur_protocol::message::{Descriptor, KnownPeer, Standing};
use murmur_protocol::numerics::{Buffers, CodeWidth, EncodeJob, EncodeRole, encode, merge};
use murmur_protocol::*;

use crate::driven::{Driven, PARAMETERS, first, layout, peer, propose, said, standing};
use crate::responding::reply;

impl Driven {
    /// Lets a joiner ask for the model, and gives the number of its request.
    fn request(&mut self) -> u64 {
        let effects = self.wait(Duration::from_secs(1));
        let asked = first!(said(effects.iter()), (_, Message::RequestState { request, .. }) => *request);
        asked.unwrap_or(0)
    }

    fn count(&self) -> u64 {
        self.node.status().misbehaviours.values().sum()
    }
}

fn misbehaviour(effects: &[Effect]) -> Option<Misbehaviour> {
    first!(effects.iter(), Effect::Notice(Notice::PeerMisbehaved { misbehaviour, .. }) => misbehaviour.clone())
}

fn state(request: u64, layout: [u8; 32]) -> TransferHeader {
    TransferHeader::State { request, chunk: 0, progress: 5.0, layout }
}

fn layout_digest() -> [u8; 32] {
    *layout(PARAMETERS).digest()
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
        let mut driven = Driven::new(Start::WithModel);
        let effects = driven.hear(propose(1, 8, bad));
        assert!(matches!(misbehaviour(&effects), Some(Misbehaviour::OutOfRange(_))), "{bad:?}");
        assert!(!effects.iter().any(|effect| matches!(
            effect,
            Effect::Network(NetworkOrder::Send { .. }) | Effect::Trainer(TrainerOrder::TakeSnapshot { .. })
        )));
        assert_eq!(driven.count(), 1);
        let effects = driven.hear(propose(2, 8, standing()));
        let accepted = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Accept(_), .. })));
        assert!(accepted, "one slip does not shut a peer out");
    }
}

#[test]
fn a_peer_that_goes_on_sending_nonsense_is_banned() {
    let mut driven = Driven::new(Start::WithModel);
    let nonsense = Standing { weight: f32::NAN, ..standing() };
    let effects: Vec<Effect> = (1..=3).flat_map(|number| driven.hear(propose(number, 8, nonsense))).collect();
    let is_ban = |effect: &Effect| matches!(effect, Effect::Notice(murmur_protocol::Notice::PeerBanned { .. }));
    assert!(effects.iter().any(is_ban), "{effects:?}");
    let status = driven.node.status();
    assert!(status.banned.contains_key(&driven.peer) && status.offences.contains_key(&driven.peer), "with its reason");
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Network(NetworkOrder::Disconnect { .. }))));
}

/// Takes part in an exchange that the peer has proposed with these steps and codes; what the node says in the end.
fn exchange(driven: &mut Driven, steps: Payload, codes: Payload) -> Vec<Effect> {
    driven.hear(propose(1, 8, standing()));
    let effects = driven.receive(TransferHeader::Scales { exchange: 1 }, steps);
    let request = first!(effects.iter(), Effect::Trainer(TrainerOrder::TakeSnapshot { request, .. }) => *request);
    let (snapshot, report) = (Snapshot::from(vec![1.0; PARAMETERS]), TrainingReport::default());
    let request = request.expect("the node wants to encode");
    let effects = driven.tell(Event::SnapshotTaken { request, snapshot, report });
    let encoded = first!(
        effects.iter(),
        Effect::Worker(WorkerOrder::Encode { request, snapshot, job })
            => (*request, encode(snapshot, job, &Buffers::new()))
    );
    let (request, result) = encoded.expect("an order to encode");
    let is_refused = result.is_err();
    let effects = driven.tell(Event::Encoded { request, result });
    if is_refused {
        return effects;
    }
    let transfer = reply(&effects).expect("our codes leave");
    driven.tell(Event::TransferFinished { transfer });
    let effects = driven.receive(TransferHeader::ProposalCodes { exchange: 1 }, codes);
    let merged = first!(
        effects.iter(),
        Effect::Worker(WorkerOrder::Merge { request, job }) => (*request, merge(job, &Buffers::new()))
    );
    let (request, result) = merged.expect("an order to merge");
    driven.tell(Event::Merged { request, result })
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
        let effects = exchange(&mut Driven::new(Start::WithModel), scales, codes);
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
        let mut driven = Driven::new(Start::FromPeer);
        let request = driven.request();
        let effects = driven.receive(state(request, layout), vec![0; bytes].into());
        assert_eq!(misbehaviour(&effects), Some(expected));
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::LoadState { .. }))));
        assert_eq!(driven.node.status().phase, Phase::Joining, "it asks somebody else");
    }
}

#[test]
fn a_model_that_is_not_finite_is_not_trained_on() {
    let mut driven = Driven::new(Start::FromPeer);
    let request = driven.request();
    let payload = Snapshot::from(vec![f32::NAN; PARAMETERS]).to_payload();
    let effects = driven.receive(state(request, layout_digest()), payload.clone());
    let request = first!(effects.iter(), Effect::Trainer(TrainerOrder::LoadState { request, .. }) => *request);
    // What the trainer does with it.
    let accepted = Snapshot::from_payload(&payload, PARAMETERS).is_some();
    let effects = driven.tell(Event::StateLoaded {
        request: request.expect("loaded"),
        accepted,
        report: TrainingReport::default(),
    });
    assert_eq!(misbehaviour(&effects), Some(Misbehaviour::OutOfRange("parameter".into())));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::Begin))));
}

#[test]
fn what_nobody_asked_for_is_dropped() {
    let mut driven = Driven::new(Start::WithModel);
    let effects = driven.receive(state(77, layout_digest()), vec![0; 4 * PARAMETERS].into());
    assert_eq!(misbehaviour(&effects), Some(Misbehaviour::Unsolicited));
    // An exchange that nobody has proposed, and one that is another peer's.
    let works = |effects: &[Effect]| effects.iter().any(|it| matches!(it, Effect::Trainer(_) | Effect::Worker(_)));
    let other = peer(2);
    driven.tell(Event::PeerConnected { peer: other, addresses: vec![] });
    driven.hear(propose(1, 8, standing()));
    for (sender, exchange) in [(driven.peer, 5), (other, 1)] {
        for header in [
            TransferHeader::Scales { exchange },
            TransferHeader::ProposalCodes { exchange },
            TransferHeader::ReplyCodes { exchange },
            TransferHeader::Merged { exchange, digest: 0 },
        ] {
            let received = Event::TransferReceived { peer: sender, header, payload: vec![0; 10].into() };
            let effects = driven.tell(received);
            assert!(!works(&effects), "{effects:?}");
        }
    }
    assert!(
        works(&driven.receive(TransferHeader::Scales { exchange: 1 }, vec![0; 10].into())),
        "this one was proposed"
    );
}

#[test]
fn endless_lists_of_peers_are_refused() {
    let mut driven = Driven::new(Start::WithModel);
    let known = |key: u8| KnownPeer { peer: PeerId::from_public_key([key; 32]), addresses: vec![] };
    let peers =
        (0..17).map(|key| Descriptor { known: known(key), age_seconds: 0, profile: Profile::default() }).collect();
    let effects = driven.hear(Message::Shuffle { peers, wants_reply: false });
    assert!(matches!(misbehaviour(&effects), Some(Misbehaviour::OutOfRange(_))));
    assert!(driven.node.status().known.is_empty());
}

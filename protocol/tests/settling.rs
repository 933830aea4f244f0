//! The last exchanges of a node that has trained as long as it was to, while others train on.

use std::time::Duration;

use ed25519_dalek::{Signer, SigningKey};
use murmur_protocol::bounds::SUSPICION;
use murmur_protocol::message::{Propose, Reject, RejectReason, Standing};
use murmur_protocol::status::Phase;
use murmur_protocol::*;

use crate::copying_anew::proposals;
use crate::driven::{Driven, PARAMETERS, proposal};
use crate::responding::{PATIENCE, Responder, encoded, merged, reply, starter};

/// This node answers an exchange that a partner has started: a probe where `gamma` is 0; what follows.
fn exchange_with(node: &mut Responder, peer: PeerId, exchange: u64, gamma: f32) -> Vec<Effect> {
    let standing = Standing { weight: 1000.0, clip: 1.0, gamma, progress: 10.0 };
    let deadline_ms = PATIENCE.as_millis() as u32;
    let propose = Propose { deadline_ms, ..proposal(exchange, standing) };
    node.tell(Event::MessageReceived { peer, message: Message::Propose(propose) });
    let (scales, codes) = (TransferHeader::Scales { exchange }, TransferHeader::ProposalCodes { exchange });
    let effects = node.tell(Event::TransferReceived { peer, header: scales, payload: encoded().scales });
    node.tell(Event::TransferFinished { transfer: reply(&effects).expect("our codes leave") });
    let effects = node.tell(Event::TransferReceived { peer, header: codes, payload: encoded().codes });
    assert!(merged(&effects).is_some(), "{effects:?}");
    effects
}

/// A partner whose steps are short starts its next exchange as soon as the one before has ended. This node proposes when it has
/// merged that one, while the partner has not yet, and is refused each time.
#[test]
fn a_partner_that_is_always_busy_with_this_node_holds_nobody_up() {
    let (mut node, partner) = (Responder::new(), starter(1));
    node.tell(Event::PeerConnected { peer: partner, addresses: vec![] });
    assert_eq!(answers_until_completed(&mut node, partner, 0.5), Some(RunManifest::default().gossip.final_exchanges));
}

/// Training is over, and the partner refuses each proposal and starts an exchange itself: how many of these it takes until the
/// node has settled; `None` where many do not do.
fn answers_until_completed(node: &mut Responder, partner: PeerId, gamma: f32) -> Option<u32> {
    let mut effects = node.tell(Event::TrainingCompleted(TrainingReport::default()));
    assert_eq!(node.node.status().phase, Phase::Settling);
    for answers in 0..50 {
        let [propose] = proposals(&effects)[..] else { panic!("it proposes once: {effects:?}") };
        let reject = Reject { exchange: propose.exchange, reason: RejectReason::Busy, retry_after_ms: 300 };
        node.tell(Event::MessageReceived { peer: partner, message: Message::Reject(reject) });
        if node.node.status().phase != Phase::Settling {
            return Some(answers);
        }
        node.now = node.now + Duration::from_millis(301);
        effects = exchange_with(node, partner, 100 + u64::from(answers), gamma);
        effects.extend(node.tell(Event::TimePassed));
    }
    None
}

/// An old node, with whose partner nothing goes wrong: it has little else to wake up for.
fn aged() -> Driven {
    let (mut node, _) = Driven::with(Config::founder(&RunManifest::default()), PARAMETERS, 1);
    while node.now < Time::from_start(Duration::from_secs(3600)) {
        node.now = node.node.next_deadline().expect("it lives");
        let is_question = |effect: &Effect| {
            let Effect::Network(NetworkOrder::Send { message, .. }) = effect else { return false };
            matches!(message, Message::Shuffle { wants_reply: true, .. })
        };
        if node.tell(Event::TimePassed).iter().any(is_question) {
            node.hear(Message::Shuffle { peers: vec![], wants_reply: false });
        }
    }
    node
}

#[test]
fn a_settling_node_wakes_up_when_its_partner_may_be_asked_again() {
    for is_silent in [false, true] {
        let mut node = aged();
        let effects = node.tell(Event::TrainingCompleted(TrainingReport { steps: 10, ..Default::default() }));
        let (first, began) = (proposals(&effects)[0].exchange, node.now);
        if !is_silent {
            let reject = Reject { exchange: first, reason: RejectReason::Busy, retry_after_ms: 300 };
            node.hear(Message::Reject(reject));
        }
        let limit = if is_silent { 2 * SUSPICION } else { Duration::from_millis(300) };
        let mut is_asked_again = false;
        while !is_asked_again {
            node.now = node.node.next_deadline().expect("it lives");
            assert!(node.now <= began + limit, "silent: {is_silent}, it sleeps for {:?}", node.now - began);
            is_asked_again = proposals(&node.tell(Event::TimePassed)).iter().any(|propose| propose.exchange > first);
        }
    }
}

#[test]
fn what_was_merged_before_the_end_is_no_last_exchange() {
    let (mut node, partner) = (Responder::new(), starter(1));
    node.tell(Event::PeerConnected { peer: partner, addresses: vec![] });
    exchange_with(&mut node, partner, 1, 0.5);
    node.now = node.now + Duration::from_secs(3600);
    assert_eq!(answers_until_completed(&mut node, partner, 0.5), Some(RunManifest::default().gossip.final_exchanges));
}

#[test]
fn a_probe_that_was_answered_is_no_last_exchange() {
    let (mut node, partner) = (Responder::new(), starter(1));
    node.tell(Event::PeerConnected { peer: partner, addresses: vec![] });
    assert_eq!(answers_until_completed(&mut node, partner, 0.0), None);
}

/// The founder's order, the later one with the larger end.
fn order(manifest: &RunManifest, until: f64) -> FinishOrder {
    let sign = |bytes: &[u8]| Ok::<_, std::convert::Infallible>(founder().sign(bytes).to_bytes());
    FinishOrder::sign(manifest.run_id(), until as u64, Ending { from: 0.0, until }, sign).expect("signed")
}

fn founder() -> SigningKey {
    SigningKey::from_bytes(&[3; 32])
}

/// The trainer's word that it is through was under way when the later end came.
#[test]
fn a_later_end_that_comes_as_training_ends_is_trained_for() {
    let mut manifest = RunManifest::default();
    manifest.run.founder = PeerId::from_public_key(founder().verifying_key().to_bytes()).to_string();
    let begins = |effect: &Effect| matches!(effect, Effect::Trainer(TrainerOrder::Begin));
    let through =
        |steps: u64| Event::TrainingCompleted(TrainingReport { steps, progress: steps as f64, ..Default::default() });
    for (steps, is_trained_for) in [(100, true), (80, false)] {
        let (mut node, _) = Driven::with(Config::founder(&manifest), PARAMETERS, 1);
        node.hear(Message::Finish(order(&manifest, 100.0)));
        node.train();
        node.hear(Message::Finish(order(&manifest, 200.0)));
        let effects = node.tell(through(steps));
        assert_eq!(effects.iter().any(begins), is_trained_for, "{steps}: {effects:?}");
    }
    let (mut node, _) = Driven::with(Config::founder(&manifest), PARAMETERS, 1);
    node.hear(Message::Finish(order(&manifest, 100.0)));
    node.hear(Message::Finish(order(&manifest, 200.0)));
    node.train();
    let effects = node.tell(through(150));
    assert!(!effects.iter().any(begins), "it has trained since, and ends by itself: {effects:?}");
}

#[test]
fn whoever_is_turned_away_makes_nobody_settle_once_more() {
    let (mut node, _) = Driven::with(Config::founder(&RunManifest::default()), PARAMETERS, 1);
    let banned = node.peer;
    let offence = || Event::PeerMisbehaved { peer: banned, misbehaviour: Misbehaviour::Forged };
    let is_banned = |effect: &Effect| matches!(effect, Effect::Notice(Notice::PeerBanned { .. }));
    assert!((0..10).any(|_| node.tell(offence()).iter().any(is_banned)));
    node.tell(Event::PeerDisconnected { peer: banned });
    node.tell(Event::TrainingCompleted(TrainingReport { steps: 10, ..Default::default() }));
    assert_eq!(node.node.status().phase, Phase::Completed, "nobody is there");
    let effects = node.tell(Event::PeerConnected { peer: banned, addresses: vec![] });
    assert!(matches!(effects[..], [Effect::Network(NetworkOrder::Disconnect { .. })]), "{effects:?}");
}

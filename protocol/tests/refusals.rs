//! A node whose proposal is refused asks the next partner, in the way in which it asked the first one.

use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::manifest::GossipKind;
use murmur_protocol::message::{Propose, Reject, RejectReason};
use murmur_protocol::*;

use crate::driven::{PARAMETERS, layout, peer};

const MEMBERS: u8 = 4;

/// A node on links that is connected to a few members.
fn node() -> Node {
    let mut manifest = RunManifest::default();
    manifest.gossip.kind = GossipKind::Links;
    let mut node = Node::new(Config::founder(&manifest), peer(1), Arc::new(layout(PARAMETERS)), 1, Time::ZERO);
    for key in 2..2 + MEMBERS {
        std::iter::from_fn(|| node.poll_effect()).for_each(drop);
        node.handle(Time::ZERO, Event::PeerConnected { peer: peer(key), addresses: vec![] });
    }
    node
}

/// What the node proposes when it is told this.
fn proposal_after(node: &mut Node, now: Time, event: Event) -> Option<(PeerId, Propose)> {
    std::iter::from_fn(|| node.poll_effect()).for_each(drop);
    node.handle(now, event);
    std::iter::from_fn(|| node.poll_effect()).find_map(|effect| match effect {
        Effect::Network(NetworkOrder::Send { peer, message: Message::Propose(propose) }) => Some((peer, propose)),
        _ => None,
    })
}

fn report(steps: u64, travel: f64) -> TrainingReport {
    TrainingReport { steps, progress: steps as f64, tokens_per_second: 1000.0, travel, local_progress: 1.0 }
}

/// How the proposals of one round are encoded where all partners refuse.
fn bits_of_a_round(node: &mut Node, second: u64, report: TrainingReport) -> Vec<u8> {
    let now = Time::ZERO + Duration::from_secs(second);
    let mut bits = Vec::new();
    let mut proposal = proposal_after(node, now, Event::StepsCompleted(report));
    while let Some((peer, Propose { exchange, bits: width, .. })) = proposal {
        bits.push(width);
        let reject = Reject { exchange, reason: RejectReason::Busy, retry_after_ms: 5000 };
        proposal = proposal_after(node, now, Event::MessageReceived { peer, message: Message::Reject(reject) });
    }
    bits
}

/// The second partner of a round was asked for an exchange on the grid, eight times as dear: own training had not moved the
/// model since the first one was asked.
#[test]
fn the_next_partner_of_a_round_is_asked_for_a_link_as_the_first_one_was() {
    let mut node = node();
    assert_eq!(bits_of_a_round(&mut node, 60, report(1000, 3.0)), [1; 3]);
    assert_eq!(bits_of_a_round(&mut node, 120, report(2000, 3.0)), [16; 3], "where training moves the model no more");
    assert_eq!(bits_of_a_round(&mut node, 180, report(3000, 4.0)), [1; 3]);
}

/// Over a line of 64 kbit/s a joiner's refusal takes seconds: the proposal had been given up, and the next one went out at once.
#[test]
fn a_joiner_is_left_alone_although_its_refusal_comes_late() {
    let mut node = node();
    let at = |second: u64| Time::ZERO + Duration::from_secs(second);
    let first = proposal_after(&mut node, at(60), Event::StepsCompleted(report(1000, 3.0)));
    let (joiner, Propose { exchange, .. }) = first.expect("an exchange is due");
    // All others are gone; whoever is asked next is this one.
    for key in 2..2 + MEMBERS {
        if peer(key) != joiner {
            proposal_after(&mut node, at(60), Event::PeerDisconnected { peer: peer(key) });
        }
    }
    for quarter in 0..60 {
        let now = at(60) + Duration::from_millis(250 * quarter);
        proposal_after(&mut node, now, Event::TimePassed);
    }
    let reject = Reject { exchange, reason: RejectReason::Joining, retry_after_ms: 20_000 };
    proposal_after(&mut node, at(75), Event::MessageReceived { peer: joiner, message: Message::Reject(reject) });
    let proposed = |node: &mut Node, second: u64| {
        let event = Event::StepsCompleted(report(1000 + 100 * second, 3.0));
        proposal_after(node, at(second), event).map(|(peer, propose)| (peer, propose.exchange > exchange))
    };
    let early: Vec<_> = (76..94).filter_map(|second| proposed(&mut node, second)).collect();
    assert!(early.iter().all(|(_, is_new)| !is_new), "{early:?}");
    let later: Vec<_> = (96..130).filter_map(|second| proposed(&mut node, second)).collect();
    assert!(later.contains(&(joiner, true)), "{later:?}");
}

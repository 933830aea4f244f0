//! Members that choose how they average, and one whose training is over before that of the others.

use std::time::Duration;

use murmur_protocol::manifest::{SynchronousSpec, Topology};
use murmur_protocol::message::RejectReason;
use murmur_protocol::scheme::{Comparison, Scheme, SchemeOrder};
use murmur_protocol::status::Phase;
use murmur_protocol::*;

use crate::driven::{Driven, PARAMETERS, first, peer, propose, standing};

fn order(serial: u64, scheme: Scheme) -> Message {
    Message::Scheme(SchemeOrder { serial, by: peer(1), scheme, reason: Comparison::default() })
}

/// What it answers to a proposal.
fn answer(node: &mut Driven, exchange: u64) -> Option<Message> {
    let effects = node.hear(propose(exchange, 16, standing()));
    first!(
        effects.into_iter(),
        Effect::Network(NetworkOrder::Send { message: message @ (Message::Accept(_) | Message::Reject(_)), .. })
            => message
    )
}

/// It stayed in all-reduces for ever, and refused every exchange: with two members the other one ended without any.
#[test]
fn one_that_has_ended_while_all_average_at_once_goes_back_to_pairs_with_the_others() {
    let synchronous = SynchronousSpec { topology: Topology::Ring, auto: true, ..SynchronousSpec::default() };
    let manifest = RunManifest { synchronous, ..RunManifest::default() };
    let (mut node, _) = Driven::with(Config::founder(&manifest), PARAMETERS, 1);
    node.hear(order(1, Scheme::AllReduce));
    node.wait(Duration::from_secs(2));
    assert!(node.node.status().synchronous.is_some());
    let report = TrainingReport { steps: 100, progress: 100.0, ..TrainingReport::default() };
    node.tell(Event::TrainingCompleted(report));
    assert_eq!(node.node.status().phase, Phase::Completed);
    let refused = answer(&mut node, 1);
    assert!(matches!(refused, Some(Message::Reject(ref reject)) if reject.reason == RejectReason::Busy), "{refused:?}");
    node.hear(order(2, Scheme::Pairs));
    let accepted = answer(&mut node, 2);
    assert!(matches!(accepted, Some(Message::Accept(_))), "{accepted:?}");
    let status = node.node.status();
    assert!(status.synchronous.is_none() && status.phase == Phase::Completed, "{status:?}");
    node.hear(order(3, Scheme::AllReduce));
    node.wait(Duration::from_secs(2));
    assert!(node.node.status().synchronous.is_none(), "it has nothing to contribute");
}

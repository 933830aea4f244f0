//! Many machines behind one address: each has a place while there is room, and who finds none learns whom else to turn to.

use std::net::IpAddr;

use murmur_protocol::Event;
use murmur_protocol::bounds::CONNECTIONS_MAX;
use murmur_protocol::message::Message;

use crate::aimed::outward_address;
use crate::hostile::{Raw, assert_welcome, honest_greeting};
use crate::node::{Node, Over, config, meet, next_event, payload};

/// A node that others reach from this machine's address, which is a host among others.
async fn outward_node(outward: IpAddr) -> Node {
    let mut settings = config(Over::Tcp);
    settings.listen = vec![format!("/ip4/{outward}/tcp/0").parse().expect("an address")];
    Node::start_with(settings).await
}

fn outward() -> Option<IpAddr> {
    let outward = outward_address();
    if outward.is_none() {
        println!("skipped: this machine has no address but loopback");
    }
    outward
}

/// The connection was closed without a word, so that whoever knew nobody else came again after a second.
#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_place_is_told_whom_else_to_turn_to() {
    let Some(outward) = outward() else { return };
    let (mut node, mut friend, mut late) =
        (outward_node(outward).await, outward_node(outward).await, outward_node(outward).await);
    meet(&mut friend, &mut node).await;
    let mut crowd = Vec::new();
    for _ in 1..CONNECTIONS_MAX / 2 {
        let silent = Raw::connect(node.listen_address()).await;
        let (answer, control) = silent.greet(&honest_greeting()).await;
        assert_welcome(&answer);
        node.wait_connected(silent.peer).await;
        crowd.push((silent, control));
    }
    late.dial(&node);
    late.wait_connected(node.peer).await;
    let (from, message) = late.wait_message().await;
    let Message::Prune { peers } = message else { panic!("unexpected {message:?}") };
    let named: Vec<_> = peers.iter().map(|told| (told.known.peer, told.known.addresses.clone())).collect();
    assert_eq!((from, named), (node.peer, vec![(friend.peer, vec![friend.address()])]));
    late.wait_disconnected(node.peer).await;
    while let Ok(event) = node.events.try_recv() {
        assert!(!matches!(event, Event::PeerConnected { .. } | Event::PeerDisconnected { .. }), "there was {event:?}");
    }
}

/// From the 33rd on machines behind one address were turned away, though half of the places were free.
#[tokio::test(flavor = "multi_thread")]
async fn forty_machines_behind_one_address_have_a_place_as_each_takes_what_it_is_sent() {
    let Some(outward) = outward() else { return };
    let mut node = outward_node(outward).await;
    let mut members = Vec::new();
    for number in 0..40 {
        let mut member = outward_node(outward).await;
        member.dial(&node);
        next_event!(member, Event::PeerConnected { peer, .. } if peer == node.peer => ());
        node.wait_connected(member.peer).await;
        node.transfer(number, member.peer, payload(1_000, 1));
        assert_eq!(node.wait_transfer_end(number).await, Ok(()));
        members.push(member);
    }
    for (number, member) in members.iter().enumerate() {
        let number = 100 + number as u64;
        node.transfer(number, member.peer, payload(1_000, 2));
        assert_eq!(node.wait_transfer_end(number).await, Ok(()), "it has its place still");
    }
}

//! Who is let in: closed runs, and the owner's lists.

use std::time::Duration;

use murmur_network::{Admission, NetworkConfig};
use murmur_protocol::NetworkOrder;
use murmur_protocol::handshake::Refusal;
use murmur_protocol::{Event, PeerId, Secret};

use crate::node::{Node, Over, config, meet};

async fn closed(over: Over, secret: Option<u8>) -> Node {
    Node::start_with(NetworkConfig { secret: secret.map(|byte| Secret::from_bytes([byte; 32])), ..config(over) }).await
}

async fn refusal(node: &mut Node, other: PeerId) -> Refusal {
    node.wait_for("HandshakeRefused", |event| match event {
        Event::HandshakeRefused { peer, refusal } if peer == other => Some(refusal),
        Event::PeerConnected { .. } => panic!("a stranger was let in"),
        _ => None,
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_closed_run_connect_and_strangers_are_refused_on_both_sides() {
    for over in [Over::Tcp, Over::Quic] {
        let mut member = closed(over, Some(7)).await;
        let cases = [(None, Refusal::Closed, Refusal::Stranger), (Some(8), Refusal::OtherSecret, Refusal::OtherSecret)];
        for (secret, theirs, ours) in cases {
            let mut stranger = closed(over, secret).await;
            stranger.dial(&member);
            assert_eq!(refusal(&mut stranger, member.peer).await, theirs);
            assert_eq!(refusal(&mut member, stranger.peer).await, ours);
            // The other way round, on a connection of its own.
            let mut stranger = closed(over, secret).await;
            member.dial(&stranger);
            assert_eq!(refusal(&mut member, stranger.peer).await, ours);
            assert_eq!(refusal(&mut stranger, member.peer).await, theirs);
        }
        let mut second = closed(over, Some(7)).await;
        meet(&mut second, &mut member).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_peer_is_turned_away_and_told_so() {
    let mut blocked = Node::start(Over::Tcp).await;
    let mut settings = config(Over::Tcp);
    settings.admission = Admission { block: [blocked.peer].into(), ..Admission::default() };
    let mut node = Node::start_with(settings).await;
    blocked.dial(&node);
    assert_eq!(refusal(&mut blocked, node.peer).await, Refusal::NotAdmitted);
    assert_eq!(refusal(&mut node, blocked.peer).await, Refusal::Excluded);
    node.dial(&blocked);
    assert_eq!(node.wait_dial_failed().await, "network.allow or network.block of this node excludes it");
    let mut other = Node::start(Over::Tcp).await;
    other.dial(&node);
    other.wait_connected(node.peer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_on_the_list_of_the_allowed_is_turned_away_even_where_only_its_address_was_known() {
    let mut friend = Node::start(Over::Tcp).await;
    let mut settings = config(Over::Tcp);
    settings.admission = Admission { allow: [friend.peer].into(), ..Admission::default() };
    let mut node = Node::start_with(settings).await;
    let stranger = Node::start(Over::Tcp).await;
    node.order(NetworkOrder::Dial { peer: None, addresses: vec![stranger.address()] });
    assert_eq!(refusal(&mut node, stranger.peer).await, Refusal::Excluded);
    meet(&mut friend, &mut node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_blocked_later_is_disconnected_and_returns_once_it_is_let_in_again() {
    for over in [Over::Tcp, Over::Quic] {
        let (mut node, mut member) = (Node::start(over).await, Node::start(over).await);
        meet(&mut member, &mut node).await;
        let admission = node.network.admission();
        admission.send_replace(Admission { block: [member.peer].into(), ..Admission::default() });
        node.wait_disconnected(member.peer).await;
        member.wait_disconnected(node.peer).await;
        // As the core does: a connection that was refused or closed a moment ago may not be gone yet.
        let dial = NetworkOrder::Dial { peer: Some(node.peer), addresses: vec![node.address()] };
        let network = member.network.clone();
        let dialing = tokio::spawn(async move {
            while network.try_order(dial.clone()).is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        assert_eq!(refusal(&mut member, node.peer).await, Refusal::NotAdmitted);
        admission.send_replace(Admission::default());
        node.wait_connected(member.peer).await;
        dialing.abort();
    }
}

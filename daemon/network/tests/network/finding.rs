//! Finding members of the run that nobody has told of.

use std::sync::Arc;

use murmur_network::{Connectivity, NetworkConfig};
use murmur_protocol::NetworkOrder;
use murmur_protocol::handshake::Refusal;
use murmur_protocol::{Address, Event, PeerId, RunManifest};
use tokio::time::{Duration, timeout};

use crate::node::{Node, Over, config, meet, next_event, over_tcp_and_quic};

/// Only the run's table.
const TABLE: Connectivity = Connectivity { kademlia: true, ..Connectivity::OFF };

async fn with(connectivity: Connectivity, over: Over) -> Node {
    Node::start_with(NetworkConfig { connectivity, ..config(over) }).await
}

async fn wait_found(node: &mut Node, wanted: PeerId) -> Vec<Address> {
    node.wait_for("PeersFound", |event| match event {
        Event::PeersFound { peers } => {
            peers.into_iter().find(|known| known.peer == wanted).map(|known| known.addresses)
        }
        _ => None,
    })
    .await
}

async fn two_nodes_that_share_a_third_find_each_other(over: Over) {
    let (mut first, mut hub, mut last) = (with(TABLE, over).await, with(TABLE, over).await, with(TABLE, over).await);
    meet(&mut first, &mut hub).await;
    meet(&mut last, &mut hub).await;
    find_each_other(&mut first, &mut last).await;
}

/// Waits until one of two nodes has found the other in the run's table, and connects them.
pub(crate) async fn find_each_other(first: &mut Node, last: &mut Node) {
    // No core is there to shuffle: whoever looks first finds the other, or is found at the next look.
    let (first_peer, last_peer) = (first.peer, last.peer);
    let (finder, found, addresses) = tokio::select! {
        addresses = wait_found(first, last_peer) => (first, last, addresses),
        addresses = wait_found(last, first_peer) => (last, first, addresses),
    };
    assert!(addresses.contains(&found.address()), "{addresses:?}");
    finder.order(NetworkOrder::Dial { peer: Some(found.peer), addresses });
    finder.wait_connected(found.peer).await;
    found.wait_connected(finder.peer).await;
}

over_tcp_and_quic!(two_nodes_that_share_a_third_find_each_other);

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_different_runs_share_no_table() {
    let mut changed = RunManifest::default();
    changed.optimizer.learning_rate = 1e-3;
    let (mut hub, mut first) = (with(TABLE, Over::Tcp).await, with(TABLE, Over::Tcp).await);
    let mut settings = config(Over::Tcp);
    settings.connectivity = TABLE;
    settings.manifest = Arc::new(changed);
    let mut stranger = Node::start_with(settings).await;
    meet(&mut first, &mut hub).await;
    stranger.dial(&hub);
    next_event!(stranger, Event::HandshakeRefused { refusal: Refusal::OtherRun { .. }, .. } => ());
    // A look takes milliseconds and the first comes after a second; nothing is found in several.
    let found = |event| match event {
        Event::PeersFound { peers } => Some(peers),
        _ => None,
    };
    for node in [&mut stranger, &mut first] {
        let anything = async {
            loop {
                let event = node.events.recv().await.expect("the network runs");
                if let Some(peers) = found(event) {
                    return peers;
                }
            }
        };
        let peers = timeout(Duration::from_secs(3), anything).await;
        assert!(peers.is_err(), "found {peers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_makes_nobody_a_member() {
    let (mut first, mut hub, mut last) =
        (with(TABLE, Over::Tcp).await, with(TABLE, Over::Tcp).await, with(TABLE, Over::Tcp).await);
    meet(&mut first, &mut hub).await;
    meet(&mut last, &mut hub).await;
    let strangers = [first.peer, last.peer];
    for node in [&mut first, &mut last] {
        let spoken = async {
            loop {
                let event = node.events.recv().await.expect("the network runs");
                match &event {
                    Event::PeerConnected { peer, .. } | Event::HandshakeRefused { peer, .. }
                        if strangers.contains(peer) =>
                    {
                        return event;
                    }
                    _ => {}
                }
            }
        };
        let event = timeout(Duration::from_secs(6), spoken).await;
        assert!(event.is_err(), "nobody ordered it, but there was {event:?}");
    }
}

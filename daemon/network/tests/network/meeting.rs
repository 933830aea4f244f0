//! Connecting, talking, parting.

use std::sync::Arc;

use murmur_network::NetworkConfig;
use murmur_protocol::NetworkOrder;
use murmur_protocol::handshake::Refusal;
use murmur_protocol::{Address, Event, RunManifest, Secret};
use tokio::time::{Duration, timeout};

use crate::hostile::socket_of;
use crate::node::{
    DEADLINE, Node, Over, RUNS, assert_they_talk, config, connected_pair, meet, message, next_event, over_tcp_and_quic,
};

async fn two_nodes_connect_and_exchange_messages(over: Over) {
    let (mut one, mut other) = (Node::start(over).await, Node::start(over).await);
    one.dial(&other);
    assert_eq!(one.wait_connected(other.peer).await, [other.address()]);
    assert_eq!(other.wait_connected(one.peer).await, [one.address()]);
    assert_they_talk(&mut one, &mut other).await;
    let traffic = one.network.traffic();
    assert!(traffic.sent > 500 && traffic.received > 500, "{traffic:?}");
}

over_tcp_and_quic!(two_nodes_connect_and_exchange_messages);

#[tokio::test(flavor = "multi_thread")]
async fn a_listen_address_is_reported() {
    let mut node = Node::start(Over::Tcp).await;
    let expected = node.address();
    let found = next_event!(node, Event::AddressFound { address } => address);
    assert_eq!(found, expected);
}

async fn another_run_is_refused_on_both_sides(over: Over) {
    let mut changed = RunManifest::default();
    changed.optimizer.learning_rate = 1e-3;
    let mut one = Node::start(over).await;
    let mut stranger = Node::start_with(NetworkConfig { manifest: Arc::new(changed), ..config(over) }).await;
    stranger.dial(&one);
    let differences = |event| match event {
        Event::HandshakeRefused { peer, refusal: Refusal::OtherRun { differences, .. } } => Some((peer, differences)),
        Event::PeerConnected { .. } => panic!("a stranger was let in"),
        _ => None,
    };
    let (refused, ours) = one.wait_for("HandshakeRefused", differences).await;
    let (refusing, theirs) = stranger.wait_for("HandshakeRefused", differences).await;
    assert_eq!((refused, refusing), (stranger.peer, one.peer));
    assert_eq!(ours, ["optimizer.learning_rate: 0.004 here, 0.001 there"]);
    assert_eq!(theirs, ["optimizer.learning_rate: 0.001 here, 0.004 there"]);
}

over_tcp_and_quic!(another_run_is_refused_on_both_sides);

async fn a_simultaneous_dial_connects_once(over: Over, secret: &Option<Secret>) {
    let (mut one, mut other) = (Node::start_in(over, secret).await, Node::start_in(over, secret).await);
    one.dial(&other);
    meet(&mut other, &mut one).await;
    // Both directions work, and nothing more is said about the connection while they do.
    for number in 0..20 {
        one.send(other.peer, message(number));
        other.send(one.peer, message(number));
        for node in [&mut one, &mut other] {
            let received = node.wait_for("a message and nothing else", |event| match event {
                Event::MessageReceived { message, .. } => Some(message),
                Event::PeerConnected { .. } | Event::PeerDisconnected { .. } => panic!("unexpected {event:?}"),
                _ => None,
            });
            assert_eq!(received.await, message(number));
        }
    }
    one.order(NetworkOrder::Disconnect { peer: other.peer });
    one.wait_disconnected(other.peer).await;
    other.wait_disconnected(one.peer).await;
    one.network.close().await;
    other.network.close().await;
    for (node, whole) in [(&mut one, true), (&mut other, false)] {
        // The other may see the second connection succeed after the first is gone: then a short period of its own.
        let mut connected = false;
        while let Some(event) = node.events.recv().await {
            match event {
                Event::PeerConnected { .. } => assert!(!whole && !std::mem::replace(&mut connected, true), "{event:?}"),
                Event::PeerDisconnected { .. } => assert!(std::mem::replace(&mut connected, false), "{event:?}"),
                _ => {}
            }
        }
        assert!(!connected, "every period ends");
    }
}

async fn simultaneous_dials_connect_once(over: Over) {
    let times = match over {
        // Often enough to meet the case that both dials become one TCP connection.
        Over::Tcp => 20,
        Over::Quic => 5,
    };
    for secret in RUNS {
        for _ in 0..times {
            a_simultaneous_dial_connects_once(over, &secret).await;
        }
    }
}

over_tcp_and_quic!(simultaneous_dials_connect_once);

async fn the_last_message_before_a_disconnect_arrives(over: Over) {
    let (mut one, mut other) = connected_pair(over).await;
    one.send(other.peer, message(7));
    one.order(NetworkOrder::Disconnect { peer: other.peer });
    assert_eq!(other.wait_message().await, (one.peer, message(7)));
    other.wait_disconnected(one.peer).await;
    one.wait_disconnected(other.peer).await;
    // A new period begins with a new dial; the old connection may still be closing.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        other.dial(&one);
        let connected = other.wait_for("an answer to the dial", |event| match event {
            Event::PeerConnected { .. } => Some(true),
            Event::DialFailed { .. } => Some(false),
            _ => None,
        });
        if connected.await {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "no new connection");
    }
    one.wait_connected(other.peer).await;
}

over_tcp_and_quic!(the_last_message_before_a_disconnect_arrives);

async fn closing_is_quick_and_noticed(over: Over) {
    let (mut one, mut other) = connected_pair(over).await;
    one.send(other.peer, message(1));
    timeout(Duration::from_secs(4), one.network.close()).await.expect("closed within its deadline");
    assert_eq!(other.wait_message().await, (one.peer, message(1)));
    other.wait_disconnected(one.peer).await;
    one.wait_disconnected(other.peer).await;
    assert!(one.network.try_order(NetworkOrder::Disconnect { peer: other.peer }).is_err());
}

over_tcp_and_quic!(closing_is_quick_and_noticed);

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_dial_says_why() {
    for secret in RUNS {
        let mut node = Node::start_in(Over::Tcp, &secret).await;
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let nobody = Address::new(format!("/ip4/127.0.0.1/tcp/{port}")).expect("short");
        node.order(NetworkOrder::Dial { peer: None, addresses: vec![nobody] });
        assert_eq!(node.wait_dial_failed().await, "nobody listens there (connection refused)");

        let useless = Address::new("/unix/nowhere").expect("short");
        node.order(NetworkOrder::Dial { peer: None, addresses: vec![useless.clone()] });
        // The core recognises its dial by the address.
        let failed = next_event!(node, Event::DialFailed { addresses, reason, .. } => (addresses, reason));
        assert_eq!(failed, (vec![useless], "there is no address that this node could dial".to_owned()));

        node.order(NetworkOrder::Dial { peer: Some(node.peer), addresses: vec![node.address()] });
        assert_eq!(node.wait_dial_failed().await, "that is this node itself");

        let unknown = Address::new("/dns4/nobody.invalid/tcp/4001").expect("short");
        node.order(NetworkOrder::Dial { peer: None, addresses: vec![unknown] });
        let reason = node.wait_dial_failed().await;
        // Depending on whether this machine has a name server.
        let reasons = ["its name cannot be looked up in the DNS", "no answer within 8 s"];
        assert!(reasons.contains(&reason.as_str()), "{reason}");

        let other = Node::start(Over::Tcp).await;
        let wrong = Node::start(Over::Tcp).await;
        node.order(NetworkOrder::Dial { peer: Some(wrong.peer), addresses: vec![other.address()] });
        assert!(node.wait_dial_failed().await.starts_with("another peer answers there"), "named");
    }
}

/// Dials come from the listening port on any address, which another program makes impossible.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_on_another_address_hinders_no_dial() {
    let mut node = Node::start(Over::Tcp).await;
    let other = Node::start(Over::Tcp).await;
    let _program = match std::net::TcpListener::bind(("127.0.0.2", socket_of(&node).port())) {
        Ok(listener) => listener,
        Err(error) => {
            println!("skipped: this machine has no 127.0.0.2 ({error})");
            return;
        }
    };
    node.dial(&other);
    node.wait_connected(other.peer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dial_without_a_peer_tries_one_address_after_the_other() {
    let (mut node, other) = (Node::start(Over::Tcp).await, Node::start(Over::Quic).await);
    let nobody = Address::new("/ip4/127.0.0.1/tcp/1").expect("short");
    node.order(NetworkOrder::Dial { peer: None, addresses: vec![nobody, node.address(), other.address()] });
    node.wait_connected(other.peer).await;
    // Once more: it ends with a word, and the connection is none the worse.
    node.order(NetworkOrder::Dial { peer: None, addresses: vec![other.address()] });
    assert_eq!(node.wait_dial_failed().await, "already connected to the peer there");
    let mut other = other;
    node.send(other.peer, message(3));
    assert_eq!(other.wait_message().await, (node.peer, message(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_address_is_given_up_in_time() {
    let mut node = Node::start(Over::Tcp).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let address = Address::new(format!("/ip4/127.0.0.1/tcp/{port}")).expect("short");
    node.order(NetworkOrder::Dial { peer: None, addresses: vec![address] });
    assert_eq!(node.wait_dial_failed().await, "no answer within 8 s");
}

async fn an_idle_connection_stays_open(over: Over) {
    let (mut one, mut other) = connected_pair(over).await;
    one.wait_for("RangeFound", |event| matches!(event, Event::RangeFound { .. }).then_some(())).await;
    while one.events.try_recv().is_ok() {}
    // Longer than libp2p lets a connection without open streams live.
    let event = timeout(Duration::from_secs(14), one.events.recv()).await;
    assert!(event.is_err(), "nothing happened, but there was {event:?}");
    one.send(other.peer, message(1));
    assert_eq!(other.wait_message().await, (one.peer, message(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_stay_open() {
    // At the same time, because this one has to wait.
    tokio::join!(an_idle_connection_stays_open(Over::Tcp), an_idle_connection_stays_open(Over::Quic));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_core_loses_nothing_and_delays_nobody_else() {
    let mut busy = Node::start_with_room(config(Over::Tcp), 1).await;
    let (mut one, mut other) = connected_pair(Over::Tcp).await;
    one.dial(&busy);
    one.wait_connected(busy.peer).await;
    // Fewer than a peer's queue holds, more than the busy core has room for.
    for number in 0..50 {
        one.send(busy.peer, message(number));
    }
    one.send(other.peer, message(99));
    assert_eq!(other.wait_message().await, (one.peer, message(99)));
    busy.wait_connected(one.peer).await;
    for number in 0..50 {
        assert_eq!(busy.wait_message().await, (one.peer, message(number)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_core_does_not_keep_the_network_from_closing() {
    let busy = Node::start_with_room(config(Over::Tcp), 1).await;
    let mut one = Node::start(Over::Tcp).await;
    one.dial(&busy);
    one.wait_connected(busy.peer).await;
    for number in 0..50 {
        one.send(busy.peer, message(number));
    }
    timeout(Duration::from_secs(5), busy.network.close()).await.expect("closed in time");
    one.wait_disconnected(busy.peer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_network_closes() {
    let (one, mut other) = connected_pair(Over::Tcp).await;
    let gone = one.peer;
    drop(one);
    other.wait_disconnected(gone).await;
}

//! Peers that send what no honest peer sends. The node names it, survives it and serves the next one.

use std::io::Write;
use std::time::{Duration, Instant};

use futures::AsyncWriteExt;
use murmur_network::streams::{BULK_PROTOCOL, DATA_PROTOCOL, LIFE_PROTOCOL};
use murmur_network::{Connectivity, Multiaddr, NetworkConfig};
use murmur_protocol::Misbehaviour;
use murmur_protocol::bounds::CONNECTIONS_MAX;
use murmur_protocol::codec::{self, CONTROL_BYTES_MAX};
use murmur_protocol::handshake::Refusal;
use murmur_protocol::message::TransferHeader;
use murmur_protocol::{Address, Event, NetworkOrder, PeerId};

use crate::aimed::outward_address;
use crate::hostile::{
    Hostile, Raw, announced, assert_welcome, honest_greeting, honest_hello, read_frame, socket_of, wait_ended, write,
    write_frame,
};
use crate::node::{Node, Over, PAYLOAD_BYTES_MAX, assert_still_serves, config, message, next_event};

async fn wait_misbehaved(node: &mut Node, hostile: PeerId) -> Misbehaviour {
    next_event!(node, Event::PeerMisbehaved { peer, misbehaviour } if peer == hostile => misbehaviour)
}

async fn wait_refused(node: &mut Node, hostile: PeerId) -> Refusal {
    next_event!(node, Event::HandshakeRefused { peer, refusal } if peer == hostile => refusal)
}

fn header() -> Vec<u8> {
    codec::encode(&TransferHeader::ProposalCodes { exchange: 1 })
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_a_raw_connection_is_survived() {
    let mut node = Node::start(Over::Tcp).await;
    let mut sockets = Vec::new();
    for length in [1, 100, 100_000] {
        let mut socket = std::net::TcpStream::connect(socket_of(&node)).expect("it listens");
        // The node may hang up in the middle.
        let _ = socket.write_all(&vec![0xA5; length]);
        sockets.push(socket);
    }
    assert_still_serves(&mut node, Over::Tcp).await;
}

/// Seventy sockets took all places of connections that negotiate.
#[tokio::test(flavor = "multi_thread")]
async fn idle_sockets_of_one_host_keep_nobody_out() {
    // Another host than the honest one's, as far as addresses tell.
    idle_sockets_keep_nobody_out(|_| "127.0.0.2:0".to_owned()).await;
}

/// Each has a network of its own, so that only the limit on all can hold: the oldest socket gives way to the newcomer.
#[tokio::test(flavor = "multi_thread")]
async fn idle_sockets_of_many_networks_keep_nobody_out() {
    idle_sockets_keep_nobody_out(|number| format!("127.{}.{}.1:0", 1 + number / 256, number % 256)).await;
}

/// From so many addresses of this machine, to which all of 127/8 belongs.
async fn idle_sockets_keep_nobody_out(address: impl Fn(u32) -> String) {
    let mut node = Node::start(Over::Tcp).await;
    let mut sockets = Vec::new();
    for number in 0..300 {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(address(number).parse().expect("an address")).expect("this machine's");
        sockets.push(socket.connect(socket_of(&node)).await.expect("it listens"));
    }
    let begin = Instant::now();
    assert_still_serves(&mut node, Over::Tcp).await;
    // Not only after they have run into their time limit.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

/// Peers that pass the encryption and say nothing after that take all places of handshakes; one who greets is let in at once.
#[tokio::test(flavor = "multi_thread")]
async fn silent_peers_keep_nobody_out() {
    let Some((mut node, [over_ip4, over_ip6])) = node_on_two_hosts().await else { return };
    let _silent = silent_peers(over_ip4, 128).await;
    let honest = Node::start(Over::Tcp).await;
    let address = Address::new(over_ip6.to_string()).expect("short");
    honest.order(NetworkOrder::Dial { peer: Some(node.peer), addresses: vec![address] });
    node.wait_connected(honest.peer).await;
}

/// By age alone, the newcomer that is slow to greet was the first to go.
#[tokio::test(flavor = "multi_thread")]
async fn silent_peers_push_nobody_out_who_came_before_them_and_greets_late() {
    let Some((mut node, [over_ip4, over_ip6])) = node_on_two_hosts().await else { return };
    let slow = Raw::connect(over_ip6).await;
    let _silent = silent_peers(over_ip4, 128).await;
    let (answer, _control) = slow.greet(&honest_greeting()).await;
    assert_welcome(&answer);
    node.wait_connected(slow.peer).await;
}

/// A node, and where it is reached from two hosts; nothing, and a line that says why, where there is no IPv6.
async fn node_on_two_hosts() -> Option<(Node, [Multiaddr; 2])> {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6, and one host may open no more connections than it has places");
        return None;
    }
    let mut settings = config(Over::Tcp);
    settings.listen.push("/ip6/::1/tcp/0".parse().expect("an address"));
    let node = Node::start_with(settings).await;
    let addresses = node.network.listen_addresses();
    let over = |protocol: &str| addresses.iter().find(|it| it.to_string().starts_with(protocol)).expect("it listens");
    let places = [over("/ip4").clone(), over("/ip6").clone()];
    Some((node, places))
}

async fn silent_peers(address: Multiaddr, count: usize) -> Vec<Raw> {
    let mut silent = Vec::new();
    for _ in 0..count {
        silent.push(Raw::connect(address.clone()).await);
    }
    silent
}

/// With the places of all members, one host was the swarm for this node.
#[tokio::test(flavor = "multi_thread")]
async fn members_of_one_host_leave_half_of_the_places_to_others() {
    let Some(outward) = outward_address() else {
        println!("skipped: this machine has no address but loopback");
        return;
    };
    let mut settings = config(Over::Tcp);
    settings.listen.push(format!("/ip4/{outward}/tcp/0").parse().expect("an address"));
    let mut node = Node::start_with(settings).await;
    let addresses = node.network.listen_addresses();
    let address = addresses.iter().find(|address| !address.to_string().contains("127.0.0.1")).expect("it listens");
    let (mut members, mut turned_away) = (Vec::new(), 0);
    for _ in 0..CONNECTIONS_MAX {
        let hostile = Raw::connect(address.clone()).await;
        // Who is turned away may not come to read the answer.
        let Some((_, answer, control)) = hostile.try_knock(&honest_greeting()).await else {
            turned_away += 1;
            continue;
        };
        assert_welcome(&answer);
        tokio::select! {
            _ = node.wait_connected(hostile.peer) => members.push((hostile, control)),
            () = hostile.streams.opener.closed() => turned_away += 1,
        }
    }
    assert_eq!((members.len(), turned_away), (CONNECTIONS_MAX / 2, CONNECTIONS_MAX / 2));
    assert_still_serves(&mut node, Over::Tcp).await;
}

/// Nobody reads before the handshake, so that a gigabyte waited on the connections of one host.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_not_greeted_has_no_stream_to_write_on() {
    for over in [Over::Tcp, Over::Quic] {
        let mut node = Node::start(over).await;
        let hostile = Hostile::connect(&node).await;
        let begin = Instant::now();
        for protocol in [BULK_PROTOCOL, DATA_PROTOCOL, LIFE_PROTOCOL] {
            let mut stream = hostile.streams.opener.open(protocol).await.expect("a stream");
            let writing = async {
                let _ = stream.write_all(&vec![1; 1 << 20]).await;
                wait_ended(&mut stream).await;
            };
            // Long before the connection is closed.
            tokio::time::timeout(Duration::from_secs(3), writing).await.expect("the stream is reset");
        }
        assert!(begin.elapsed() < Duration::from_secs(9), "it may still greet");
        let (answer, _control) = hostile.greet(&honest_greeting()).await;
        assert_welcome(&answer);
        let mut bulk = hostile.open_bulk().await;
        write_frame(&mut bulk, &[255; 50]).await;
        assert!(matches!(wait_misbehaved(&mut node, hostile.peer).await, Misbehaviour::Garbage(_)), "it is read");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_instead_of_a_greeting_is_refused() {
    for over in [Over::Tcp, Over::Quic] {
        let mut node = Node::start(over).await;
        let hostile = Hostile::connect(&node).await;
        let mut control = hostile.open_control().await;
        write_frame(&mut control, &[255; 100]).await;
        assert!(matches!(wait_refused(&mut node, hostile.peer).await, Refusal::Garbage(_)));
        wait_ended(&mut control).await;

        let hostile = Hostile::connect(&node).await;
        let mut control = hostile.open_control().await;
        write(&mut control, &u32::MAX.to_le_bytes()).await;
        assert!(matches!(wait_refused(&mut node, hostile.peer).await, Refusal::Garbage(_)));
        wait_ended(&mut control).await;
        assert_still_serves(&mut node, over).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_handshake_is_closed_in_time() {
    let mut node = Node::start(Over::Tcp).await;
    let hostile = Hostile::connect(&node).await;
    let refusal = wait_refused(&mut node, hostile.peer).await;
    assert_eq!(refusal, Refusal::Silent);
    tokio::time::timeout(crate::node::DEADLINE, hostile.streams.opener.closed()).await.expect("the node hangs up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_handshake_may_be_for_a_lookup_and_closes_as_idle() {
    let mut settings = config(Over::Tcp);
    settings.connectivity = Connectivity { kademlia: true, ..Connectivity::OFF };
    let mut node = Node::start_with(settings).await;
    let hostile = Hostile::connect(&node).await;
    tokio::time::timeout(crate::node::DEADLINE, hostile.streams.opener.closed()).await.expect("the node hangs up");
    while let Ok(event) = node.events.try_recv() {
        assert!(matches!(event, Event::AddressFound { .. }), "it is no offence, but there was {event:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_after_the_handshake_ends_the_connection() {
    for over in [Over::Tcp, Over::Quic] {
        let mut node = Node::start(over).await;
        let (hostile, mut control) = Hostile::join(&mut node).await;
        write_frame(&mut control, &codec::encode(&message(4))).await;
        write_frame(&mut control, &[255; 10]).await;
        assert_eq!(node.wait_message().await, (hostile.peer, message(4)));
        assert!(matches!(wait_misbehaved(&mut node, hostile.peer).await, Misbehaviour::Garbage(_)));
        node.wait_disconnected(hostile.peer).await;
        assert_still_serves(&mut node, over).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_control_message_ends_the_connection() {
    let mut node = Node::start(Over::Tcp).await;
    let (hostile, mut control) = Hostile::join(&mut node).await;
    write(&mut control, &(CONTROL_BYTES_MAX as u32 + 1).to_le_bytes()).await;
    let misbehaviour = wait_misbehaved(&mut node, hostile.peer).await;
    assert!(misbehaviour.to_string().contains("32769 bytes"), "{misbehaviour}");
    node.wait_disconnected(hostile.peer).await;
    wait_ended(&mut control).await;
    assert_still_serves(&mut node, Over::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_payload_is_refused_when_it_is_announced() {
    for over in [Over::Tcp, Over::Quic] {
        let mut node = Node::start(over).await;
        let (hostile, _control) = Hostile::join(&mut node).await;
        let mut bulk = hostile.open_bulk().await;
        write_frame(&mut bulk, &header()).await;
        write(&mut bulk, &announced(u64::MAX)).await;
        let expected = Misbehaviour::WrongLength { expected: PAYLOAD_BYTES_MAX, actual: u64::MAX };
        assert_eq!(wait_misbehaved(&mut node, hostile.peer).await, expected);
        wait_ended(&mut bulk).await;
        assert_still_serves(&mut node, over).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_instead_of_a_transfer_is_named() {
    let mut node = Node::start(Over::Tcp).await;
    let (hostile, _control) = Hostile::join(&mut node).await;
    let mut bulk = hostile.open_bulk().await;
    write_frame(&mut bulk, &[255; 50]).await;
    assert!(matches!(wait_misbehaved(&mut node, hostile.peer).await, Misbehaviour::Garbage(_)));
    let mut bulk = hostile.open_bulk().await;
    write(&mut bulk, &5000u32.to_le_bytes()).await;
    let misbehaviour = wait_misbehaved(&mut node, hostile.peer).await;
    assert!(misbehaviour.to_string().contains("5000 bytes"), "{misbehaviour}");
    assert_still_serves(&mut node, Over::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_with_another_digest_is_named_and_never_handed_over() {
    let mut node = Node::start(Over::Tcp).await;
    let (hostile, _control) = Hostile::join(&mut node).await;
    let mut bulk = hostile.open_bulk().await;
    write_frame(&mut bulk, &header()).await;
    write(&mut bulk, &announced(1000)).await;
    write(&mut bulk, &[1; 1000]).await;
    write(&mut bulk, &[0; 32]).await;
    let misbehaviour = node
        .wait_for("PeerMisbehaved", |event| match event {
            Event::PeerMisbehaved { misbehaviour, .. } => Some(misbehaviour),
            Event::TransferReceived { .. } => panic!("an unverified payload was handed over"),
            _ => None,
        })
        .await;
    assert!(misbehaviour.to_string().contains("digest"), "{misbehaviour}");
    wait_ended(&mut bulk).await;
    assert_still_serves(&mut node, Over::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_are_none_are_named() {
    let mut node = Node::start(Over::Tcp).await;
    let (hostile, _control) = Hostile::join(&mut node).await;
    let of_1000 = |form: u8, block: u32| {
        let announced = [&[form][..], &1000_u64.to_le_bytes(), &block.to_le_bytes()].concat();
        [announced, vec![255; 1000]].concat()
    };
    let cases = [
        ("in no known form", of_1000(2, 1000), "the form 2"),
        ("a block longer than the payload", of_1000(1, 1001), "a block of 1001 bytes"),
        ("a block that cannot be unpacked", of_1000(1, 800), "a block of 800 bytes"),
        ("a block of nothing", of_1000(1, 0), "a block of 0 bytes"),
    ];
    for (what, bytes, told) in cases {
        let mut bulk = hostile.open_bulk().await;
        write_frame(&mut bulk, &header()).await;
        write(&mut bulk, &bytes).await;
        let misbehaviour = wait_misbehaved(&mut node, hostile.peer).await;
        assert!(misbehaviour.to_string().contains(told), "{what}: {misbehaviour}");
        wait_ended(&mut bulk).await;
    }
    assert_still_serves(&mut node, Over::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_transfer_is_no_crime_and_never_handed_over() {
    for over in [Over::Tcp, Over::Quic] {
        let mut node = Node::start(over).await;
        let (hostile, mut control) = Hostile::join(&mut node).await;
        for cut in [0, 500] {
            let mut bulk = hostile.open_bulk().await;
            write_frame(&mut bulk, &header()).await;
            write(&mut bulk, &announced(1000)).await;
            write(&mut bulk, &vec![1; cut]).await;
            bulk.close().await.expect("closed");
            wait_ended(&mut bulk).await;
        }
        // The connection goes on.
        write_frame(&mut control, &codec::encode(&message(8))).await;
        let next = node
            .wait_for("a message and nothing else", |event| match event {
                Event::MessageReceived { message, .. } => Some(message),
                // Where it is reached.
                Event::RangeFound { .. } => None,
                other => panic!("unexpected {other:?}"),
            })
            .await;
        assert_eq!(next, message(8));
        assert_still_serves(&mut node, over).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_at_once_are_bounded_and_survived() {
    let mut node = Node::start(Over::Tcp).await;
    let (hostile, mut control) = Hostile::join(&mut node).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        match hostile.streams.opener.open(BULK_PROTOCOL).await {
            Ok(stream) => silent.push(stream),
            Err(_) => break,
        }
    }
    assert!(silent.len() >= 16);
    write_frame(&mut control, &codec::encode(&message(6))).await;
    assert_eq!(node.wait_message().await, (hostile.peer, message(6)));
    assert_still_serves(&mut node, Over::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_control_stream_changes_nothing() {
    let mut node = Node::start(Over::Tcp).await;
    let (hostile, mut control) = Hostile::join(&mut node).await;
    for _ in 0..3 {
        let mut second = hostile.open_control().await;
        let _ = second.write_all(&honest_hello()).await;
    }
    write_frame(&mut control, &codec::encode(&message(5))).await;
    assert_eq!(node.wait_message().await, (hostile.peer, message(5)));
    node.send(hostile.peer, message(6));
    assert_eq!(read_frame(&mut control).await, Some(codec::encode(&message(6))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_announces_much_and_sends_nothing_takes_only_its_own_share_of_the_memory() {
    let mut node =
        Node::start_with(NetworkConfig { inbound_bytes_budget: PAYLOAD_BYTES_MAX + (1 << 20), ..config(Over::Tcp) })
            .await;
    let (hostile, _control) = Hostile::join(&mut node).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut bulk = hostile.open_bulk().await;
        write_frame(&mut bulk, &header()).await;
        write(&mut bulk, &announced(PAYLOAD_BYTES_MAX)).await;
        streams.push(bulk);
    }
    // Long before the node gives the silent ones up, which is after twenty seconds.
    let served = assert_still_serves(&mut node, Over::Tcp);
    tokio::time::timeout(std::time::Duration::from_secs(10), served).await.expect("others have room");
}

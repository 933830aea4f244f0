//! Payloads between honest nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use murmur_protocol::message::TransferHeader;
use murmur_protocol::{Event, NetworkOrder, Payload, TransferId};
use tokio::time::timeout;

use crate::hostile::Hostile;
use crate::node::{
    Node, Over, PAYLOAD_BYTES_MAX, config, connected_pair, meet, message, next_event, over_tcp_and_quic, payload,
};

async fn a_large_payload_arrives_intact_and_is_acknowledged(over: Over) {
    let (mut one, mut other) = connected_pair(over).await;
    let sent = payload(8 << 20, 1);
    one.transfer(5, other.peer, sent.clone());
    let (header, received) = other.wait_transfer().await;
    assert_eq!(header, TransferHeader::ProposalCodes { exchange: 5 });
    assert!(received == sent, "{received:?} is not {sent:?}");
    assert_eq!(one.wait_transfer_end(5).await, Ok(()));
    let (sender, receiver) = (one.network.traffic(), other.network.traffic());
    assert!(sender.sent > 8 << 20 && receiver.received > 8 << 20, "{sender:?} {receiver:?}");
    assert!(sender.sent < 9 << 20, "{sender:?} is far more than the payload");
}

over_tcp_and_quic!(a_large_payload_arrives_intact_and_is_acknowledged);

/// What is random in eight bits is not in 32: exponents of weights are alike.
#[tokio::test(flavor = "multi_thread")]
async fn values_on_a_line_that_may_be_slow_take_five_sixths_of_their_bytes() {
    const BYTES: usize = 1 << 20;
    let values = payload(BYTES / 4, 1);
    let values = values.bytes().iter().flat_map(|byte| ((f32::from(*byte) - 127.3) / 3000.0).to_le_bytes());
    let sent = Payload::from(values.collect::<Vec<u8>>());
    let state = TransferHeader::State { request: 1, chunk: 0, progress: 0.0, layout: [0; 32] };
    let codes = TransferHeader::ProposalCodes { exchange: 1 };
    let mut taken = Vec::new();
    for header in [state, codes] {
        let (one, mut other) = connected_pair(Over::Tcp).await;
        let before = one.network.traffic().sent;
        let (transfer, peer, payload) = (TransferId(1), other.peer, sent.clone());
        one.order(NetworkOrder::StartTransfer { transfer, peer, header: header.clone(), payload });
        assert!(other.wait_transfer().await == (header, sent.clone()));
        taken.push((one.network.traffic().sent - before) as f64 / BYTES as f64);
    }
    assert!((0.75..0.86).contains(&taken[0]), "{taken:?}");
    assert!(taken[1] > 1.0, "what is not of values is sent as it is: {taken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_payload_arrives() {
    let (mut one, mut other) = connected_pair(Over::Tcp).await;
    one.transfer(1, other.peer, payload(0, 1));
    assert!(other.wait_transfer().await.1.is_empty());
    assert_eq!(one.wait_transfer_end(1).await, Ok(()));
}

/// Half as long as a reader may take for its next word: after that the next transfer would begin anyway.
const SOON: Duration = Duration::from_secs(10);

/// Until both sides have agreed on the next stream a slow line would be idle.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_stream_is_opened_while_the_last_bytes_are_still_to_be_written() {
    for over in [Over::Tcp, Over::Quic] {
        let mut node = Node::start(over).await;
        let (mut reader, _control) = Hostile::join(&mut node).await;
        // Twice what may be on its way at first: half of it waits for a word of the reader, who says none.
        (1..=2).for_each(|number| node.transfer(number, reader.peer, payload(32 << 10, 1)));
        // Kept: a stream that is dropped makes room for the next.
        let mut opened = Vec::new();
        for number in ["first", "next"] {
            let stream = timeout(SOON, reader.streams.bulk.recv()).await;
            opened.push(stream.unwrap_or_else(|_| panic!("the {number} stream over {over:?}")));
        }
    }
}

/// Starts six transfers at once and checks that all arrive.
async fn all_concurrent_transfers_are_served(mut one: Node, mut other: Node) {
    let mut expected = BTreeMap::new();
    for number in 0..6 {
        let sent = payload(1 << 20, number as u8);
        one.transfer(number, other.peer, sent.clone());
        expected.insert(number, sent);
    }
    while !expected.is_empty() {
        let (header, received) = other.wait_transfer().await;
        let TransferHeader::ProposalCodes { exchange } = header else { panic!("unexpected {header:?}") };
        assert_eq!(expected.remove(&exchange), Some(received));
    }
    let mut finished = 0;
    while finished < 6 {
        finished += one
            .wait_for("TransferFinished", |event| match event {
                Event::TransferFinished { .. } => Some(1),
                Event::TransferFailed { .. } => panic!("unexpected {event:?}"),
                _ => None,
            })
            .await;
    }
}

async fn six_concurrent_transfers_are_all_served(over: Over) {
    let (one, other) = connected_pair(over).await;
    all_concurrent_transfers_are_served(one, other).await;
}

over_tcp_and_quic!(six_concurrent_transfers_are_all_served);

#[tokio::test(flavor = "multi_thread")]
async fn transfers_beyond_the_byte_budget_wait_and_arrive() {
    let mut tight = config(Over::Tcp);
    tight.payload_bytes_max = 1 << 20;
    tight.inbound_bytes_budget = 1;
    let (mut one, mut other) = (Node::start(Over::Tcp).await, Node::start_with(tight).await);
    meet(&mut one, &mut other).await;
    all_concurrent_transfers_are_served(one, other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_over_the_limit_is_refused() {
    let (mut one, mut other) = connected_pair(Over::Tcp).await;
    one.transfer(1, other.peer, payload(PAYLOAD_BYTES_MAX as usize + 1, 1));
    next_event!(other, Event::PeerMisbehaved { .. } => ());
    assert!(one.wait_transfer_end(1).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_to_a_stranger_fails() {
    let (mut one, other) = (Node::start(Over::Tcp).await, Node::start(Over::Tcp).await);
    one.transfer(1, other.peer, payload(10, 1));
    assert_eq!(one.wait_transfer_end(1).await, Err("the peer is not connected".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_transfers_fail_before_the_peer_is_reported_gone() {
    let (mut one, mut other) = connected_pair(Over::Tcp).await;
    for number in 0..4 {
        one.transfer(number, other.peer, payload(PAYLOAD_BYTES_MAX as usize, 1));
    }
    // Orders are carried out in turn: once this arrives, all four transfers are under way.
    one.send(other.peer, message(1));
    other.wait_message().await;
    other.network.close().await;
    let mut ended = 0;
    one.wait_for("the end of four transfers, then PeerDisconnected", |event| match event {
        Event::TransferFailed { .. } | Event::TransferFinished { .. } => {
            ended += 1;
            None
        }
        Event::PeerDisconnected { .. } => Some(()),
        _ => None,
    })
    .await;
    assert_eq!(ended, 4);
    other.wait_disconnected(one.peer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_transfers_than_allowed_fail_at_once() {
    // The receiver's core is busy: it has room for one event and takes none, so no transfer ends meanwhile.
    let mut busy = Node::start_with_room(config(Over::Tcp), 1).await;
    let mut one = Node::start(Over::Tcp).await;
    one.dial(&busy);
    one.wait_connected(busy.peer).await;
    for number in 0..12 {
        one.transfer(number, busy.peer, payload(1000, 1));
    }
    for number in 8..12 {
        assert_eq!(one.wait_transfer_end(number).await, Err("too many transfers are under way".to_owned()));
    }
    busy.wait_connected(one.peer).await;
    for _ in 0..8 {
        busy.wait_transfer().await;
    }
    for _ in 0..8 {
        one.wait_for("TransferFinished", |event| match event {
            Event::TransferFinished { .. } => Some(()),
            Event::TransferFailed { .. } => panic!("unexpected {event:?}"),
            _ => None,
        })
        .await;
    }
}

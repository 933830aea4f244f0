//! Shards of shared data between nodes, honest and otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::AsyncWriteExt;
use murmur_network::streams::{DATA_PROTOCOL, Stream};
use murmur_network::{DATA_SENDING_PER_PEER_MAX, HeldShards, Offered, ShardError, Shelf};
use murmur_protocol::Misbehaviour;
use murmur_protocol::shards::{ShardAnswer, ShardOffer, ShardRequest, ShardSet};
use murmur_protocol::{Address, Event, NetworkOrder, Payload, PeerId, codec};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::aimed::outward_address;
use crate::hostile::{Hostile, read_frame, wait_ended, write, write_frame};
use crate::node::{DEADLINE, Node, Over, assert_still_serves, config, meet, over_tcp_and_quic, payload};

const LENGTH: u64 = 3 << 20;

/// Two shards of three: the first and the last.
fn shards() -> BTreeMap<usize, Payload> {
    BTreeMap::from([(0, payload(LENGTH as usize, 1)), (2, payload(1000, 2))])
}

async fn node_with(shelf: Option<Shelf>, over: Over) -> Node {
    let mut config = config(over);
    config.shelf = shelf;
    Node::start_with(config).await
}

/// An asker without shards, and a source with some.
async fn asker_and_source(over: Over) -> (Node, Node, watch::Sender<HeldShards>) {
    let (sender, shelf) = watch::channel(Arc::new(shards()));
    let mut asker = node_with(Some(Shelf::new(watch::channel(HeldShards::default()).1)), over).await;
    let mut source = node_with(Some(Shelf::new(shelf)), over).await;
    meet(&mut asker, &mut source).await;
    (asker, source, sender)
}

async fn read_all(offered: Offered) -> Result<Vec<u8>, ShardError> {
    let Offered::Coming(mut stream) = offered else { panic!("unexpected {offered:?}") };
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await? {
        bytes.extend(chunk);
    }
    Ok(bytes)
}

async fn ask(node: &Node, peer: PeerId, offset: u64) -> Result<Offered, ShardError> {
    let asked = node.network.ask_shard(peer, 0, offset, LENGTH);
    Ok(timeout(DEADLINE, asked).await.expect("an answer or an error")?.1)
}

async fn a_shard_arrives_from_any_offset_on(over: Over) {
    let (asker, source, _sender) = asker_and_source(over).await;
    let expected = shards()[&0].bytes().clone();
    for offset in [0, 70_000, LENGTH - 1] {
        let bytes = read_all(ask(&asker, source.peer, offset).await.expect("served")).await.expect("whole");
        assert!(bytes == expected[offset as usize..], "{} bytes from {offset} on", bytes.len());
    }
    let held: ShardSet = [0, 2].into_iter().collect();
    assert_eq!(asker.network.ask_holdings(source.peer).await.expect("an answer"), held);
    assert!(source.network.ask_holdings(asker.peer).await.expect("an answer").is_empty());
}

over_tcp_and_quic!(a_shard_arrives_from_any_offset_on);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_missing_until_it_is_there() {
    let (asker, source, sender) = asker_and_source(Over::Tcp).await;
    for (index, offset) in [(1, 0), (0, LENGTH), (0, u64::MAX), (u16::MAX, 0)] {
        let (held, offered) = asker.network.ask_shard(source.peer, index, offset, LENGTH).await.expect("an answer");
        assert!(matches!(offered, Offered::Missing), "{offered:?}");
        assert_eq!(held.len(), 2);
    }
    let mut more = shards();
    more.insert(1, payload(500, 3));
    sender.send_replace(Arc::new(more));
    let (held, offered) = asker.network.ask_shard(source.peer, 1, 0, 500).await.expect("an answer");
    assert_eq!(held.len(), 3);
    assert_eq!(Payload::from(read_all(offered).await.expect("whole")), payload(500, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_sends_a_peer_so_much_at_once_and_no_more() {
    let (asker, source, _sender) = asker_and_source(Over::Tcp).await;
    let mut under_way = Vec::new();
    for _ in 0..DATA_SENDING_PER_PEER_MAX {
        under_way.push(ask(&asker, source.peer, 0).await.expect("served"));
    }
    let next = ask(&asker, source.peer, 0).await.expect("an answer");
    assert!(matches!(next, Offered::Busy), "{next:?}");
    for offered in under_way {
        read_all(offered).await.expect("whole");
    }
    // The source notices a little later that it is done.
    let served = async {
        while let Offered::Busy = ask(&asker, source.peer, 0).await.expect("an answer") {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, served).await.expect("its turn comes");
}

/// Four names had all places, and at the least rate kept them for hours: everybody else heard that the source is busy.
#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_of_one_host_keep_nobody_else_from_shards() {
    let Some(outward) = outward_address() else {
        println!("skipped: this machine has no address but loopback");
        return;
    };
    let (_sender, shelf) = watch::channel(Arc::new(shards()));
    let mut settings = config(Over::Tcp);
    settings.listen.push(format!("/ip4/{outward}/tcp/0").parse().expect("an address"));
    settings.shelf = Some(Shelf::new(shelf));
    let mut source = Node::start_with(settings).await;
    let (mut slow, mut under_way) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let mut asker = Node::start(Over::Tcp).await;
        meet(&mut asker, &mut source).await;
        for _ in 0..DATA_SENDING_PER_PEER_MAX {
            let offered = ask(&asker, source.peer, 0).await.expect("an answer");
            assert!(matches!(offered, Offered::Coming(_)), "{offered:?}");
            under_way.push(offered);
        }
        slow.push(asker);
    }
    let addresses = source.network.listen_addresses();
    let elsewhere = addresses.iter().find(|address| address.to_string().contains(&outward.to_string()));
    let elsewhere = Address::new(elsewhere.expect("it listens").to_string()).expect("short");
    let mut honest = Node::start(Over::Tcp).await;
    honest.order(NetworkOrder::Dial { peer: Some(source.peer), addresses: vec![elsewhere] });
    honest.wait_connected(source.peer).await;
    let bytes = read_all(ask(&honest, source.peer, 0).await.expect("served")).await.expect("whole");
    assert!(bytes == shards()[&0].bytes()[..], "{} bytes", bytes.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_shares_nothing_gives_nothing() {
    let mut private = Node::start(Over::Tcp).await;
    let (hostile, _control) = Hostile::join(&mut private).await;
    for request in [ShardRequest::Holdings, ShardRequest::Shard { index: 0, offset: 0 }] {
        let mut stream = hostile.streams.opener.open(DATA_PROTOCOL).await.expect("a stream");
        // The node may have reset it already.
        let _ = stream.write_all(&[codec::encode(&request).len() as u8, 0, 0, 0]).await;
        wait_ended(&mut stream).await;
    }
    assert_still_serves(&mut private, Over::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_asked_who_is_not_connected() {
    let node = Node::start(Over::Tcp).await;
    let stranger = PeerId::from_public_key([7; 32]);
    assert!(matches!(ask(&node, stranger, 0).await, Err(ShardError::NotConnected)));
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_instead_of_a_request_is_named() {
    let (_asker, mut source, _sender) = asker_and_source(Over::Tcp).await;
    let (hostile, _control) = Hostile::join(&mut source).await;
    for garbage in [vec![2, 0, 0, 0, 255, 255], 1_000_000u32.to_le_bytes().to_vec()] {
        let mut stream = hostile.streams.opener.open(DATA_PROTOCOL).await.expect("a stream");
        write(&mut stream, &garbage).await;
        source
            .wait_for("PeerMisbehaved", |event| match event {
                Event::PeerMisbehaved { peer, misbehaviour: Misbehaviour::Garbage(_) } => {
                    assert_eq!(peer, hostile.peer);
                    Some(())
                }
                _ => None,
            })
            .await;
    }
    assert_still_serves(&mut source, Over::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_at_once_are_bounded_and_survived() {
    let (_asker, mut source, _sender) = asker_and_source(Over::Tcp).await;
    let (hostile, _control) = Hostile::join(&mut source).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        match hostile.streams.opener.open(DATA_PROTOCOL).await {
            Ok(stream) => silent.push(stream),
            Err(_) => break,
        }
    }
    assert_still_serves(&mut source, Over::Tcp).await;
}

/// Takes the node's next request for a shard and answers with this offer.
async fn take_request(hostile: &mut Hostile, offer: ShardOffer) -> Stream {
    let mut stream = timeout(DEADLINE, hostile.streams.data.recv()).await.expect("in time").expect("a request");
    let request: ShardRequest = codec::decode(&read_frame(&mut stream).await.expect("a frame")).expect("a request");
    assert!(matches!(request, ShardRequest::Shard { index: 0, .. }), "{request:?}");
    let answer = ShardAnswer { held: [0].into_iter().collect(), offer };
    write_frame(&mut stream, &codec::encode(&answer)).await;
    stream
}

/// What an honest node makes of a source that offers this and then does that. A stream that it returns stays open until
/// the node is done with it.
async fn asked_of(offer: ShardOffer, then: impl AsyncFnOnce(Stream) -> Option<Stream>) -> Result<Vec<u8>, ShardError> {
    let mut node = Node::start(Over::Tcp).await;
    let (mut hostile, _control) = Hostile::join(&mut node).await;
    let peer = hostile.peer;
    let serving = async {
        let stream = take_request(&mut hostile, offer).await;
        then(stream).await
    };
    let asking = async { read_all(ask(&node, peer, 0).await?).await };
    let (_kept_open, asked) = tokio::join!(serving, asking);
    assert_still_serves(&mut node, Over::Tcp).await;
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_breaks_off_is_noticed_at_once() {
    let asked = asked_of(ShardOffer::Coming { length: LENGTH }, async |mut stream| {
        write(&mut stream, &[1; 100_000]).await;
        stream.close().await.expect("open");
        Some(stream)
    });
    let error = asked.await.expect_err("only a part came");
    assert!(matches!(error, ShardError::BrokenOff(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_stalls_is_given_up() {
    let asked = asked_of(ShardOffer::Coming { length: LENGTH }, async |mut stream| {
        write(&mut stream, &[1; 100_000]).await;
        Some(stream)
    });
    let error = asked.await.expect_err("nothing more came");
    assert!(matches!(error, ShardError::Stalled(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_never_ends_is_read_to_the_shards_length_only() {
    let asked = asked_of(ShardOffer::Coming { length: LENGTH }, async |mut stream| {
        while stream.write_all(&[1; 65_536]).await.is_ok() {}
        None
    });
    assert_eq!(asked.await.expect("whole, if not what was wanted").len() as u64, LENGTH);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_of_another_length_is_refused_before_it_comes() {
    for offer in [ShardOffer::Coming { length: u64::MAX }, ShardOffer::Coming { length: 1 }, ShardOffer::Unasked] {
        let error = asked_of(offer, async |stream| Some(stream)).await.expect_err("not the run's");
        assert!(matches!(error, ShardError::Garbage(_)), "{error}");
    }
}

//! Strangers that tell a node of themselves more than it should keep: in the run's table, and by libp2p's identify.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::kad::store::MemoryStore;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{Config, NetworkBehaviour, StreamProtocol, Swarm, SwarmEvent};
use libp2p::{PeerId, identify, kad};
use murmur_network::streams::{StreamOpener, StreamsBehaviour};
use murmur_network::{Connectivity, Keypair, Multiaddr, TrafficCounter, transport};
use murmur_protocol::{RunId, RunManifest};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::aimed::outward_address;
use crate::node::{DEADLINE, Node, Over, config};
use crate::raw::Raw;
use crate::stranger::{ask, table_of};

/// A fortieth of the 16 KiB that whoever asks reads of an answer: there are twenty nodes in it, and twenty announcements.
const ANSWER_OF_ONE_MAX: usize = 16 * 1024 / 40;

#[derive(NetworkBehaviour)]
struct Talkative {
    streams: StreamsBehaviour,
    identify: identify::Behaviour,
    table: kad::Behaviour<MemoryStore>,
}

/// Somebody who does not greet, tells what it is when it is asked, and then as often as it likes.
struct Teller {
    peer: PeerId,
    opener: StreamOpener,
    swarm: JoinHandle<()>,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.swarm.abort();
    }
}

impl Teller {
    async fn connect(node: &Node) -> Teller {
        let identity = Keypair::generate_ed25519();
        let peer = identity.public().to_peer_id();
        let name = StreamProtocol::try_from_owned(table_of(run())).expect("it begins with a slash");
        let mut table = kad::Behaviour::with_config(peer, MemoryStore::new(peer), kad::Config::new(name));
        table.set_mode(Some(kad::Mode::Server));
        let behaviour = Talkative {
            streams: StreamsBehaviour::default(),
            identify: identify::Behaviour::new(identify::Config::new("/murmur/1".to_owned(), identity.public())),
            table,
        };
        let transport = transport::build(&identity, &TrafficCounter::default()).expect("a certificate");
        let patient = Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
        let mut swarm = Swarm::new(transport, behaviour, peer, patient);
        swarm.dial(DialOpts::unknown_peer_id().address(node.listen_address()).build()).expect("it can be dialed");
        let asked = async {
            let mut streams = None;
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::ConnectionEstablished { connection_id, .. } => {
                        streams = swarm.behaviour_mut().streams.take(connection_id);
                    }
                    SwarmEvent::Behaviour(TalkativeEvent::Identify(identify::Event::Sent { .. })) => {
                        return streams.take().expect("just established");
                    }
                    _ => {}
                }
            }
        };
        let streams = timeout(DEADLINE, asked).await.expect("the node asks what it is");
        let opener = streams.opener.clone();
        let swarm = tokio::spawn(async move {
            let _streams = streams;
            loop {
                swarm.select_next_some().await;
            }
        });
        Teller { peer, opener, swarm }
    }

    /// Tells of itself once more, and waits until that is read.
    async fn push(&self, told: &[Vec<u8>]) {
        let protocol = StreamProtocol::new("/ipfs/id/push/1.0.0");
        let pushing = async {
            let mut stream = self.opener.open(protocol).await.expect("it listens to pushes");
            stream.write_all(&framed(told.concat())).await.expect("open");
            stream.close().await.expect("open");
            let _ = stream.read(&mut [0]).await;
        };
        timeout(DEADLINE, pushing).await.expect("it is read");
    }
}

fn run() -> RunId {
    RunManifest::default().run_id()
}

/// A field of a protobuf message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &length(bytes.len()), bytes].concat()
}

fn framed(message: Vec<u8>) -> Vec<u8> {
    [length(message.len()), message].concat()
}

fn length(mut bytes: usize) -> Vec<u8> {
    let mut varint = Vec::new();
    while bytes >= 128 {
        varint.push(bytes as u8 | 128);
        bytes >>= 7;
    }
    varint.push(bytes as u8);
    varint
}

fn binary(address: &str) -> Vec<u8> {
    address.parse::<Multiaddr>().expect("an address").to_vec()
}

/// What a node answers to a question about its table: 3 asks for members that have announced themselves, 4 for nodes.
async fn asked(node: &Node, kind: u8, key: &[u8]) -> Vec<u8> {
    let raw = Raw::connect(node.listen_address()).await;
    let question = framed([&[8, kind][..], &field(2, key)].concat());
    ask(raw.streams.opener.clone(), table_of(run()), question).await.expect("it has a table").1
}

/// Asks until the answer names a peer.
async fn asked_until_it_names(peer: &[u8], node: &Node, kind: u8, key: &[u8]) -> Vec<u8> {
    let end = Instant::now() + DEADLINE;
    loop {
        let answer = asked(node, kind, key).await;
        if answer.windows(peer.len()).any(|window| window == peer) {
            return answer;
        }
        assert!(Instant::now() < end, "it is not named in {answer:?}");
    }
}

async fn node_with(connectivity: Connectivity, over: Over) -> Node {
    let mut settings = config(over);
    settings.connectivity = connectivity;
    Node::start_with(settings).await
}

const TABLE: Connectivity = Connectivity { kademlia: true, ..Connectivity::OFF };

/// Says that it takes part in the run, at these places.
async fn announce(raw: &Raw, places: &[u8]) {
    let announced = [&field(1, &raw.peer.to_multihash_bytes()), places].concat();
    let message = [&[8, 2][..], &field(2, &run().0), &field(9, &announced)].concat();
    ask(raw.streams.opener.clone(), table_of(run()), framed(message)).await.expect("it has a table");
}

/// Each of two bytes became one of forty, and each answer for four hours one of 340 kB, which nobody reads.
#[tokio::test(flavor = "multi_thread")]
async fn an_announcement_of_thousands_of_addresses_makes_no_answer_longer() {
    let node = node_with(TABLE, Over::Tcp).await;
    let raw = Raw::connect(node.listen_address()).await;
    let me = raw.peer.to_multihash_bytes();
    let places = [field(2, &binary("/ip4/127.0.0.1/tcp/4001")), [2 << 3 | 2, 0].repeat(7_900)].concat();
    announce(&raw, &places).await;
    let answer = asked_until_it_names(&me, &node, 3, &run().0).await;
    assert!(answer.len() <= ANSWER_OF_ONE_MAX, "{} bytes", answer.len());
}

/// Each was tried by a peer, to which 100 kB were sent before it did, ten every five seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_sees_a_node_in_ever_new_places_has_few_of_them_tried() {
    const PROBES: Connectivity = Connectivity { nat: true, ..Connectivity::OFF };
    let (mut node, mut friend) = (node_with(PROBES, Over::Quic).await, node_with(PROBES, Over::Quic).await);
    let victim = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("a port");
    let port = victim.local_addr().expect("bound").port();
    let teller = Teller::connect(&node).await;
    for number in 0..200 {
        // Over TCP, where this node does not listen: libp2p puts no port of its own in.
        teller.push(&[field(4, &binary(&format!("/ip4/127.1.{number}.1/tcp/{port}")))]).await;
    }
    node.dial(&friend);
    node.wait_connected(friend.peer).await;
    friend.wait_connected(node.peer).await;
    let mut tried = BTreeSet::new();
    // Probes begin ten seconds after the start, and who is asked tells with its next ping that it may be.
    let mut end = Instant::now() + Duration::from_secs(60);
    while let Ok(visit) = timeout_at(end, victim.accept()).await {
        let (socket, _) = visit.expect("it listens");
        if tried.is_empty() {
            // Two times more.
            end = Instant::now() + Duration::from_secs(12);
        }
        tried.insert(socket.local_addr().expect("connected").ip());
    }
    assert!((1..=2).contains(&tried.len()), "{tried:?}");
}

/// The table kept each address that it was ever told.
#[tokio::test(flavor = "multi_thread")]
async fn who_tells_of_ever_new_addresses_makes_no_answer_longer() {
    let node = node_with(TABLE, Over::Tcp).await;
    let teller = Teller::connect(&node).await;
    for push in 0..100 {
        let places = (0..16).map(|place| format!("/ip6/2001:db8::{push:x}:{place:x}/udp/4001/quic-v1"));
        teller.push(&places.map(|place| field(2, &binary(&place))).collect::<Vec<_>>()).await;
    }
    let me = teller.peer.to_bytes();
    let answer = asked_until_it_names(&me, &node, 4, &me).await;
    assert!(answer.len() <= ANSWER_OF_ONE_MAX, "{} bytes", answer.len());
}

/// One program had all places of announcements, and nobody else was found by the table for hours.
#[tokio::test(flavor = "multi_thread")]
async fn who_announces_itself_under_many_names_leaves_a_place_to_whoever_comes_from_elsewhere() {
    let Some(outward) = outward_address() else {
        println!("skipped: this machine has no address but loopback");
        return;
    };
    let mut settings = config(Over::Tcp);
    settings.connectivity = TABLE;
    settings.listen.push(format!("/ip4/{outward}/tcp/0").parse().expect("an address"));
    let node = Node::start_with(settings).await;
    let addresses = node.network.listen_addresses();
    let is_outward = |address: &&Multiaddr| address.to_string().contains(&outward.to_string());
    let elsewhere = addresses.iter().find(is_outward).expect("it listens").clone();
    let places = field(2, &binary(&format!("/ip4/{outward}/tcp/4001")));
    let mut crowd = Vec::new();
    for _ in 0..40 {
        crowd.push(Raw::connect(node.listen_address()).await);
    }
    // An announcement is not answered.
    join_all(crowd.iter().map(|name| announce(name, &places))).await;
    let honest = Raw::connect(elsewhere).await;
    announce(&honest, &places).await;
    let answer = asked_until_it_names(&honest.peer.to_multihash_bytes(), &node, 3, &run().0).await;
    let is_named = |name: &&Raw| answer.windows(38).any(|window| window == name.peer.to_multihash_bytes());
    let named: Vec<usize> = (0..crowd.len()).filter(|number| is_named(&&crowd[*number])).collect();
    assert!((10..20).contains(&named.len()), "the others have what is left: {named:?}");
}

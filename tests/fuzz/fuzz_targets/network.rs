//! A node that runs, and a peer that says any bytes to it where strangers are heard: in a handshake, to identify and to the run's
//! table, and in answer to what the node asks of these two: the last seldom, for it takes seconds. The first byte chooses.

#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{Config, Swarm, SwarmEvent};
use libp2p::{PeerId, StreamProtocol};
use murmur_network::streams::CONTROL_PROTOCOL;
use murmur_network::{
    Admission, Connectivity, Keypair, Multiaddr, Network, NetworkConfig, Throttle, TrafficCounter, transport,
};
use murmur_protocol::text::is_unprintable;
use murmur_protocol::{Event, RunManifest};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;

const IDENTIFY: StreamProtocol = StreamProtocol::new("/ipfs/id/1.0.0");
const IDENTIFY_PUSH: StreamProtocol = StreamProtocol::new("/ipfs/id/push/1.0.0");

/// The node answers within this, on loopback, or waits for more.
const ANSWER_MAX: Duration = Duration::from_millis(20);

/// The node asks a new node of the table within this.
const QUESTION_MAX: Duration = Duration::from_secs(2);

/// The node, which listens on loopback.
struct Node {
    runtime: Runtime,
    network: Network,
    identity: PeerId,
    address: Multiaddr,
    table: StreamProtocol,
}

static NODE: LazyLock<Node> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("threads");
    let (sender, events) = mpsc::channel(256);
    runtime.spawn(check_events(events));
    let identity = Keypair::generate_ed25519();
    let manifest = Arc::new(RunManifest::built_in());
    let table = format!("/murmur/{}/kad/1", manifest.run_id());
    let config = NetworkConfig {
        identity: identity.clone(),
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")],
        manifest,
        secret: None,
        admission: Admission::default(),
        throttle: Throttle::default(),
        payload_bytes_max: 1 << 20,
        inbound_bytes_budget: 1 << 22,
        shelf: None,
        connectivity: Connectivity { kademlia: true, ..Connectivity::OFF },
    };
    let network = runtime.block_on(Network::start(config, sender)).expect("a free port");
    let address = network.listen_addresses().first().expect("it listens").clone();
    let table = StreamProtocol::try_from_owned(table).expect("it begins with a slash");
    Node { runtime, network, identity: identity.public().to_peer_id(), address, table }
});

/// What the core would hear.
async fn check_events(mut events: mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        match event {
            Event::HandshakeRefused { refusal, .. } => assert!(!refusal.to_string().contains(is_unprintable)),
            Event::PeersFound { peers } => {
                assert!(peers.iter().flat_map(|peer| &peer.addresses).all(|address| address.is_well_formed()));
            }
            _ => {}
        }
    }
    panic!("the node has ended");
}

libfuzzer_sys::fuzz_target!(init: ignore_closed_pipes(), |bytes| {
    if let Some((place, words)) = bytes.split_first() {
        let place = if place % 32 == 31 { 4 } else { place % 4 };
        NODE.runtime.block_on(say(place, words));
        assert!(!NODE.network.listen_addresses().is_empty());
    }
});

/// As programs with a main function in Rust do.
fn ignore_closed_pipes() {
    // SAFETY: no handler is set, the signal is ignored.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Connects as somebody new, and says these words.
async fn say(place: u8, words: &[u8]) {
    let identity = Keypair::generate_ed25519();
    let transport = transport::build(&identity, &TrafficCounter::default()).expect("a certificate");
    let (behaviour, config) = (libp2p_stream::Behaviour::new(), Config::with_tokio_executor());
    let mut swarm = Swarm::new(transport, behaviour, identity.public().to_peer_id(), config);
    let mut control = swarm.behaviour().new_control();
    let mut identified = control.accept(IDENTIFY).expect("accepted once");
    let mut asked = control.accept(NODE.table.clone()).expect("accepted once");
    swarm.dial(DialOpts::unknown_peer_id().address(NODE.address.clone()).build()).expect("it can be dialed");
    while !matches!(swarm.select_next_some().await, SwarmEvent::ConnectionEstablished { .. }) {}
    let running = tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    let framed = framed(words);
    let speaks = match place {
        0 => Some((CONTROL_PROTOCOL, words)),
        1 => Some((IDENTIFY_PUSH, &framed[..])),
        2 => Some((NODE.table.clone(), &framed[..])),
        _ => None,
    };
    if let Some((protocol, words)) = speaks {
        if let Ok(mut stream) = control.open_stream(NODE.identity, protocol).await {
            tell(&mut stream, words).await;
        }
    } else if let Ok(Some((_, mut stream))) = timeout(ANSWER_MAX, identified.next()).await {
        let of_table = framed_identity(&identity);
        tell(&mut stream, if place == 3 { &framed } else { &of_table }).await;
        if place == 4
            && let Ok(Some((_, mut stream))) = timeout(QUESTION_MAX, asked.next()).await
        {
            tell(&mut stream, &framed).await;
        }
    }
    running.abort();
}

/// Writes, and reads until the node has done with it.
async fn tell(stream: &mut libp2p::Stream, words: &[u8]) {
    if stream.write_all(words).await.is_ok() && stream.close().await.is_ok() {
        let mut answer = Vec::new();
        let _ = timeout(ANSWER_MAX, stream.read_to_end(&mut answer)).await;
    }
}

/// As both protocols have it: the length as a varint, then the bytes.
fn framed(words: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let mut length = words.len();
    while length >= 0x80 {
        frame.push(length as u8 | 0x80);
        length >>= 7;
    }
    frame.push(length as u8);
    frame.extend_from_slice(words);
    frame
}

/// What identify tells of a node of the table: its key (field 1), its address (2), its protocols (3).
fn framed_identity(identity: &Keypair) -> Vec<u8> {
    let address: Multiaddr = "/ip4/127.0.0.1/tcp/9".parse().expect("an address");
    let fields = [
        (1, identity.public().encode_protobuf()),
        (2, address.to_vec()),
        (3, NODE.table.as_ref().as_bytes().to_vec()),
        (3, b"/ipfs/id/1.0.0".to_vec()),
    ];
    let message: Vec<u8> =
        fields.iter().flat_map(|(field, value)| [&[field << 3 | 2], &framed(value)[..]].concat()).collect();
    framed(&message)
}

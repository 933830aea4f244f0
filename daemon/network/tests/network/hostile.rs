//! A peer that writes whatever it likes: a raw libp2p swarm with the streams behaviour, and hands on its streams.

use std::net::SocketAddr;

use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{Config, Swarm, SwarmEvent};
use murmur_network::streams::{BULK_PROTOCOL, CONTROL_PROTOCOL, ConnectionStreams, Stream, StreamsBehaviour};
use murmur_network::{Keypair, Multiaddr, TrafficCounter, peer_id, transport};
use murmur_protocol::handshake::{Answer, Challenge, Greeting, Hello};
use murmur_protocol::{PeerId, RunManifest, codec};
use tokio::task::JoinHandle;
use tokio::time::{Duration, timeout};

use crate::node::{DEADLINE, Node};

pub(crate) struct Hostile {
    pub(crate) peer: PeerId,
    pub(crate) streams: ConnectionStreams,
    swarm: JoinHandle<()>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.swarm.abort();
    }
}

impl Hostile {
    /// Connects to a node, and says nothing yet.
    pub(crate) async fn connect(node: &Node) -> Hostile {
        let identity = Keypair::generate_ed25519();
        let transport = transport::build(&identity, &TrafficCounter::default()).expect("a certificate");
        let id = identity.public().to_peer_id();
        let mut swarm = Swarm::new(
            transport,
            StreamsBehaviour::default(),
            id,
            Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60)),
        );
        let address: Multiaddr = node.listen_address();
        swarm.dial(DialOpts::unknown_peer_id().address(address).build()).expect("it can be dialled");
        let connected = async {
            loop {
                if let SwarmEvent::ConnectionEstablished { connection_id, .. } = swarm.select_next_some().await {
                    return swarm.behaviour_mut().take(connection_id).expect("just established");
                }
            }
        };
        let streams = timeout(DEADLINE, connected).await.expect("the node answers");
        let swarm = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        Hostile { peer: peer_id(&identity), streams, swarm }
    }

    /// Connects and passes the handshake, like an honest peer would.
    pub(crate) async fn join(node: &mut Node) -> (Hostile, Stream) {
        let hostile = Hostile::connect(node).await;
        let mut control = hostile.open_control().await;
        write_frame(&mut control, &honest_hello()).await;
        Challenge::decode(&read_frame(&mut control).await).expect("a challenge");
        write_frame(&mut control, &codec::encode(&honest_greeting())).await;
        let answer: Answer = codec::decode(&read_frame(&mut control).await).expect("an answer");
        assert!(matches!(answer, Answer::Run { welcome: true, .. }), "{answer:?}");
        node.wait_connected(hostile.peer).await;
        (hostile, control)
    }

    pub(crate) async fn open_control(&self) -> Stream {
        self.streams.opener.open(CONTROL_PROTOCOL).await.expect("a stream")
    }

    pub(crate) async fn open_bulk(&self) -> Stream {
        self.streams.opener.open(BULK_PROTOCOL).await.expect("a stream")
    }
}

pub(crate) fn honest_hello() -> Vec<u8> {
    codec::encode(&Hello::new([7; 32]))
}

pub(crate) fn honest_greeting() -> Greeting {
    let manifest = RunManifest::default().canonical_text();
    Greeting::Join { proof: None, manifest, addresses: Vec::new() }
}

pub(crate) async fn write_frame(stream: &mut Stream, bytes: &[u8]) {
    let mut frame = u32::try_from(bytes.len()).expect("short").to_le_bytes().to_vec();
    frame.extend_from_slice(bytes);
    write(stream, &frame).await;
}

pub(crate) async fn write(stream: &mut Stream, bytes: &[u8]) {
    stream.write_all(bytes).await.expect("the stream is open");
    stream.flush().await.expect("the stream is open");
}

pub(crate) async fn read_frame(stream: &mut Stream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.expect("a frame");
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut bytes).await.expect("a frame");
    bytes
}

/// Waits until the other side has ended or reset the stream.
pub(crate) async fn wait_ended(stream: &mut Stream) {
    let ended = async {
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    };
    timeout(DEADLINE, ended).await.expect("the node ends the stream");
}

/// The socket of a node that listens on TCP.
pub(crate) fn socket_of(node: &Node) -> SocketAddr {
    let text = node.listen_address().to_string();
    let parts: Vec<&str> = text.split('/').collect();
    format!("{}:{}", parts[2], parts[4]).parse().expect("an IP address and a port")
}

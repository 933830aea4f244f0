//! A raw libp2p swarm with the streams behaviour, and hands on its streams: it writes whatever it likes. The end-to-end tests
//! use this file as well.

use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{Config, Swarm, SwarmEvent};
use murmur_network::streams::{CONTROL_PROTOCOL, ConnectionStreams, Stream, StreamsBehaviour};
use murmur_network::{Keypair, Multiaddr, TrafficCounter, peer_id, transport};
use murmur_protocol::handshake::{Challenge, Greeting, Hello};
use murmur_protocol::{PeerId, codec};
use tokio::task::JoinHandle;
use tokio::time::{Duration, timeout};

/// No answer takes longer, on two busy cores.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A connection that has said nothing yet.
pub(crate) struct Raw {
    pub(crate) peer: PeerId,
    pub(crate) streams: ConnectionStreams,
    swarm: JoinHandle<()>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.swarm.abort();
    }
}

impl Raw {
    /// Connects to whoever listens there.
    pub(crate) async fn connect(address: Multiaddr) -> Raw {
        let identity = Keypair::generate_ed25519();
        let transport = transport::build(&identity, &TrafficCounter::default()).expect("a certificate");
        let id = identity.public().to_peer_id();
        let config = Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
        let mut swarm = Swarm::new(transport, StreamsBehaviour::default(), id, config);
        swarm.dial(DialOpts::unknown_peer_id().address(address).build()).expect("it can be dialed");
        let connected = async {
            loop {
                if let SwarmEvent::ConnectionEstablished { connection_id, .. } = swarm.select_next_some().await {
                    return swarm.behaviour_mut().take(connection_id).expect("just established");
                }
            }
        };
        let streams = timeout(ANSWER_MAX, connected).await.expect("the node answers");
        streams.accept_all();
        let swarm = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        Raw { peer: peer_id(&identity), streams, swarm }
    }

    /// Greets as it likes after an honest hello; the answer's bytes and the stream.
    pub(crate) async fn greet(&self, greeting: &Greeting) -> (Vec<u8>, Stream) {
        let (_, answer, control) = self.knock(greeting).await;
        (answer, control)
    }

    /// The same with the challenge that was the answer to the hello.
    pub(crate) async fn knock(&self, greeting: &Greeting) -> (Challenge, Vec<u8>, Stream) {
        self.try_knock(greeting).await.expect("the node answers")
    }

    /// The same; `None` where the connection is closed before the answer is read.
    pub(crate) async fn try_knock(&self, greeting: &Greeting) -> Option<(Challenge, Vec<u8>, Stream)> {
        let mut control = self.streams.opener.open(CONTROL_PROTOCOL).await.ok()?;
        write_frame(&mut control, &honest_hello()).await;
        let challenge = Challenge::decode(&read_frame(&mut control).await?).expect("a challenge");
        write_frame(&mut control, &codec::encode(greeting)).await;
        let answer = timeout(ANSWER_MAX, read_frame(&mut control)).await.expect("an answer, or an end")?;
        Some((challenge, answer, control))
    }
}

pub(crate) fn honest_hello() -> Vec<u8> {
    codec::encode(&Hello::new([7; 32]))
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

/// `None` where the stream ends before.
pub(crate) async fn read_frame(stream: &mut Stream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.ok()?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut bytes).await.ok()?;
    Some(bytes)
}

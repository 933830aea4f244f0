//! Somebody without a run's secret who asks a node for all that it may tell: with libp2p's own identify, table and ping, by
//! each protocol's bytes, and by the list of protocols.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{join_all, poll_fn};
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::core::Endpoint;
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt};
use libp2p::core::transport::{DialOpts as TransportOpts, PortUse, Transport};
use libp2p::kad::store::MemoryStore;
use libp2p::swarm::{Config, NetworkBehaviour, StreamProtocol, Swarm, SwarmEvent};
use libp2p::{Multiaddr, identify, kad, ping};
use murmur_network::streams::StreamOpener;
use murmur_network::{Keypair, TrafficCounter, transport};
use murmur_protocol::handshake::{Answer, Challenge, Greeting, Proof};
use murmur_protocol::{RunId, codec};
use tokio::time::timeout;

use crate::node::DEADLINE;
use crate::raw::Raw;

/// No answer takes longer where there is one.
const ANSWER_MAX: Duration = Duration::from_secs(4);

/// What somebody who has everything but the secret, the run's id included, gets out of a node.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    /// The protocols that it lists when it is asked for them.
    pub(crate) listed: Vec<String>,
    /// What it answers, by the protocols that it speaks.
    pub(crate) answers: BTreeMap<String, Vec<u8>>,
    /// What libp2p's own parts make of it.
    pub(crate) identified: Option<identify::Info>,
    pub(crate) table: Vec<kad::PeerInfo>,
    pub(crate) ponged: bool,
}

impl Learnt {
    /// Asks whoever listens there.
    pub(crate) async fn of(address: &Multiaddr, run: RunId) -> Learnt {
        let mut learnt = Learnt { listed: list_protocols(address).await, ..Learnt::default() };
        let mut asked: Vec<(String, Vec<u8>)> =
            ASKED.iter().map(|(name, request)| ((*name).to_owned(), request.to_vec())).collect();
        // FIND_NODE for a key, and GET_PROVIDERS of the key under which members announce themselves.
        for kind in [4, 3] {
            asked.push((table_of(run), [&[36, 8, kind, 18, 32][..], &run.0].concat()));
        }
        let raw = Raw::connect(address.clone()).await;
        let asking = asked.into_iter().map(|(name, request)| {
            let opener = raw.streams.opener.clone();
            async move { ask(opener, name, request).await }
        });
        for (name, answer) in join_all(asking).await.into_iter().flatten() {
            learnt.answers.entry(name).or_default().extend(answer);
        }
        let mut swarm = curious(run);
        swarm.dial(address.clone()).expect("it can be dialed");
        learnt.look_around(&mut swarm, Some(address)).await;
        learnt
    }

    /// Whether these bytes are part of anything that was said.
    pub(crate) fn heard(&self, bytes: &[u8]) -> bool {
        let holds = |said: &[u8]| said.windows(bytes.len()).any(|window| window == bytes);
        let listed = self.listed.join("\n");
        self.answers.values().any(|answer| holds(answer)) || holds(listed.as_bytes())
    }

    /// As any libp2p node would, until each part has heard something, be it a no, or the other side has hung up.
    async fn look_around(&mut self, swarm: &mut Swarm<Curious>, address: Option<&Multiaddr>) {
        let (mut identified, mut pinged, mut looked) = (false, false, false);
        let asking = async {
            while !(identified && pinged && looked) {
                match swarm.select_next_some().await {
                    SwarmEvent::ConnectionEstablished { peer_id, endpoint, .. } => {
                        let place = address.unwrap_or_else(|| endpoint.get_remote_address()).clone();
                        swarm.behaviour_mut().table.add_address(&peer_id, place);
                        swarm.behaviour_mut().table.get_closest_peers(peer_id);
                    }
                    SwarmEvent::ConnectionClosed { .. } => return,
                    SwarmEvent::Behaviour(CuriousEvent::Identify(event)) => {
                        identified |= matches!(event, identify::Event::Received { .. } | identify::Event::Error { .. });
                        if let identify::Event::Received { info, .. } = event {
                            self.identified = Some(info);
                        }
                    }
                    SwarmEvent::Behaviour(CuriousEvent::Ping(event)) => {
                        pinged = true;
                        self.ponged |= event.result.is_ok();
                    }
                    SwarmEvent::Behaviour(CuriousEvent::Table(kad::Event::OutboundQueryProgressed {
                        result: kad::QueryResult::GetClosestPeers(found),
                        ..
                    })) => {
                        looked = true;
                        self.table = match found {
                            Ok(found) => found.peers,
                            Err(kad::GetClosestPeersError::Timeout { peers, .. }) => peers,
                        };
                    }
                    _ => {}
                }
            }
        };
        timeout(DEADLINE, asking).await.expect("each asks and hears, or the other side hangs up");
    }
}

/// Somebody who has a member dial it: members dial the addresses that they are told.
pub(crate) struct Trap {
    swarm: Swarm<Curious>,
    pub(crate) address: Multiaddr,
}

impl Trap {
    pub(crate) async fn set(place: Multiaddr, run: RunId) -> Trap {
        let mut swarm = curious(run);
        swarm.listen_on(place).expect("a free port");
        let listening = async {
            loop {
                if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                    return address;
                }
            }
        };
        let address = timeout(DEADLINE, listening).await.expect("it listens");
        Trap { swarm, address }
    }

    /// What it gets out of whoever dials it.
    pub(crate) async fn spring(mut self) -> Learnt {
        let mut learnt = Learnt::default();
        learnt.look_around(&mut self.swarm, None).await;
        learnt
    }
}

pub(crate) fn table_of(run: RunId) -> String {
    format!("/murmur/{run}/kad/1")
}

fn curious(run: RunId) -> Swarm<Curious> {
    let identity = Keypair::generate_ed25519();
    let me = identity.public().to_peer_id();
    let mut table = kad::Config::new(StreamProtocol::try_from_owned(table_of(run)).expect("it begins with a slash"));
    table.set_query_timeout(ANSWER_MAX);
    let behaviour = Curious {
        identify: identify::Behaviour::new(identify::Config::new("/x".to_owned(), identity.public())),
        table: kad::Behaviour::with_config(me, MemoryStore::new(me), table),
        ping: ping::Behaviour::new(ping::Config::new().with_interval(Duration::from_millis(100))),
    };
    let transport = transport::build(&identity, &TrafficCounter::default()).expect("a certificate");
    Swarm::new(transport, behaviour, me, Config::with_tokio_executor())
}

#[derive(NetworkBehaviour)]
struct Curious {
    identify: identify::Behaviour,
    table: kad::Behaviour<MemoryStore>,
    ping: ping::Behaviour,
}

/// Protocols and first words that an honest node answers: a ping, a probe of 127.0.0.1, the wish for a place at a relay. To
/// the others nothing is said; that they are spoken is enough.
const ASKED: [(&str, &[u8]); 10] = [
    ("/ipfs/id/1.0.0", &[]),
    ("/ipfs/id/push/1.0.0", &[]),
    ("/ipfs/ping/1.0.0", &[7; 32]),
    ("/libp2p/autonat/2/dial-request", &[21, 10, 19, 10, 8, 4, 127, 0, 0, 1, 6, 0, 9, 17, 1, 2, 3, 4, 5, 6, 7, 8]),
    ("/libp2p/circuit/relay/0.2.0/hop", &[2, 8, 0]),
    ("/libp2p/circuit/relay/0.2.0/stop", &[]),
    ("/libp2p/dcutr", &[]),
    ("/murmur/bulk/3", &[]),
    ("/murmur/data/1", &[]),
    ("/murmur/life/1", &[]),
];

/// What is said to a request; `None` where the protocol is not spoken.
pub(crate) async fn ask(opener: StreamOpener, name: String, request: Vec<u8>) -> Option<(String, Vec<u8>)> {
    let protocol = StreamProtocol::try_from_owned(name.clone()).expect("it begins with a slash");
    let mut stream = opener.open(protocol).await.ok()?;
    let mut answer = Vec::new();
    let talking = async {
        stream.write_all(&request).await?;
        stream.flush().await?;
        let mut bytes = [0; 4096];
        loop {
            match stream.read(&mut bytes).await? {
                0 => return std::io::Result::Ok(()),
                count => answer.extend_from_slice(&bytes[..count]),
            }
        }
    };
    // Some keep the stream open.
    let _ = timeout(ANSWER_MAX, talking).await;
    Some((name, answer))
}

/// The challenge of a node, and its answer to each of the greetings that a stranger could send.
pub(crate) async fn knock(address: &Multiaddr) -> Vec<(Challenge, Answer)> {
    let forged: Proof = codec::decode(&[9; 32]).expect("32 bytes");
    let greetings = [None, Some(forged)].into_iter().flat_map(|proof| {
        let manifest = murmur_protocol::RunManifest::default().canonical_text();
        [Greeting::Enter { proof }, Greeting::Ask { proof }, Greeting::Join { proof, manifest, addresses: Vec::new() }]
    });
    let mut heard = Vec::new();
    for greeting in greetings {
        let raw = Raw::connect(address.clone()).await;
        let (challenge, answer, _control) = raw.knock(&greeting).await;
        heard.push((challenge, codec::decode(&answer).expect("an answer")));
        timeout(DEADLINE, raw.streams.opener.closed()).await.expect("the node hangs up");
    }
    heard
}

/// A connection as the transport gives it: nothing asks and nothing answers on it.
async fn bare_connection(address: &Multiaddr) -> StreamMuxerBox {
    let identity = Keypair::generate_ed25519();
    let mut transport = transport::build(&identity, &TrafficCounter::default()).expect("a certificate");
    let options = TransportOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dialing = transport.dial(address.clone(), options).expect("it can be dialed");
    timeout(DEADLINE, dialing).await.expect("it answers").expect("it takes connections").1
}

/// The protocols that a node lists, as multistream-select has it: each message after its length, each line in it too.
async fn list_protocols(address: &Multiaddr) -> Vec<String> {
    let mut muxer = bare_connection(address).await;
    let mut said = Vec::new();
    let listing = async {
        let mut stream = poll_fn(|context| muxer.poll_outbound_unpin(context)).await.expect("a stream");
        let talking = async {
            stream.write_all(b"\x13/multistream/1.0.0\n\x03ls\n").await.expect("open");
            stream.flush().await.expect("open");
            let mut bytes = [0; 4096];
            // The list ends with an empty line.
            while !said.ends_with(b"\n\n") {
                let count = stream.read(&mut bytes).await.expect("open");
                assert!(count > 0, "it hung up");
                said.extend_from_slice(&bytes[..count]);
            }
        };
        let mut talking = std::pin::pin!(talking);
        poll_fn(|context| {
            let lost = muxer.poll_unpin(context).is_ready();
            let done = talking.as_mut().poll(context);
            assert!(!lost || done.is_ready(), "the connection was lost");
            done
        })
        .await;
    };
    timeout(DEADLINE, listing).await.expect("a list");
    let text = String::from_utf8_lossy(&said).into_owned();
    let names = text.lines().skip(1).filter_map(|line| line.find('/').map(|start| line[start..].to_owned()));
    names.collect()
}

//! Peers that try to aim a node's dials: by gossip at one address and at many, and through the run's table. The nodes here
//! have their core, and what arrives at a victim is counted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::kad::store::MemoryStore;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{Config as SwarmConfig, NetworkBehaviour, StreamProtocol, Swarm, SwarmEvent};
use libp2p::{identify, kad};
use murmur_network::streams::{Stream, StreamsBehaviour};
use murmur_network::{Connectivity, Keypair, Multiaddr, TrafficCounter, peer_id, transport};
use murmur_protocol::NetworkOrder;
use murmur_protocol::message::{Descriptor, KnownPeer, Message};
use murmur_protocol::profile::Profile;
use murmur_protocol::{Address, Config, Effect, Event, ModelLayout, Node as Core, PeerId, RunManifest, Time, codec};
use tokio::net::TcpListener;
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use crate::hostile::{Hostile, write_frame};
use crate::node::{Node, Over, config};

/// How long a victim is watched.
const WATCHED: Duration = Duration::from_secs(10);

/// Events of a hostile peer that a failure shows.
const EVENTS_SHOWN: usize = 30;

/// How often a hostile node without a connection dials the node.
const REDIAL_PERIOD: Duration = Duration::from_millis(500);

/// Time between two lookups of a node.
const LOOKUP_PERIOD: Duration = Duration::from_secs(60);

/// A node with its core, as the daemon's engine runs it; it trains nothing.
struct Driven {
    node: Node,
    core: Core,
    clock: Instant,
}

impl Driven {
    fn new(node: Node) -> Driven {
        let layout = Arc::new(ModelLayout::new([("w".to_owned(), vec![8])]));
        let core = Core::new(Config::founder(&RunManifest::default()), node.peer, layout, 1, Time::ZERO);
        let mut driven = Driven { node, core, clock: Instant::now() };
        driven.obey();
        driven
    }

    fn take_in(&mut self, event: Event) {
        self.core.handle(Time::from_start(self.clock.elapsed()), event);
        self.obey();
    }

    fn obey(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Network(NetworkOrder::Dial { peer, addresses }) => {
                    self.node.order(NetworkOrder::Dial { peer, addresses })
                }
                Effect::Network(NetworkOrder::Disconnect { peer }) => {
                    self.node.order(NetworkOrder::Disconnect { peer })
                }
                Effect::Network(NetworkOrder::Send { peer, message }) => {
                    self.node.order(NetworkOrder::Send { peer, message })
                }
                _ => {}
            }
        }
    }

    async fn run_until(&mut self, end: Instant) {
        while Instant::now() < end {
            let deadline = self.core.next_deadline().map_or(end, |deadline| self.clock + deadline.since_start());
            tokio::select! {
                event = self.node.events.recv() => self.take_in(event.expect("the network runs")),
                () = sleep_until(deadline.min(end)) => self.take_in(Event::TimePassed),
            }
        }
    }
}

/// Counts what connects to it, and hangs up.
struct Victim {
    port: u16,
    count: Arc<AtomicUsize>,
}

impl Victim {
    async fn new() -> Victim {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("a port");
        let (port, count) = (listener.local_addr().expect("bound").port(), Arc::new(AtomicUsize::new(0)));
        let counter = count.clone();
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        Victim { port, count }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

fn made_up(number: u32) -> PeerId {
    peer_id(&Keypair::ed25519_from_bytes(*blake3::hash(&number.to_le_bytes()).as_bytes()).expect("32 bytes"))
}

/// Tells of sixteen made-up members twenty times a second, each at the place that `place` names; returns how often the
/// victim was dialed.
async fn gossip(node: Node, hostile: (Hostile, Stream), victim: &Victim, place: fn(u32) -> Ipv4Addr) -> usize {
    let (hostile, mut control) = hostile;
    let mut driven = Driven::new(node);
    driven.take_in(Event::PeerConnected { peer: hostile.peer, addresses: Vec::new() });
    let port = victim.port;
    let told = move |number: u32| {
        let address = Address::new(format!("/ip4/{}/tcp/{port}", place(number))).expect("short");
        let known = KnownPeer { peer: made_up(number), addresses: vec![address] };
        Descriptor { known, age_seconds: 0, profile: Profile::default() }
    };
    // Somebody at a place that is as near as the teller shows that it is heard.
    let decoy = KnownPeer { peer: made_up(u32::MAX), addresses: vec![driven.node.address()] };
    let teller = tokio::spawn(async move {
        for batch in 0.. {
            let mut peers: Vec<Descriptor> = (16 * batch..16 * batch + 16).map(told).collect();
            peers[0].known = decoy.clone();
            write_frame(&mut control, &codec::encode(&Message::Shuffle { peers, wants_reply: false })).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    driven.run_until(Instant::now() + WATCHED).await;
    let heard = driven.core.status().known;
    assert!(!heard.is_empty(), "the hostile one was heard");
    teller.abort();
    victim.count()
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_members_at_one_address_are_dialed_like_one() {
    let (mut node, victim) = (Node::start(Over::Tcp).await, Victim::new().await);
    let hostile = Hostile::join(&mut node).await;
    let count = gossip(node, hostile, &victim, |_| Ipv4Addr::LOCALHOST).await;
    assert!((1..=6).contains(&count), "{count} connections");
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_addresses_are_dialed_at_a_bounded_rate() {
    let (mut node, victim) = (Node::start(Over::Tcp).await, Victim::new().await);
    let hostile = Hostile::join(&mut node).await;
    let elsewhere = |number: u32| Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + number % 60_000);
    let count = gossip(node, hostile, &victim, elsewhere).await;
    assert!((20..=80).contains(&count), "{count} connections");
}

/// An address of this machine that is not loopback.
pub(crate) fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().as_ref().map(SocketAddr::ip).filter(|ip| !ip.is_loopback())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_from_outside_aims_no_dials_at_this_machine() {
    let Some(outward) = outward_address() else {
        println!("skipped: this machine has no address but loopback");
        return;
    };
    let mut settings = config(Over::Tcp);
    settings.listen = vec![format!("/ip4/{outward}/tcp/0").parse().expect("an address")];
    let (mut node, victim) = (Node::start_with(settings).await, Victim::new().await);
    let hostile = Hostile::join(&mut node).await;
    assert_eq!(gossip(node, hostile, &victim, |_| Ipv4Addr::LOCALHOST).await, 0);
}

#[derive(NetworkBehaviour)]
struct FalseTable {
    limits: connection_limits::Behaviour,
    streams: StreamsBehaviour,
    identify: identify::Behaviour,
    table: kad::Behaviour<MemoryStore>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_names_made_up_nodes_causes_few_dials() {
    let victim = Victim::new().await;
    let mut settings = config(Over::Tcp);
    settings.connectivity = Connectivity { kademlia: true, ..Connectivity::OFF };
    let mut node = Node::start_with(settings).await;
    let identity = Keypair::generate_ed25519();
    let me = identity.public().to_peer_id();
    let name = format!("/murmur/{}/kad/1", RunManifest::default().run_id());
    let config = kad::Config::new(StreamProtocol::try_from_owned(name).expect("it begins with a slash"));
    let mut table = kad::Behaviour::with_config(me, MemoryStore::new(me), config);
    table.set_mode(Some(kad::Mode::Server));
    for number in 0..400u32 {
        // Each in many places of the victim's host, so that one answer is enough for hundreds of dials.
        for place in 0..8 {
            let ip = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + place);
            let address: Multiaddr = format!("/ip4/{ip}/tcp/{}", victim.port).parse().expect("an address");
            let key = *blake3::hash(&number.to_le_bytes()).as_bytes();
            let peer = Keypair::ed25519_from_bytes(key).expect("32 bytes").public().to_peer_id();
            table.add_address(&peer, address);
        }
    }
    let mut swarm = Swarm::new(
        transport::build(&identity, &TrafficCounter::default()).expect("a certificate"),
        FalseTable {
            limits: connection_limits::Behaviour::new(ConnectionLimits::default().with_max_pending_outgoing(Some(1))),
            streams: StreamsBehaviour::default(),
            identify: identify::Behaviour::new(identify::Config::new("/murmur/1".to_owned(), identity.public())),
            table,
        },
        me,
        SwarmConfig::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60)),
    );
    swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().expect("an address")).expect("a port");
    let to_node = node.listen_address();
    swarm.dial(DialOpts::unknown_peer_id().address(to_node.clone()).build()).expect("it can be dialed");
    let (mut streams, seen) = (Vec::new(), Mutex::new(Vec::new()));
    let hostile = async {
        loop {
            let event = match timeout_at(Instant::now() + REDIAL_PERIOD, swarm.select_next_some()).await {
                Ok(event) => event,
                // Its first dial failed on a busy machine, or found the only place taken by one of its table.
                Err(_) if streams.is_empty() => {
                    let _ = swarm.dial(DialOpts::unknown_peer_id().address(to_node.clone()).build());
                    continue;
                }
                Err(_) => continue,
            };
            match &event {
                SwarmEvent::ConnectionEstablished { connection_id, .. } => {
                    streams.extend(swarm.behaviour_mut().streams.take(*connection_id));
                    // From now on it dials nobody itself: what the victim sees is the node's doing.
                    *swarm.behaviour_mut().limits.limits_mut() =
                        ConnectionLimits::default().with_max_pending_outgoing(Some(0));
                }
                // Who says nothing is hung up on, perhaps before the node looks up again.
                SwarmEvent::ConnectionClosed { .. } => {
                    streams.clear();
                    *swarm.behaviour_mut().limits.limits_mut() =
                        ConnectionLimits::default().with_max_pending_outgoing(Some(1));
                    let _ = swarm.dial(DialOpts::unknown_peer_id().address(to_node.clone()).build());
                }
                SwarmEvent::Behaviour(FalseTableEvent::Table(kad::Event::RoutingUpdated { .. })) => continue,
                _ => {}
            }
            let mut seen = seen.lock().expect("nobody panics with it");
            if seen.len() < EVENTS_SHOWN {
                seen.push(format!("{event:?}").chars().take(200).collect::<String>());
            }
        }
    };
    let watched = async {
        // The node looks up soon after its start and then once a minute: on a busy machine the first time may be over
        // before the false table is known.
        let latest = Instant::now() + 2 * LOOKUP_PERIOD;
        while victim.count() == 0 && Instant::now() < latest {
            let _ = timeout_at(Instant::now() + Duration::from_millis(100), node.events.recv()).await;
        }
        let end = Instant::now() + WATCHED;
        while timeout_at(end, node.events.recv()).await.is_ok() {}
    };
    tokio::select! {
        () = hostile => {}
        () = watched => {}
    }
    let count = victim.count();
    // Eight places of six dials each, and one more each ten seconds.
    let seen = seen.lock().expect("nobody panics with it").join("\n");
    assert!((1..=8 * 7).contains(&count), "{count} connections, and the hostile one saw:\n{seen}");
}

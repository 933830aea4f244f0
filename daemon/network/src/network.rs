//! The handle with which the engine drives the network, and how the network starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use libp2p::identity::Keypair;
use libp2p::swarm::{Config, Swarm};
use libp2p::{Multiaddr, relay};
use murmur_protocol::handshake::Credentials;
use murmur_protocol::shards::ShardSet;
use murmur_protocol::{Event, NetworkOrder, PeerId, RunId};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::access::Admission;
use crate::address::is_loopback_only;
use crate::behaviour::Behaviour;
use crate::bounds::{CLOSE_TIMEOUT, IDLE_TIMEOUT, NEGOTIATING_STREAMS_MAX, ORDERS_MAX, OUTBOX_EVENTS_MAX};
use crate::config::NetworkConfig;
use crate::connectivity::Connectivity;
use crate::data::DataExchange;
use crate::data::ask::{Offered, ShardError};
use crate::dial_filter::DialFilter;
use crate::driver::listening::CannotListen;
use crate::driver::{Driver, Views};
use crate::handshake::gate::Gate;
use crate::identity::peer_id;
use crate::life::Double;
use crate::pending::OldestGivesWay;
use crate::reachability::Reachability;
use crate::round_trips::RoundTrips;
use crate::shared::Shared;
use crate::traffic::{Traffic, TrafficCounter};
use crate::transport::{self, TransportError};

/// The network takes no more orders for now, or has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the network's queue is full, or the network is closed")]
pub struct QueueFull;

/// Why the network did not start.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Encryption could not be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// An address cannot be listened on: why, with the remedy where there is one.
    #[error("cannot listen on {0}: {1}")]
    Listen(Multiaddr, String),
}

/// A running network. Clones are handles of the same; the network closes when the last is dropped.
#[derive(Clone, Debug)]
pub struct Network(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    peer_id: PeerId,
    data: Arc<DataExchange>,
    orders: mpsc::Sender<NetworkOrder>,
    traffic: TrafficCounter,
    round_trips: RoundTrips,
    listen: watch::Receiver<Vec<Multiaddr>>,
    reachability: watch::Receiver<Reachability>,
    double: watch::Receiver<Option<Double>>,
    admission: watch::Sender<Admission>,
    closing: watch::Sender<bool>,
    /// Its sender is dropped when the swarm task ends.
    closed: watch::Receiver<()>,
}

impl Network {
    /// Listens on all addresses and starts the swarm task on the current tokio runtime. Facts for the core go into
    /// `events`, in order for each peer; while that channel is full, peers wait.
    ///
    /// # Errors
    /// When an address cannot be listened on (it is named) or the encryption cannot be set up.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(config: NetworkConfig, events: mpsc::Sender<Event>) -> Result<Network, NetworkError> {
        let listen = config.listen.clone();
        let (mut driver, network, closed) = assemble(config, events)?;
        let failed = |CannotListen { address, reason }| NetworkError::Listen(address, reason);
        driver.listen_on(&listen).await.map_err(failed)?;
        tokio::spawn(async move {
            driver.run().await;
            drop(closed);
        });
        Ok(network)
    }

    /// This node's identity.
    pub fn peer_id(&self) -> PeerId {
        self.0.peer_id
    }

    /// Hands over an order without waiting.
    ///
    /// # Errors
    /// When the bounded queue is full or the network is closed: the order will have no reply.
    pub fn try_order(&self, order: NetworkOrder) -> Result<(), QueueFull> {
        self.0.orders.try_send(order).map_err(|_| QueueFull)
    }

    /// Changes whom the owner lets in. Who is connected and no longer let in is disconnected.
    pub fn admission(&self) -> watch::Sender<Admission> {
        self.0.admission.clone()
    }

    /// Bytes sent and received so far.
    pub fn traffic(&self) -> Traffic {
        self.0.traffic.read()
    }

    /// How long the last ping to each connected peer took.
    pub fn round_trips(&self) -> BTreeMap<PeerId, Duration> {
        self.0.round_trips.read()
    }

    /// Where the node listens: concrete addresses, without a peer id at the end.
    pub fn listen_addresses(&self) -> Vec<Multiaddr> {
        self.0.listen.borrow().clone()
    }

    /// Asks a connected peer which shards of the run's data it holds.
    ///
    /// # Errors
    /// When it is not connected, shares nothing or does not answer in time.
    pub async fn ask_holdings(&self, peer: PeerId) -> Result<ShardSet, ShardError> {
        self.0.data.ask_holdings(peer).await
    }

    /// Asks a connected peer for a shard of `length` bytes, from `offset` on. Also tells what it holds. The caller
    /// compares the whole shard with its hash.
    ///
    /// # Errors
    /// When it is not connected, shares nothing, does not answer in time or has a shard of another length.
    pub async fn ask_shard(
        &self,
        peer: PeerId,
        index: u16,
        offset: u64,
        length: u64,
    ) -> Result<(ShardSet, Offered), ShardError> {
        self.0.data.ask_shard(peer, index, offset, length).await
    }

    /// Whether and how others reach this node, as it becomes known and changes.
    pub fn reachability(&self) -> watch::Receiver<Reachability> {
        self.0.reachability.clone()
    }

    /// Another live node with this node's identity, once a member has seen both.
    pub fn double(&self) -> watch::Receiver<Option<Double>> {
        self.0.double.clone()
    }

    /// Addresses that strangers can use, best first, without a peer id at the end: confirmed ones, then circuits. Empty
    /// while nothing is known; then the listen addresses are the best guess.
    pub fn public_addresses(&self) -> Vec<Multiaddr> {
        self.0.reachability.borrow().public_addresses()
    }

    /// Stops accepting, sends what is queued, closes all connections; takes three seconds at most.
    pub async fn close(&self) {
        self.0.closing.send_replace(true);
        let mut closed = self.0.closed.clone();
        // The task keeps its own deadline. The margin is for a runtime that is too busy to run it in time.
        let _ = timeout(CLOSE_TIMEOUT + Duration::from_secs(1), closed.changed()).await;
    }
}

/// The swarm task before it runs, its handle, and what is dropped once it has ended.
fn assemble(
    config: NetworkConfig,
    events: mpsc::Sender<Event>,
) -> Result<(Driver, Network, watch::Sender<()>), NetworkError> {
    let me = peer_id(&config.identity);
    let traffic = TrafficCounter::default();
    let run = config.manifest.run_id();
    let mut connectivity = config.connectivity;
    // Nobody on the local network reaches a node that is on loopback only, nor the other way round.
    connectivity.mdns &= !is_loopback_only(&config.listen);
    let gate = Gate::new(&config.identity, &Credentials { run, secret: config.secret.clone() });
    let dial_filter = DialFilter::new(&config.listen);
    let filter = Some(dial_filter.clone());
    let swarm = new_swarm(&config.identity, Some(run), gate, &connectivity, filter, &traffic)?;
    let (outbox, outbox_events) = mpsc::channel(OUTBOX_EVENTS_MAX);
    tokio::spawn(forward(outbox_events, events.clone()));
    let (own_sender, own) = watch::channel(Vec::new());
    let (listen_sender, listen) = watch::channel(Vec::new());
    let (reachability_sender, reachability) = watch::channel(Reachability::default());
    let (orders, order_queue) = mpsc::channel(ORDERS_MAX);
    let (closing, is_closing) = watch::channel(false);
    let (closed_sender, closed) = watch::channel(());
    let (double_sender, double) = watch::channel(None);
    let (admission, admission_view) = watch::channel(config.admission.clone());
    let shared = Arc::new(Shared::new(me, config, own, admission_view, double_sender, events));
    let (data, round_trips) = (shared.data.clone(), shared.round_trips.clone());
    let views = Views { listen: listen_sender, own: own_sender, reachability: reachability_sender };
    let driver = Driver::new((swarm, dial_filter), shared, order_queue, is_closing, views, outbox, connectivity);
    let handle = Handle {
        peer_id: me,
        data,
        orders,
        traffic,
        round_trips,
        listen,
        reachability,
        double,
        admission,
        closing,
        closed,
    };
    Ok((driver, Network(Arc::new(handle)), closed_sender))
}

/// A swarm with our transport and behaviour, behind the gate of a closed run; without a run, for a node that only asks.
/// Without a filter all dials leave.
pub(crate) fn new_swarm(
    identity: &Keypair,
    run: Option<RunId>,
    gate: Option<Gate>,
    connectivity: &Connectivity,
    filter: Option<DialFilter>,
    traffic: &TrafficCounter,
) -> Result<Swarm<Behaviour>, TransportError> {
    let me = identity.public().to_peer_id();
    let (through_relays, circuits) = match connectivity.nat {
        true => Some(relay::client::new(me)).unzip(),
        false => (None, None),
    };
    let transport = transport::build_guarded(identity, traffic, filter, through_relays)?;
    let transport = match gate {
        Some(gate) => gate.guard(transport),
        None => transport,
    };
    let transport = OldestGivesWay::guard(transport);
    let config = Config::with_tokio_executor()
        .with_idle_connection_timeout(IDLE_TIMEOUT)
        .with_max_negotiating_inbound_streams(NEGOTIATING_STREAMS_MAX);
    Ok(Swarm::new(transport, Behaviour::new(identity, run, connectivity, circuits), me, config))
}

async fn forward(mut outbox: mpsc::Receiver<Event>, events: mpsc::Sender<Event>) {
    while let Some(event) = outbox.recv().await {
        if events.send(event).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use libp2p::core::ConnectedPoint;
    use libp2p::core::transport::ListenerId;
    use libp2p::ping;
    use libp2p::swarm::{ConnectionId, SwarmEvent};
    use murmur_protocol::{Address, RunManifest};

    use super::*;
    use crate::behaviour::BehaviourEvent;
    use crate::connectivity::Connectivity;
    use crate::rate_limit::Throttle;
    use crate::reachability::ReachabilityState;

    /// A swarm task that does not run, with what it tells the core.
    pub(crate) fn idle() -> (Driver, Network, mpsc::Receiver<Event>) {
        let (events, told) = mpsc::channel(64);
        let config = NetworkConfig {
            identity: Keypair::generate_ed25519(),
            listen: vec!["/ip4/0.0.0.0/tcp/4001".parse().expect("an address")],
            manifest: Arc::new(RunManifest::default()),
            secret: None,
            admission: Admission::default(),
            throttle: Throttle::default(),
            payload_bytes_max: 1 << 20,
            inbound_bytes_budget: 4 << 20,
            shelf: None,
            connectivity: Connectivity { mdns: false, ..Connectivity::default() },
        };
        let (driver, network, _) = assemble(config, events).expect("a certificate");
        (driver, network, told)
    }

    async fn heard(told: &mut mpsc::Receiver<Event>) -> Option<Event> {
        timeout(Duration::from_secs(5), told.recv()).await.ok().flatten()
    }

    /// At home each day brings another one: peers were told of all of them, for ever.
    #[tokio::test]
    async fn a_confirmed_address_that_this_machine_has_no_more_is_told_to_nobody() {
        let (mut driver, network, mut told) = idle();
        let (listener_id, address): (_, Multiaddr) = (ListenerId::next(), "/ip4/8.8.8.8/tcp/1".parse().expect("sound"));
        let known = Address::new(address.to_string()).expect("short");
        driver.on_swarm_event(SwarmEvent::NewListenAddr { listener_id, address: address.clone() });
        driver.on_swarm_event(SwarmEvent::ExternalAddrConfirmed { address: address.clone() });
        assert_eq!(network.reachability().borrow().state, ReachabilityState::Reachable);
        driver.on_swarm_event(SwarmEvent::ExpiredListenAddr { listener_id, address });
        assert_eq!(network.public_addresses(), []);
        assert_eq!(network.reachability().borrow().state, ReachabilityState::Unknown);
        let (found, lost) = (heard(&mut told).await, heard(&mut told).await);
        assert!(matches!(&found, Some(Event::AddressFound { address }) if *address == known), "{found:?}");
        assert!(matches!(&lost, Some(Event::AddressLost { address }) if *address == known), "{lost:?}");
    }

    /// With so many entries the lowest peer ids were forgotten, connected or not, and the gone were kept.
    #[tokio::test]
    async fn round_trips_are_those_of_all_connected_peers_and_of_no_other() {
        let (mut driver, network, _told) = idle();
        let peers: Vec<_> = (0..520).map(|_| Keypair::generate_ed25519().public().to_peer_id()).collect();
        for peer in &peers {
            let (connection, result) = (ConnectionId::new_unchecked(1), Ok(Duration::from_millis(7)));
            let answered = ping::Event { peer: *peer, connection, result };
            driver.on_swarm_event(SwarmEvent::Behaviour(BehaviourEvent::Ping(answered)));
        }
        assert_eq!(network.round_trips().len(), peers.len());
        let address: Multiaddr = "/ip4/8.8.8.8/tcp/1".parse().expect("an address");
        driver.on_swarm_event(SwarmEvent::ConnectionClosed {
            peer_id: peers[0],
            connection_id: ConnectionId::new_unchecked(1),
            endpoint: ConnectedPoint::Listener { local_addr: address.clone(), send_back_addr: address },
            num_established: 0,
            cause: None,
        });
        assert_eq!(network.round_trips().len(), peers.len() - 1);
    }
}

//! The handle with which the engine drives the network, and how the network starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{Config, Swarm, SwarmEvent};
use libp2p::{Multiaddr, TransportError as ListenFailure, relay};
use murmur_protocol::handshake::Credentials;
use murmur_protocol::shards::ShardSet;
use murmur_protocol::{Event, NetworkOrder, PeerId, RunId};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::access::Admission;
use crate::behaviour::Behaviour;
use crate::bounds::{
    CLOSE_TIMEOUT, IDLE_TIMEOUT, LISTEN_SETTLE_TIMEOUT, LISTEN_TIMEOUT, NEGOTIATING_STREAMS_MAX, ORDERS_MAX,
    OUTBOX_EVENTS_MAX,
};
use crate::config::NetworkConfig;
use crate::connectivity::Connectivity;
use crate::data::DataExchange;
use crate::data::ask::{Offered, ShardError};
use crate::dial_filter::DialFilter;
use crate::driver::{Driver, Views};
use crate::free_port;
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
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address, as configured.
        address: Multiaddr,
        /// Why, with the remedy where there is one.
        reason: String,
    },
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
        let me = peer_id(&config.identity);
        let traffic = TrafficCounter::default();
        let run = config.manifest.run_id();
        let mut connectivity = config.connectivity;
        // Nobody on the local network reaches a node that is on loopback only, nor the other way round.
        connectivity.mdns &= !config.listen.iter().all(crate::address::is_loopback);
        let gate = Gate::new(&config.identity, &Credentials { run, secret: config.secret.clone() });
        let dial_filter = DialFilter::new(&config.listen);
        let filter = Some(dial_filter.clone());
        let mut swarm = new_swarm(&config.identity, Some(run), gate, &connectivity, filter, &traffic)?;
        let addresses = listen_on(&mut swarm, &config.listen).await?;
        let (outbox, outbox_events) = mpsc::channel(OUTBOX_EVENTS_MAX);
        for address in addresses.iter().filter_map(crate::address::to_core_address) {
            let _ = outbox.try_send(Event::AddressFound { address });
        }
        tokio::spawn(forward(outbox_events, events.clone()));
        let (own_sender, own) = watch::channel(addresses.clone());
        let (listen_sender, listen) = watch::channel(addresses);
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
        tokio::spawn(async move {
            driver.run().await;
            drop(closed_sender);
        });
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
        Ok(Network(Arc::new(handle)))
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

    /// How long the last ping to each peer took, also to some that are gone.
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

/// Listens on all addresses and waits until each listener has reported where.
async fn listen_on(swarm: &mut Swarm<Behaviour>, wanted: &[Multiaddr]) -> Result<Vec<Multiaddr>, NetworkError> {
    // All before the first: a listener of ours on IPv4 would make the same port on IPv6 look taken.
    for address in wanted {
        free_port::ensure(address)
            .map_err(|error| NetworkError::Listen { address: address.clone(), reason: free_port::describe(&error) })?;
    }
    let mut found = Vec::new();
    for address in wanted {
        let failed = |reason: String| NetworkError::Listen { address: address.clone(), reason };
        let listener = swarm.listen_on(address.clone()).map_err(|error| match error {
            ListenFailure::MultiaddrNotSupported(_) => {
                failed("it must look like /ip4/0.0.0.0/tcp/4001 or /ip4/0.0.0.0/udp/4001/quic-v1".to_owned())
            }
            ListenFailure::Other(error) => failed(free_port::describe(&error)),
        })?;
        let reported = async {
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::NewListenAddr { listener_id, address } => {
                        found.push(address);
                        if listener_id == listener {
                            return Ok(());
                        }
                    }
                    SwarmEvent::ListenerClosed { listener_id, reason, .. } if listener_id == listener => {
                        return Err(reason
                            .err()
                            .map_or("the listener closed".to_owned(), |error| free_port::describe(&error)));
                    }
                    _ => {}
                }
            }
        };
        let late = || Err("the listener reported no address".to_owned());
        timeout(LISTEN_TIMEOUT, reported).await.unwrap_or_else(|_| late()).map_err(failed)?;
    }
    // A listener on all interfaces reports them one after the other, loopback first; a ticket needs the others.
    let is_everywhere = |address: &Multiaddr| match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_unspecified(),
        Some(Protocol::Ip6(ip)) => ip.is_unspecified(),
        _ => false,
    };
    if wanted.iter().any(is_everywhere) {
        while let Ok(event) = timeout(LISTEN_SETTLE_TIMEOUT, swarm.select_next_some()).await {
            if let SwarmEvent::NewListenAddr { address, .. } = event {
                found.push(address);
            }
        }
    }
    Ok(found)
}

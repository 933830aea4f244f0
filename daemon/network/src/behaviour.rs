//! What runs on every connection: limits, pings, our streams, and what finds and reaches peers.

use std::num::NonZeroUsize;

use libp2p::autonat::v2 as autonat;
use libp2p::connection_limits::ConnectionLimits;
use libp2p::identity::Keypair;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{NetworkBehaviour, StreamProtocol};
use libp2p::{connection_limits, dcutr, identify, kad, ping, relay};
use murmur_protocol::RunId;

use crate::bounds::*;
use crate::connectivity::Connectivity;
#[cfg(feature = "mdns")]
use crate::local_network::LocalNetwork;
use crate::probing::Held;
use crate::sources::Sources;
use crate::streams::StreamsBehaviour;

/// The protocol family, as identify tells it.
const FAMILY: &str = "/murmur/1";

/// One behaviour type for the whole crate: each more would be compiled with all transports again.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    // Both first, so that a connection over the limits is denied before streams are prepared for it.
    limits: connection_limits::Behaviour,
    sources: Sources,
    ping: ping::Behaviour,
    pub(crate) streams: StreamsBehaviour,
    identify: Toggle<identify::Behaviour>,
    pub(crate) kademlia: Toggle<kad::Behaviour<MemoryStore>>,
    pub(crate) probes: Toggle<Held<autonat::client::Behaviour>>,
    pub(crate) probing: Toggle<Held<autonat::server::Behaviour>>,
    circuits: Toggle<relay::client::Behaviour>,
    pub(crate) relaying: Toggle<relay::Behaviour>,
    hole_punching: Toggle<dcutr::Behaviour>,
    #[cfg(feature = "mdns")]
    local_network: Toggle<LocalNetwork>,
    #[cfg(feature = "upnp")]
    router: Toggle<libp2p::upnp::tokio::Behaviour>,
}

impl Behaviour {
    /// For a node of `run`; where there is none yet, for one that only asks, which has nothing but circuits. `circuits`
    /// belongs to the transport.
    pub(crate) fn new(
        identity: &Keypair,
        run: Option<RunId>,
        connectivity: &Connectivity,
        circuits: Option<relay::client::Behaviour>,
    ) -> Behaviour {
        let limits = ConnectionLimits::default()
            .with_max_pending_incoming(Some(PENDING_INBOUND_MAX))
            .with_max_pending_outgoing(Some(DIALS_MAX as u32))
            .with_max_established(Some(CONNECTIONS_MAX))
            .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX));
        let ping = ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT);
        let me = identity.public().to_peer_id();
        let has = |part: bool| run.is_some() && part;
        let nat = has(connectivity.nat);
        Behaviour {
            limits: connection_limits::Behaviour::new(limits),
            sources: Sources::default(),
            ping: ping::Behaviour::new(ping),
            streams: StreamsBehaviour::default(),
            identify: has(connectivity.has_auxiliary_connections()).then(|| new_identify(identity)).into(),
            kademlia: run.filter(|_| connectivity.kademlia).map(|run| new_kademlia(me, run)).into(),
            probes: nat.then(|| Held::asking(autonat::client::Behaviour::default(), PROBES_HELD_AT_START)).into(),
            probing: nat.then(|| Held::serving(autonat::server::Behaviour::default(), PROBES_HELD_AT_START)).into(),
            circuits: circuits.into(),
            relaying: (nat && connectivity.relay_server).then(|| new_relay(me)).into(),
            hole_punching: nat.then(|| dcutr::Behaviour::new(me)).into(),
            #[cfg(feature = "mdns")]
            local_network: has(connectivity.mdns).then(|| new_mdns(me)).flatten().into(),
            #[cfg(feature = "upnp")]
            router: has(connectivity.upnp).then(libp2p::upnp::tokio::Behaviour::default).into(),
        }
    }
}

fn new_identify(identity: &Keypair) -> identify::Behaviour {
    let config = identify::Config::new(FAMILY.to_owned(), identity.public())
        .with_agent_version(concat!("murmur/", env!("CARGO_PKG_VERSION")).to_owned())
        .with_push_listen_addr_updates(true)
        // Whom to dial and where is the core's business.
        .with_cache_size(0);
    identify::Behaviour::new(config)
}

/// The name of the run's table: nodes of another run do not speak it.
pub(crate) fn table_protocol(run: RunId) -> StreamProtocol {
    StreamProtocol::try_from_owned(format!("/murmur/{run}/kad/1")).expect("it begins with a slash")
}

/// The run's table. It holds nothing but who takes part.
fn new_kademlia(me: libp2p::PeerId, run: RunId) -> kad::Behaviour<MemoryStore> {
    let store = MemoryStoreConfig {
        max_records: 0,
        max_value_bytes: 0,
        max_providers_per_key: ANNOUNCEMENTS_MAX,
        max_provided_keys: 1,
    };
    let mut config = kad::Config::new(table_protocol(run));
    config
        // We look at what is to be stored first.
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_caching(kad::Caching::Disabled)
        .set_replication_interval(None)
        .set_publication_interval(None)
        .set_provider_publication_interval(Some(ANNOUNCE_PERIOD))
        .set_provider_record_ttl(Some(ANNOUNCEMENT_KEPT))
        .set_periodic_bootstrap_interval(Some(TABLE_REFRESH_PERIOD))
        .set_query_timeout(LOOKUP_TIMEOUT)
        .set_parallelism(LOOKUP_PARALLELISM);
    let mut kademlia = kad::Behaviour::with_config(me, MemoryStore::with_config(me, store), config);
    // Nodes of a private network serve each other, too. One that proves unreachable stops.
    kademlia.set_mode(Some(kad::Mode::Server));
    kademlia
}

/// Nodes asked at once in a lookup, which is how many dials it may have under way: the paper's α.
const LOOKUP_PARALLELISM: NonZeroUsize = NonZeroUsize::new(3).expect("not zero");

/// Relays nothing until it is told that this node can be reached.
fn new_relay(me: libp2p::PeerId) -> relay::Behaviour {
    let config = relay::Config {
        max_reservations: RELAY_RESERVATIONS_MAX,
        max_circuits: RELAY_CIRCUITS_MAX,
        max_circuit_bytes: RELAY_CIRCUIT_BYTES_MAX,
        max_circuit_duration: RELAY_CIRCUIT_TIMEOUT,
        ..relay::Config::default()
    };
    let mut relay = relay::Behaviour::new(me, config);
    relay.set_status(Some(relay::Status::Disable));
    relay
}

#[cfg(feature = "mdns")]
fn new_mdns(me: libp2p::PeerId) -> Option<LocalNetwork> {
    LocalNetwork::watch(me, LOCAL_NETWORK_PAUSE)
        .inspect_err(|error| tracing::warn!(%error, "the local network cannot be watched: no peers are found on it"))
        .ok()
}

//! What runs on every connection: limits, pings and our streams.

use libp2p::connection_limits::ConnectionLimits;
use libp2p::swarm::NetworkBehaviour;
use libp2p::{connection_limits, ping};

use crate::bounds::{
    CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX, DIALS_MAX, PENDING_INBOUND_MAX, PING_INTERVAL, PING_TIMEOUT,
};
use crate::streams::StreamsBehaviour;

/// One behaviour type for the whole crate: each more would be compiled with all transports again.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    // First, so that a connection over the limits is denied before streams are prepared for it.
    limits: connection_limits::Behaviour,
    ping: ping::Behaviour,
    pub(crate) streams: StreamsBehaviour,
}

impl Behaviour {
    pub(crate) fn new() -> Behaviour {
        let limits = ConnectionLimits::default()
            .with_max_pending_incoming(Some(PENDING_INBOUND_MAX))
            .with_max_pending_outgoing(Some(DIALS_MAX as u32))
            .with_max_established(Some(CONNECTIONS_MAX))
            .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX));
        let ping = ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT);
        Behaviour {
            limits: connection_limits::Behaviour::new(limits),
            ping: ping::Behaviour::new(ping),
            streams: StreamsBehaviour::default(),
        }
    }
}

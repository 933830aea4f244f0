//! Probes of addresses, this node's and those of others, which wait while its model comes.
//!
//! Who asks to be dialed back has to send up to 100 kB first, so that nobody aims others at a victim: for an address each,
//! and again where that took too long. On a slow line that is minutes in which nothing else gets through: this node's probes
//! take the confirmations' way out, and those of members that found it take the model's way in.

mod reticent;

use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::FromSwarm;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

pub(crate) use reticent::Reticent;

/// A behaviour that begins nothing while it is held. The driver looks around every second, and so the swarm polls it again.
pub(crate) struct Patient<Inner> {
    inner: Inner,
    until: Instant,
}

impl<Inner> Patient<Inner> {
    /// Begins nothing for `time`.
    pub(crate) fn new(inner: Inner, time: Duration) -> Patient<Inner> {
        Patient { inner, until: Instant::now() + time }
    }

    /// Begins nothing for this long.
    pub(crate) fn hold(&mut self, time: Duration) {
        self.until = self.until.max(Instant::now() + time);
    }
}

impl<Inner: NetworkBehaviour> NetworkBehaviour for Patient<Inner> {
    type ConnectionHandler = Inner::ConnectionHandler;
    type ToSwarm = Inner::ToSwarm;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.inner.handle_pending_inbound_connection(connection, local, remote)
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_inbound_connection(connection, peer, local, remote)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        self.inner.handle_pending_outbound_connection(connection, peer, addresses, role)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_outbound_connection(connection, peer, address, role, port)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, connection: ConnectionId, event: THandlerOutEvent<Self>) {
        self.inner.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if Instant::now() < self.until { Poll::Pending } else { self.inner.poll(context) }
    }
}

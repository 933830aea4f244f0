//! How the swarm task begins to listen. Whatever else happens meanwhile is taken notice of as later: strangers knock, and neighbours
//! answer at once.

use futures::StreamExt;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, TransportError};
use murmur_protocol::Event;
use tokio::time::{Instant, timeout_at};

use super::Driver;
use crate::address::to_core_address;
use crate::behaviour::BehaviourEvent;
use crate::bounds::{LISTEN_SETTLE_TIMEOUT, LISTEN_TIMEOUT};
use crate::connectivity::Exposure;
use crate::free_port;

/// An address on which this node cannot listen.
#[derive(Debug)]
pub(crate) struct CannotListen {
    /// As configured.
    pub(crate) address: Multiaddr,
    /// Why, with the remedy where there is one.
    pub(crate) reason: String,
}

impl Driver {
    /// Listens on all addresses and waits until each listener has reported where.
    pub(crate) async fn listen_on(&mut self, wanted: &[Multiaddr]) -> Result<(), CannotListen> {
        // All before the first: a listener of ours on IPv4 would make the same port on IPv6 look taken.
        for address in wanted {
            free_port::ensure(address)
                .map_err(|error| CannotListen { address: address.clone(), reason: free_port::describe(&error) })?;
        }
        for address in wanted {
            self.listen_on_one(address).await.map_err(|reason| CannotListen { address: address.clone(), reason })?;
        }
        if wanted.iter().any(is_everywhere) {
            self.settle().await;
        }
        Ok(())
    }

    /// Else says why not.
    async fn listen_on_one(&mut self, address: &Multiaddr) -> Result<(), String> {
        let listener = self.swarm.listen_on(address.clone()).map_err(|error| match error {
            TransportError::MultiaddrNotSupported(_) => {
                "it must look like /ip4/0.0.0.0/tcp/4711 or /ip4/0.0.0.0/udp/4711/quic-v1".to_owned()
            }
            TransportError::Other(error) => free_port::describe(&error),
        })?;
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        let mut has_reported = false;
        while !has_reported {
            let event = self.next_event(deadline).await.ok_or("the listener reported no address")?;
            match &event {
                SwarmEvent::NewListenAddr { listener_id, .. } => has_reported = *listener_id == listener,
                SwarmEvent::ListenerClosed { listener_id, reason, .. } if *listener_id == listener => {
                    return Err(match reason {
                        Ok(()) => "the listener closed".to_owned(),
                        Err(error) => free_port::describe(error),
                    });
                }
                _ => {}
            }
            self.on_swarm_event(event);
        }
        Ok(())
    }

    /// A listener on all interfaces reports them one after the other, loopback first; a ticket needs the others.
    async fn settle(&mut self) {
        let mut until = Instant::now() + LISTEN_SETTLE_TIMEOUT;
        while let Some(event) = self.next_event(until).await {
            // Nothing else makes it longer: strangers can cause other events without end.
            if matches!(event, SwarmEvent::NewListenAddr { .. }) {
                until = Instant::now() + LISTEN_SETTLE_TIMEOUT;
            }
            self.on_swarm_event(event);
        }
    }

    pub(super) fn on_listen_address(&mut self, address: Multiaddr) {
        if self.views.listen.borrow().contains(&address) {
            return;
        }
        if let Some(address) = to_core_address(&address) {
            self.emit(Event::AddressFound { address });
        }
        self.views.listen.send_modify(|own| own.push(address.clone()));
        if self.connectivity.exposure == Exposure::Public {
            // The operator knows better than any probe.
            self.swarm.add_external_address(address.clone());
            self.on_confirmed(address);
        }
        self.publish();
    }

    /// `None` once the time is over, also where the next event is there at once.
    async fn next_event(&mut self, deadline: Instant) -> Option<SwarmEvent<BehaviourEvent>> {
        let is_over = Instant::now() >= deadline;
        if is_over { None } else { timeout_at(deadline, self.swarm.select_next_some()).await.ok() }
    }
}

/// Whether it stands for all addresses of this machine.
pub(super) fn is_everywhere(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_unspecified(),
        Some(Protocol::Ip6(ip)) => ip.is_unspecified(),
        _ => false,
    }
}

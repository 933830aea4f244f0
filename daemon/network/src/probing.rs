//! Probes of addresses, this node's and those of others, which wait while its model comes.
//!
//! Who asks to be dialed back has to send up to 100 kB first, so that nobody aims others at a victim: for an address each,
//! and again where that took too long. On a slow line that is minutes in which nothing else gets through: this node's probes
//! take the confirmations' way out, and those of members that found it take the model's way in.
//!
//! So a behaviour that asks others begins nothing while it is held, and of one that serves others peers are told that this node does
//! not have it. A service is held as well while it has dialed for others as often as it may: strangers could use up what lookups
//! need, and whoever is not dialed for lack of that would take itself for one that cannot be reached.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, InboundUpgrade, UpgradeInfo};
use libp2p::swarm::behaviour::FromSwarm;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::handler::{
    ConnectionEvent, FullyNegotiatedInbound, InboundUpgradeSend, ListenUpgradeError, UpgradeInfoSend,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, NetworkBehaviour, Stream,
    SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use crate::bounds::{TRIES_MAX, TRIES_PAUSE, TRY_PERIOD};
use crate::candidates::Candidates;
use crate::dial_filter::Bucket;
use crate::sources::Source;

/// A behaviour that can be held.
pub(crate) struct Held<Inner> {
    inner: Inner,
    until: Until,
    /// Of a service: what it may dial.
    dials: Option<Bucket>,
    /// What it hears of where this node is seen.
    candidates: Candidates,
}

/// Until when it is held. Shared by the handlers of all connections.
#[derive(Clone, Debug)]
struct Until(Arc<Mutex<Instant>>);

impl Until {
    fn is_over(&self) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) <= Instant::now()
    }

    fn extend(&self, time: Duration) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(Instant::now() + time);
    }
}

impl<Inner> Held<Inner> {
    /// It begins nothing while it is held, which it is for `time`. The driver looks around every second, and so the swarm polls it
    /// again.
    pub(crate) fn asking(inner: Inner, time: Duration) -> Held<Inner> {
        let until = Until(Arc::new(Mutex::new(Instant::now() + time)));
        Held { inner, until, dials: None, candidates: Candidates::default() }
    }

    /// Its protocols are not offered while it is held, which it is for `time`. When that is over, peers hear of them (identify tells
    /// what has changed) with the next ping of their connection.
    pub(crate) fn serving(inner: Inner, time: Duration) -> Held<Inner> {
        Held { dials: Some(Bucket::full(Instant::now())), ..Held::asking(inner, time) }
    }

    /// Holds it for this long.
    pub(crate) fn hold(&self, time: Duration) {
        self.until.extend(time);
    }

    /// Where this node is seen, as it is told next, was told by a peer from there.
    pub(crate) fn hear_from(&mut self, source: Option<Source>) {
        self.candidates.hear_from(source);
    }

    /// Counts a dial of a service, where there is one left. After the last one nothing is offered for a while.
    fn may_dial(&mut self, now: Instant) -> bool {
        let Some(dials) = &mut self.dials else { return true };
        let is_one_left = dials.has_room(now, TRY_PERIOD, TRIES_MAX);
        if is_one_left {
            dials.take(now, TRY_PERIOD);
        }
        if !dials.has_room(now, TRY_PERIOD, TRIES_MAX) {
            self.hold(TRIES_PAUSE);
        }
        is_one_left
    }

    /// Ends what a dial was for, without a failure: this says nothing about whoever wanted it. The service takes the dial for one that
    /// has come through, and the handler for it, in which it keeps what is to be said, is dropped.
    fn give_up(&mut self, dial: &DialOpts)
    where
        Inner: NetworkBehaviour,
    {
        let (connection, nowhere) = (dial.connection_id(), Multiaddr::empty());
        if let Some(peer) = dial.get_peer_id() {
            tracing::debug!(%peer, "nobody is tried for now: too many want it");
            let (role, port) = (Endpoint::Dialer, PortUse::New);
            drop(self.inner.handle_established_outbound_connection(connection, peer, &nowhere, role, port));
        }
    }

    fn handler(&self, inner: THandler<Inner>) -> HeldHandler<THandler<Inner>>
    where
        Inner: NetworkBehaviour,
    {
        HeldHandler { inner, until: self.dials.map(|_| self.until.clone()) }
    }
}

impl<Inner: NetworkBehaviour> NetworkBehaviour for Held<Inner> {
    type ConnectionHandler = HeldHandler<Inner::ConnectionHandler>;
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
        let inner = self.inner.handle_established_inbound_connection(connection, peer, local, remote)?;
        Ok(self.handler(inner))
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
        let inner = self.inner.handle_established_outbound_connection(connection, peer, address, role, port)?;
        Ok(self.handler(inner))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        let is_known_enough = match event {
            FromSwarm::NewExternalAddrCandidate(seen) => !self.candidates.admit(Instant::now(), seen.addr),
            _ => false,
        };
        if !is_known_enough {
            self.inner.on_swarm_event(event);
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, connection: ConnectionId, event: THandlerOutEvent<Self>) {
        self.inner.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if self.dials.is_none() && !self.until.is_over() {
            return Poll::Pending;
        }
        loop {
            match self.inner.poll(context) {
                Poll::Ready(ToSwarm::Dial { opts }) if !self.may_dial(Instant::now()) => self.give_up(&opts),
                event => return event,
            }
        }
    }
}

/// What serves one connection.
pub(crate) struct HeldHandler<Inner> {
    inner: Inner,
    /// Of a service: until when it is held.
    until: Option<Until>,
}

impl<Inner: ConnectionHandler> ConnectionHandler for HeldHandler<Inner> {
    type FromBehaviour = Inner::FromBehaviour;
    type ToBehaviour = Inner::ToBehaviour;
    type InboundProtocol = Offered<Inner::InboundProtocol>;
    type OutboundProtocol = Inner::OutboundProtocol;
    type InboundOpenInfo = Inner::InboundOpenInfo;
    type OutboundOpenInfo = Inner::OutboundOpenInfo;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol, Self::InboundOpenInfo> {
        let is_offered = self.until.as_ref().is_none_or(Until::is_over);
        self.inner.listen_protocol().map_upgrade(|upgrade| Offered { upgrade, is_offered })
    }

    fn connection_keep_alive(&self) -> bool {
        self.inner.connection_keep_alive()
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Self::ToBehaviour>> {
        self.inner.poll(context)
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<Option<Self::ToBehaviour>> {
        self.inner.poll_close(context)
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        self.inner.on_behaviour_event(event);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<
            '_,
            Self::InboundProtocol,
            Self::OutboundProtocol,
            Self::InboundOpenInfo,
            Self::OutboundOpenInfo,
        >,
    ) {
        self.inner.on_connection_event(match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, info }) => {
                ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, info })
            }
            ConnectionEvent::ListenUpgradeError(ListenUpgradeError { info, error }) => {
                ConnectionEvent::ListenUpgradeError(ListenUpgradeError { info, error })
            }
            ConnectionEvent::FullyNegotiatedOutbound(negotiated) => {
                ConnectionEvent::FullyNegotiatedOutbound(negotiated)
            }
            ConnectionEvent::AddressChange(change) => ConnectionEvent::AddressChange(change),
            ConnectionEvent::DialUpgradeError(error) => ConnectionEvent::DialUpgradeError(error),
            ConnectionEvent::LocalProtocolsChange(change) => ConnectionEvent::LocalProtocolsChange(change),
            ConnectionEvent::RemoteProtocolsChange(change) => ConnectionEvent::RemoteProtocolsChange(change),
            _ => return,
        });
    }
}

/// The protocols of a service, or none.
pub(crate) struct Offered<Upgrade> {
    upgrade: Upgrade,
    is_offered: bool,
}

impl<Upgrade: UpgradeInfoSend> UpgradeInfo for Offered<Upgrade> {
    type Info = Upgrade::Info;
    type InfoIter = std::iter::Take<Upgrade::InfoIter>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.upgrade.protocol_info().take(if self.is_offered { usize::MAX } else { 0 })
    }
}

impl<Upgrade: InboundUpgradeSend> InboundUpgrade<Stream> for Offered<Upgrade> {
    type Output = Upgrade::Output;
    type Error = Upgrade::Error;
    type Future = Upgrade::Future;

    fn upgrade_inbound(self, stream: Stream, protocol: Self::Info) -> Self::Future {
        self.upgrade.upgrade_inbound(stream, protocol)
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker_ref;
    use libp2p::autonat::v2::server;

    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("an address")
    }

    /// How many protocols a peer is offered.
    fn offered<Inner: NetworkBehaviour>(probing: &mut Held<Inner>) -> usize {
        let (connection, place) = (ConnectionId::new_unchecked(1), address("/ip4/10.0.0.1/tcp/4711"));
        let handler = probing.handle_established_inbound_connection(connection, PeerId::random(), &place, &place);
        let (upgrade, _) = handler.expect("nobody is denied").listen_protocol().into_upgrade();
        UpgradeInfo::protocol_info(&upgrade).count()
    }

    /// Members asked a joiner on a line of 64 kbit/s to dial them back, each with up to 100 kB.
    #[test]
    fn nobody_is_offered_a_probe_while_the_model_comes() {
        let mut at_the_start = Held::serving(server::Behaviour::default(), Duration::from_secs(60));
        assert_eq!(offered(&mut at_the_start), 0);
        let mut later: Held<server::Behaviour> = Held::serving(server::Behaviour::default(), Duration::ZERO);
        assert_eq!(offered(&mut later), 1);
        later.hold(Duration::from_secs(60));
        assert_eq!(offered(&mut later), 0, "a part has come");
    }

    /// Dials for others as often as they like.
    #[derive(Default)]
    struct Eager {
        server: server::Behaviour,
        wanted: usize,
        /// Dials of which it has heard that they came through.
        ended: usize,
    }

    impl NetworkBehaviour for Eager {
        type ConnectionHandler = THandler<server::Behaviour>;
        type ToSwarm = server::Event;

        fn handle_established_inbound_connection(
            &mut self,
            connection: ConnectionId,
            peer: PeerId,
            local: &Multiaddr,
            remote: &Multiaddr,
        ) -> Result<THandler<Self>, ConnectionDenied> {
            self.server.handle_established_inbound_connection(connection, peer, local, remote)
        }

        fn handle_established_outbound_connection(
            &mut self,
            connection: ConnectionId,
            peer: PeerId,
            address: &Multiaddr,
            role: Endpoint,
            port: PortUse,
        ) -> Result<THandler<Self>, ConnectionDenied> {
            self.ended += 1;
            self.server.handle_established_outbound_connection(connection, peer, address, role, port)
        }

        fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
            assert!(!matches!(event, FromSwarm::DialFailure(_)), "nobody is told that it cannot be reached");
        }

        fn on_connection_handler_event(
            &mut self,
            peer: PeerId,
            connection: ConnectionId,
            event: THandlerOutEvent<Self>,
        ) {
            self.server.on_connection_handler_event(peer, connection, event);
        }

        fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<server::Event, THandlerInEvent<Self>>> {
            if self.wanted == 0 {
                return Poll::Pending;
            }
            self.wanted -= 1;
            Poll::Ready(ToSwarm::Dial { opts: PeerId::random().into() })
        }
    }

    /// Lookups and hole punches found no dial left, and honest peers heard that they cannot be reached.
    #[test]
    fn strangers_that_want_to_be_dialed_use_up_no_more_than_half_of_all_dials() {
        let mut probing = Held::serving(Eager::default(), Duration::ZERO);
        assert_eq!(offered(&mut probing), 1);
        probing.inner.wanted = 200;
        let mut context = Context::from_waker(noop_waker_ref());
        let mut dialed = 0;
        while let Poll::Ready(event) = probing.poll(&mut context) {
            assert!(matches!(event, ToSwarm::Dial { .. }));
            dialed += 1;
        }
        assert!((TRIES_MAX..=TRIES_MAX + 1).contains(&dialed), "{dialed}");
        assert_eq!((probing.inner.wanted, probing.inner.ended), (0, 200 - dialed as usize), "all others are over");
        assert_eq!(offered(&mut probing), 0, "there is none left");
    }

    #[test]
    fn who_asks_waits_while_it_is_held_and_then_dials_as_often_as_it_likes() {
        let mut probes = Held::asking(Eager { wanted: 200, ..Eager::default() }, Duration::from_secs(60));
        let mut context = Context::from_waker(noop_waker_ref());
        assert!(probes.poll(&mut context).is_pending());
        assert_eq!(offered(&mut probes), 1, "who is asked already may still answer");
        let mut probes = Held::asking(probes.inner, Duration::ZERO);
        let dialed = std::iter::from_fn(|| probes.poll(&mut context).is_ready().then_some(())).count();
        assert_eq!(dialed, 200);
        probes.inner.wanted = 1;
        probes.hold(Duration::from_secs(60));
        assert!(probes.poll(&mut context).is_pending());
    }
}

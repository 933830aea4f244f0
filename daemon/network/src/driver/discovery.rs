//! The part of the swarm task that finds out where the node stands: who else is there, and who can reach it.

use libp2p::core::ConnectedPoint;
use libp2p::core::transport::ListenerId;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{self, GetProvidersOk, InboundRequest, QueryResult};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, ListenError, SwarmEvent};
use libp2p::{Multiaddr, identify, relay};
use murmur_protocol::handshake::Refusal;
use murmur_protocol::{Address, Event, PeerId};
use tokio::time::Instant;

use super::Driver;
use super::listening::is_everywhere;
use crate::address::{ip_of, is_circuit, is_loopback, split_peer, to_core_address, to_core_peer, to_dialable};
use crate::behaviour::{BehaviourEvent, table_protocol};
use crate::bounds::{LOOK_PERIOD, OUTBOX_RESERVE, PROBES_HELD, TABLE_ADDRESSES_MAX, TOLD_OF_SELF_MAX};
#[cfg(feature = "mdns")]
use crate::discovery::neighbours::Found;
use crate::discovery::table::{meaningful, places_of};
use crate::handshake::Dialed;
use crate::handshake::gate::refusal_of_visit;
use crate::nat::Confirmation;
use crate::reachability::is_global;
use crate::scope::Scope;
use crate::sources::Source;

impl Driver {
    /// What a router has granted while the node began to listen.
    pub(super) fn take_in_known_addresses(&mut self) {
        let granted: Vec<Multiaddr> = self.swarm.external_addresses().cloned().collect();
        granted.into_iter().for_each(|address| self.on_confirmed(address));
        self.follow_verdict();
    }

    /// Does what is due: lookups, reservations, a word on isolation.
    pub(super) fn look_around(&mut self) {
        let now = Instant::now();
        self.nat.members_counted(now, self.members.len());
        let copies = self.shared.copying.is_fresh(PROBES_HELD);
        if copies {
            let behaviour = self.swarm.behaviour();
            if let Some(probes) = behaviour.probes.as_ref() {
                probes.hold(2 * LOOK_PERIOD);
            }
            if let Some(probing) = behaviour.probing.as_ref() {
                probing.hold(2 * LOOK_PERIOD);
            }
        }
        self.report_neighbours();
        let (announces, looks) = self.finding.due(now, self.members.len());
        // Who is being given the model has found members.
        let looks = looks && !copies;
        if let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut() {
            if announces && let Err(error) = kademlia.start_providing(self.finding.key.clone()) {
                tracing::debug!(%error, "cannot announce this node in the run's table");
            }
            if looks {
                kademlia.get_providers(self.finding.key.clone());
            }
        }
        if let Some((relay, address)) = self.nat.relay_to_ask(now).filter(|_| self.connectivity.nat) {
            self.dial_filter.vouch([&address]);
            let circuit = address.with(Protocol::P2p(relay)).with(Protocol::P2pCircuit);
            match self.swarm.listen_on(circuit) {
                Ok(listener) => self.nat.asked(relay, listener),
                Err(error) => {
                    tracing::debug!(%relay, %error, "cannot ask for a place at a relay");
                    self.nat.relay_gone(relay);
                }
            }
        }
        self.try_past_a_relay(now);
        self.publish();
    }

    /// Opens another circuit to a peer that only a relay leads to: nothing is said on it, but with each new one libp2p
    /// tries to punch a hole.
    fn try_past_a_relay(&mut self, now: Instant) {
        let Some((peer, circuit)) = self.paths.circuit_to_open(now) else { return };
        self.dial_filter.vouch([&circuit]);
        let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(vec![circuit]);
        if let Err(error) = self.swarm.dial(options.build()) {
            tracing::debug!(%peer, %error, "no second circuit to punch a hole with");
        }
    }

    pub(super) fn on_discovery_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::NewExternalAddrCandidate { address } if !is_circuit(&address) => {
                let address = split_peer(address).1;
                // Through a relay a peer sees whom, and not from where.
                if !address.is_empty() {
                    self.nat.observe(address);
                    self.publish();
                }
            }
            // Circuits are known by their listeners.
            SwarmEvent::ExternalAddrConfirmed { address } if !is_circuit(&address) => self.on_confirmed(address),
            SwarmEvent::ExternalAddrExpired { address } if !is_circuit(&address) => self.on_expired(address),
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, .. } => {
                self.paths.closed(Instant::now(), connection_id);
                if num_established == 0 {
                    self.nat.relay_gone(peer_id);
                    if let Some(peer) = to_core_peer(&peer_id) {
                        self.shared.round_trips.forget(peer);
                    }
                }
            }
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            _ => {}
        }
    }

    fn on_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Identify(identify::Event::Received { peer_id, connection_id, info }) => {
                self.on_identified(peer_id, connection_id, info);
            }
            BehaviourEvent::Kademlia(event) => self.on_table(event),
            BehaviourEvent::Probes(probe) if probe.result.is_err() => {
                tracing::debug!(address = %probe.tested_addr, server = %probe.server, "a peer cannot reach this node");
                if !is_circuit(&probe.tested_addr) {
                    self.nat.probe_failed(&split_peer(probe.tested_addr).1);
                    self.follow_verdict();
                }
            }
            BehaviourEvent::HolePunching(punch) => match punch.result {
                Ok(connection) => self.on_hole_punched(connection),
                Err(error) => tracing::debug!(peer = %punch.remote_peer_id, %error, "no hole could be punched"),
            },
            #[cfg(feature = "upnp")]
            BehaviourEvent::Router(libp2p::upnp::Event::NewExternalAddr { local_addr, external_addr }) => {
                self.nat.granted(local_addr, external_addr);
            }
            #[cfg(feature = "mdns")]
            BehaviourEvent::LocalNetwork(found) => {
                let mut by_peer = Found::new();
                for (peer, address) in found {
                    by_peer.entry(peer).or_default().push(split_peer(address).1);
                }
                self.neighbours.find(Instant::now(), by_peer);
                self.report_neighbours();
            }
            _ => {}
        }
    }

    /// A connection that somebody else opened came to nothing.
    pub(super) fn on_visit_failed(&mut self, address: &Multiaddr, error: &ListenError) {
        tracing::debug!(%address, %error, "an inbound connection came to nothing");
        // However many knock, what the core waits for has room.
        if let Some((peer, refusal)) = refusal_of_visit(error)
            && self.outbox.capacity() > OUTBOX_RESERVE
        {
            self.refused(peer, refusal);
        }
    }

    /// A peer came no further than the gate of this closed run, or this node no further than another's.
    pub(super) fn refused(&mut self, peer: PeerId, refusal: Refusal) {
        self.finding.met_stranger(Instant::now(), peer);
        self.emit(Event::HandshakeRefused { peer, refusal });
    }

    fn on_identified(&mut self, peer: libp2p::PeerId, connection: ConnectionId, info: identify::Info) {
        // libp2p tells next where the peer sees this node.
        let source = self.paths.remote(connection).and_then(Source::of);
        if let Some(probes) = self.swarm.behaviour_mut().probes.as_mut() {
            probes.hear_from(source);
        }
        if !self.paths.hears(Instant::now(), connection) {
            return;
        }
        let addresses = self.believed_of_itself(info.listen_addrs, self.paths.remote(connection));
        let table = table_protocol(self.shared.manifest.run_id());
        if info.protocols.contains(&table)
            && let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut()
        {
            for address in &addresses {
                kademlia.add_address(&peer, address.clone());
            }
        }
        let is_direct = self.handshakes.get(&connection).is_none_or(|handshake| handshake.is_direct);
        if !is_direct {
            return;
        }
        let direct = || addresses.iter().filter(|address| !is_circuit(address));
        let global = direct().find(|address| is_global(address));
        let best = global.or_else(|| direct().find(|address| !is_loopback(address))).or_else(|| direct().next());
        match best {
            Some(address) if info.protocols.contains(&relay::HOP_PROTOCOL_NAME) => {
                self.nat.relay_met(peer, address.clone());
            }
            _ => self.nat.relay_gone(peer),
        }
    }

    /// Of the addresses that a peer at `remote` tells of itself, those that it is believed about, the best first; at most
    /// [`TABLE_ADDRESSES_MAX`].
    fn believed_of_itself(&self, told: Vec<Multiaddr>, remote: Option<&Multiaddr>) -> Vec<Multiaddr> {
        let listen = self.views.listen.borrow().clone();
        let scope = remote.map_or(Scope::World, |remote| Scope::of_peer(remote, &listen));
        let told = meaningful(told, &listen);
        let told: Vec<Address> = told.iter().take(TOLD_OF_SELF_MAX).filter_map(to_core_address).collect();
        let mut believed: Vec<Multiaddr> = scope.believed(&told).iter().filter_map(to_dialable).collect();
        // A machine has addresses in networks of its own that lead nowhere.
        believed.sort_by_key(|address| (ip_of(address) != remote.and_then(ip_of), !is_global(address)));
        believed.truncate(TABLE_ADDRESSES_MAX);
        believed
    }

    /// A peer says that it takes part in the run, and where.
    fn on_announced(&mut self, mut record: kad::ProviderRecord) {
        if record.key != self.finding.key {
            return;
        }
        let listen = self.views.listen.borrow().clone();
        let nearest = self.paths.remotes(record.provider).min_by_key(|remote| Scope::of_peer(remote, &listen));
        record.addresses = self.believed_of_itself(record.addresses, nearest);
        let source = nearest.and_then(Source::of);
        let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut() else { return };
        let store = kademlia.store_mut();
        let now = std::time::Instant::now();
        let (expired, kept): (Vec<_>, Vec<_>) =
            store.providers(&record.key).into_iter().partition(|kept| kept.is_expired(now));
        let is_kept = |peer: &libp2p::PeerId| kept.iter().any(|kept| kept.provider == *peer);
        let gone = self.finding.announcements.announced(record.provider, source, is_kept);
        for peer in expired.iter().map(|record| record.provider).chain(gone) {
            store.remove_provider(&record.key, &peer);
        }
        if let Err(error) = store.add_provider(record) {
            tracing::debug!(%error, "an announcement was not kept");
        }
    }

    /// Has the table forget the oldest of a node's addresses where there are too many: it tells all of them to whoever asks.
    fn forget_old_addresses(&mut self, peer: &libp2p::PeerId, known: &kad::Addresses) {
        let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut() else { return };
        for address in known.iter().take(known.len().saturating_sub(TABLE_ADDRESSES_MAX)) {
            kademlia.remove_address(peer, address);
        }
    }

    fn on_table(&mut self, event: kad::Event) {
        match event {
            kad::Event::InboundRequest { request: InboundRequest::AddProvider { record: Some(record) } } => {
                self.on_announced(record);
            }
            kad::Event::RoutingUpdated { peer, is_new_peer, addresses, .. } => {
                self.forget_old_addresses(&peer, &addresses);
                if is_new_peer {
                    self.finding.table_grew(Instant::now());
                }
            }
            kad::Event::OutboundQueryProgressed {
                result: QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })),
                ..
            } => {
                let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut() else { return };
                let found = places_of(kademlia, providers);
                self.report_found(found, self.dial_filter.nearest());
            }
            _ => {}
        }
    }

    /// Tells the core of peers about whom somebody so far away has told.
    fn report_found(&mut self, found: impl IntoIterator<Item = (libp2p::PeerId, Vec<Multiaddr>)>, scope: Scope) {
        let is_member = |peer| self.members.contains_key(&peer);
        let listen = self.views.listen.borrow().clone();
        if let Some(event) = self.finding.report(Instant::now(), found, (scope, &listen), is_member) {
            self.emit(event);
        }
    }

    fn report_neighbours(&mut self) {
        while let Some(found) = self.neighbours.due(Instant::now(), self.members.is_empty()) {
            // libp2p takes the sender's own host in place of the one that it tells: who is far away tells of nobody nearer.
            self.report_found(found, Scope::Network);
        }
    }

    /// A direct connection came about through a relay's help: it is for membership.
    fn on_hole_punched(&mut self, connection: ConnectionId) {
        self.paths.wanted(connection);
        let Some(handshake) = self.handshakes.get_mut(&connection) else { return };
        handshake.is_punched = true;
        if let Some(wanted) = handshake.wanted.take() {
            let _ = wanted.send(Dialed { by_address: false, addresses: Vec::new() });
        }
    }

    /// A connection is there. Returns whether it goes through a hole that was punched, as far as that can be seen: it came
    /// across the internet while a circuit to the peer was open.
    ///
    /// Where somebody outside has opened it to a public address of this machine, without such help, that address is
    /// confirmed: probes are asked only of peers that this node has dialed, and a member whose peers are all behind NATs
    /// dials none.
    pub(super) fn on_way_found(
        &mut self,
        peer: &libp2p::PeerId,
        connection: ConnectionId,
        endpoint: &ConnectedPoint,
    ) -> bool {
        self.paths.opened(Instant::now(), connection, *peer, endpoint);
        if endpoint.is_relayed() || !is_global(endpoint.get_remote_address()) {
            return false;
        }
        if self.paths.has_circuit(*peer) {
            return true;
        }
        if let ConnectedPoint::Listener { local_addr, .. } = endpoint {
            self.on_reached(local_addr);
        }
        false
    }

    /// Somebody outside has opened a connection to this node, at `local`.
    fn on_reached(&mut self, local: &Multiaddr) {
        let listen = self.views.listen.borrow().clone();
        let mut reached = listen.into_iter().filter(|own| is_global(own) && is_at(own, local));
        // Where a socket of all addresses does not tell which one it was, nobody knows.
        if let (Some(address), None) = (reached.next(), reached.next())
            && self.connectivity.nat
            && !self.nat.external_addresses().contains(&address)
        {
            self.swarm.add_external_address(address.clone());
            self.on_confirmed(address);
        }
    }

    pub(super) fn on_confirmed(&mut self, address: Multiaddr) {
        let address = split_peer(address).1;
        tracing::debug!(%address, "an external address is confirmed");
        let listen = self.views.listen.borrow().clone();
        let Confirmation::New { gone } = self.nat.confirm(address.clone(), &listen) else { return };
        if !listen.contains(&address)
            && let Some(address) = to_core_address(&address)
        {
            self.emit(Event::AddressFound { address });
        }
        if let Some(gone) = gone {
            self.forget_external(&gone);
            self.lose_addresses(&[gone]);
        }
        self.follow_verdict();
    }

    fn on_expired(&mut self, address: Multiaddr) {
        let address = split_peer(address).1;
        tracing::debug!(%address, "an external address has expired");
        self.nat.expire(&address);
        self.lose_addresses(&[address]);
        self.follow_verdict();
    }

    /// From now on nobody is told that this node is found there, unless it is confirmed anew.
    fn forget_external(&mut self, address: &Multiaddr) {
        let me = *self.swarm.local_peer_id();
        self.swarm.remove_external_address(&address.clone().with(Protocol::P2p(me)));
        self.swarm.remove_external_address(address);
    }

    /// A relay holds a place for this node.
    pub(super) fn on_circuit_address(&mut self, listener: ListenerId, address: Multiaddr) {
        let address = split_peer(address).1;
        if let Some(address) = to_core_address(&address) {
            self.emit(Event::AddressFound { address });
        }
        self.nat.reserved(listener, address);
        self.publish();
    }

    pub(super) fn on_listener_closed(
        &mut self,
        listener: ListenerId,
        addresses: &[Multiaddr],
        reason: Result<(), std::io::Error>,
    ) {
        if let Err(error) = reason {
            if self.nat.has_asked(listener) {
                tracing::debug!(?addresses, %error, "a place at a relay is gone, or was refused");
            } else {
                tracing::warn!(?addresses, %error, "a listener closed");
            }
        }
        self.nat.reservation_ended(Instant::now(), listener);
        self.on_listen_addresses_lost(addresses);
    }

    pub(super) fn on_listen_addresses_lost(&mut self, lost: &[Multiaddr]) {
        self.views.listen.send_modify(|own| own.retain(|known| !lost.contains(known)));
        let mut lost: Vec<Multiaddr> = lost.iter().map(|address| split_peer(address.clone()).1).collect();
        lost.extend(self.nat.ungranted(&lost));
        for address in &lost {
            if self.nat.expire(address) {
                self.forget_external(address);
            }
        }
        self.lose_addresses(&lost);
        self.follow_verdict();
    }

    fn lose_addresses(&self, lost: &[Multiaddr]) {
        let remaining = self.nat.external_addresses();
        let listen = self.views.listen.borrow();
        let gone = lost.iter().filter(|address| !remaining.contains(address) && !listen.contains(address));
        for address in gone.filter_map(to_core_address) {
            self.emit(Event::AddressLost { address });
        }
    }

    /// Serves others or does not, as far as they can reach this node.
    fn follow_verdict(&mut self) {
        let (is_private, is_public) = (self.nat.is_private(), self.nat.is_public());
        let behaviour = self.swarm.behaviour_mut();
        if let Some(kademlia) = behaviour.kademlia.as_mut() {
            let mode = if is_private { kad::Mode::Client } else { kad::Mode::Server };
            if kademlia.mode() != mode {
                kademlia.set_mode(Some(mode));
            }
        }
        if let Some(relaying) = behaviour.relaying.as_mut() {
            let status = if is_public { relay::Status::Enable } else { relay::Status::Disable };
            relaying.set_status(Some(status));
        }
        if is_public {
            // They were for a node that cannot be reached.
            for listener in self.nat.reservations() {
                self.swarm.remove_listener(listener);
            }
        }
        self.publish();
    }

    /// Lets others see what has changed.
    pub(super) fn publish(&self) {
        let reachability = self.nat.reachability(Instant::now());
        let mut own = self.nat.external_addresses();
        for address in self.views.listen.borrow().iter() {
            if !own.contains(address) {
                own.push(address.clone());
            }
        }
        self.views.own.send_if_modified(|known| std::mem::replace(known, own.clone()) != own);
        self.views.reachability.send_if_modified(|known| {
            let is_new = *known != reachability;
            *known = reachability;
            is_new
        });
    }
}

/// Whether a connection that came in at `local` was to this address: QUIC names a socket of all addresses.
fn is_at(own: &Multiaddr, local: &Multiaddr) -> bool {
    own == local || (is_everywhere(local) && own.iter().skip(1).eq(local.iter().skip(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::tests::idle;
    use crate::reachability::ReachabilityState;

    /// Such a place was told to peers for as long as the node ran.
    #[tokio::test]
    async fn what_a_router_has_granted_is_told_to_nobody_once_this_machine_has_another_address() {
        let (mut driver, network, _told) = idle();
        let address = |text: &str| -> Multiaddr { text.parse().expect("sound") };
        let (home, outside) = (address("/ip4/192.168.1.2/tcp/1"), address("/ip4/8.8.8.8/tcp/1"));
        let listener_id = ListenerId::next();
        driver.on_swarm_event(SwarmEvent::NewListenAddr { listener_id, address: home.clone() });
        driver.nat.granted(home.clone(), outside.clone());
        driver.on_swarm_event(SwarmEvent::ExternalAddrConfirmed { address: outside.clone() });
        assert_eq!(network.reachability().borrow().state, ReachabilityState::Reachable);
        driver.on_swarm_event(SwarmEvent::ExpiredListenAddr { listener_id, address: home });
        assert_eq!(network.public_addresses(), []);
        assert_eq!(network.reachability().borrow().state, ReachabilityState::Unknown);
    }

    #[test]
    fn a_socket_of_all_addresses_is_at_each_of_them() {
        let is_at = |own: &str, local: &str| is_at(&own.parse().expect("sound"), &local.parse().expect("sound"));
        assert!(is_at("/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/1"));
        assert!(!is_at("/ip4/8.8.8.8/tcp/1", "/ip4/8.8.4.4/tcp/1"));
        assert!(is_at("/ip4/8.8.8.8/udp/1/quic-v1", "/ip4/0.0.0.0/udp/1/quic-v1"));
        assert!(!is_at("/ip4/8.8.8.8/tcp/1", "/ip4/0.0.0.0/udp/1/quic-v1"));
    }
}

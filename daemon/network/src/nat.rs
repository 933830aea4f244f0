//! What the node has learned about its place behind or before a NAT, and what follows from it.
//!
//! Facts come from the driver: addresses that peers see or have reached, probes that failed, relays met, places
//! reserved, holes punched. The verdict is the [`Reachability`]; the driver carries out what it calls for.

use std::collections::VecDeque;

use libp2p::Multiaddr;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use tokio::time::Instant;

use crate::bounds::{
    DIAL_ERRORS_KEPT, EXTERNAL_ADDRESSES_MAX, ISOLATED_AFTER, RELAYS_KNOWN_MAX, RESERVATION_PAUSE, RESERVATIONS_WANTED,
};
use crate::connectivity::Exposure;
use crate::reachability::{Reachability, ReachabilityState, is_global};

/// Facts about reachability so far.
#[derive(Debug)]
pub(crate) struct Nat {
    exposure: Exposure,
    /// The newest first, at most [`EXTERNAL_ADDRESSES_MAX`].
    confirmed: Vec<Multiaddr>,
    observed: Vec<Multiaddr>,
    /// What a router forwards to this node: where the node listens for it, and where others find it. The oldest first, at most
    /// [`EXTERNAL_ADDRESSES_MAX`].
    granted: Vec<(Multiaddr, Multiaddr)>,
    /// Whether a peer could not reach an address of ours that ought to mean the same everywhere.
    has_failed_probe: bool,
    has_punched: bool,
    /// Connected peers that offer to relay, and where they are; at most [`RELAYS_KNOWN_MAX`].
    relays: Vec<(libp2p::PeerId, Multiaddr)>,
    reservations: Vec<Reservation>,
    reserve_at: Instant,
    dial_errors: VecDeque<String>,
    alone_since: Option<Instant>,
}

/// What a confirmed address changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// Nothing: it is known, or this node listens at as many others as are kept.
    Known,
    /// It is one more, and this one is kept no longer.
    New { gone: Option<Multiaddr> },
}

/// A place at a relay, asked for or held.
#[derive(Debug)]
struct Reservation {
    listener: ListenerId,
    relay: libp2p::PeerId,
    /// Where others find this node through it; empty until the relay has agreed.
    addresses: Vec<Multiaddr>,
}

impl Nat {
    pub(crate) fn new(exposure: Exposure) -> Nat {
        Nat {
            exposure,
            confirmed: Vec::new(),
            observed: Vec::new(),
            granted: Vec::new(),
            has_failed_probe: false,
            has_punched: false,
            relays: Vec::new(),
            reservations: Vec::new(),
            reserve_at: Instant::now(),
            dial_errors: VecDeque::new(),
            alone_since: Some(Instant::now()),
        }
    }

    /// Another machine has reached this node there. With one too many the oldest goes of those at which this node does not `listen`:
    /// nobody says when such an address is none any more, and a provider may give out new ones each day.
    pub(crate) fn confirm(&mut self, address: Multiaddr, listen: &[Multiaddr]) -> Confirmation {
        if self.confirmed.contains(&address) {
            return Confirmation::Known;
        }
        let mut gone = None;
        if self.confirmed.len() >= EXTERNAL_ADDRESSES_MAX {
            let Some(oldest) = self.confirmed.iter().rposition(|known| !listen.contains(known)) else {
                return Confirmation::Known;
            };
            gone = Some(self.confirmed.remove(oldest));
        }
        self.confirmed.insert(0, address);
        Confirmation::New { gone }
    }

    /// Nobody reaches this node there any more. Returns whether that is new.
    pub(crate) fn expire(&mut self, address: &Multiaddr) -> bool {
        self.granted.retain(|(_, external)| external != address);
        let before = self.confirmed.len();
        self.confirmed.retain(|confirmed| confirmed != address);
        self.confirmed.len() < before
    }

    /// A router forwards what comes for `external` to this node, which listens for it at `local`.
    #[cfg(any(test, feature = "upnp"))]
    pub(crate) fn granted(&mut self, local: Multiaddr, external: Multiaddr) {
        self.granted.retain(|(_, known)| *known != external);
        if self.granted.len() >= EXTERNAL_ADDRESSES_MAX {
            self.granted.remove(0);
        }
        self.granted.push((local, external));
    }

    /// This node listens at `lost` no more: returns where nobody finds it any more because of that. A router forwards a port
    /// once, whatever addresses have it, and libp2p ends that with the first of them that goes, without a word.
    pub(crate) fn ungranted(&mut self, lost: &[Multiaddr]) -> Vec<Multiaddr> {
        let is_port_of = |local: &Multiaddr, lost: &Multiaddr| local.iter().skip(1).eq(lost.iter().skip(1));
        let is_lost = |local: &Multiaddr| lost.iter().any(|lost| is_private_ip4(lost) && is_port_of(local, lost));
        self.granted.extract_if(.., |(local, _)| is_lost(local)).map(|(_, external)| external).collect()
    }

    /// A peer sees this node come from there.
    pub(crate) fn observe(&mut self, address: Multiaddr) {
        self.observed.retain(|observed| *observed != address);
        self.observed.insert(0, address);
        self.observed.truncate(EXTERNAL_ADDRESSES_MAX);
    }

    /// A peer could not reach this node there.
    pub(crate) fn probe_failed(&mut self, address: &Multiaddr) {
        self.has_failed_probe |= is_global(address);
    }

    pub(crate) fn punched(&mut self) {
        self.has_punched = true;
    }

    pub(crate) fn dial_failed(&mut self, reason: String) {
        self.dial_errors.retain(|known| *known != reason);
        if self.dial_errors.len() >= DIAL_ERRORS_KEPT {
            self.dial_errors.pop_front();
        }
        self.dial_errors.push_back(reason);
    }

    /// Notes whether any member is connected.
    pub(crate) fn members_counted(&mut self, now: Instant, count: usize) {
        if count > 0 {
            self.alone_since = None;
            self.dial_errors.clear();
        } else {
            self.alone_since.get_or_insert(now);
        }
    }

    /// A connected peer offers to relay, there.
    pub(crate) fn relay_met(&mut self, peer: libp2p::PeerId, address: Multiaddr) {
        self.relay_gone(peer);
        if self.relays.len() < RELAYS_KNOWN_MAX {
            self.relays.push((peer, address));
        }
    }

    /// A peer offers no more to relay, or is not connected any more.
    pub(crate) fn relay_gone(&mut self, peer: libp2p::PeerId) {
        self.relays.retain(|(known, _)| *known != peer);
    }

    /// Whether others cannot reach this node from outside.
    pub(crate) fn is_private(&self) -> bool {
        match self.exposure {
            Exposure::Public => false,
            Exposure::Private => true,
            Exposure::FindOut => self.has_failed_probe && !self.confirmed.iter().any(is_global),
        }
    }

    /// Whether others reach this node from outside.
    pub(crate) fn is_public(&self) -> bool {
        match self.exposure {
            Exposure::Public => true,
            Exposure::Private => false,
            Exposure::FindOut => self.confirmed.iter().any(is_global),
        }
    }

    /// The next relay to ask for a place, where one is wanted.
    pub(crate) fn relay_to_ask(&self, now: Instant) -> Option<(libp2p::PeerId, Multiaddr)> {
        let is_wanted = self.is_private() && self.reservations.len() < RESERVATIONS_WANTED && self.reserve_at <= now;
        let is_free = |(peer, _): &&(libp2p::PeerId, Multiaddr)| !self.reservations.iter().any(|r| r.relay == *peer);
        self.relays.iter().find(is_free).filter(|_| is_wanted).cloned()
    }

    pub(crate) fn asked(&mut self, relay: libp2p::PeerId, listener: ListenerId) {
        self.reservations.push(Reservation { listener, relay, addresses: Vec::new() });
    }

    /// The listeners that are places at relays.
    pub(crate) fn reservations(&self) -> Vec<ListenerId> {
        self.reservations.iter().map(|reservation| reservation.listener).collect()
    }

    /// Whether a listener is a place at a relay.
    pub(crate) fn has_asked(&self, listener: ListenerId) -> bool {
        self.reservations.iter().any(|reservation| reservation.listener == listener)
    }

    /// A relay has agreed, or tells another address.
    pub(crate) fn reserved(&mut self, listener: ListenerId, address: Multiaddr) {
        let reservation = self.reservations.iter_mut().find(|reservation| reservation.listener == listener);
        if let Some(reservation) = reservation.filter(|reservation| !reservation.addresses.contains(&address)) {
            reservation.addresses.push(address);
            reservation.addresses.truncate(EXTERNAL_ADDRESSES_MAX);
        }
    }

    /// A place at a relay is gone, or was refused.
    pub(crate) fn reservation_ended(&mut self, now: Instant, listener: ListenerId) {
        if let Some(index) = self.reservations.iter().position(|reservation| reservation.listener == listener) {
            let ended = self.reservations.remove(index);
            if ended.addresses.is_empty() {
                // Refused: another one first.
                self.relays.sort_by_key(|(peer, _)| *peer == ended.relay);
                self.reserve_at = now + RESERVATION_PAUSE;
            }
        }
    }

    /// Where this node is found from outside, best first: to be told before its listen addresses.
    pub(crate) fn external_addresses(&self) -> Vec<Multiaddr> {
        self.reachability(None).public_addresses()
    }

    /// The verdict. `now` decides on isolation; without it there is none.
    pub(crate) fn reachability(&self, now: impl Into<Option<Instant>>) -> Reachability {
        let relayed: Vec<Multiaddr> =
            self.reservations.iter().flat_map(|reservation| reservation.addresses.iter().cloned()).collect();
        let is_alone = |now: Instant| self.alone_since.is_some_and(|since| now - since >= ISOLATED_AFTER);
        let state = if now.into().is_some_and(is_alone) && !self.dial_errors.is_empty() {
            ReachabilityState::Isolated
        } else if self.is_public() {
            ReachabilityState::Reachable
        } else if !self.is_private() {
            if self.confirmed.is_empty() { ReachabilityState::Unknown } else { ReachabilityState::ReachableLocally }
        } else if self.has_punched {
            ReachabilityState::HolePunching
        } else if relayed.is_empty() {
            ReachabilityState::Unreachable
        } else {
            ReachabilityState::Relayed
        };
        let explains = state == ReachabilityState::Isolated;
        Reachability {
            state,
            confirmed: self.confirmed.clone(),
            relayed,
            observed: self.observed.clone(),
            dial_errors: if explains { self.dial_errors.iter().cloned().collect() } else { Vec::new() },
        }
    }
}

/// Whether a router can be asked to forward something to it.
fn is_private_ip4(address: &Multiaddr) -> bool {
    matches!(address.iter().next(), Some(Protocol::Ip4(ip)) if ip.is_private())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("an address")
    }

    #[test]
    fn only_an_address_that_means_the_same_everywhere_decides() {
        let mut nat = Nat::new(Exposure::FindOut);
        let now = Instant::now();
        assert_eq!(nat.reachability(now).state, ReachabilityState::Unknown);
        nat.probe_failed(&address("/ip4/192.168.1.2/tcp/1"));
        assert_eq!(nat.reachability(now).state, ReachabilityState::Unknown);
        nat.confirm(address("/ip4/192.168.1.2/tcp/1"), &[]);
        assert_eq!(nat.reachability(now).state, ReachabilityState::ReachableLocally);
        nat.probe_failed(&address("/ip4/8.8.8.8/tcp/1"));
        assert_eq!(nat.reachability(now).state, ReachabilityState::Unreachable);
        nat.confirm(address("/ip4/8.8.8.8/tcp/2"), &[]);
        assert_eq!(nat.reachability(now).state, ReachabilityState::Reachable);
    }

    /// After eight days at home peers were told eight addresses of others, and no new one.
    #[test]
    fn new_addresses_come_first_and_the_oldest_go_but_those_at_which_the_node_listens() {
        let mut nat = Nat::new(Exposure::FindOut);
        let of_day = |day: usize| address(&format!("/ip4/8.8.8.{day}/tcp/1"));
        let listen = [of_day(0)];
        for day in 0..EXTERNAL_ADDRESSES_MAX {
            assert_eq!(nat.confirm(of_day(day), &listen), Confirmation::New { gone: None });
        }
        let next = of_day(EXTERNAL_ADDRESSES_MAX);
        assert_eq!(nat.confirm(next.clone(), &listen), Confirmation::New { gone: Some(of_day(1)) });
        assert_eq!(nat.confirm(next.clone(), &listen), Confirmation::Known);
        let told = nat.external_addresses();
        assert_eq!((told.len(), &told[0]), (EXTERNAL_ADDRESSES_MAX, &next));
        assert!(told.contains(&listen[0]));
        let all = told.clone();
        assert_eq!(nat.confirm(of_day(100), &all), Confirmation::Known, "it listens at all of them");
    }

    /// A machine that had left for another network went on telling where its router had let others in, and took itself for one
    /// that can be reached.
    #[test]
    fn what_a_router_has_granted_goes_with_the_address_for_which_it_did() {
        let mut nat = Nat::new(Exposure::FindOut);
        let (home, outside) = (address("/ip4/192.168.1.2/tcp/1"), address("/ip4/8.8.8.8/tcp/1"));
        let (quic, quic_outside) = (address("/ip4/192.168.1.2/udp/1/quic-v1"), address("/ip4/8.8.8.8/udp/1/quic-v1"));
        for (local, external) in [(&home, &outside), (&quic, &quic_outside)] {
            nat.confirm(external.clone(), &[]);
            nat.granted(local.clone(), external.clone());
            nat.granted(local.clone(), external.clone());
        }
        let others =
            [address("/ip4/192.168.1.2/tcp/2"), address("/ip4/127.0.0.1/tcp/1"), address("/ip6/fd00::1/tcp/1")];
        assert_eq!(nat.ungranted(&others), [], "other ports, and what no router forwards to");
        let home = [home];
        assert_eq!(nat.ungranted(&home), [outside]);
        assert_eq!(nat.ungranted(&home), []);
        assert!(nat.expire(&quic_outside));
        assert_eq!(nat.ungranted(&[quic]), [], "the router has ended it before");
    }

    #[test]
    fn a_private_node_asks_two_relays_for_a_place_and_rests_after_a_refusal() {
        let mut nat = Nat::new(Exposure::Private);
        let now = Instant::now();
        let peers: Vec<libp2p::PeerId> = (0..3).map(|_| libp2p::PeerId::random()).collect();
        for peer in &peers {
            nat.relay_met(*peer, address("/ip4/8.8.8.8/tcp/1"));
        }
        let listeners: Vec<ListenerId> = (0..2).map(|_| ListenerId::next()).collect();
        for listener in &listeners {
            let (relay, _) = nat.relay_to_ask(now).expect("one is wanted");
            nat.asked(relay, *listener);
        }
        assert_eq!(nat.relay_to_ask(now), None, "two are enough");
        nat.reserved(listeners[0], address("/ip4/8.8.8.8/tcp/1"));
        assert_eq!(nat.reachability(now).state, ReachabilityState::Relayed);
        nat.reservation_ended(now, listeners[1]);
        assert_eq!(nat.relay_to_ask(now), None, "not at once");
        let (next, _) = nat.relay_to_ask(now + RESERVATION_PAUSE).expect("one is wanted");
        assert_eq!(next, peers[2], "another one");
    }

    #[test]
    fn a_node_is_isolated_once_dials_fail_for_a_minute() {
        let mut nat = Nat::new(Exposure::FindOut);
        let later = Instant::now() + ISOLATED_AFTER + Duration::from_secs(1);
        assert_eq!(nat.reachability(later).state, ReachabilityState::Unknown, "a founder that nobody has joined yet");
        nat.dial_failed("nobody listens there".to_owned());
        let reachability = nat.reachability(later);
        assert_eq!(reachability.state, ReachabilityState::Isolated);
        assert_eq!(reachability.dial_errors, ["nobody listens there"]);
        nat.members_counted(later, 1);
        assert_eq!(nat.reachability(later).state, ReachabilityState::Unknown);
    }
}

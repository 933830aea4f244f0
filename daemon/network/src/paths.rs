//! Which connections lead to each peer, and when to try again to get past a relay.
//!
//! libp2p punches a hole when a circuit opens: up to three times, and where a side does not know yet how it is seen from
//! outside, not at all. Where nothing came of that, the side that opened the circuit opens one more every now and then.

use std::collections::HashMap;
use std::time::Duration;

use libp2p::core::ConnectedPoint;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use crate::bounds::{HOLE_PUNCH_PAUSE, IDENTIFIED_MAX, IDENTIFIED_PERIOD, LOST_WAY_PAUSE};
use crate::dial_filter::Bucket;

/// All connections, and what is known about peers behind relays. libp2p's limit of connections bounds both.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    open: HashMap<ConnectionId, PeerPath>,
    /// Peers to which this node has opened a circuit, and nothing direct leads.
    relayed: HashMap<PeerId, Relayed>,
}

#[derive(Debug)]
struct PeerPath {
    peer: PeerId,
    kind: PathKind,
    /// The other end's address.
    remote: Multiaddr,
    /// How often what the peer says of itself is still heard.
    hearings: Bucket,
}

#[derive(Debug)]
enum PathKind {
    /// For a lookup, a probe or a relay's services; or for membership, which is not known yet.
    Auxiliary,
    /// For membership.
    Direct,
    /// A circuit that the peer has opened.
    InboundCircuit,
    /// A circuit that this node has opened, to the peer's place at a relay.
    OutboundCircuit(Multiaddr),
}

#[derive(Debug)]
struct Relayed {
    /// The peer's place at a relay.
    circuit: Multiaddr,
    again_at: Instant,
    /// After the next attempt; each is twice as long as the one before.
    pause: Duration,
}

impl Paths {
    pub(crate) fn opened(&mut self, now: Instant, connection: ConnectionId, peer: PeerId, endpoint: &ConnectedPoint) {
        let kind = match (endpoint.is_relayed(), endpoint.is_dialer()) {
            (false, _) => PathKind::Auxiliary,
            (true, false) => PathKind::InboundCircuit,
            (true, true) => PathKind::OutboundCircuit(endpoint.get_remote_address().clone()),
        };
        let remote = endpoint.get_remote_address().clone();
        self.open.insert(connection, PeerPath { peer, kind, remote, hearings: Bucket::full(now) });
        self.review(now + HOLE_PUNCH_PAUSE, peer);
    }

    /// This connection is for membership. Where it is direct, no other way to its peer is sought.
    ///
    /// A probe's connection says nothing of that: it lasts half a minute, in which no hole was tried.
    pub(crate) fn wanted(&mut self, connection: ConnectionId) {
        if let Some(path) = self.open.get_mut(&connection).filter(|path| matches!(path.kind, PathKind::Auxiliary)) {
            path.kind = PathKind::Direct;
            self.relayed.remove(&path.peer);
        }
    }

    pub(crate) fn closed(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(path) = self.open.remove(&connection) {
            // A direct way is given up before a circuit only where it failed.
            let pause = if matches!(path.kind, PathKind::Direct) { LOST_WAY_PAUSE } else { HOLE_PUNCH_PAUSE };
            self.review(now + pause, path.peer);
        }
    }

    /// The other end's address of an open connection.
    pub(crate) fn remote(&self, connection: ConnectionId) -> Option<&Multiaddr> {
        self.open.get(&connection).map(|path| &path.remote)
    }

    /// Where the connections to a peer lead.
    pub(crate) fn remotes(&self, peer: PeerId) -> impl Iterator<Item = &Multiaddr> {
        self.open.values().filter(move |path| path.peer == peer).map(|path| &path.remote)
    }

    /// Whether what a peer says of itself on a connection is heard now: without an end, that would be all that this node does.
    pub(crate) fn hears(&mut self, now: Instant, connection: ConnectionId) -> bool {
        let Some(path) = self.open.get_mut(&connection) else { return false };
        let hears = path.hearings.has_room(now, IDENTIFIED_PERIOD, IDENTIFIED_MAX);
        if hears {
            path.hearings.take(now, IDENTIFIED_PERIOD);
        }
        hears
    }

    /// Whether a circuit leads to the peer.
    pub(crate) fn has_circuit(&self, peer: PeerId) -> bool {
        self.to(peer).any(|kind| matches!(kind, PathKind::InboundCircuit | PathKind::OutboundCircuit(_)))
    }

    /// A circuit to open anew, because the time has come.
    pub(crate) fn circuit_to_open(&mut self, now: Instant) -> Option<(PeerId, Multiaddr)> {
        let (peer, relayed) = self.relayed.iter_mut().find(|(_, relayed)| relayed.again_at <= now)?;
        relayed.again_at = now + relayed.pause;
        relayed.pause *= 2;
        Some((*peer, relayed.circuit.clone()))
    }

    /// Where a circuit is the only way to the peer from now on, another one is opened at `again_at`.
    fn review(&mut self, again_at: Instant, peer: PeerId) {
        let is_direct = self.to(peer).any(|kind| matches!(kind, PathKind::Direct));
        let circuit = self.to(peer).find_map(|kind| match kind {
            PathKind::OutboundCircuit(circuit) => Some(circuit.clone()),
            _ => None,
        });
        match circuit.filter(|_| !is_direct) {
            Some(circuit) => {
                self.relayed.entry(peer).or_insert(Relayed { circuit, again_at, pause: 2 * HOLE_PUNCH_PAUSE });
            }
            None => {
                self.relayed.remove(&peer);
            }
        }
    }

    fn to(&self, peer: PeerId) -> impl Iterator<Item = &PathKind> {
        self.open.values().filter(move |path| path.peer == peer).map(|path| &path.kind)
    }
}

#[cfg(test)]
mod tests {
    use libp2p::core::Endpoint;
    use libp2p::core::transport::PortUse;

    use super::*;

    fn dialed(address: &str) -> ConnectedPoint {
        let address = address.parse().expect("an address");
        ConnectedPoint::Dialer { address, role_override: Endpoint::Dialer, port_use: PortUse::Reuse }
    }

    fn connection(number: usize) -> ConnectionId {
        ConnectionId::new_unchecked(number)
    }

    const CIRCUIT: &str = "/ip4/8.8.8.8/tcp/1/p2p-circuit";

    /// With each push the swarm task read a list of addresses.
    #[test]
    fn who_says_again_and_again_where_it_is_is_heard_seldom() {
        let (start, peer) = (Instant::now(), PeerId::random());
        let mut paths = Paths::default();
        paths.opened(start, connection(1), peer, &dialed("/ip4/8.8.8.8/tcp/1"));
        let mut heard_in = |seconds: std::ops::Range<u64>| {
            let pushes = seconds.flat_map(|second| [start + Duration::from_secs(second); 100]);
            pushes.filter(|now| paths.hears(*now, connection(1))).count()
        };
        assert_eq!(heard_in(0..1), IDENTIFIED_MAX as usize);
        let later = heard_in(1..81);
        assert!((9..=11).contains(&later), "{later} in eighty seconds");
        paths.closed(start, connection(1));
        assert!(!paths.hears(start, connection(1)), "nobody is there");
    }

    #[test]
    fn a_circuit_is_opened_again_until_something_direct_leads_there() {
        let (start, peer) = (Instant::now(), PeerId::random());
        let mut paths = Paths::default();
        paths.opened(start, connection(1), peer, &dialed(CIRCUIT));
        let mut attempts = Vec::new();
        for second in 0..300 {
            if let Some((whom, circuit)) = paths.circuit_to_open(start + Duration::from_secs(second)) {
                assert_eq!((whom, circuit.to_string().as_str()), (peer, CIRCUIT));
                attempts.push(second);
                // The circuit of the attempt is no reason to begin anew.
                paths.opened(start, connection(2), peer, &dialed(CIRCUIT));
                paths.closed(start, connection(2));
            }
        }
        assert_eq!(attempts, [30, 90, 210]);
        paths.opened(start, connection(3), peer, &dialed("/ip4/8.8.4.4/tcp/1"));
        paths.wanted(connection(3));
        paths.opened(start, connection(4), peer, &dialed(CIRCUIT));
        assert_eq!(paths.circuit_to_open(start + Duration::from_secs(3_600)), None);
        paths.closed(start, connection(3));
        assert_eq!(paths.circuit_to_open(start), None);
        assert!(paths.circuit_to_open(start + LOST_WAY_PAUSE).is_some(), "the hole is gone");
        assert_eq!(paths.circuit_to_open(start + LOST_WAY_PAUSE), None);
    }

    /// Two members went on through a relay for half a minute longer, because one of them had tried whether the other can be reached.
    #[test]
    fn a_probe_is_no_way_to_a_member() {
        let (start, peer) = (Instant::now(), PeerId::random());
        let mut paths = Paths::default();
        paths.opened(start, connection(1), peer, &dialed(CIRCUIT));
        paths.opened(start, connection(2), peer, &dialed("/ip4/8.8.4.4/tcp/1"));
        assert!(paths.circuit_to_open(start + HOLE_PUNCH_PAUSE).is_some(), "while the probe's connection is open");
        paths.closed(start + HOLE_PUNCH_PAUSE, connection(2));
        let pauses = [2, 3].map(|pauses| paths.circuit_to_open(start + pauses * HOLE_PUNCH_PAUSE).is_some());
        assert_eq!(pauses, [false, true], "it is no sooner because of its end");
    }

    #[test]
    fn only_who_opened_the_circuit_tries_again_and_only_while_it_is_open() {
        let (start, peer) = (Instant::now(), PeerId::random());
        let later = start + Duration::from_secs(3_600);
        let mut paths = Paths::default();
        let local_addr: Multiaddr = CIRCUIT.parse().expect("an address");
        let inbound = ConnectedPoint::Listener { send_back_addr: local_addr.clone(), local_addr };
        paths.opened(start, connection(1), peer, &inbound);
        assert!(paths.has_circuit(peer));
        assert_eq!(paths.circuit_to_open(later), None);
        paths.opened(start, connection(2), peer, &dialed(CIRCUIT));
        paths.closed(start, connection(1));
        paths.closed(start, connection(2));
        assert!(!paths.has_circuit(peer));
        assert_eq!(paths.circuit_to_open(later), None);
    }
}

//! When to look for members in the run's table, and whom to tell the core.
//!
//! The table is a Kademlia of this run's nodes alone. Each node announces under one key, the run's, that it takes part;
//! a node with few peers asks for that key. What it finds are hints: the core decides whom to dial, and the handshake
//! who is a member.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::kad;
use libp2p::kad::store::MemoryStore;
use libp2p::swarm::{ConnectionId, NetworkBehaviour};
use murmur_protocol::bounds::{ADDRESSES_TOLD_MAX, PEERS_TOLD_MAX};
use murmur_protocol::message::KnownPeer;
use murmur_protocol::{Event, PeerId, RunId};
use tokio::time::Instant;

use crate::address::{is_loopback, split_peer, to_core_address, to_core_peer};
use crate::bounds::{FEW_PEERS, FIRST_LOOKUP_DELAY, LOOKUP_PERIOD, STRANGERS_KEPT, STRANGERS_MAX};
use crate::discovery::announcements::Announcements;
use crate::reachability::is_global;
use crate::scope::Scope;
use libp2p::Multiaddr;

/// What the driver knows about looking for members.
#[derive(Debug)]
pub(crate) struct Finding {
    me: PeerId,
    /// Under which members announce themselves.
    pub(crate) key: kad::RecordKey,
    /// When to look next; `None` until some node of the table is known.
    look_at: Option<Instant>,
    has_announced: bool,
    /// Members whose announcements are kept here.
    pub(crate) announcements: Announcements,
    /// Peers that are no members, and until when not to speak of them.
    strangers: BTreeMap<PeerId, Instant>,
}

impl Finding {
    pub(crate) fn new(me: PeerId, run: RunId) -> Finding {
        Finding {
            me,
            key: run_key(run),
            look_at: None,
            has_announced: false,
            announcements: Announcements::default(),
            strangers: BTreeMap::new(),
        }
    }

    /// A node of the table is known.
    pub(crate) fn table_grew(&mut self, now: Instant) {
        self.look_at.get_or_insert(now + FIRST_LOOKUP_DELAY);
    }

    /// What to do now: announce, and look.
    pub(crate) fn due(&mut self, now: Instant, members: usize) -> (bool, bool) {
        if self.look_at.is_none_or(|look_at| now < look_at) {
            return (false, false);
        }
        self.look_at = Some(now + self.own_period());
        let announces = !std::mem::replace(&mut self.has_announced, true);
        // A node that has to look may be one that nobody else finds, because those who knew of it are gone.
        let looks = members < FEW_PEERS;
        (announces || looks, looks)
    }

    /// Nodes that start together should not look together.
    fn own_period(&self) -> Duration {
        let place = f64::from(self.me.as_bytes()[0]) / 255.0;
        LOOKUP_PERIOD.mul_f64(0.75 + 0.5 * place)
    }

    /// A peer takes part in another run.
    pub(crate) fn met_stranger(&mut self, now: Instant, peer: PeerId) {
        self.strangers.retain(|_, until| now < *until);
        if self.strangers.len() >= STRANGERS_MAX {
            let next = self.strangers.iter().min_by_key(|(_, until)| **until).map(|(peer, _)| *peer);
            next.map(|peer| self.strangers.remove(&peer));
        }
        self.strangers.insert(peer, now + STRANGERS_KEPT);
    }

    /// What to tell the core of what was found: who is new to this node, and can be dialed from here. From how far it was
    /// told, and where this node listens.
    pub(crate) fn report(
        &self,
        now: Instant,
        found: impl IntoIterator<Item = (libp2p::PeerId, Vec<Multiaddr>)>,
        (scope, own): (Scope, &[Multiaddr]),
        is_member: impl Fn(PeerId) -> bool,
    ) -> Option<Event> {
        let worth_telling = |(peer, addresses): (libp2p::PeerId, Vec<Multiaddr>)| {
            let peer = to_core_peer(&peer)?;
            let is_stranger = self.strangers.get(&peer).is_some_and(|until| now < *until);
            let mut addresses = meaningful(addresses, own);
            // Within the bound, those that work from everywhere.
            addresses.sort_by_key(|address| !is_global(address));
            let told: Vec<_> = addresses.iter().filter_map(to_core_address).collect();
            let addresses: Vec<_> = scope.believed(&told).into_iter().take(ADDRESSES_TOLD_MAX).collect();
            let is_news = peer != self.me && !is_stranger && !is_member(peer) && !addresses.is_empty();
            is_news.then_some(KnownPeer { peer, addresses })
        };
        let peers: Vec<KnownPeer> = found.into_iter().filter_map(worth_telling).take(PEERS_TOLD_MAX).collect();
        (!peers.is_empty()).then_some(Event::PeersFound { peers })
    }
}

/// Under which the members of a run announce themselves.
pub(crate) fn run_key(run: RunId) -> kad::RecordKey {
    kad::RecordKey::new(&run.0)
}

/// Where members that a lookup has named are. The query knows it for as long as it runs, and tells it to whoever wants to
/// dial them.
pub(crate) fn places_of(
    kademlia: &mut kad::Behaviour<MemoryStore>,
    providers: impl IntoIterator<Item = libp2p::PeerId>,
) -> BTreeMap<libp2p::PeerId, Vec<Multiaddr>> {
    let mut places_of = |peer: libp2p::PeerId| -> Vec<Multiaddr> {
        let connection = ConnectionId::new_unchecked(0);
        let known = kademlia.handle_pending_outbound_connection(connection, Some(peer), &[], Endpoint::Dialer);
        let mut places: Vec<Multiaddr> =
            known.unwrap_or_default().into_iter().map(|address| split_peer(address).1).collect();
        places.sort();
        places.dedup();
        places
    };
    providers.into_iter().map(|peer| (peer, places_of(peer))).collect()
}

/// Without loopback addresses of others, unless this node itself is only there. Where it listens nowhere it may be: then it counts how
/// far off they are who have told, as it does anyway.
pub(crate) fn meaningful(mut addresses: Vec<Multiaddr>, own: &[Multiaddr]) -> Vec<Multiaddr> {
    if !own.iter().all(is_loopback) {
        addresses.retain(|address| !is_loopback(address));
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> (libp2p::PeerId, PeerId) {
        let keypair = libp2p::identity::Keypair::ed25519_from_bytes([number; 32]).expect("32 bytes");
        (keypair.public().to_peer_id(), crate::identity::peer_id(&keypair))
    }

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("an address")
    }

    fn told(event: Option<Event>) -> Vec<KnownPeer> {
        match event {
            Some(Event::PeersFound { peers }) => peers,
            None => Vec::new(),
            other => panic!("unexpected {other:?}"),
        }
    }

    #[test]
    fn a_node_with_few_peers_looks_again_and_again_and_one_with_many_announces_itself_once() {
        let start = Instant::now();
        let mut lonely = Finding::new(peer(1).1, RunId([1; 32]));
        assert_eq!(lonely.due(start, 0), (false, false), "there is nobody to ask");
        lonely.table_grew(start);
        let mut popular = Finding::new(peer(2).1, RunId([1; 32]));
        popular.table_grew(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        let looks = (0..600).filter(|second| lonely.due(after(*second), 1).1).count();
        assert!((8..=13).contains(&looks), "{looks} lookups in ten minutes");
        let due: Vec<_> = (0..600).map(|second| popular.due(after(second), FEW_PEERS)).collect();
        assert_eq!(due.iter().filter(|(announces, _)| *announces).count(), 1);
        assert!(!due.iter().any(|(_, looks)| *looks));
    }

    #[test]
    fn strangers_members_and_useless_addresses_are_not_told() {
        let now = Instant::now();
        let mut finding = Finding::new(peer(1).1, RunId([1; 32]));
        let place = || vec![address("/ip4/127.0.0.1/tcp/9"), address("/ip4/10.0.0.5/tcp/9"), address("/unix/x")];
        let found: Vec<_> = (1..=4).map(|number| (peer(number).0, place())).collect();
        finding.met_stranger(now, peer(2).1);
        let own = [address("/ip4/10.0.0.1/tcp/1")];
        let peers = told(finding.report(now, found, (Scope::Network, &own), |member| member == peer(3).1));
        assert_eq!(peers.len(), 1);
        assert_eq!(peers[0].peer, peer(4).1);
        assert_eq!(peers[0].addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["/ip4/10.0.0.5/tcp/9"]);
        let later = now + STRANGERS_KEPT;
        let told_from = |scope| told(finding.report(later, [(peer(2).0, place())], (scope, &own), |_| false)).len();
        assert_eq!(
            (told_from(Scope::Network), told_from(Scope::World)),
            (1, 0),
            "who is far away knows no private address"
        );
    }
}

//! Inbound connections by where they come from, so that one host, or one network, cannot take all places.
//!
//! A host is an IPv4 address or an IPv6 network of 64 bits, which is what a provider gives one customer at least; a network
//! is one of 24 or 48 bits. Connections through a relay have no address of their own: the relay's limits bound them.
//!
//! The same holds for members, which have far fewer places. Who is on this machine is not counted among them.
//!
//! Whether two members may be one party is another question: whoever has some addresses often has many that lie near them,
//! and hardly in several of the ranges of 16 or 32 bits that registries give to one provider.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::{ConnectionClosed, FromSwarm, ListenFailure};
use libp2p::swarm::{ConnectionDenied, ConnectionId, NetworkBehaviour, THandlerInEvent, ToSwarm, dummy};
use libp2p::{Multiaddr, PeerId};
use murmur_protocol::AddressRange;

use crate::address::{ip_of, is_circuit};
use crate::bounds::{
    INBOUND_PER_HOST_MAX, INBOUND_PER_NETWORK_MAX, MEMBERS_PER_HOST_MAX, MEMBERS_PER_NETWORK_MAX, MEMBERS_WITH_HOST_MAX,
};
use crate::reachability::is_global_ip;

/// Why a connection is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum TooMany {
    #[error("its host has {INBOUND_PER_HOST_MAX} connections")]
    OfHost,
    #[error("its network has {INBOUND_PER_NETWORK_MAX} connections")]
    OfNetwork,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) host: u128,
    pub(crate) network: u128,
}

impl Source {
    /// `None` where the address is a relay's, or a name.
    pub(crate) fn of(address: &Multiaddr) -> Option<Source> {
        let is_relayed = address.iter().any(|part| part == Protocol::P2pCircuit);
        let ip = address.iter().find_map(|part| match part {
            Protocol::Ip4(ip) => Some(IpAddr::V4(ip)),
            Protocol::Ip6(ip) => Some(ip.to_canonical()),
            _ => None,
        })?;
        let prefix = |address: u128, bits: u32| address & (u128::MAX << (128 - bits));
        let (address, host, network) = match ip {
            // As IPv6 writes it: the last 32 of 128 bits.
            IpAddr::V4(ip) => (ip.to_ipv6_mapped().to_bits(), 128, 120),
            IpAddr::V6(ip) => (ip.to_bits(), 64, 48),
        };
        (!is_relayed).then(|| Source { host: prefix(address, host), network: prefix(address, network) })
    }

    /// Its network, where that is one of the internet.
    pub(crate) fn public_network(self) -> Option<u128> {
        is_global_ip(self.ip()).then_some(self.network)
    }

    /// An address of the host.
    fn ip(self) -> IpAddr {
        Ipv6Addr::from_bits(self.host).to_canonical()
    }

    fn is_this_machine(self) -> bool {
        // The network of ::1 has nobody else.
        self.ip().is_loopback() || self.host == 0
    }
}

/// Whether there is a place for one more member that comes from there, `None` for a relay, beside those from `members`, each with
/// whether it has proven itself: others must find room as well.
///
/// Who has proven itself takes no place from newcomers of its host while many places are free. A word of greeting proves nothing:
/// with it alone one program would have the places of a computing centre.
///
/// This machine is no host among others: its programs have all of 127/8 and could come from anywhere in it, and its owner may run a
/// whole swarm on it.
pub(crate) fn has_place(members: impl Iterator<Item = (Option<Source>, bool)>, newcomer: Option<Source>) -> bool {
    if newcomer.is_some_and(Source::is_this_machine) {
        return true;
    }
    let is_public = newcomer.and_then(Source::public_network).is_some();
    let (mut all, mut of_network, mut of_host, mut strangers) = (0, 0, 0, 0);
    for (member, is_proven) in members {
        let is_of_host = member.map(|source| source.host) == newcomer.map(|source| source.host);
        all += 1;
        of_network += usize::from(member.map(|source| source.network) == newcomer.map(|source| source.network));
        of_host += usize::from(is_of_host);
        strangers += usize::from(is_of_host && !is_proven);
    }
    let host_has_place =
        strangers < MEMBERS_PER_HOST_MAX && (of_host < MEMBERS_PER_HOST_MAX || all < MEMBERS_WITH_HOST_MAX);
    host_has_place && (of_network < MEMBERS_PER_NETWORK_MAX || !is_public)
}

/// The range of addresses to which one belongs: an IPv4 network of 16 bits or an IPv6 one of 32; this machine is a range,
/// and so are all private networks. `None` where the address is a relay's, or a name.
pub(crate) fn range_of(address: &Multiaddr) -> Option<AddressRange> {
    const THIS_MACHINE: u64 = 0;
    const PRIVATE: u64 = 1;
    let ip = ip_of(address).filter(|_| !is_circuit(address))?.to_canonical();
    Some(AddressRange(match ip {
        _ if ip.is_loopback() => THIS_MACHINE,
        _ if !is_global_ip(ip) => PRIVATE,
        IpAddr::V4(ip) => 4 << 32 | u64::from(ip.to_bits() >> 16),
        IpAddr::V6(ip) => 6 << 32 | (ip.to_bits() >> 96) as u64,
    }))
}

/// A connection of somebody else that has not come through yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// `None` where it comes through a relay: all such count as one network.
    pub(crate) source: Option<Source>,
    /// Whether nothing has come on it.
    pub(crate) is_silent: bool,
}

/// The place of the one among `waiting`, oldest first, that gives way to a `newcomer`: of the network that has the most of
/// them, there of the host that has the most, there a silent one before others, and of those the oldest. `None` where nobody
/// waits.
///
/// By age alone, whoever opens many connections would push out all who came before and are honest. The newcomer counts as well:
/// where it is one of many, its own network makes room.
pub(crate) fn who_gives_way(waiting: &[Waiting], newcomer: Option<Source>) -> Option<usize> {
    let (mut of_network, mut of_host) = (HashMap::new(), HashMap::new());
    for source in waiting.iter().map(|other| other.source).chain([newcomer]) {
        *of_network.entry(source.map(|source| source.network)).or_insert(0) += 1;
        *of_host.entry(source.map(|source| source.host)).or_insert(0) += 1;
    }
    let crowd = |other: &Waiting| {
        let (network, host) = (other.source.map(|source| source.network), other.source.map(|source| source.host));
        (of_network[&network], of_host[&host], other.is_silent)
    };
    // The first of those that are alike.
    (0..waiting.len()).min_by_key(|place| Reverse(crowd(&waiting[*place])))
}

/// Counts established inbound connections and denies those that are too many from one place. Bounded by the swarm's own
/// limits. Those that still negotiate are bounded by [`OldestGivesWay`](crate::pending::OldestGivesWay).
#[derive(Default)]
pub(crate) struct Sources {
    established: HashMap<ConnectionId, Source>,
}

impl Sources {
    fn check_established(&self, source: Source) -> Result<(), TooMany> {
        let count =
            |same: fn(&Source) -> u128| self.established.values().filter(|other| same(other) == same(&source)).count();
        if count(|source| source.host) >= INBOUND_PER_HOST_MAX {
            return Err(TooMany::OfHost);
        }
        if count(|source| source.network) >= INBOUND_PER_NETWORK_MAX {
            return Err(TooMany::OfNetwork);
        }
        Ok(())
    }
}

impl NetworkBehaviour for Sources {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
        if let Some(source) = Source::of(remote) {
            self.check_established(source).map_err(ConnectionDenied::new)?;
            self.established.insert(connection, source);
        }
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. })
            // Another behaviour denied it after this one had counted it.
            | FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) => {
                self.established.remove(&connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use libp2p::swarm::ListenError;

    use super::*;

    fn source(address: &str) -> Option<Source> {
        Source::of(&address.parse().expect("an address"))
    }

    #[test]
    fn hosts_and_networks_are_told_apart() {
        let same = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|address| source(address).expect("an IP address"));
            (one.host == other.host, one.network == other.network)
        };
        assert_eq!(same("/ip4/192.0.2.7/tcp/1", "/ip4/192.0.2.7/udp/2/quic-v1"), (true, true));
        assert_eq!(same("/ip4/192.0.2.7/tcp/1", "/ip4/192.0.2.8/tcp/1"), (false, true));
        assert_eq!(same("/ip4/192.0.2.7/tcp/1", "/ip4/192.0.3.7/tcp/1"), (false, false));
        assert_eq!(same("/ip4/192.0.2.7/tcp/1", "/ip6/::ffff:192.0.2.7/tcp/1"), (true, true));
        assert_eq!(same("/ip6/2001:db8::1/tcp/1", "/ip6/2001:db8::ffff:2/tcp/1"), (true, true));
        assert_eq!(same("/ip6/2001:db8:0:1::1/tcp/1", "/ip6/2001:db8:0:2::1/tcp/1"), (false, true));
        assert_eq!(same("/ip6/2001:db8:1::1/tcp/1", "/ip6/2001:db8:2::1/tcp/1"), (false, false));
    }

    #[test]
    fn neither_a_host_nor_a_network_nor_all_relays_have_all_members_but_this_machine_may() {
        let admitted = |place: fn(usize) -> String| {
            let mut members = Vec::new();
            for number in 0..100 {
                let newcomer = source(&place(number));
                if has_place(members.iter().copied(), newcomer) {
                    members.push((newcomer, false));
                }
            }
            members.len()
        };
        assert_eq!(admitted(|port| format!("/ip4/8.8.8.8/tcp/{}", port + 1)), MEMBERS_PER_HOST_MAX);
        assert_eq!(admitted(|host| format!("/ip6/2600:1:2:3::{host:x}/tcp/1")), MEMBERS_PER_HOST_MAX);
        assert_eq!(admitted(|host| format!("/ip4/8.8.8.{host}/tcp/1")), MEMBERS_PER_NETWORK_MAX);
        assert_eq!(admitted(|_| "/ip4/8.8.8.8/tcp/1/p2p-circuit".to_owned()), MEMBERS_PER_HOST_MAX);
        assert_eq!(admitted(|port| format!("/ip4/10.0.0.1/tcp/{}", port + 1)), MEMBERS_PER_HOST_MAX);
        assert_eq!(admitted(|host| format!("/ip4/10.0.0.{host}/tcp/1")), 100, "a private network is one owner's");
        assert_eq!(admitted(|port| format!("/ip4/127.0.0.1/tcp/{}", port + 1)), 100);
        assert_eq!(admitted(|port| format!("/ip6/::1/tcp/{}", port + 1)), 100);
    }

    /// A cluster behind one address finds room as its machines prove themselves, and leaves a quarter to others all the same.
    #[test]
    fn who_has_proven_itself_takes_no_place_from_its_neighbours_while_many_are_free() {
        let (centre, elsewhere) = (source("/ip4/8.8.8.8/tcp/1"), source("/ip4/9.9.9.9/tcp/1"));
        let mut members = vec![(centre, false); MEMBERS_PER_HOST_MAX];
        let has_place = |members: &[(Option<Source>, bool)], from| has_place(members.iter().copied(), from);
        assert!(!has_place(&members, centre), "they have only greeted");
        members[0].1 = true;
        assert!(has_place(&members, centre), "one has proven itself");
        members = vec![(centre, true); MEMBERS_WITH_HOST_MAX];
        assert!(!has_place(&members, centre) && has_place(&members[1..], centre), "the rest is for others");
        assert!(has_place(&members, elsewhere), "and they come in");
        members = vec![(elsewhere, true); MEMBERS_WITH_HOST_MAX - 1];
        members.push((centre, true));
        assert!(has_place(&members, centre), "up to half");
        // So many that not all are of its network, which has a bound of its own.
        members = vec![(centre, true); MEMBERS_PER_HOST_MAX];
        members.resize(MEMBERS_WITH_HOST_MAX, (elsewhere, true));
        assert!(!has_place(&members, centre) && has_place(&members[..members.len() - 1], centre), "it has half");
    }

    fn waiting(address: &str, is_silent: bool) -> Waiting {
        Waiting { source: source(address), is_silent }
    }

    #[test]
    fn the_network_and_host_with_the_most_connections_give_way_the_oldest_silent_one_first() {
        let alone = waiting("/ip4/192.0.2.1/tcp/1", true);
        let [few, many] = ["/ip4/198.51.100.7/tcp/1", "/ip4/198.51.100.8/tcp/1"];
        let crowd = [alone, waiting(few, true), waiting(many, false), waiting(many, true), waiting(many, true)];
        let newcomer = source("/ip4/203.0.113.1/tcp/1");
        assert_eq!(who_gives_way(&crowd, newcomer), Some(3), "the oldest silent one of the fullest host");
        assert_eq!(who_gives_way(&crowd[..3], newcomer), Some(1), "of two hosts with one each, who is silent");
        assert_eq!(who_gives_way(&crowd[2..3], newcomer), Some(0), "somebody has to go");
        assert_eq!(who_gives_way(&[], newcomer), None);
    }

    #[test]
    fn who_comes_again_takes_a_place_of_its_own_network() {
        let others = ["/ip4/192.0.2.1/tcp/1", "/ip4/198.51.100.7/tcp/1"].map(|address| waiting(address, true));
        assert_eq!(who_gives_way(&others, source("/ip4/198.51.100.9/tcp/1")), Some(1));
    }

    #[test]
    fn connections_through_relays_count_as_one_network() {
        let relayed = Waiting { source: None, is_silent: false };
        let crowd = [waiting("/ip4/192.0.2.1/tcp/1", true), relayed, relayed];
        assert_eq!(who_gives_way(&crowd, source("/ip4/198.51.100.7/tcp/1")), Some(1));
    }

    #[test]
    fn a_relayed_connection_is_the_relays() {
        let relay = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        assert_eq!(source(&format!("/ip4/192.0.2.7/tcp/1/p2p/{relay}/p2p-circuit")), None);
        assert_eq!(range(&format!("/ip4/8.8.8.8/tcp/1/p2p/{relay}/p2p-circuit")), None);
    }

    #[test]
    fn a_connection_that_another_behaviour_denies_takes_no_place() {
        let address: Multiaddr = "/ip4/192.0.2.7/tcp/1".parse().expect("an address");
        let mut sources = Sources::default();
        let mut establish = |number: usize, is_denied: bool| {
            let connection_id = ConnectionId::new_unchecked(number);
            let peer = PeerId::random();
            let answer = sources.handle_established_inbound_connection(connection_id, peer, &address, &address);
            if is_denied {
                let error = ListenError::Aborted;
                sources.on_swarm_event(FromSwarm::ListenFailure(ListenFailure {
                    local_addr: &address,
                    send_back_addr: &address,
                    error: &error,
                    connection_id,
                    peer_id: Some(peer),
                }));
            }
            answer.is_ok()
        };
        assert!((0..INBOUND_PER_HOST_MAX).all(|number| establish(number, true)));
        assert!((0..INBOUND_PER_HOST_MAX).all(|number| establish(1_000 + number, false)));
        assert!(!establish(2_000, false), "these are there");
    }

    fn range(address: &str) -> Option<AddressRange> {
        range_of(&address.parse().expect("an address"))
    }

    #[test]
    fn ranges_are_what_one_owner_may_have() {
        let ranges = [
            ["/ip4/127.0.0.1/tcp/1", "/ip6/::1/udp/1/quic-v1"],
            ["/ip4/192.168.1.1/tcp/1", "/ip6/fd00::1/tcp/1"],
            ["/ip4/8.8.8.8/tcp/1", "/ip4/8.8.200.1/udp/2/quic-v1"],
            ["/ip4/8.9.8.8/tcp/1", "/ip6/::ffff:8.9.1.1/tcp/1"],
            ["/ip6/2600:1f00::1/tcp/1", "/ip6/2600:1f00:ffff::1/tcp/1"],
            ["/ip6/2600:1f01::1/tcp/1", "/ip6/2600:1f01:2::1/tcp/1"],
        ];
        for [one, other] in ranges {
            assert!(range(one).is_some() && range(one) == range(other), "{one} and {other}");
        }
        let of_each: std::collections::BTreeSet<_> = ranges.iter().map(|[one, _]| range(one)).collect();
        assert_eq!(of_each.len(), ranges.len(), "{of_each:?}");
        assert_eq!(range("/dns4/example.org/tcp/1"), None);
    }
}

//! How far an address means something, and from whom it is taken.
//!
//! Members tell each other where they and others listen, so each could aim a node's dials: at services on the node's own
//! machine, at other machines of its network, at anybody. Hence a peer is believed only about places as far from this
//! node as it is itself, or farther: loopback addresses from the same machine, private ones from the same network, public
//! ones from everybody. Names are taken from nobody: nodes never tell any, and a name can lead anywhere. What the owner
//! has configured does not come here.

use std::net::{IpAddr, Ipv6Addr};

use libp2p::Multiaddr;
use murmur_protocol::Address;
use murmur_protocol::bounds::ADDRESSES_TOLD_MAX;
use murmur_protocol::message::{Descriptor, Message};

use crate::address::{ip_of, is_circuit, to_core_address, to_dialable};
use crate::reachability::is_global_ip;

/// From where an address leads to the same place, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// On this machine.
    Machine,
    /// In this machine's networks.
    Network,
    /// Everywhere.
    World,
}

impl Scope {
    /// Of an address, or of its relay's; `None` for names, and for addresses that no host can have.
    pub(crate) fn of(address: &Multiaddr) -> Option<Scope> {
        let ip = ip_of(address)?;
        match ip {
            _ if ip.is_unspecified() || ip.is_multicast() => None,
            // Another spelling of an IPv4 address: no host says so of itself.
            IpAddr::V6(ip) if ip.to_canonical() != ip => None,
            IpAddr::V4(ip) if ip.octets()[0] == 0 || ip.octets()[0] >= 240 => None,
            _ if ip.is_loopback() => Some(Scope::Machine),
            _ if is_global_ip(ip) => Some(Scope::World),
            _ => Some(Scope::Network),
        }
    }

    /// From how far a peer speaks that is reached at `remote`; `own` is where this node listens.
    pub(crate) fn of_peer(remote: &Multiaddr, own: &[Multiaddr]) -> Scope {
        match Scope::of(remote) {
            // The relay is as near as that; who is behind it may not be.
            Some(scope) if is_circuit(remote) => scope.max(Scope::Network),
            Some(Scope::World) if own.iter().any(|own| are_neighbours(own, remote)) => Scope::Network,
            Some(scope) => scope,
            None => Scope::World,
        }
    }

    /// The addresses that a peer so far away is believed about, each once, as this node writes them.
    pub(crate) fn believed<'a>(self, told: impl IntoIterator<Item = &'a Address>) -> Vec<Address> {
        let mut believed: Vec<Address> = Vec::new();
        for address in told.into_iter().filter_map(to_dialable) {
            let text = to_core_address(&address).filter(|text| self.admits(&address) && !believed.contains(text));
            believed.extend(text);
        }
        believed
    }

    /// Whether a peer so far away is believed about an address.
    pub(crate) fn admits(self, address: &Multiaddr) -> bool {
        Scope::of(address).is_some_and(|scope| self <= scope)
    }

    /// A message of a peer so far away, without the addresses that it is not believed about. What is out of bounds is left
    /// for the core to refuse.
    pub(crate) fn screen(self, mut message: Message) -> Message {
        if let Message::Shuffle { peers, .. } | Message::Prune { peers } = &mut message {
            let is_sane = |told: &Descriptor| {
                let addresses = &told.known.addresses;
                addresses.len() <= ADDRESSES_TOLD_MAX && addresses.iter().all(Address::is_well_formed)
            };
            for told in peers.iter_mut().filter(|told| is_sane(told)) {
                told.known.addresses = self.believed(&told.known.addresses);
            }
        }
        message
    }
}

/// Whether two addresses are of one local network, as far as they show it.
fn are_neighbours(own: &Multiaddr, other: &Multiaddr) -> bool {
    let network = |address: &Multiaddr| match ip_of(address)? {
        IpAddr::V4(ip) => Some(Ipv6Addr::from_bits(ip.to_ipv6_mapped().to_bits() & (u128::MAX << 8))),
        IpAddr::V6(ip) => Some(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
    };
    network(own).is_some() && network(own) == network(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "/ip4/127.0.0.1/tcp/22";
    const PRIVATE: [&str; 3] = ["/ip4/192.168.1.1/tcp/80", "/ip4/169.254.1.1/tcp/80", "/ip6/fd00::1/udp/9/quic-v1"];
    const PUBLIC: &str = "/ip4/8.8.8.8/tcp/80";

    fn address(text: &str) -> Address {
        Address::new(text).expect("short")
    }

    fn believed(remote: &str, own: &[&str], told: &[&str]) -> Vec<String> {
        let own: Vec<Multiaddr> = own.iter().map(|own| own.parse().expect("an address")).collect();
        let told: Vec<Address> = told.iter().map(|told| address(told)).collect();
        let scope = Scope::of_peer(&remote.parse().expect("an address"), &own);
        scope.believed(&told).iter().map(Address::to_string).collect()
    }

    #[test]
    fn a_peer_is_believed_about_what_is_no_nearer_than_itself() {
        let all = [&[LOOPBACK, PUBLIC][..], &PRIVATE].concat();
        assert_eq!(believed("/ip4/8.8.4.4/tcp/9", &[], &all), [PUBLIC]);
        assert_eq!(believed("/ip4/192.168.1.7/tcp/9", &[], &all), [&[PUBLIC][..], &PRIVATE].concat());
        assert_eq!(believed("/ip4/127.0.0.1/tcp/9", &[], &all), all);
    }

    #[test]
    fn a_neighbour_with_a_public_address_is_of_this_network() {
        let own = ["/ip6/2600:1:2:3::1/tcp/9", "/ip4/25.77.0.1/tcp/9"];
        for (remote, is_near) in [
            ("/ip6/2600:1:2:3::2/tcp/9", true),
            ("/ip6/2600:1:2:4::2/tcp/9", false),
            ("/ip4/25.77.0.9/tcp/9", true),
            ("/ip4/25.77.1.9/tcp/9", false),
        ] {
            assert_eq!(!believed(remote, &own, &PRIVATE).is_empty(), is_near, "{remote}");
        }
    }

    #[test]
    fn who_speaks_through_a_relay_is_on_no_machine_of_ours() {
        const RELAY: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        let circuit = |host: &str| format!("/ip4/{host}/tcp/1/p2p/{RELAY}/p2p-circuit");
        assert_eq!(believed(&circuit("127.0.0.1"), &[], &[LOOPBACK, PRIVATE[0]]), [PRIVATE[0]]);
        assert_eq!(believed(&circuit("8.8.4.4"), &[], &[PRIVATE[0], &circuit("10.0.0.1"), PUBLIC]), [PUBLIC]);
        assert_eq!(believed(&format!("/p2p/{RELAY}"), &[], &[PRIVATE[0], PUBLIC]), [PUBLIC]);
    }

    #[test]
    fn names_odd_spellings_and_places_without_a_host_are_taken_from_nobody() {
        let told = [
            "/dns4/localhost/tcp/22",
            "/ip6/::ffff:127.0.0.1/tcp/22",
            "/ip4/0.0.0.0/tcp/22",
            "/ip4/0.1.2.3/tcp/22",
            "/ip4/224.0.0.1/udp/22/quic-v1",
            "/ip4/255.255.255.255/udp/22/quic-v1",
            "/ip6/ff02::1/udp/22/quic-v1",
            "nonsense",
        ];
        assert_eq!(believed("/ip4/127.0.0.1/tcp/9", &[], &told), [""; 0]);
    }

    #[test]
    fn one_place_told_in_several_ways_is_one() {
        const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        let told = ["/ip6/2600:0:0:0::1/tcp/1", "/ip6/2600::1/tcp/1", &format!("/ip6/2600::1/tcp/1/p2p/{PEER}")];
        assert_eq!(believed("/ip4/8.8.4.4/tcp/9", &[], &told), ["/ip6/2600::1/tcp/1"]);
    }
}

//! Whether others can reach this node, and how: a value for people, worked out from what probes and dials have shown.

use std::net::IpAddr;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// Whether and how others reach this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reachability {
    /// In one word.
    pub state: ReachabilityState,
    /// Addresses at which another machine has reached this node, or that its operator vouches for.
    pub confirmed: Vec<Multiaddr>,
    /// Addresses through relays that hold a place for this node.
    pub relayed: Vec<Multiaddr>,
    /// Addresses from which this node seems to come, as its peers see it; nobody has tried them.
    pub observed: Vec<Multiaddr>,
    /// Why the last dials failed, oldest first; told where that explains an isolation.
    pub dial_errors: Vec<String>,
}

/// How a node stands to the world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReachabilityState {
    /// Nobody has tried to reach it yet.
    #[default]
    Unknown,
    /// Others reach it at its confirmed addresses.
    Reachable,
    /// Only from its own network, as far as anybody has tried.
    ReachableLocally,
    /// Behind a NAT or firewall; direct connections come about by hole punching.
    HolePunching,
    /// Behind a NAT or firewall; messages reach it through relays, transfers only where it dials itself.
    Relayed,
    /// Behind a NAT or firewall, and no peer relays for it: it is connected to those whom it dials.
    Unreachable,
    /// No member has been connected for a minute, and dials fail.
    Isolated,
}

impl ReachabilityState {
    /// As one word for machines: `unknown`, `reachable`, `local`, `hole-punching`, `relayed`, `unreachable`, `isolated`.
    pub fn name(self) -> &'static str {
        match self {
            ReachabilityState::Unknown => "unknown",
            ReachabilityState::Reachable => "reachable",
            ReachabilityState::ReachableLocally => "local",
            ReachabilityState::HolePunching => "hole-punching",
            ReachabilityState::Relayed => "relayed",
            ReachabilityState::Unreachable => "unreachable",
            ReachabilityState::Isolated => "isolated",
        }
    }
}

impl Reachability {
    /// Addresses that strangers can use, best first: what belongs at the beginning of a ticket. Empty while nothing is
    /// known.
    pub fn public_addresses(&self) -> Vec<Multiaddr> {
        let global = self.confirmed.iter().filter(|address| is_global(address));
        let local = self.confirmed.iter().filter(|address| !is_global(address));
        global.chain(&self.relayed).chain(local).cloned().collect()
    }
}

/// Whether an address means the same everywhere: a public IP address, or a name. A circuit is as public as its relay.
pub(crate) fn is_global(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => is_global_ip(ip.into()),
        Some(Protocol::Ip6(ip)) => is_global_ip(ip.into()),
        Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_)) => true,
        _ => false,
    }
}

pub(crate) fn is_global_ip(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            // 100.64.0.0/10 lies behind a provider's NAT (RFC 6598).
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            let is_nowhere = ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast() || ip.is_documentation();
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared || is_nowhere)
        }
        IpAddr::V6(ip) => {
            let is_local = ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local();
            !(is_local || ip.is_unspecified() || ip.is_multicast())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_networks_are_not_the_world() {
        let global = ["/ip4/8.8.8.8/tcp/1", "/dns4/example.org/tcp/1", "/ip6/2600::1/udp/1/quic-v1"];
        let local = ["/ip4/192.168.1.2/tcp/1", "/ip4/100.70.0.1/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip6/fd00::1/tcp/1"];
        let is_global = |text: &str| is_global(&text.parse().expect("an address"));
        assert!(global.iter().all(|text| is_global(text)));
        assert!(!local.iter().any(|text| is_global(text)));
    }

    #[test]
    fn the_best_addresses_come_first() {
        let address = |text: &str| -> Multiaddr { text.parse().expect("an address") };
        let (public, private) = (address("/ip4/8.8.8.8/tcp/1"), address("/ip4/10.0.0.1/tcp/1"));
        let circuit =
            address("/ip4/9.9.9.9/tcp/1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/p2p-circuit");
        let reachability = Reachability {
            confirmed: vec![private.clone(), public.clone()],
            relayed: vec![circuit.clone()],
            ..Reachability::default()
        };
        assert_eq!(reachability.public_addresses(), [public, circuit, private]);
    }
}

//! Addresses and peer ids, between libp2p's types and the core's text.

use std::net::IpAddr;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use murmur_protocol::handshake::OWN_ADDRESSES_MAX;
use murmur_protocol::text::foreign;
use murmur_protocol::{Address, PeerId};

/// A text that is no address to dial.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address: {reason} (an example: /ip4/192.0.2.7/tcp/4711, with /p2p/12D3KooW… at the end where the peer is known)"
)]
pub struct AddressError {
    /// The text.
    pub text: String,
    /// What is wrong with it, escaped: it may quote the text.
    pub reason: String,
}

/// Splits an address as people write it, `/ip4/192.0.2.7/tcp/4711/p2p/12D3…`, into the peer and where it is.
///
/// # Errors
/// When it is malformed, has no transport that this node speaks, or ends in another kind of peer id.
pub fn parse_address(text: &str) -> Result<(Option<PeerId>, Address), AddressError> {
    let text = text.trim();
    let error = |reason: &str| AddressError { text: text.to_owned(), reason: foreign(reason) };
    let address: Multiaddr = text.parse().map_err(|cause: libp2p::multiaddr::Error| error(&cause.to_string()))?;
    let (peer, address) = split_peer(address);
    let peer = match peer {
        Some(peer) => Some(to_core_peer(&peer).ok_or_else(|| error("its peer id is not ed25519"))?),
        None => None,
    };
    if !is_dialable(&address) {
        return Err(error("it must name a host and a TCP or QUIC port"));
    }
    let address = Address::new(address.to_string()).ok_or_else(|| error("it is too long"))?;
    Ok((peer, address))
}

/// The core's form of a peer id, where the peer has an ed25519 key.
pub(crate) fn to_core_peer(peer: &libp2p::PeerId) -> Option<PeerId> {
    PeerId::from_multihash_bytes(&peer.to_bytes()).ok()
}

/// libp2p's form of a peer id; `None` for 32 bytes that libp2p does not take for a key.
pub(crate) fn to_libp2p_peer(peer: PeerId) -> Option<libp2p::PeerId> {
    libp2p::PeerId::from_bytes(&peer.to_multihash_bytes()).ok()
}

/// The core's form of an address, without a peer at its end.
pub(crate) fn to_core_address(address: &Multiaddr) -> Option<Address> {
    Address::new(split_peer(address.clone()).1.to_string())
}

/// Reads what the core remembers as an address. `None` where this node cannot dial it.
pub(crate) fn to_dialable(address: &Address) -> Option<Multiaddr> {
    let (_, address) = split_peer(address.as_str().parse().ok()?);
    is_dialable(&address).then_some(address)
}

/// Takes `/p2p/…` off the end.
pub(crate) fn split_peer(mut address: Multiaddr) -> (Option<libp2p::PeerId>, Multiaddr) {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => {
            address.pop();
            (Some(peer), address)
        }
        _ => (None, address),
    }
}

/// Which of the node's own addresses to tell a peer that is reached at `remote`: loopback addresses mean something only
/// on the same machine, link-local and unspecified ones nowhere.
pub(crate) fn addresses_to_tell(own: &[Multiaddr], remote: &Multiaddr) -> Vec<Address> {
    let same_machine = is_loopback(remote) && !is_circuit(remote);
    let mut told: Vec<&Multiaddr> = own
        .iter()
        .filter(|address| match ip_of(address) {
            Some(ip) if ip.is_unspecified() || is_link_local(&ip) => false,
            Some(ip) if ip.is_loopback() => same_machine,
            _ => true,
        })
        .collect();
    // On the same machine loopback comes first, so that it is within the bound.
    told.sort_by_key(|address| !is_loopback(address));
    told.into_iter().filter_map(to_core_address).take(OWN_ADDRESSES_MAX).collect()
}

/// Whether an address, or its relay, is on the same machine.
pub(crate) fn is_loopback(address: &Multiaddr) -> bool {
    ip_of(address).is_some_and(|ip| ip.is_loopback())
}

/// Whether whoever listens there is found on this machine alone. Who listens nowhere dials others wherever they are.
pub(crate) fn is_loopback_only(own: &[Multiaddr]) -> bool {
    !own.is_empty() && own.iter().all(is_loopback)
}

/// Whether an address leads through a relay.
pub(crate) fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

pub(crate) fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// A host, then a TCP port or a QUIC port, then nothing; or the relay there and a circuit.
fn is_dialable(address: &Multiaddr) -> bool {
    let mut parts = address.iter();
    let host = match parts.next() {
        Some(Protocol::Ip4(ip)) => !ip.is_unspecified(),
        Some(Protocol::Ip6(ip)) => !ip.is_unspecified(),
        Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_)) => true,
        _ => false,
    };
    let port = match parts.next() {
        Some(Protocol::Tcp(port)) => port != 0,
        Some(Protocol::Udp(port)) => port != 0 && parts.next() == Some(Protocol::QuicV1),
        _ => false,
    };
    let end = match (parts.next(), parts.next()) {
        (None, _) => true,
        (Some(Protocol::P2p(_)), Some(Protocol::P2pCircuit)) => parts.next().is_none(),
        _ => false,
    };
    host && port && end
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

    fn multiaddr(text: &str) -> Multiaddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_is_split_into_peer_and_place() {
        let (peer, address) = parse_address(&format!(" /ip4/1.2.3.4/tcp/4001/p2p/{PEER}\n")).expect("valid");
        assert_eq!(peer.expect("a peer").to_string(), PEER);
        assert_eq!(address.as_str(), "/ip4/1.2.3.4/tcp/4001");
        let (peer, address) = parse_address("/dns4/example.org/udp/4001/quic-v1").expect("valid");
        assert_eq!((peer, address.as_str()), (None, "/dns4/example.org/udp/4001/quic-v1"));
        let circuit = format!("/ip4/1.2.3.4/udp/4001/quic-v1/p2p/{PEER}/p2p-circuit");
        let (peer, address) = parse_address(&format!("{circuit}/p2p/{PEER}")).expect("valid");
        assert_eq!((peer.expect("a peer").to_string(), address.as_str()), (PEER.to_owned(), circuit.as_str()));
    }

    #[test]
    fn a_malformed_address_is_refused_with_an_example() {
        let rsa = "/ip4/1.2.3.4/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N";
        let texts =
            ["", "1.2.3.4:4001", "/ip4/1.2.3.4", "/ip4/1.2.3.4/udp/9", "/ip4/0.0.0.0/tcp/1", "/ip4/1.2.3.4/tcp/0", rsa];
        for text in texts {
            let error = parse_address(text).expect_err(text).to_string();
            assert!(error.contains("/ip4/192.0.2.7/tcp/4711"), "{error}");
        }
    }

    #[test]
    fn loopback_addresses_are_told_on_the_same_machine_only() {
        let own =
            [multiaddr("/ip4/10.0.0.1/tcp/1"), multiaddr("/ip4/127.0.0.1/tcp/1"), multiaddr("/ip6/fe80::1/tcp/1")];
        let told = |remote: &str| -> Vec<String> {
            addresses_to_tell(&own, &multiaddr(remote)).iter().map(Address::to_string).collect()
        };
        assert_eq!(told("/ip4/127.0.0.1/tcp/9"), ["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1"]);
        assert_eq!(told("/ip4/10.0.0.2/tcp/9"), ["/ip4/10.0.0.1/tcp/1"]);
    }

    #[test]
    fn no_more_addresses_are_told_than_allowed() {
        let own: Vec<Multiaddr> = (1..40).map(|port| multiaddr(&format!("/ip4/10.0.0.1/tcp/{port}"))).collect();
        assert_eq!(addresses_to_tell(&own, &multiaddr("/ip4/10.0.0.2/tcp/9")).len(), OWN_ADDRESSES_MAX);
    }
}

//! What another machine needs to join: the addresses of this node, best first, as a ticket.

use murmur_network::Multiaddr;
use murmur_protocol::handshake::OWN_ADDRESSES_MAX;
use murmur_protocol::message::KnownPeer;
use murmur_protocol::ticket::OTHERS_MAX;
use murmur_protocol::{Address, PeerId, RunId, Secret, Ticket};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// Addresses of each other member in a ticket.
const OTHER_ADDRESSES_MAX: usize = 2;

/// What a running daemon tells `murmur ticket`. The secret of a closed run is not in it: whoever may read the daemon's
/// data directory puts it in, so that other users of the machine do not learn it from a loopback port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// A ticket without a secret.
    pub ticket: String,
    /// The file that holds the secret, where the run is closed.
    pub secret_file: Option<PathBuf>,
}

impl Invitation {
    /// Invites to this node. `confirmed`: where others have reached it from outside.
    pub fn new(run: RunId, peer: PeerId, confirmed: &[Multiaddr], listen: &[Multiaddr]) -> Invitation {
        let addresses = addresses(confirmed, listen);
        let ticket = Ticket { run, peer, addresses, others: Vec::new(), secret: None };
        Invitation { ticket: ticket.to_string(), secret_file: None }
    }

    /// As [`new`](Self::new), also to some of the members that this node is connected to: a ticket outlives its node.
    pub fn with_others(self, connected: &[PeerId], known: &[KnownPeer]) -> Invitation {
        let Ok(ticket) = self.ticket.parse::<Ticket>() else { return self };
        let is_loopback_only = ticket.addresses.iter().all(|address| reach_of(address) == Reach::ThisMachine);
        let members = known.iter().filter(|member| connected.contains(&member.peer));
        let others = members.filter_map(|member| {
            let mut addresses: Vec<Address> = member.addresses.clone();
            addresses.retain(|address| match reach_of(address) {
                Reach::ThisMachine => is_loopback_only,
                Reach::Nowhere => false,
                Reach::Everywhere | Reach::PrivateNetwork => true,
            });
            addresses.sort_by_key(reach_of);
            addresses.truncate(OTHER_ADDRESSES_MAX);
            (!addresses.is_empty()).then_some(KnownPeer { peer: member.peer, addresses })
        });
        let others = others.take(OTHERS_MAX).collect();
        Invitation { ticket: Ticket { others, ..ticket }.to_string(), ..self }
    }

    /// The ticket, with the secret of a closed run.
    pub fn ticket(&self, secret: Option<Secret>) -> Option<Ticket> {
        let ticket: Ticket = self.ticket.parse().ok()?;
        Some(Ticket { secret, ..ticket })
    }
}

/// Confirmed addresses first, then global ones, then those of private networks; loopback only where there is nothing
/// else, because it helps nobody on another machine.
pub(crate) fn addresses(confirmed: &[Multiaddr], listen: &[Multiaddr]) -> Vec<Address> {
    let mut sorted: Vec<&Multiaddr> = listen.iter().filter(|address| reach(address) != Reach::Nowhere).collect();
    sorted.sort_by_key(|address| reach(address));
    if sorted.iter().any(|address| reach(address) != Reach::ThisMachine) || !confirmed.is_empty() {
        sorted.retain(|address| reach(address) != Reach::ThisMachine);
    }
    let mut chosen: Vec<Address> = Vec::new();
    for address in confirmed.iter().chain(sorted).filter_map(|address| Address::new(address.to_string())) {
        if !chosen.contains(&address) {
            chosen.push(address);
        }
    }
    chosen.truncate(OWN_ADDRESSES_MAX);
    chosen
}

fn reach_of(address: &Address) -> Reach {
    address.as_str().parse().map_or(Reach::Nowhere, |address| reach(&address))
}

/// From where an address can be reached, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Everywhere,
    PrivateNetwork,
    ThisMachine,
    Nowhere,
}

fn reach(address: &Multiaddr) -> Reach {
    let text = address.to_string();
    let mut parts = text.split('/').skip(1);
    let ip: Option<IpAddr> = match parts.next() {
        Some("ip4" | "ip6") => parts.next().and_then(|ip| ip.parse().ok()),
        _ => return Reach::Everywhere, // a name
    };
    match ip {
        None => Reach::Nowhere,
        Some(ip) if ip.is_unspecified() => Reach::Nowhere,
        Some(ip) if ip.is_loopback() => Reach::ThisMachine,
        Some(IpAddr::V4(ip)) if ip.is_link_local() => Reach::Nowhere,
        Some(IpAddr::V6(ip)) if ip.is_unicast_link_local() => Reach::Nowhere,
        Some(IpAddr::V4(ip)) if ip.is_private() => Reach::PrivateNetwork,
        Some(IpAddr::V6(ip)) if ip.is_unique_local() => Reach::PrivateNetwork,
        Some(_) => Reach::Everywhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connected_members_are_named_where_others_can_reach_them() {
        let peer = |key| PeerId::from_public_key([key; 32]);
        let known = |key, texts: &[&str]| KnownPeer {
            peer: peer(key),
            addresses: texts.iter().map(|text| Address::new(*text).expect("short")).collect(),
        };
        let members = [
            known(1, &["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.3/tcp/1", "/ip4/203.0.113.9/tcp/1"]),
            known(2, &["/ip4/127.0.0.1/tcp/2"]),
            known(3, &["/ip4/10.0.0.4/tcp/1"]),
        ];
        let listen: Multiaddr = "/ip4/10.0.0.2/tcp/1".parse().expect("sound");
        let invitation = Invitation::new(RunId([3; 32]), peer(9), &[], &[listen]);
        let ticket = invitation.with_others(&[peer(1), peer(2)], &members).ticket(None).expect("sound");
        assert_eq!(ticket.others, [known(1, &["/ip4/203.0.113.9/tcp/1", "/ip4/10.0.0.3/tcp/1"])]);
    }

    fn chosen(confirmed: &[&str], listen: &[&str]) -> Vec<String> {
        let parse =
            |texts: &[&str]| -> Vec<Multiaddr> { texts.iter().map(|text| text.parse().expect("sound")).collect() };
        addresses(&parse(confirmed), &parse(listen)).iter().map(Address::to_string).collect()
    }

    #[test]
    fn the_best_addresses_come_first_and_loopback_only_alone() {
        let listen = ["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1", "/ip4/198.51.100.7/tcp/1", "/ip6/fe80::1/tcp/1"];
        assert_eq!(chosen(&[], &listen), ["/ip4/198.51.100.7/tcp/1", "/ip4/10.0.0.2/tcp/1"]);
        let confirmed = ["/ip4/203.0.113.9/tcp/4711"];
        assert_eq!(chosen(&confirmed, &listen[..2]), ["/ip4/203.0.113.9/tcp/4711", "/ip4/10.0.0.2/tcp/1"]);
        assert_eq!(chosen(&[], &listen[..1]), ["/ip4/127.0.0.1/tcp/1"]);
    }
}

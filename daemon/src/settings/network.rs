//! `[network]` and `[status]` of a node file: where a node listens, whom it dials first and whom it lets in.

use std::net::SocketAddr;
use std::path::PathBuf;

use murmur_network::Connectivity;

use super::declaration::section;
use super::flag::Flag;
use super::flag::Taker::{Daemon, Machine};
use super::range::Range;
use crate::cli::headings::{NETWORK, PRIVACY};

/// Where daemons listen for each other.
pub const DEFAULT_PORT: u16 = 4711;

/// Where daemons answer `murmur status`.
pub const DEFAULT_STATUS_PORT: u16 = 4780;

const PEERS: &str = "peer ids, which begin with 12D3KooW (`murmur status` shows them)";
const ADDRESS: &str = "a multiaddress such as /ip4/192.0.2.7/tcp/4711";
const ADDRESSES: [&str; 3] = ["/ip4/192.0.2.7/tcp/4711", "/ip4/192.0.2.8/tcp/4712", "/ip6/2001:db8::1/tcp/4711"];
/// Of identities whose secrets are known to nobody.
const PEER_IDS: [&str; 3] = [
    "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X",
    "12D3KooWQYV9dGMFoRzNStwpXztXaBUjtPqi6aU76ZgUriHhKust",
    "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5",
];

section! {
    /// Where a node listens and whom it dials first.
    pub struct NetworkSettings {
        /// What others see beside this node's id: at most 32 bytes that can be seen.
        ///
        /// Empty: nothing. Anybody may take any name.
        name: String = String::new() =>
            form("a name of at most 32 bytes, all of which can be seen, or nothing", is_name),
            flag(Flag::new("name", "NAME", NETWORK).of(&[Daemon]));
        /// Address to listen on, such as /ip4/0.0.0.0/tcp/4711, in the place of TCP and QUIC on --port; may be repeated.
        ///
        /// Empty: TCP and QUIC on `port` of every IPv4 address. Port 0 lets the system choose.
        listen: Vec<String> = Vec::new() =>
            each(ADDRESS, |text| text.parse::<murmur_network::Multiaddr>().is_ok()), such_as(&ADDRESSES),
            flag(Flag::new("listen", "MULTIADDR", NETWORK).of(&[Machine]));
        /// Port to listen on, TCP and QUIC, on every IPv4 address [default: 4711, or the next free one].
        ///
        /// Not read where `listen` is not empty.
        port: u16 = 0 =>
            range(Range::new(1, u16::MAX).or_zero("takes 4711 or the next free one")),
            flag_as(
                Flag::new("port", "PORT", NETWORK).of(&[Machine]).instead_of("listen")
                    .without_zero("; leave it out for 4711 or the next free one"),
                |network, port: u16| (network.listen, network.port) = (Vec::new(), port)
            );
        /// Address of a member, such as /ip4/192.0.2.7/tcp/4711; may be repeated.
        ///
        /// It is dialed first, with or without `/p2p/…`.
        bootstrap: Vec<String> = Vec::new() =>
            each(ADDRESS, |text| murmur_network::parse_address(text).is_ok()), such_as(&ADDRESSES),
            flag(Flag::new("bootstrap", "MULTIADDR", NETWORK).of(&[Machine]));
        /// Let in only who has a ticket: it holds a secret that is kept in the data directory.
        closed: bool = false =>
            flag(Flag::switch("closed", PRIVACY).of(&[Daemon]).shaped(|arg| arg.display_order(0)));
        /// File with the membership secret of a closed run, 64 hexadecimal digits; to join, beside a ticket that lacks it.
        ///
        /// A file to use instead of the secret that is drawn; empty: none.
        secret_file: PathBuf = PathBuf::new() => flag(Flag::new("secret-file", "FILE", PRIVACY).of(&[Machine]));
        /// Peer id that may connect; with one given, nobody else may; may be repeated.
        allow: Vec<String> = Vec::new() =>
            each(PEERS, is_peer), such_as(&PEER_IDS), flag(Flag::new("allow", "PEER", PRIVACY).of(&[Daemon]));
        /// Peer id that may not connect; may be repeated.
        block: Vec<String> = Vec::new() =>
            each(PEERS, is_peer), such_as(&PEER_IDS), flag(Flag::new("block", "PEER", PRIVACY).of(&[Daemon]));
        /// Find members on the local network, and be found there.
        mdns: bool = true;
        /// Take part in the run's lookup table.
        kademlia: bool = true;
        /// Find out whether others reach this node, use relays where they do not, punch holes through NATs.
        nat: bool = true;
        /// Relay messages for others, if this node can be reached.
        relay_server: bool = true;
        /// Ask the router to forward the ports; only in a murmur built with the feature `upnp`.
        upnp: bool = false => checked(
            "false: this murmur is built without the feature upnp",
            |upnp| (*upnp && !cfg!(feature = "upnp")).then(|| "true".to_owned())
        );
    }
}

section! {
    /// Where a node answers `murmur status`.
    pub struct StatusSettings {
        /// Where it answers `murmur status`: a loopback address, or off [default: 127.0.0.1:4780, or the next free port].
        ///
        /// "auto" is that default; "off" or empty: nowhere.
        address: String = StatusSettings::AUTO.to_owned() =>
            form("a loopback address such as 127.0.0.1:4780, \"auto\" or \"off\"", is_status_address),
            such_as(&["127.0.0.1:4780", "127.0.0.1:4781", "[::1]:4782"]),
            flag(Flag::new("status-address", "ADDRESS", NETWORK).of(&[Daemon]));
    }
}

fn is_name(text: &str) -> bool {
    text.is_empty() || murmur_protocol::Name::new(text).is_some()
}

fn is_peer(text: &str) -> bool {
    text.parse::<murmur_protocol::PeerId>().is_ok()
}

fn is_status_address(text: &str) -> bool {
    let is_loopback = |address: SocketAddr| address.ip().is_loopback();
    StatusSettings::is_off(text) || text == StatusSettings::AUTO || text.parse().is_ok_and(is_loopback)
}

impl StatusSettings {
    /// The first free port from [`DEFAULT_STATUS_PORT`].
    pub const AUTO: &str = "auto";

    /// Whether an address is that of no page.
    pub fn is_off(address: &str) -> bool {
        address.is_empty() || address == "off"
    }
}

impl NetworkSettings {
    /// Whether the owner has left the port to the daemon.
    pub fn chooses_port(&self) -> bool {
        self.listen.is_empty() && self.port == 0
    }

    /// The port that is tried first.
    pub fn usual_port(&self) -> u16 {
        if self.port == 0 { DEFAULT_PORT } else { self.port }
    }

    /// The addresses to listen on, with this port where they do not say another.
    pub fn listen_at(&self, port: u16) -> Vec<String> {
        match self.listen.as_slice() {
            [] => vec![format!("/ip4/0.0.0.0/tcp/{port}"), format!("/ip4/0.0.0.0/udp/{port}/quic-v1")],
            listen => listen.to_vec(),
        }
    }

    /// The owner's lists, as checked by [`NodeSettings::validate`].
    pub fn admission(&self) -> murmur_network::Admission {
        let set = |peers: &[String]| peers.iter().filter_map(|text| text.parse().ok()).collect();
        murmur_network::Admission { allow: set(&self.allow), block: set(&self.block) }
    }

    /// Which ways of finding peers and of being reached the node uses.
    pub(crate) fn connectivity(&self) -> Connectivity {
        let NetworkSettings { mdns, kademlia, nat, relay_server, upnp, .. } = *self;
        Connectivity { mdns, kademlia, nat, relay_server, upnp, ..Connectivity::OFF }
    }
}

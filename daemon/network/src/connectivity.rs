//! What a node does to find others and to be found: each part can be switched off.

/// Which ways of finding and reaching peers a node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connectivity {
    /// Announce the node on the local network and find others there. Without the cargo feature `mdns` it does nothing.
    pub mdns: bool,
    /// Take part in the run's lookup table (Kademlia), which finds members when the known ones are gone.
    pub kademlia: bool,
    /// Find out whether the node can be reached, use relays where it cannot, and punch holes through NATs.
    pub nat: bool,
    /// Relay messages for others, if the node can be reached itself. Needs `nat`.
    pub relay_server: bool,
    /// Ask the router to forward the ports. Without the cargo feature `upnp` it does nothing.
    pub upnp: bool,
    /// What the operator knows about the node's reachability.
    pub exposure: Exposure,
}

/// Whether a node can be reached from outside of its own network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    /// Peers are asked to try it.
    #[default]
    FindOut,
    /// It is known to be reachable at its listen addresses: there is nothing to find out.
    Public,
    /// It is known not to be: relays are used from the start.
    Private,
}

impl Connectivity {
    /// Nothing of it: only addresses that are given, and what members tell each other.
    pub const OFF: Connectivity = Connectivity {
        mdns: false,
        kademlia: false,
        nat: false,
        relay_server: false,
        upnp: false,
        exposure: Exposure::FindOut,
    };

    /// Whether connections may come about that are no membership: lookups, probes, circuits.
    pub(crate) fn has_auxiliary_connections(&self) -> bool {
        self.kademlia || self.nat
    }
}

impl Default for Connectivity {
    fn default() -> Connectivity {
        Connectivity { mdns: true, kademlia: true, nat: true, relay_server: true, ..Connectivity::OFF }
    }
}

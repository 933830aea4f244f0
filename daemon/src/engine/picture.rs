//! What the engine shows of a node.

use std::collections::BTreeMap;

use murmur_network::Traffic;
use murmur_protocol::{PeerId, Status};

use super::ledger::PeerTraffic;

/// The core's state and the bytes on the wire at the same moment, so that one may be divided by the other.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The core.
    pub status: Status,
    /// The wire.
    pub traffic: Traffic,
    /// What went to and from each peer, and how it is reached.
    pub peers: BTreeMap<PeerId, PeerTraffic>,
}

//! What the network needs to know to start.

use std::sync::Arc;

use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use murmur_protocol::{RunManifest, Secret};

use crate::access::Admission;
use crate::connectivity::Connectivity;
use crate::data::Shelf;
use crate::rate_limit::Throttle;

/// What the network needs to know to start.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// This node's key, from [`load_or_create`](crate::load_or_create).
    pub identity: Keypair,
    /// Where to listen: `/ip4/…/tcp/…` or `/ip4/…/udp/…/quic-v1`, port 0 for any. May be empty.
    pub listen: Vec<Multiaddr>,
    /// The run; peers of another are refused.
    pub manifest: Arc<RunManifest>,
    /// The run's membership secret, where it is closed: who does not know it is refused.
    pub secret: Option<Secret>,
    /// Whom the owner lets in at all, until it is changed through [`Network::admission`](crate::Network::admission).
    pub admission: Admission,
    /// What the owner lets it send and receive in a second, with whatever else draws from the same.
    pub throttle: Throttle,
    /// The longest payload that a peer may announce: derived from the model's layout.
    pub payload_bytes_max: u64,
    /// What all inbound transfers together may hold in memory; beyond it peers wait. At least one payload fits always.
    pub inbound_bytes_budget: u64,
    /// Shards that peers may fetch; `None` gives nothing to anybody.
    pub shelf: Option<Shelf>,
    /// How it finds peers and is found.
    pub connectivity: Connectivity,
}

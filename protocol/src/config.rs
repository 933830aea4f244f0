//! What a node is told when it is made.

use std::time::Duration;

use crate::bounds::{LEAVE_TIMEOUT, STATE_CHUNK_VALUES};
use crate::event::TrainingReport;
use crate::finish::RunEnd;
use crate::fragments::Holding;
use crate::manifest::{GossipSpec, RunManifest, SynchronousSpec};
use crate::message::KnownPeer;
use crate::peer::{Address, PeerId};
use crate::profile::Name;
use crate::ticket::Ticket;

/// Settings of one node.
#[derive(Clone, Debug)]
pub struct Config {
    /// What its owner calls it; others show it.
    pub name: Option<Name>,
    /// How the run averages.
    pub gossip: GossipSpec,
    /// Whether all average at once instead.
    pub synchronous: SynchronousSpec,
    /// Whether members of a run that averages all at once contribute their weights as well.
    pub weighs_members: bool,
    /// When the run ends, and who may end it.
    pub end: RunEnd,
    /// Which fragments of the model it has, some of which are not empty. In a run that averages all at once: all.
    pub holding: Holding,
    /// How this node comes by its model.
    pub start: Start,
    /// Where its trainer stands: not at zero where the model comes from a checkpoint.
    pub training: TrainingReport,
    /// Addresses to begin with; never forgotten.
    pub bootstrap: Vec<Bootstrap>,
    /// Members known from an earlier life of this node.
    pub remembered: Vec<KnownPeer>,
    /// The number of the first exchange, and of the first request for the model. Must be above all of an earlier life of
    /// this identity: the daemon takes the microseconds since 1970.
    pub first_number: u64,
    /// Values in a chunk of a state, at least 1: [`STATE_CHUNK_VALUES`] but in tests, whose models are small. All nodes
    /// of a swarm must agree.
    pub state_chunk: usize,
    /// What the owner lets this node send at most, in bytes a second. Exchanges may take all of it; without a cap they take
    /// a quarter of the uplink as it is measured.
    pub upload_bytes_per_second: Option<f64>,
    /// How long leaving may take, with the last exchange: [`LEAVE_TIMEOUT`] where the owner gives no time.
    pub leaving_max: Duration,
}

/// How a node comes by its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It has one (seeded, or from a checkpoint) and trains at once.
    WithModel,
    /// It copies one from a peer first: a cold start would drag a running swarm back.
    FromPeer,
}

/// Somebody to dial first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Who is there, where that is known.
    pub peer: Option<PeerId>,
    /// The address.
    pub address: Address,
}

impl Bootstrap {
    /// Whom a ticket names, at each of their addresses.
    pub fn of(ticket: &Ticket) -> Vec<Bootstrap> {
        let of = |peer: PeerId, addresses: &[Address]| -> Vec<Bootstrap> {
            addresses.iter().map(|address| Bootstrap { peer: Some(peer), address: address.clone() }).collect()
        };
        let others = ticket.others.iter().flat_map(|other| of(other.peer, &other.addresses));
        of(ticket.peer, &ticket.addresses).into_iter().chain(others).collect()
    }
}

impl Config {
    /// A node of `manifest` that has a model and knows nobody.
    pub fn founder(manifest: &RunManifest) -> Config {
        Config {
            name: None,
            gossip: manifest.gossip.clone(),
            synchronous: manifest.synchronous.clone(),
            weighs_members: manifest.table.weighs_members(),
            end: RunEnd::of(manifest),
            holding: Holding::ALL,
            start: Start::WithModel,
            training: TrainingReport::default(),
            bootstrap: Vec::new(),
            remembered: Vec::new(),
            first_number: 0,
            state_chunk: STATE_CHUNK_VALUES,
            upload_bytes_per_second: None,
            leaving_max: LEAVE_TIMEOUT,
        }
    }
}

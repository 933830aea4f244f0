//! The libp2p driver of the murmur daemon.
//!
//! It translates between libp2p and the core's [`Event`](murmur_protocol::Event)s and
//! [`Effect`](murmur_protocol::Effect)s and decides nothing: whom to dial, what to send and when to give up on a peer
//! is the core's business.
//!
//! ```text
//! Network (handle) ── orders ──► Driver (swarm task: polls, forwards, never waits)
//!                                  │ one task per connection     handshake: is it a peer of this run?
//!                                  └ one task per peer (Member)  control reader and writer, transfers both ways,
//!                                        │                       answers to requests for shared data
//!                                        └──────── events ──────► the core
//! ```
//!
//! For each peer the core hears `PeerConnected` first and `PeerDisconnected` last, and between them the fate of every
//! transfer. A slow core makes peers wait; a slow peer makes nobody wait.

mod access;
mod address;
mod behaviour;
mod bounds;
mod bulk;
mod candidates;
mod config;
mod connectivity;
mod control;
mod data;
mod dial_filter;
mod dialing;
mod discovery;
mod driver;
mod error_chain;
mod frame;
mod free_port;
mod handshake;
mod identity;
mod life;
#[cfg(feature = "mdns")]
mod local_network;
mod member;
mod moving;
mod muxing;
mod nat;
mod network;
mod paths;
mod pending;
mod places;
mod probing;
mod rate_limit;
mod reachability;
mod round_trips;
mod scope;
mod security;
mod shared;
mod shares;
mod sources;
pub mod streams;
mod tcp_first;
pub mod team;
mod traffic;
pub mod transport;
mod visits;

pub use access::Admission;
pub use address::{AddressError, parse_address};
pub use bounds::DATA_SENDING_PER_PEER_MAX;
pub use config::NetworkConfig;
pub use connectivity::{Connectivity, Exposure};
pub use data::ask::{Offered, ShardError, ShardStream};
pub use data::{HeldShards, Shelf};
pub use discovery::manifest::{FetchError, Question, Told, fetch_manifest};
pub use discovery::search::{FoundMember, NobodyFound, Search, is_promising, search_member};
pub use identity::{IdentityError, load_or_create, peer_id};
pub use libp2p::Multiaddr;
pub use libp2p::identity::Keypair;
pub use life::Double;
pub use moving::Stalled;
pub use network::{Network, NetworkError, QueueFull};
pub use rate_limit::{Caps, Throttle};
pub use reachability::{Reachability, ReachabilityState};
pub use traffic::{Traffic, TrafficCounter};

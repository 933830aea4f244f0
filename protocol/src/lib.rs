//! The swarm's decisions and numerics, without I/O.
//!
//! [`Node`] is one state machine. **Handle one event, drain all effects, sleep until the next deadline.** Time,
//! randomness and every outside fact are arguments: the daemon drives a node with sockets and a clock, the simulator
//! with a queue and a seed, and both run the same decisions.
//!
//! ```text
//! let mut node = Node::new(…);
//! loop {
//!     while let Some(effect) = node.poll_effect() { carry_out(effect); }
//!     wait for the next event, or until node.next_deadline() for Event::TimePassed
//!     node.handle(now, event);
//! }
//! ```
//!
//! Events are facts in the past tense, effects are orders. What comes back for an order:
//!
//! | to | order | reply |
//! |---|---|---|
//! | network | `Dial` | `PeerConnected`, `DialFailed` or `HandshakeRefused` |
//! | | `Disconnect` | `PeerDisconnected` |
//! | | `Send` | none; what matters is repeated |
//! | | `StartTransfer` | `TransferFinished` or `TransferFailed` |
//! | trainer | `TakeSnapshot` | `SnapshotTaken` or `RequestFailed` |
//! | | `ApplyCorrection` | `CorrectionApplied` or `RequestFailed` |
//! | | `LoadState`, `LoadReplica` | `StateLoaded` or `RequestFailed` |
//! | | `Contribute` | `Contributed` or `RequestFailed` |
//! | | `TakeUp`, `AdvanceOuter`, `MatchBatch`, `Average`, `Begin`, `End`, `Finish`, `Complete` | none |
//! | worker | `Encode` | `Encoded` or `RequestFailed` |
//! | | `Merge` | `Merged` or `RequestFailed` |
//! | | `Reduce` | `Reduced` or `RequestFailed` |
//! | – | `Notice`, `Stop` | none |
//!
//! The control plane ([`Node`]) and the data plane ([`numerics`]) are apart: a node never loops over a model, it
//! passes [`Snapshot`]s, [`Payload`]s and [`Correction`]s on by reference, and a call of `handle` takes microseconds.
//!
//! The method is pairwise modular gossip; see [`numerics`] for the arithmetic and [`exchange`] for the protocol. Where a run
//! says so, all members average at once instead: see [`collective`]; or they choose between the two: see [`scheme`].

pub mod bounds;
pub mod bulk;
mod choice;
pub mod codec;
pub mod collective;
pub mod config;
pub mod effect;
pub mod event;
pub mod exchange;
pub mod finish;
pub mod fragments;
pub mod handshake;
pub mod helper_line;
mod join;
pub mod layout;
pub mod manifest;
mod membership;
pub mod message;
mod misbehaviour;
mod node;
pub mod notice;
pub mod numerics;
mod outbox;
pub mod pairs;
pub mod part;
mod pasted;
pub mod peer;
pub mod profile;
pub mod random;
pub mod replay;
mod reputation;
pub mod scheme;
pub mod secret;
pub mod server;
pub mod shards;
mod stand_ins;
pub mod status;
mod synchronous;
pub mod team;
pub mod text;
pub mod ticket;
pub mod time;

pub use bulk::{Correction, Payload, Snapshot};
pub use config::{Bootstrap, Config, Start};
pub use effect::{Effect, NetworkOrder, RequestId, TrainerOrder, TransferId, WorkerOrder};
pub use event::{Event, TrainingReport};
pub use finish::{Ending, FinishOrder, RunEnd};
pub use fragments::{Fragments, Holding};
pub use helper_line::{HelperLine, HelperLineError};
pub use join::{CopyStatus, Unchecked};
pub use layout::{ModelLayout, TensorSpec};
pub use manifest::{RunId, RunManifest};
pub use message::{Message, TransferHeader};
pub use misbehaviour::Misbehaviour;
pub use node::Node;
pub use notice::{ExchangeFailure, Notice};
pub use part::{Fragment, Part, Selection, Vector};
pub use peer::{Address, AddressRange, PeerId};
pub use profile::{MemberView, Name, Profile};
pub use secret::Secret;
pub use status::{Counts, ExchangeCounters, Phase, Status};
pub use ticket::Ticket;
pub use time::Time;

//! The swarm's decisions and numerics, without I/O.

pub mod bulk;
pub mod codec;
pub mod effect;
pub mod event;
pub mod handshake;
pub mod layout;
pub mod manifest;
pub mod message;
pub mod numerics;
pub mod peer;
pub mod random;
pub mod time;

pub use bulk::{Correction, Payload, Snapshot};
pub use effect::{Effect, ExchangeFailure, Notice, RequestId, TransferId};
pub use event::{Event, Misbehaviour, TrainingReport};
pub use layout::{ModelLayout, TensorSpec};
pub use manifest::{RunId, RunManifest};
pub use message::{Message, TransferHeader};
pub use peer::{Address, PeerId};
pub use time::Time;

//! Teams: several machines that train one model as a pipeline and are one node of the swarm.
//!
//! The **captain** is that node: it has the data, the embedding, the head and the loss. Each **helper** computes a contiguous run
//! of the model's layers, a **stage**. A batch goes through all stages in **microbatches**, one forward and one backward by turns
//! ([`Schedule`], PipeDream-Flush, Narayanan et al., arXiv 2006.09503), and is stepped by all or dropped by all.
//!
//! [`Captain`] and [`Helper`] are two state machines with the contract of [`Node`](crate::Node): **handle one event, drain all
//! effects, sleep until the next deadline.** They decide the cut, its **epoch**, the order of work, when a batch is dropped, whom
//! to wait for and how long. They never hold a model: streams and states pass through as [`Payload`](crate::Payload)s.
//!
//! ```text
//!             ┌──────────── captain: first stage, last stage ────────────┐
//!             │ stream to stage 1 ▼            ▲ stream of stage 1,      │
//!             │                helper 1        │ sent on to stage 2 …    │
//! ```
//!
//! **A star.** All frames go through the captain, so helpers need no connections among each other. With n helpers the captain
//! sends and receives 2n streams a microbatch in each direction, where a ring has 2: twice the bytes for two helpers, as those of
//! each inner boundary pass its link twice. A helper's traffic is the same in both.
//!
//! What comes back for an order of the captain:
//!
//! | order | reply |
//! |---|---|
//! | `Load` | `Loaded` |
//! | `Compute` | `Computed` |
//! | `Sum` | `Summed` |
//! | `Gathered` | `StepDecided` or `DiscardDecided` |
//! | `Step` | `Stepped` |
//! | `ReadOut` | `ReadOut` |
//! | `Keep` | `Kept` |
//! | `Discard`, `Send`, `Disconnect`, `Dismiss`, `Notice`, `…Ended` | none |
//!
//! and of a helper: `Load` → `Loaded`, `Compute` → `Computed`, `Sum` → `Summed`, `Step` → `Stepped`, `Copy` → `Copied`, `Write` →
//! `Written`; `Average`, `Unload`, `Discard`, `Send`, `Notice` have none. Orders to whoever computes are carried out in the order they come.
//! Late and duplicate replies are counted and ignored.
//!
//! **States.** Each commit and each write gives the model a new **revision**, a number that grows. Helpers have the parameters and
//! moments of their layers; the captain's owner keeps a copy of all, of which the captain knows the revision layer by layer. Where
//! the layers of a lost helper go elsewhere, they begin from that copy: with adapters it is made after every step and nothing is
//! lost, with full parameters whenever the owner wants one ([`CaptainEvent::CopyWanted`]).
//!
//! **Members.** Where fragments of the model end at the borders of stages, each helper may exchange its own with the swarm: the
//! captain's owner decides it for a cut ([`CaptainEvent::MembershipDecided`]), helpers hear of it with each batch, and a copy that ends
//! it is the last word on their parameters.
//!
//! **Trust.** A helper sees activations, from which text can be recovered, and can return anything. Lengths are checked, values
//! must be finite, and the size of streams within a learned band; the owner checks states before it keeps them, and who sends one
//! that cannot be read is let go for good. No more than that. Only machines of one owner, or of friends.

pub mod arrange;
pub mod bounds;
mod captain;
mod config;
pub mod cut;
mod effect;
mod event;
mod frame;
mod layers;
mod lend;
mod message;
mod notice;
pub mod schedule;
mod work;

pub use captain::Captain;
pub use config::{CaptainConfig, HelperConfig, TeamTimeouts};
pub use cut::{Cut, CutStage, LayerCosts, Link, ModelCosts, Place};
pub use effect::{CaptainEffect, HelperEffect, Packet};
pub use event::{CaptainEvent, HelperEvent, Loading};
pub use frame::{FRAME_HEADER_BYTES, Frame, FrameError, FrameHeader, StateHeader, StateKind};
pub use layers::LayerRange;
pub use lend::Helper;
pub use message::{Assign, BatchKind, FailureCause, HeldLayers, Lanes, Membership, Offer, StepFactors, TeamMessage};
pub use notice::{BatchOutcome, DropReason, TeamCounts, TeamNotice, TeamPhase, TeamStatus, WriteOutcome};
pub use schedule::Schedule;
pub use work::{Direction, Outcome, Stream, Wire, Work, WorkKind};

//! A virtual clock and network around the same core.
//!
//! A [`Swarm`] drives the very [`Node`](murmur_protocol::Node)s and numerics that the daemon ships, on a clock that
//! jumps from one happening to the next and a network that loses, repeats, delays and breaks as its scenario says.
//! Everything is drawn from one seed, so a failing run is replayed by its number alone.
//!
//! ```text
//!   Scenario + seed ──► Swarm ──► queue (time, then order of making)
//!                         │
//!            ┌────────────┼─────────────┬──────────────┐
//!          Node        Trainer        worker        Network
//!       (the core)  (a quadratic   (numerics, late) (links, losses)
//!                    or candle)
//!                         │
//!                      Ledger, Record ──► checks; Trace (BLAKE3 of all events and effects); Sample
//! ```
//!
//! The shape follows the simulators of FoundationDB and TigerBeetle: faults on purpose, and one check per file.

pub mod checks;
pub mod compare;
pub mod file;
mod happening;
mod host;
mod liar;
mod network;
mod queue;
pub mod record;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod study;
mod swarm;
pub mod team;
mod trace;
mod trainer;

pub use network::{LatencySpec, LinkSpec, NetworkSpec};
pub use record::{Record, Sample, Traffic};
pub use scenario::{Disk, DriverSpec, HostIndex, Incident, Lie, NodePlan, Scenario, WorkerSpec};
pub use swarm::{Sabotage, Swarm};
pub use trainer::{Objective, QuadraticSpec, Sharing, Text, TrainerSpec, TrainerSpecError, TransformerSpec};

//! The edges of the daemon: each driver carries out one kind of order and reports facts. Drivers never call each
//! other, and the engine never waits for one: orders are handed over with `try_…`, and a full queue is a fact as well.

mod data;
mod http;
mod trainer;
mod workers;

pub use data::{Arrival, DataDriver, DataReport, ShelfParts};
pub use http::refusal::Denied;
pub(crate) use http::refusal::refuse;
pub use http::{Pages, StatusServer};
pub(crate) use trainer::Reply;
pub use trainer::{
    CheckpointRequests, NotSaved, PrivacyReport, SavedCheckpoint, StepTimes, Trainer, TrainerSettings, TrainingView,
};
pub use workers::Workers;

/// The driver's queue is full, or the driver is gone: what was refused.
#[derive(Debug)]
pub struct Refused<Order>(pub Order);

//! Teams in the simulator: the very [`Captain`](murmur_protocol::team::Captain) and [`Helper`](murmur_protocol::team::Helper)s of the
//! daemon, on a virtual clock, with links, crashes and nonsense drawn from a seed.
//!
//! What they compute is a model of whole numbers that tells which microbatches counted, in which order and with which parameters.
//! Each law ([`TeamLaw`]) is checked while a team runs, against one learner that has the whole model.

mod arithmetic;
mod ledger;
mod lending;
mod links;
mod owner;
mod plan;
mod stage;
mod world;

pub use ledger::{TeamLaw, TeamViolation};
pub use plan::{Carelessness, Fault, MachinePlan, TeamPlan};
pub use stage::Mistake;
pub use world::{TeamRun, run};

//! The models that a swarm can train.

pub mod initial;
pub mod transformer;

pub use transformer::{Transformer, parameter_count};

//! What a run is set up from: devices, the base model, data, private training.

pub(crate) mod arrangement;
pub mod base_model;
pub(crate) mod corpus;
pub(crate) mod data_kind;
pub(crate) mod devices;
mod offload;
pub(crate) mod privacy;
pub mod sharing;

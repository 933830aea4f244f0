//! What a run is set up from: devices, the base model, shared data.

pub(crate) mod arrangement;
pub mod base_model;
pub(crate) mod devices;
pub(crate) mod privacy;
pub mod sharing;

//! The process of a daemon: background, signals, the service manager, memory that goes back to the system.

pub mod background;
pub mod memory;
pub(crate) mod service_manager;
pub(crate) mod signal;
pub(crate) mod stats;
pub(crate) mod suspended;

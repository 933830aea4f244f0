//! The process of a daemon: background, signals, the service manager, memory that goes back to the system, networks of its own.

pub mod background;
pub mod memory;
pub mod namespace;
pub(crate) mod service_manager;
pub(crate) mod signal;
pub(crate) mod stats;
pub(crate) mod suspended;

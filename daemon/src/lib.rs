//! The `murmur` daemon and its commands.
//!
//! [`daemon`] puts one daemon together: [`engine`] owns the core's `Node`, [`drivers`] and the crates `murmur-network`
//! and `murmur-training` carry out its orders, [`store`] keeps what must survive. [`local`] runs several daemons as
//! processes of one machine. ARCHITECTURE.md has the picture.

pub mod background;
pub mod base;
pub mod blocking;
pub mod cli;
mod commands;
pub mod console;
pub mod daemon;
mod daily_traffic;
mod devices;
pub mod doctor;
pub mod drivers;
pub mod engine;
pub mod failure;
pub mod finishing;
mod fit;
mod invitation;
pub mod local;
pub mod memory;
mod metrics;
pub mod observe;
mod outlook;
pub mod report;
mod rest;
mod service_manager;
pub mod settings;
pub mod sharing;
mod signal;
pub mod store;
pub mod tracking;
mod usage;
mod watch;
pub mod web;

pub use commands::run;

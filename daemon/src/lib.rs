//! The `murmur` daemon and its commands.
//!
//! [`daemon`] puts one daemon together: [`engine`] owns the core's `Node`, [`drivers`] and the crates `murmur-network`
//! and `murmur-training` carry out its orders, [`store`] keeps what must survive. [`local`] runs several daemons as
//! processes of one machine. ARCHITECTURE.md has the picture.

pub mod cli;
mod commands;
pub mod console;
pub mod daemon;
pub mod doctor;
pub mod drivers;
pub mod engine;
pub mod environment;
pub mod failure;
mod history;
mod limits;
pub mod local;
mod named;
pub mod observe;
pub mod process;
mod remote;
pub mod settings;
pub mod setup;
pub mod store;
mod team;
pub mod tracking;
mod watch;
pub mod web;

pub use commands::{report_page, run};

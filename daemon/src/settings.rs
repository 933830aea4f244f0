//! From files, environment and flags to one set of settings: defaults < file < environment < flags.
//!
//! A setting is declared once, in the file of its section: `declaration.rs` says what follows from it.

mod declaration;
mod file;
mod flag;
mod limits;
mod network;
mod node;
mod places;
mod precedence;
mod privacy;
mod range;
mod stay;
#[cfg(test)]
mod tests;
mod training;
mod typed;

pub use declaration::Declared;
pub(crate) use file::{bounded, fault, line_of_field, nearest, of_other_kind, out_of_range, parse, too_long};
pub use file::{load_node_settings, load_run_manifest};
pub use flag::Taker;
pub use limits::LimitsSettings;
pub use network::{DEFAULT_PORT, DEFAULT_STATUS_PORT, NetworkSettings, StatusSettings};
pub use node::{NodeSettings, OutOfRange, as_typed, declared};
pub use places::{
    CheckpointSettings, DataSettings, JournalSettings, MlflowSettings, ModelSettings, TensorBoardSettings,
};
pub use precedence::{Bench, Daemon, Flags, Lend, Local, Machine, Takes};
pub use privacy::PrivacySettings;
pub(crate) use privacy::{DELTA, EPSILON};
pub(crate) use range::no_number;
pub use range::{Number, Range};
pub use stay::StaySettings;
pub(crate) use training::THREADS;
pub use training::{AfterCompletion, Split, TrainingSettings};

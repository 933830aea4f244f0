//! From files, environment and flags to one set of settings: defaults < file < environment < flags.

mod file;
mod node;
mod privacy;
mod stay;
mod training;

pub(crate) use file::{line_of_field, nearest, of_other_kind, parse};
pub use file::{load_node_settings, load_run_manifest};
pub use node::{
    CheckpointSettings, DEFAULT_PORT, DEFAULT_STATUS_PORT, DataSettings, LimitsSettings, MlflowSettings,
    NetworkSettings, NodeSettings, StatusSettings, TensorBoardSettings,
};
pub use privacy::PrivacySettings;
pub use stay::StaySettings;
pub use training::{AfterCompletion, Split, THREADS_MAX, TrainingSettings};

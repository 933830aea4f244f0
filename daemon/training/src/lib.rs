//! Training with candle: models, data, optimizer, flat parameters.
//!
//! An [`Engine`] trains one model on one device and knows nothing of networks: it steps, hands out
//! [snapshots](murmur_protocol::Snapshot) and adds [corrections](murmur_protocol::Correction). It owns no threads; on
//! the CPU it computes on rayon's pool, whose size the caller sets. Equal seeds, inputs and devices give equal bits.

pub mod data;
pub mod device;
pub mod engine;
pub mod generate;
mod gpu;
pub mod local_progress;
pub mod measure;
mod median;
pub mod memory;
pub mod model;
pub mod ops;
pub mod optimizer;
pub mod outer;
pub mod pretrained;
pub mod privacy;
mod regular;
mod replica;
pub mod schedule;
pub mod split;
pub mod team;

pub use candle_core::{Device, DeviceLocation};
pub use data::folders;
pub use data::table::{NewRows, TableStatistics};
pub use data::{Corpus, CorpusError, DataPlace, DataPosition, Tokenizer, clear_prepared};
pub use device::{DeviceChoice, DeviceError, free_memory};
pub use engine::{
    Counters, Engine, EngineState, GradientAverage, Precision, StageDevice, StageOnDevice, StepReport, Taken,
    TrainingError, TrainingOptions, why_not_cut, why_not_offloaded,
};
pub use generate::LanguageModel;
pub use local_progress::LocalProgress;
pub use median::median;
pub use memory::{MemoryEstimate, OffloadEstimate};
pub use model::{Evaluation, Scores, StageSpec, parameter_count, trained_layout};
pub use ops::base_weights::BaseWeights;
pub use outer::OuterMomentum;
pub use pretrained::{Pretrained, PretrainedBase, PretrainedConfig, PretrainedError};

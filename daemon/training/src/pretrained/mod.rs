//! Models from elsewhere: Hugging Face checkpoints of Llama and its relatives (`family.rs` lists them), read as the base
//! of a run and written as its result.
//!
//! A folder holds `config.json` and the weights, as `model.safetensors` or as several files with
//! `model.safetensors.index.json`. What this project cannot compute exactly is refused by name, never ignored: a model
//! that loads with other numbers than it was trained with is worse than one that does not load.

mod adapters;
mod config;
mod convert;
mod error;
mod export;
mod family;
mod files;
mod forms;
mod reader;
mod weights;

pub use adapters::{AdapterBase, export_adapters};
pub use config::{CONFIG_FILE, PretrainedConfig};
pub use convert::ExportType;
pub use error::PretrainedError;
pub use export::{companions, export};
pub use reader::end_tokens;
pub use weights::{Pretrained, PretrainedBase};

#[cfg(test)]
mod tests;

//! What the model reads: the story grammar, texts or images, held-out examples, and each node's own order of batches.

pub mod corpus;
mod error;
pub mod files;
pub mod grammar;
mod idx;
mod image_folders;
pub mod images;
mod json_lines;
mod parquet;
mod prepared;
pub mod sampler;
mod shared;
pub mod stories;
pub mod tokenizer;
mod tokens;

use candle_core::{Device, Result, Tensor};

pub use corpus::{Corpus, DataPlace};
pub use error::CorpusError;
pub use grammar::Grammar;
pub use images::{Image, ImageShape};
pub use sampler::{DataPosition, Sampler};
pub use tokenizer::Tokenizer;

/// `context + 1` consecutive bytes or tokens: each but the last is an input, each but the first a target.
pub type Window = Vec<u32>;

/// Bytes as token ids.
fn ids(bytes: &[u8]) -> Window {
    bytes.iter().map(|byte| u32::from(*byte)).collect()
}

/// Several windows of one length, as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Input token ids, `[sequences, context]` row-major.
    pub inputs: Vec<u32>,
    /// The byte or token after each input, of the same shape.
    pub targets: Vec<u32>,
    /// Number of windows.
    pub sequences: usize,
}

impl Batch {
    /// The batch of `windows`.
    ///
    /// # Panics
    /// When there is none.
    pub fn of(windows: &[Window]) -> Batch {
        assert!(!windows.is_empty(), "a batch has at least one window");
        Batch {
            inputs: windows.iter().flat_map(|window| &window[..window.len() - 1]).copied().collect(),
            targets: windows.iter().flat_map(|window| &window[1..]).copied().collect(),
            sequences: windows.len(),
        }
    }

    /// Number of predicted bytes or tokens.
    pub fn tokens(&self) -> usize {
        self.targets.len()
    }

    /// (inputs, targets), both `[sequences, context]` of `u32`, on `device`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn to_tensors(&self, device: &Device) -> Result<(Tensor, Tensor)> {
        let shape = (self.sequences, self.inputs.len() / self.sequences);
        Ok((Tensor::from_slice(&self.inputs, shape, device)?, Tensor::from_slice(&self.targets, shape, device)?))
    }
}

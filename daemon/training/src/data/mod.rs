//! What the model reads: the story grammar or files, held-out windows, and each node's own order of batches.

pub mod corpus;
pub mod grammar;
pub mod sampler;
mod shared;
pub mod stories;

use candle_core::{Device, Result, Tensor};

pub use corpus::{Corpus, CorpusError};
pub use grammar::Grammar;
pub use sampler::{DataPosition, Sampler};

/// `context + 1` consecutive bytes: each but the last is an input, each but the first a target.
pub type Window = Vec<u8>;

/// Several windows of one length, as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Input token ids, `[sequences, context]` row-major.
    pub inputs: Vec<u32>,
    /// The byte after each input, of the same shape.
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
        let ids = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).collect::<Vec<u32>>();
        Batch {
            inputs: windows.iter().flat_map(|window| ids(&window[..window.len() - 1])).collect(),
            targets: windows.iter().flat_map(|window| ids(&window[1..])).collect(),
            sequences: windows.len(),
        }
    }

    /// Number of predicted bytes.
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

//! What the model reads: the story grammar or files, held-out windows, and each node's own order of batches.

pub mod batch;
pub mod corpus;
pub mod grammar;
pub mod sampler;
mod shared;
pub mod stories;

pub use batch::{Batch, ImageBatch, TokenBatch};
pub use corpus::{Corpus, CorpusError};
pub use grammar::Grammar;
pub use sampler::{DataPosition, Sampler};

/// `context + 1` consecutive bytes: each but the last is an input, each but the first a target.
pub type Window = Vec<u8>;

//! What the model reads: the story grammar, texts, images or tables, held-out examples, and each node's own order of batches.

pub mod batch;
pub mod corpus;
mod error;
pub mod files;
pub mod folders;
pub mod grammar;
mod held_out;
mod idx;
mod image_folders;
mod image_shape;
pub mod images;
mod json_lines;
mod parquet;
mod permutation;
pub mod place;
mod prepared;
pub mod sampler;
mod shared;
pub mod stories;
pub mod table;
pub mod tokenizer;
mod tokens;

pub use batch::{Batch, ImageBatch, RowBatch, RowTargets, TokenBatch};
pub use corpus::Corpus;
pub use error::CorpusError;
pub use grammar::Grammar;
pub use image_shape::ImageShape;
pub use images::Image;
pub use place::DataPlace;
pub use prepared::clear_prepared;
pub use sampler::{DataPosition, Sampler};
pub use tokenizer::Tokenizer;

/// `context + 1` consecutive bytes or tokens: each but the last is an input, each but the first a target.
pub type Window = Vec<u32>;

/// Bytes as token ids.
fn ids(bytes: &[u8]) -> Window {
    bytes.iter().map(|byte| u32::from(*byte)).collect()
}

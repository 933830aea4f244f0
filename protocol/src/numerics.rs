//! The arithmetic of an exchange, as pure functions over flat parameters.
//!
//! Called inline by the simulator and on worker threads by the daemon, so what is simulated is what ships.
//!
//! The method is pairwise averaging with modular quantization (Moniqua, arXiv 2002.11787): a value is sent as the low
//! bits of its index on a dithered grid, and the partner, whose model is close, finds the difference. Both partners
//! hold the same integers with opposite signs, so the swarm's weighted mean is kept even where a code wraps.
//!
//! Partners that exchange again and again keep a common [`Reference`] and send one bit a value.

mod block_scale;
mod blocks;
mod buffers;
mod check;
mod code;
mod difference;
mod encode;
mod grid;
mod instruction_set;
mod jobs;
mod link;
mod merge;
mod packing;
mod reduce;
mod reference;
mod round;
mod scales;
mod slice_codec;
mod stream_codec;
mod weighing;
mod width;

pub use block_scale::BlockScale;
pub use buffers::Buffers;
pub(crate) use buffers::Pooled;
pub use encode::encode;
pub(crate) use instruction_set::{InstructionSet, Kernel};
pub use jobs::{EncodeJob, EncodeRole, Encoded, MergeJob, MergeRole, Merged};
pub use merge::merge;
pub use reduce::{Accumulator, ReduceJob, ReduceStep, Reduced, reduce, state_digest};
pub use reference::Reference;
pub use round::round_bytes;
pub use scales::Scales;
pub use slice_codec::SliceCodec;
pub use stream_codec::{StreamCodec, StreamError, StreamNotFinite};
pub use weighing::{contribution_values, mean, weighed};
pub use width::{CodeWidth, codes_bytes, scales_bytes};

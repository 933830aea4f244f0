//! The arithmetic of an exchange, as pure functions over flat parameters.
//!
//! Called inline by the simulator and on worker threads by the daemon, so what is simulated is what ships.
//!
//! The method is pairwise averaging with modular quantization (Moniqua, arXiv 2002.11787): a value is sent as the low
//! bits of its index on a dithered grid, and the partner, whose model is close, finds the difference. Both partners
//! hold the same integers with opposite signs, so the swarm's weighted mean is kept even where a code wraps.
//!
//! Partners that exchange again and again keep a common [`Reference`] and send one bit a value.

mod buffers;
mod check;
mod code;
mod difference;
mod encode;
mod grid;
mod instruction_set;
mod link;
mod merge;
mod packing;
mod reduce;
mod scales;
mod width;

pub use buffers::Buffers;
pub(crate) use buffers::Pooled;
pub use encode::{EncodeJob, EncodeRole, Encoded, encode};
pub(crate) use instruction_set::{InstructionSet, Kernel};
pub use link::Reference;
pub use merge::{MergeJob, MergeRole, Merged, merge};
pub use reduce::{ReduceJob, reduce, state_digest};
pub use scales::{BlockScale, Scales};
pub use width::{CodeWidth, codes_bytes, round_bytes, scales_bytes};

//! Transfers: one bulk stream for each payload, never through the control codec.
//!
//! ```text
//! sender   → u32 length of the header, header            (codec of the control messages, at most 4 KiB)
//!          → u8 form, u64 length of the payload          (little endian, as all numbers)
//!          → payload, in its form
//!          → 32 bytes: BLAKE3 of the payload
//! receiver → u32 bytes of the form that have come        (again and again, each time what is new; never 0)
//!          → u32 0, once the payload is verified and handed to the core; then both close
//! ```
//!
//! In the form 0 it is sent as it is. In the form 1 it is sent in blocks of 16 KiB, each behind a u32 that says how many bytes of it
//! follow: all as they are, or fewer, [packed](packing). A sender packs where the line is slow.
//!
//! The last word is there because closing a connection can lose the tail of a stream; the others tell the sender how fast
//! the line is and that it lives ([`flow`]). The receiver refuses an announced length over the model's before it allocates,
//! grows its buffer as bytes arrive, and gives up where nothing moves, or far less than any link carries. All of it runs in
//! the tasks of one peer, so a slow or hostile peer delays nobody else.

mod digest;
pub(crate) mod flow;
mod packing;
pub(crate) mod receive;
pub(crate) mod room;
pub(crate) mod send;

/// The receiver's last word.
const LAST_WORD: u32 = 0;

/// Bytes of each of its words.
const WORD_BYTES: usize = 4;

/// How a payload is sent.
const PLAIN: u8 = 0;
const IN_BLOCKS: u8 = 1;

/// Bytes of the form and the length.
const FORM_AND_LENGTH_BYTES: usize = 9;

/// Bytes of a BLAKE3 digest.
const DIGEST_BYTES: usize = 32;

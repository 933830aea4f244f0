//! Transfers: one bulk stream for each payload, never through the control codec.
//!
//! ```text
//! sender   → u32 length of the header, header            (codec of the control messages, at most 4 KiB)
//!          → u64 length of the payload, payload          (little endian; in chunks)
//!          → 32 bytes: BLAKE3 of the payload
//! receiver → 1 byte, once the payload is verified and handed to the core; then both close
//! ```
//!
//! The acknowledgement is there because closing a connection can lose the tail of a stream. The receiver refuses an
//! announced length over the model's before it allocates, grows its buffer as bytes arrive, and gives up where nothing
//! moves. All of it runs in the tasks of one peer, so a slow or hostile peer delays nobody else.

pub(crate) mod receive;
pub(crate) mod send;

/// The receiver's last word.
const ACKNOWLEDGEMENT: u8 = 1;

/// Bytes of a BLAKE3 digest.
const DIGEST_BYTES: usize = 32;

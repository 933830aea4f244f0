//! The one place that knows how control messages become bytes: bincode 2 with varint integers.
//!
//! bincode without a limit panics or aborts on hostile lengths and accepts trailing junk, so everything here has a
//! limit and checks that all bytes were used. Wire types hold no recursive and no zero-sized elements, which would get
//! around the limit. Golden bytes in [`message`](crate::message) fix the format, so that a byte-equal codec can take
//! bincode's place.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::enc::write::SizeWriter;
use bincode::{Decode, Encode};

/// The longest encoded control message or transfer header, in bytes. The longest of ours, a handshake, holds a
/// manifest of up to 16 KiB.
pub const CONTROL_BYTES_MAX: usize = 32 * 1024;

/// Why bytes from a peer are no control message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// More bytes than any control message has.
    #[error("a control message of {0} bytes: the limit is {CONTROL_BYTES_MAX}")]
    TooLong(usize),
    /// The bytes mean nothing.
    #[error("not a control message")]
    Malformed,
    /// A message, then something else.
    #[error("{0} bytes left over after a control message")]
    TrailingBytes(usize),
}

type Format = Configuration<LittleEndian, Varint, Limit<CONTROL_BYTES_MAX>>;

const FORMAT: Format = bincode::config::standard().with_limit::<CONTROL_BYTES_MAX>();

/// The bytes of a control message.
///
/// # Panics
/// When our own message is over [`CONTROL_BYTES_MAX`]: every list in one is bounded far below that.
pub fn encode<Wire: Encode>(message: &Wire) -> Vec<u8> {
    bincode::encode_to_vec(message, FORMAT).expect("our own control messages are bounded")
}

/// How many bytes [`encode`] makes of it.
///
/// # Panics
/// As [`encode`].
pub fn encoded_length<Wire: Encode>(message: &Wire) -> usize {
    let mut counter = SizeWriter::default();
    bincode::encode_into_writer(message, &mut counter, FORMAT).expect("our own control messages are bounded");
    counter.bytes_written
}

/// Reads a control message from exactly these bytes.
///
/// # Errors
/// When they are too many, mean nothing or hold more than one message. Never panics, whatever the bytes.
pub fn decode<Wire: Decode<()>>(bytes: &[u8]) -> Result<Wire, CodecError> {
    if bytes.len() > CONTROL_BYTES_MAX {
        return Err(CodecError::TooLong(bytes.len()));
    }
    let (message, consumed) = bincode::decode_from_slice(bytes, FORMAT).map_err(|_| CodecError::Malformed)?;
    match bytes.len() - consumed {
        0 => Ok(message),
        left_over => Err(CodecError::TrailingBytes(left_over)),
    }
}

/// Reads what a longer message begins with, such as its version.
///
/// # Errors
/// When they are too many, or begin with something else.
pub(crate) fn decode_beginning<Wire: Decode<()>>(bytes: &[u8]) -> Result<Wire, CodecError> {
    if bytes.len() > CONTROL_BYTES_MAX {
        return Err(CodecError::TooLong(bytes.len()));
    }
    bincode::decode_from_slice(bytes, FORMAT).map(|(beginning, _)| beginning).map_err(|_| CodecError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_lengths_beyond_the_limit_are_refused_without_allocating() {
        // A byte string of u64::MAX bytes.
        let hostile = [253, 255, 255, 255, 255, 255, 255, 255, 255];
        assert_eq!(decode::<Vec<u8>>(&hostile), Err(CodecError::Malformed));
        assert_eq!(decode::<Vec<u8>>(&[252, 0, 0, 0, 64]), Err(CodecError::Malformed));
    }

    #[test]
    fn trailing_bytes_and_long_messages_are_refused() {
        let mut bytes = encode(&7u32);
        bytes.push(0);
        assert_eq!(decode::<u32>(&bytes), Err(CodecError::TrailingBytes(1)));
        assert_eq!(decode::<u32>(&vec![0; CONTROL_BYTES_MAX + 1]), Err(CodecError::TooLong(CONTROL_BYTES_MAX + 1)));
    }
}

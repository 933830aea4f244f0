//! How streams and states travel: a short header, then bytes.

use crate::Payload;

use super::bounds::{FRAME_BYTES_MAX, MICROBATCHES_MAX, NUMBER_MAX, ROWS_MAX};
use super::layers::LayerRange;
use super::work::{Direction, Stream};
use bincode::{Decode, Encode};

/// Bytes of an encoded [`FrameHeader`]: epoch 8, batch 8, microbatch 4, rows 4, length 4, direction 1, all little-endian.
pub const FRAME_HEADER_BYTES: usize = 29;

/// A stream on its way from one stage to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Of the cut.
    pub epoch: u64,
    /// Number of the batch.
    pub batch: u64,
    /// Number of the microbatch.
    pub microbatch: u32,
    /// Which way it goes.
    pub direction: Direction,
    /// The stream.
    pub stream: Stream,
}

impl Frame {
    /// What goes ahead of the stream's bytes.
    ///
    /// # Panics
    /// When the stream is longer than [`FRAME_BYTES_MAX`]: no assignment allows that.
    pub fn header(&self) -> FrameHeader {
        let bytes = self.stream.payload.len() as u64;
        assert!(bytes <= FRAME_BYTES_MAX, "a stream of {bytes} bytes");
        FrameHeader {
            epoch: self.epoch,
            batch: self.batch,
            microbatch: self.microbatch,
            direction: self.direction,
            rows: self.stream.rows,
            bytes: bytes as u32,
        }
    }
}

/// What goes ahead of a stream's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Of the cut.
    pub epoch: u64,
    /// Number of the batch.
    pub batch: u64,
    /// Number of the microbatch.
    pub microbatch: u32,
    /// Which way it goes.
    pub direction: Direction,
    /// Rows of the stream.
    pub rows: u32,
    /// Bytes that follow; at most [`FRAME_BYTES_MAX`].
    pub bytes: u32,
}

/// Why bytes are no header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A direction that is none.
    #[error("a frame in no direction")]
    Direction,
    /// A number beyond its bound.
    #[error("a frame whose {0} is out of range")]
    OutOfRange(&'static str),
}

impl FrameHeader {
    /// Its bytes.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut encoded = [0; FRAME_HEADER_BYTES];
        encoded[0..8].copy_from_slice(&self.epoch.to_le_bytes());
        encoded[8..16].copy_from_slice(&self.batch.to_le_bytes());
        encoded[16..20].copy_from_slice(&self.microbatch.to_le_bytes());
        encoded[20..24].copy_from_slice(&self.rows.to_le_bytes());
        encoded[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        encoded[28] = match self.direction {
            Direction::Forward => 0,
            Direction::Backward => 1,
        };
        encoded
    }

    /// Reads a header, before anything is allocated for what follows.
    ///
    /// # Errors
    /// When a number is out of range. Never panics, whatever the bytes.
    pub fn decode(encoded: &[u8; FRAME_HEADER_BYTES]) -> Result<FrameHeader, FrameError> {
        let eight = |at: usize| u64::from_le_bytes(encoded[at..at + 8].try_into().expect("8 bytes"));
        let four = |at: usize| u32::from_le_bytes(encoded[at..at + 4].try_into().expect("4 bytes"));
        let direction = match encoded[28] {
            0 => Direction::Forward,
            1 => Direction::Backward,
            _ => return Err(FrameError::Direction),
        };
        let (epoch, batch, microbatch, rows, bytes) = (eight(0), eight(8), four(16), four(20), four(24));
        let within = [
            ("epoch", epoch < NUMBER_MAX),
            ("batch", batch < NUMBER_MAX),
            ("microbatch", microbatch < MICROBATCHES_MAX),
            ("rows", (1..=ROWS_MAX).contains(&rows)),
            ("length", u64::from(bytes) <= FRAME_BYTES_MAX),
        ];
        match within.iter().find(|(_, is_within)| !is_within) {
            Some((name, _)) => Err(FrameError::OutOfRange(name)),
            None => Ok(FrameHeader { epoch, batch, microbatch, direction, rows, bytes }),
        }
    }

    /// The frame of this header with the bytes that followed it.
    pub fn with(self, payload: Payload) -> Frame {
        let FrameHeader { epoch, batch, microbatch, direction, rows, bytes: _ } = self;
        Frame { epoch, batch, microbatch, direction, stream: Stream { rows, payload } }
    }
}

/// What a state's bytes are. All are written and read by the owners of the machines, which agree on their format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum StateKind {
    /// Frozen weights of the base, for adapters.
    Base,
    /// All that training changes: parameters, moments, the optimizer's count of steps.
    Training,
    /// Parameters alone.
    Parameters,
    /// What is added to parameters.
    Correction,
}

/// What goes ahead of a state's bytes. Encoded by [`codec`](crate::codec).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StateHeader {
    /// Of the cut.
    pub epoch: u64,
    /// Of the order that it answers or carries.
    pub request: u64,
    /// What the bytes are.
    pub kind: StateKind,
    /// Of which layers.
    pub layers: LayerRange,
    /// Of the state, once the bytes are taken up.
    pub revision: u64,
    /// Bytes that follow; a receiver compares them with what it expects before it allocates.
    pub bytes: u64,
}

//! What a stage computes, and the streams between stages.

use bincode::{Decode, Encode};

use crate::Payload;

/// Which way a stream goes through the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum Direction {
    /// Activations, from the embedding to the head.
    Forward,
    /// Their gradient, back.
    Backward,
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// A forward whose backward comes later; keeps what that needs.
    Forward,
    /// The backward of the microbatch whose forward was first of those that wait for theirs; adds to the gradient.
    Backward,
    /// A forward alone.
    Evaluate,
}

impl WorkKind {
    /// Which way its streams go.
    pub fn direction(self) -> Direction {
        match self {
            WorkKind::Forward | WorkKind::Evaluate => Direction::Forward,
            WorkKind::Backward => Direction::Backward,
        }
    }
}

/// Names a piece of work; the reply gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Work {
    /// Of the cut.
    pub epoch: u64,
    /// Number of the batch.
    pub batch: u64,
    /// Number of the stage in the cut, from 0.
    pub stage: u32,
    /// Number of the microbatch in the batch, from 0.
    pub microbatch: u32,
    /// What is computed.
    pub kind: WorkKind,
    /// Which of the two gradients that are added at the end a backward adds to: 0 or 1. See [`Lanes`](super::Lanes).
    pub lane: u8,
    /// Whether the microbatch is the first of its lane, which replaces what the lane's gradient was before.
    pub is_first: bool,
}

/// A stream `[rows, width]` as it crosses the wire. Whoever computes decodes it, computes from just these values, and keeps these
/// bytes where it computes activations again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Sequences times tokens.
    pub rows: u32,
    /// As [`StreamCodec`](crate::numerics::StreamCodec) writes it.
    pub payload: Payload,
}

/// What came of a piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done. The stream is that for the next stage in its direction; none where there is no such stage, as of the last one's
    /// forward.
    Output(Option<Stream>),
    /// It is done and a value of its stream is not finite: the batch comes to nothing, as one whose gradient is no number.
    NotFinite,
    /// The input cannot be decoded: who sent it is to blame.
    InputUnfit,
    /// It failed here.
    Failed(String),
}

/// How streams are written on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Wire {
    /// 4 bytes a value, exact.
    F32,
    /// A byte a value and two for each block of 64 along the width.
    Codes8,
}

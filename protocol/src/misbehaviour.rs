//! What no honest peer does.

use bincode::{Decode, Encode};

/// What an honest peer never does. A value, counted, never a panic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, thiserror::Error)]
pub enum Misbehaviour {
    /// Bytes that are no message, or too many of them.
    #[error("sent bytes that are no message: {0}")]
    Garbage(String),
    /// A payload of a length that does not fit the model.
    #[error("sent a payload of {actual} bytes where {expected} belong")]
    WrongLength {
        /// Bytes that the model's layout calls for.
        expected: u64,
        /// Bytes sent or announced.
        actual: u64,
    },
    /// A state of another layout.
    #[error("sent a model of another layout")]
    WrongLayout,
    /// Not a number, infinite or beyond all reason.
    #[error("sent a value that is not finite or out of range: {0}")]
    OutOfRange(String),
    /// An order to finish the run that its founder has not signed.
    #[error("sent an order to finish the run that its founder has not signed")]
    Forged,
    /// The two sides of an exchange do not compute the same.
    #[error("computed another difference than this node")]
    Disagreement,
    /// Something that nobody asked for.
    #[error("sent what nobody asked for")]
    Unsolicited,
    /// A transfer that took far longer than its link needs, while it kept a place.
    #[error("kept a transfer waiting")]
    Stalled,
}

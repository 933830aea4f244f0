//! All-reduce among a group: everybody contributes a vector, everybody gets the sum of all.
//!
//! A [`Collective`] is one member's part, a state machine without I/O and without vectors: it says what to send and what
//! to absorb, and its owner holds the numbers. It carries out any [`Schedule`]. What is reduced is the owner's business:
//! gradients in every step, or parameters every H steps.
//!
//! ```text
//! Contribute(k) ──► owner computes ──► contributed(k)
//! Begin(k): the owner's sum is its contribution
//! Send … , Absorb … by the schedule, round by round
//! Finish(k): the sum is complete; the owner takes it up ──► Contribute(k + 1)
//! ```
//!
//! **A member that dies.** An operation that takes longer than operations have taken before (a learned deadline) is
//! dropped by everybody, and all say how far they are ([`Word::Stalled`]). The lowest of those that were heard announces a
//! new [`Epoch`] with them, provided that they are a quorum of the epoch before, so at most one part of a group that is
//! split goes on. The operation is begun anew with the contributions that everybody kept. A member that missed the end of
//! an operation, or comes back from the other side of a split, copies the state of one that has it: so all that take part
//! in an operation begin it with the same bits. How long a member stood still is counted.
//!
//! Words may be lost, repeated and late. Slices and states may be repeated and late; where they are lost, it costs an
//! epoch.

mod agreement;
mod executor;
mod members;
pub mod schedule;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use executor::SLACK;
pub use executor::{Collective, Patience};
pub use members::Members;
pub use schedule::{Action, Move, Schedule, Shape, Slices};

/// The most members of a group: a set of them is one word of 64 bits.
pub const MEMBERS_MAX: usize = 64;

/// Names a member for the whole run, from 0; at most [`MEMBERS_MAX`] of them.
pub type Place = u16;

/// Names one agreement on who takes part. Later ones are greater; of two with one number, the one of the lower leader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Counts agreements, from 0.
    pub number: u32,
    /// Who announced it.
    pub leader: Place,
}

impl Epoch {
    /// The agreement with which a run begins.
    pub const FIRST: Epoch = Epoch { number: 0, leader: 0 };
}

impl Ord for Epoch {
    fn cmp(&self, other: &Epoch) -> std::cmp::Ordering {
        self.number.cmp(&other.number).then(other.leader.cmp(&self.leader))
    }
}

impl PartialOrd for Epoch {
    fn partial_cmp(&self, other: &Epoch) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Names a member's state: two members with the same standing have the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// Operations finished.
    pub operations: u64,
    /// The epoch in which the last one was.
    pub epoch: Epoch,
}

/// What members say to each other beside slices and states. Small; may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The sender has dropped the operation under way.
    Stalled {
        /// The sender's epoch.
        epoch: Epoch,
        /// The members of that epoch.
        members: Members,
        /// How far it is.
        standing: Standing,
    },
    /// From now on these take part.
    Announced {
        /// The new epoch.
        epoch: Epoch,
        /// Its members.
        members: Members,
        /// With which state they go on.
        standing: Standing,
        /// Who has that state; the lowest of them gives it to the others.
        current: Members,
    },
}

/// One slice on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceName {
    /// The epoch of the schedule.
    pub epoch: Epoch,
    /// Which operation.
    pub operation: u64,
    /// Which line of the schedule.
    pub line: usize,
}

/// What a member's owner is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Compute what this member contributes to an operation; reply with [`Collective::contributed`].
    Contribute {
        /// Which operation, from 0.
        operation: u64,
    },
    /// Set the sum to the own contribution: the schedule begins.
    Begin {
        /// Which operation.
        operation: u64,
    },
    /// Send slices of the sum as it is now.
    Send {
        /// The member that receives it.
        to: Place,
        /// The slices' name; the receiver tells it to [`Collective::slice_received`].
        name: SliceName,
        /// The line.
        what: Move,
    },
    /// Add received slices to the sum, or replace the sum's by them.
    Absorb {
        /// The slices' name.
        name: SliceName,
        /// The line.
        what: Move,
    },
    /// The sum is complete: take it up, once.
    Finish {
        /// Which operation.
        operation: u64,
        /// The state that the member then has.
        standing: Standing,
        /// Whose contributions are in it, each once.
        members: Members,
    },
    /// Send a copy of the whole state; the receiver tells it to [`Collective::state_received`].
    GiveState {
        /// The member that receives it.
        to: Place,
        /// The state's name.
        standing: Standing,
        /// For which epoch.
        epoch: Epoch,
    },
    /// Put a copy of another member's state, which has arrived, in the place of the own one.
    TakeState {
        /// The state's name.
        standing: Standing,
        /// For which epoch it came.
        epoch: Epoch,
    },
    /// Say something.
    Say {
        /// The member that receives it.
        to: Place,
        /// What is said.
        word: Word,
    },
}

/// What a member went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations finished.
    pub finished: u64,
    /// Operations dropped and begun anew.
    pub dropped: u64,
    /// States copied from another member.
    pub copied: u64,
    /// From the beginning of each dropped operation until a new epoch.
    pub stood_still: Duration,
    /// Slices, states and words that came twice or too late.
    pub ignored: u64,
}

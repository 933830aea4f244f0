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
//! **A member that dies.** An operation that takes longer than operations have taken before (a learned deadline), or whose
//! member is out of reach, is dropped by everybody, and all say how far they are ([`Word::Stalled`]). The lowest of those
//! that were heard announces a new [`Epoch`] with them. The operation is begun anew with the contributions that everybody
//! kept. A member that missed the end of an operation copies the state of one that has it: so all that take part in an
//! operation begin it with the same bits. How long a member stood still is counted.
//!
//! **A group that is split.** [`Split::Quorum`]: an epoch needs a quorum of the one before, so at most one part goes on.
//! [`Split::EachGoesOn`]: every part does, and where two parts meet again the smaller one copies the larger one's state.
//! That is for machines that come and go: where two are left and one dies, the other one is to go on.
//!
//! **A member that comes.** It seeks a group ([`Beginning::Seeking`]): it says that it stands still, the group's leader
//! takes it in after the operation under way, and it copies the state. Where nobody answers, one that has a state begins a
//! group of its own.
//!
//! **A member that ends** ([`Collective::end`]) says so, gives its state to who is behind, and knows how long it may be needed:
//! nobody is left waiting for somebody whose work was done.
//!
//! **Bits.** Slices carry a digest of the state from which their sender began. A member that receives another one than its
//! own drops the operation; those in the minority copy the state of the majority.
//!
//! Words may be lost, repeated and late. Slices and states may be repeated and late; where they are lost, it costs an
//! epoch.

mod agreement;
mod ending;
mod executor;
mod lateness;
mod loss;
mod members;
mod phase;
pub mod schedule;
#[cfg(test)]
mod tests;
mod timeouts;

use std::ops::Add;
use std::time::Duration;

use bincode::{Decode, Encode};

use crate::bounds::PROGRESS_MAX;
use crate::peer::PeerId;

pub use executor::Collective;
pub(crate) use executor::SLACK;
pub use members::Members;
pub use schedule::{Action, Move, Schedule, Shape, Slices};
pub use timeouts::{Beginning, LISTENING, Split, Timeouts};

/// The most members of a group: as many as a node is connected to at most, and a set of them fits a control message.
pub const MEMBERS_MAX: usize = 64;

/// Numbers of epochs that are told stay below this, so that counting on never overflows.
pub const EPOCH_NUMBER_MAX: u64 = 1 << 62;

/// Operations that a group may have finished: no run has more steps. A member may say that it has finished any number up to this
/// one, whatever it has; nobody begins one beyond, for others would take its next word for an offence.
pub const OPERATIONS_MAX: u64 = PROGRESS_MAX as u64;

/// Names one agreement on who takes part. Later ones are greater; of two with one number, the one of the lower leader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Epoch {
    /// Counts agreements. Below [`EPOCH_NUMBER_MAX`].
    pub number: u64,
    /// Who announced it.
    pub leader: PeerId,
}

impl Epoch {
    /// The one that `leader` announces after those of this number; `None` where somebody has used up the numbers. Others would
    /// take the next one for an offence.
    fn after(number: u64, leader: PeerId) -> Option<Epoch> {
        let number = number.saturating_add(1);
        (number < EPOCH_NUMBER_MAX).then_some(Epoch { number, leader })
    }
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

/// Names a member's state: two members with the same version have the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Version {
    /// Operations finished. At most [`OPERATIONS_MAX`].
    pub operations: u64,
    /// The epoch in which the last one was.
    pub epoch: Epoch,
}

/// What members say to each other beside slices and states. Small; may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Word {
    /// The sender has dropped the operation under way, or seeks a group.
    Stalled(Stalled),
    /// From now on these take part.
    Announced(Announced),
    /// To somebody who is in another group, or in none: the sender is in this one.
    Running {
        /// Its epoch.
        epoch: Epoch,
        /// The members of that epoch.
        members: Members,
        /// How far it is.
        version: Version,
    },
    /// The sender contributes no more, and is so far. It gives its state to who is behind.
    Ended(Version),
}

/// How a member stands that takes part in no operation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Stalled {
    /// Its epoch.
    pub epoch: Epoch,
    /// The members of that epoch; nobody where it seeks a group.
    pub members: Members,
    /// How far it is; `None` where it has no state.
    pub version: Option<Version>,
    /// Digest of its state; 0 where it does not know it.
    pub digest: u64,
    /// Whom it reaches directly, itself among them.
    pub reaches: Members,
}

/// A new epoch.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Announced {
    /// Its name.
    pub epoch: Epoch,
    /// Who takes part.
    pub members: Members,
    /// With which state they go on.
    pub version: Version,
    /// Who has that state; the lowest of them gives it to the others.
    pub current: Members,
}

impl Word {
    /// Whether its sets are sets and its numbers within bounds.
    pub fn is_sound(&self) -> bool {
        let bounded = |epoch: &Epoch| epoch.number < EPOCH_NUMBER_MAX;
        let sound = |version: &Version| bounded(&version.epoch) && version.operations <= OPERATIONS_MAX;
        match self {
            Word::Stalled(Stalled { epoch, members, version, digest: _, reaches }) => {
                bounded(epoch) && members.is_sound() && reaches.is_sound() && version.as_ref().is_none_or(sound)
            }
            Word::Announced(Announced { epoch, members, version, current }) => {
                let all_known = current.without(members).is_empty() && !current.is_empty();
                bounded(epoch) && members.is_sound() && current.is_sound() && all_known && sound(version)
            }
            Word::Running { epoch, members, version } => bounded(epoch) && members.is_sound() && sound(version),
            Word::Ended(version) => sound(version),
        }
    }
}

/// One slice on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct SliceName {
    /// The epoch of the schedule.
    pub epoch: Epoch,
    /// Which operation.
    pub operation: u64,
    /// Which line of the schedule.
    pub line: u32,
    /// Digest of the state from which its sender began.
    pub digest: u64,
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
        /// The epoch of the schedule.
        epoch: Epoch,
    },
    /// Send slices of the sum as it is now.
    Send {
        /// The member that receives it.
        to: PeerId,
        /// The slices' name; the receiver tells it to [`Collective::slice_received`].
        name: SliceName,
        /// The schedule's line: which slices, and what their receiver does with them.
        what: Move,
    },
    /// Add received slices to the sum, or replace the sum's by them.
    Absorb {
        /// The slices' name.
        name: SliceName,
        /// The schedule's line: which slices, and what their receiver does with them.
        what: Move,
    },
    /// The sum is complete: take it up, once.
    Finish {
        /// Which operation.
        operation: u64,
        /// The state that the member then has.
        version: Version,
        /// Whose contributions are in it, each once.
        members: Members,
    },
    /// Send a copy of the whole state; the receiver tells it to [`Collective::state_received`].
    GiveState {
        /// The member that receives it.
        to: PeerId,
        /// The state's name.
        version: Version,
        /// For which epoch.
        epoch: Epoch,
    },
    /// Put a copy of another member's state, which has arrived, in the place of the own one.
    TakeState {
        /// The state's name.
        version: Version,
        /// For which epoch it came.
        epoch: Epoch,
    },
    /// Say something.
    Say {
        /// The member that receives it.
        to: PeerId,
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
    /// From each own contribution until the sum is complete, and for copies of a state: all the time that the owner had
    /// nothing to compute.
    pub waited: Duration,
    /// Times that slices came from somebody with other bits.
    pub differed: u64,
    /// Slices, states and words that came twice or too late.
    pub ignored: u64,
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            finished: self.finished + other.finished,
            dropped: self.dropped + other.dropped,
            copied: self.copied + other.copied,
            stood_still: self.stood_still + other.stood_still,
            waited: self.waited + other.waited,
            differed: self.differed + other.differed,
            ignored: self.ignored + other.ignored,
        }
    }
}

//! How a member begins, how long it waits for the others, and who goes on without whom.

use std::time::Duration;

use super::{Epoch, Members};
use crate::Time;

/// How many of its own waits a member believes what another one has said.
pub(super) const WAITS_BELIEVED: u32 = 2;

/// How long daemons listen to each other before they agree on who goes on: many round trips, and short beside a wait for
/// somebody who is gone. A guess.
pub const LISTENING: Duration = Duration::from_secs(1);

/// How long a member waits for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the first operation, before anything is known, where bytes take no time.
    pub initial: Duration,
    /// The least ever.
    pub floor: Duration,
    /// How long a contribution takes on its way from one member to another at most, on the slowest line.
    pub contribution: Duration,
    /// The same of a copy of the state.
    pub state: Duration,
    /// How long members listen to each other before they agree; `None`: as long as an operation may take.
    pub listening: Option<Duration>,
    /// What becomes of a group that is split.
    pub split: Split,
    /// Members below which nobody goes on, at least 1.
    pub members_min: usize,
}

impl Default for Timeouts {
    /// Guesses: half a minute, and a second.
    fn default() -> Timeouts {
        Timeouts {
            initial: Duration::from_secs(30),
            floor: Duration::from_secs(1),
            contribution: Duration::ZERO,
            state: Duration::ZERO,
            listening: None,
            split: Split::Quorum,
            members_min: 1,
        }
    }
}

/// Who goes on when a group is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The part that is a quorum; the others wait.
    Quorum,
    /// Every part, until they meet again: then the smaller one copies the state of the larger one.
    EachGoesOn,
}

/// How a member begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Beginning {
    /// With these, all in one state.
    Together(Members),
    /// Without a group.
    Seeking {
        /// Names no epoch that this member has announced before.
        epoch: Epoch,
        /// Operations behind its state; `None` where it has no state.
        operations: Option<u64>,
        /// When it may go on alone at the earliest, where it has a state.
        until: Time,
    },
}

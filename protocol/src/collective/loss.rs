//! What a member's owner has, and what it has lost: a member claims no state that is not there.

use super::executor::Phase;
use super::stall::Stall;
use super::{Collective, Members, Version};
use crate::Time;

impl Collective {
    /// The owner has lost what it had of the operation under way, or its state is to be another one: it is to be copied from
    /// another member.
    pub fn state_lost(&mut self, now: Time) {
        if !self.is_over {
            (self.has_contribution, self.is_contributing) = (false, false);
            self.give_way(now);
        }
    }

    /// The owner has carried out the last order to finish an operation or to take a state.
    pub fn taken_up(&mut self) {
        (self.is_untaken, self.version_before) = (false, None);
    }

    /// The owner cannot carry out the last order to finish an operation or to take a state: it has the one that it had before.
    /// [`state_lost`](Self::state_lost) or [`pause`](Self::pause) is to follow.
    pub fn not_taken_up(&mut self) {
        if self.is_over {
            return;
        }
        match self.version_before.take() {
            Some(version) => self.version = version,
            None => self.has_state = false,
        }
        (self.is_untaken, self.digest) = (false, 0);
    }

    /// The owner takes no part for now, and says nothing; [`state_lost`](Self::state_lost) is the way back. Once its work is over
    /// nothing changes: it takes part in nothing, and others may need its state.
    pub fn pause(&mut self) {
        if self.is_over {
            return;
        }
        (self.members, self.seeks, self.deferred) = (Members::default(), true, None);
        (self.has_contribution, self.is_contributing, self.idle_since) = (false, false, None);
        self.phase = Phase::Stalled(Stall::begin(Time::MAX, Time::MAX));
    }

    /// The state has this name once the owner has carried out what is ordered next.
    pub(super) fn set_version(&mut self, version: Version) {
        if !self.is_untaken {
            (self.is_untaken, self.version_before) = (true, self.has_state.then_some(self.version));
        }
        (self.version, self.has_state, self.digest) = (version, true, 0);
    }
}

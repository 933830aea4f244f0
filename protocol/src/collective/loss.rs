//! What a member's owner has, what it has lost, and what does not come: a member claims no state that is not there, and holds
//! nobody up for a contribution.

use super::phase::{Phase, Stall};
use super::timeouts::Split;
use super::{Collective, Members, Version};
use crate::Time;

impl Collective {
    /// The others have dropped the epoch. Whether that was for this member's contribution, and once too often: then it has left.
    pub(super) fn is_too_late(&mut self) -> bool {
        let is_awaited = matches!(self.phase, Phase::Contributing) && self.is_contributing;
        if !is_awaited || self.timeouts.split == Split::Quorum {
            return false;
        }
        if !self.lateness.is_once_too_often() {
            return false;
        }
        self.pause();
        self.lateness.is_left_out = true;
        true
    }

    /// Whether it takes no part because its contribution does not come.
    pub fn is_left_out(&self) -> bool {
        self.lateness.is_left_out
    }

    /// The contribution that did not come is there: the owner goes on. It is of a state that the others have left behind.
    pub(super) fn come_back(&mut self, now: Time) {
        self.lateness.come_back();
        self.state_lost(now);
    }

    /// The owner has lost what it had of the operation under way, or its state is to be another one: it is to be copied from
    /// another member.
    pub fn state_lost(&mut self, now: Time) {
        if !self.is_over {
            (self.has_contribution, self.is_contributing) = (false, false);
            self.lateness.is_left_out = false;
            if self.has_state {
                self.idle_since.get_or_insert(now);
            }
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
        self.lateness.is_left_out = false;
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

//! The end of a member's work: it says so, and nobody who is behind is left without the state.
//!
//! Members reach the end of a run a moment apart, and one may have missed what the others needed for their last operation.
//! So one that has ended tells the others how far it is ([`Word::Ended`]), gives its state to who is behind, and knows how
//! long it may still be needed ([`Collective::is_needed`]). Who has ended counts as present for all operations behind its
//! state: a member that is left alone there waits for nobody.
//!
//! One that has ended belongs to no epoch any more. Whom it gives its state to it names a new one, of the two of them: so it
//! gives to several at once, and none of them is left out for another one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lateness::Lateness;
use super::phase::{Outside, Phase};
use super::timeouts::{Split, WAITS_BELIEVED};
use super::{Announced, Collective, Epoch, MEMBERS_MAX, Members, Order, Stalled, Version, Word};
use crate::Time;
use crate::peer::PeerId;

impl Collective {
    /// The owner's work is done: no contribution will come. Who is behind, or seeks the state, gets it.
    pub fn end(&mut self, now: Time) {
        (self.is_over, self.is_contributing, self.has_contribution) = (true, false, false);
        (self.deferred, self.idle_since, self.lateness) = (None, None, Lateness::default());
        self.phase = Phase::Contributing;
        // Also who takes no part now, because its contribution did not come.
        self.behind = self.everybody.clone();
        self.behind.remove(self.me);
        self.needed_until = Some(now + self.farewell());
        self.say_to_all(&self.everybody.clone(), &Word::Ended(self.version));
        // Others have been taken in since, or say it once more.
        let believed = self.listening() * WAITS_BELIEVED;
        for (peer, one) in std::mem::take(&mut self.outside) {
            if now.saturating_since(one.heard) <= believed {
                self.invite_at_the_end(now, peer, &one);
            }
        }
    }

    /// Whether others may still need the state of this member, whose work is over: some of them are in reach and have not
    /// said that they have ended, and they have had less time than it takes them to notice that they miss something.
    pub fn is_needed(&self, now: Time) -> bool {
        let is_open = |peer: PeerId| self.everybody.contains(peer) && !self.ended.contains_key(&peer);
        self.needed_until.is_some_and(|until| now < until) && self.behind.iter().any(is_open)
    }

    /// The longest that a member which has ended stays for others, a copy of its state included.
    pub fn farewell_max(&self) -> Duration {
        self.farewell() + self.limit_with_copies(1)
    }

    /// From the end until everybody who has missed something has said so.
    fn farewell(&self) -> Duration {
        self.limit() + self.listening()
    }

    /// Somebody stands still. Where it is behind, it is to have the state.
    pub(super) fn invite_who_is_behind(&mut self, now: Time, from: PeerId, said: Stalled) {
        let is_behind = said.version.is_none_or(|version| version.operations < self.version.operations);
        if !is_behind || !self.everybody.contains(from) || from == self.me {
            self.counts.ignored += 1;
            return;
        }
        let one = Outside { heard: now, epoch: said.epoch.number, reaches: said.reaches };
        self.invite_at_the_end(now, from, &one);
    }

    fn invite_at_the_end(&mut self, now: Time, peer: PeerId, one: &Outside) {
        self.behind.insert(peer);
        self.needed_until = Some(now + self.farewell_max());
        if !self.gives_at_the_end() || !one.reaches.contains(self.me) {
            return;
        }
        // It said so before it heard that it is given the state, or has missed that. The copy is on its way.
        let given = self.given.get(&peer).copied().filter(|number| one.epoch < *number);
        let again = given.map(|number| Epoch { number, leader: self.me });
        let epoch = again.or_else(|| Epoch::after(one.epoch.max(self.epoch.number), self.me));
        let Some(epoch) = epoch else { return };
        let (members, current) = ([self.me, peer].into_iter().collect(), [self.me].into_iter().collect());
        let version = self.version;
        let word = Word::Announced(Announced { epoch, members, version, current });
        self.order(Order::Say { to: peer, word });
        if given.is_none() {
            self.epoch = epoch;
            self.given.insert(peer, epoch.number);
            self.order(Order::GiveState { to: peer, version, epoch });
        }
    }

    /// Of those that have ended the lowest one in reach gives the state.
    fn gives_at_the_end(&self) -> bool {
        let is_there = |peer: &PeerId| self.everybody.contains(*peer);
        let is_as_far = |version: &Version| version.operations >= self.version.operations;
        let others = self.ended.iter().filter(|(peer, version)| is_there(peer) && is_as_far(version));
        others.map(|(peer, _)| *peer).all(|other| self.me < other)
    }

    pub(super) fn on_ended(&mut self, now: Time, from: PeerId, version: Version) {
        if from == self.me || (self.ended.len() >= MEMBERS_MAX && !self.ended.contains_key(&from)) {
            self.counts.ignored += 1;
            return;
        }
        self.ended.insert(from, version);
        if let Phase::Stalled(stall) = &mut self.phase {
            stall.forget_running(from);
        }
        if !self.is_over && matches!(self.phase, Phase::Reducing(_) | Phase::Stalled(_)) {
            self.go_on_without_ended(now);
        }
        self.come_back_at_the_end(now);
    }

    /// A member that is left out, until its contribution is there, asks for what it has missed once nobody is at work any more: those
    /// that have ended do not stay for long.
    pub(super) fn come_back_at_the_end(&mut self, now: Time) {
        let is_ahead = |peer| self.ended.get(&peer).is_some_and(|one| one.operations > self.version.operations);
        let nobody_works = at_work(&self.ended, &self.everybody).iter().all(|peer| peer == self.me);
        if self.is_left_out() && nobody_works && self.everybody.iter().any(is_ahead) {
            self.come_back(now);
        }
    }

    /// Drops those that take no part in the next operation, because they have ended before it; `false` where there are none.
    pub(super) fn go_on_without_ended(&mut self, now: Time) -> bool {
        let takes_no_part =
            |peer: PeerId| self.ended.get(&peer).is_some_and(|version| version.operations <= self.version.operations);
        let gone: Members = self.members.iter().filter(|peer| takes_no_part(*peer)).collect();
        if gone.is_empty() || self.timeouts.split == Split::Quorum {
            return false;
        }
        self.members = self.members.without(&gone);
        if !self.is_stalled() {
            self.stall(now);
        }
        self.decide_early(now);
        true
    }

    /// Tells somebody who has come that this member has ended.
    pub(super) fn say_ended(&mut self, to: PeerId) {
        if self.is_over {
            self.order(Order::Say { to, word: Word::Ended(self.version) });
        }
    }
}

/// Those that have not ended.
pub(super) fn at_work(ended: &BTreeMap<PeerId, Version>, members: &Members) -> Members {
    members.iter().filter(|peer| !ended.contains_key(peer)).collect()
}

/// How many beside those present have ended with the operation that follows this state behind them.
pub(super) fn ended_ahead(ended: &BTreeMap<PeerId, Version>, present: &Members, version: Version) -> usize {
    let is_ahead = |one: &Version| one.operations > version.operations;
    ended.iter().filter(|(peer, one)| is_ahead(one) && !present.contains(**peer)).count()
}

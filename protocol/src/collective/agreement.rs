//! Agreement on who goes on, after an operation has taken too long or somebody has come.
//!
//! Safety rests on two rules. With [`Split::Quorum`] an epoch needs a quorum of the latest epoch that any of its members
//! knows, so two epochs over one group share a member. And whoever begins an operation has the same [`Version`], which
//! names the epoch of the last operation, so a member that finished one that the others did not copies their state, or they
//! its. With [`Split::EachGoesOn`] the second rule alone holds: two parts then have states of two names.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ending::{at_work, ended_ahead};
use super::phase::{Outside, Phase, Stall};
use super::timeouts::{Split, WAITS_BELIEVED};
use super::{Announced, Collective, Epoch, Members, OPERATIONS_MAX, Order, Stalled, Version, Word};
use crate::Time;
use crate::peer::PeerId;

/// How often members of other groups in reach are told that this one works: what was said when they met may have been lost, or have
/// come while one of them stood still. A guess.
const TELL_OTHERS: Duration = Duration::from_secs(10);

impl Collective {
    /// Drops the operation under way and tells everybody.
    pub(super) fn stall(&mut self, now: Time) {
        let since = match &self.phase {
            Phase::Reducing(reduction) => reduction.begun,
            Phase::Copying { since, .. } => *since,
            Phase::Stalled(stall) => stall.since,
            Phase::Contributing => now,
        };
        let until = now + self.listening();
        match &mut self.phase {
            Phase::Stalled(stall) => stall.until = until,
            _ => self.phase = Phase::Stalled(Stall::begin(since, until)),
        }
        let word = self.own_word();
        self.say_to_all(&self.everybody.clone(), &word);
    }

    /// Leaves its group for a larger one, or because its state is lost. It waits to be taken in.
    pub(super) fn give_way(&mut self, now: Time) {
        self.left = std::mem::take(&mut self.members);
        self.deferred = None;
        self.seeks = true;
        self.stall(now);
    }

    pub(super) fn own_word(&self) -> Word {
        Word::Stalled(Stalled {
            epoch: self.epoch,
            members: self.members.clone(),
            version: self.has_state.then_some(self.version),
            digest: self.digest,
            reaches: self.everybody.clone(),
        })
    }

    /// How long is listened to others before a decision.
    pub(super) fn listening(&self) -> Duration {
        self.timeouts.listening.unwrap_or_else(|| self.limit())
    }

    fn believed(&self) -> Duration {
        self.limit().max(self.listening()) * WAITS_BELIEVED
    }

    pub(super) fn on_stalled(&mut self, now: Time, from: PeerId, said: Stalled) {
        // Where it had ended, it has begun anew.
        self.ended.remove(&from);
        if self.is_over {
            return self.invite_who_is_behind(now, from, said);
        }
        if !self.everybody.contains(from) || from == self.me {
            self.counts.ignored += 1;
            return;
        }
        let is_ours = said.epoch == self.epoch && self.members.contains(from) && said.members.contains(from);
        if is_ours && !self.is_stalled() {
            // An announcement that waited for the end of this operation will not see it.
            if let Some(announced) = self.deferred.take() {
                return self.adopt(now, announced);
            }
            // Where nobody is gone, slices were waited for.
            if said.members == self.members && self.is_too_late() {
                return;
            }
            self.stall(now);
        }
        // It has left this epoch to seek another group, or has gone on without this member: nobody is to wait for its slices.
        let is_elsewhere = said.epoch > self.epoch || (said.epoch == self.epoch && said.members.is_empty());
        let has_left = is_elsewhere && !said.members.contains(self.me) && self.members.contains(from);
        if has_left && !self.is_stalled() && self.timeouts.split == Split::EachGoesOn {
            self.members.remove(from);
            self.stall(now);
        }
        if self.is_alone_behind(&said) {
            self.give_way(now);
        }
        // It said so before it heard that it has been taken in.
        let is_stale = said.epoch < self.epoch;
        if let Phase::Stalled(stall) = &mut self.phase {
            stall.hear(now, from, said);
            self.decide_early(now);
        } else if !self.members.contains(from) || (said.members.is_empty() && !is_stale) {
            self.outside.insert(from, Outside::of(now, &said));
            if self.timeouts.split == Split::EachGoesOn {
                self.say_running(from);
            }
        } else if let Some(word) = self.announced.clone().filter(|_| said.epoch < self.epoch) {
            // It has missed the announcement, and nothing goes on without it.
            self.order(Order::Say { to: from, word });
        }
    }

    /// Whether this member is its whole group, and one without a group is further: as of two groups of one, that one's state counts.
    fn is_alone_behind(&self, said: &Stalled) -> bool {
        let is_further = said.version.is_some_and(|version| version.operations > self.version.operations);
        let are_alone = said.members.is_empty() && self.members.len() == 1;
        self.timeouts.split == Split::EachGoesOn && is_further && are_alone && !self.is_stalled()
    }

    /// Somebody of another group, or of a later epoch of this one, works.
    pub(super) fn on_running(&mut self, now: Time, from: PeerId, epoch: Epoch, (members, version): (Members, Version)) {
        if self.timeouts.split == Split::Quorum || !self.everybody.contains(from) || self.is_over {
            return;
        }
        if self.members.contains(from) {
            if epoch <= self.epoch || members.contains(self.me) {
                return;
            }
            // It has gone on without this member, which waits for slices that nobody will send.
            self.members.remove(from);
            if !self.is_stalled() {
                self.stall(now);
            }
        }
        // Who has ended trains no more, whomever it gives its state to. Of two parts that are alike one gives way.
        let (other, own) = (at_work(&self.ended, &members).len(), at_work(&self.ended, &self.members).len());
        let (other, own) = ((other, version, epoch), (own, self.group_version(), self.epoch));
        if let Phase::Stalled(stall) = &mut self.phase {
            stall.running.insert(from, now);
        } else if other > own {
            self.give_way(now);
        } else if other < own || !matches!(self.phase, Phase::Copying { .. }) {
            self.say_running(from);
        }
    }

    /// How far the group of this member is, which may be copying the state.
    pub(super) fn group_version(&self) -> Version {
        if let Phase::Copying { version, .. } = self.phase { version } else { self.version }
    }

    /// Members of the epoch before take no part in this one: they are not to wait for this member.
    pub(super) fn tell_left_behind(&mut self, before: &Members) {
        if self.timeouts.split == Split::EachGoesOn {
            let is_left = |peer: &PeerId| *peer != self.me && self.everybody.contains(*peer);
            let left: Members = before.without(&self.members).iter().filter(is_left).collect();
            left.iter().for_each(|to| self.say_running(to));
        }
    }

    /// Somebody sends slices of an epoch that this member has left, and has not heard so: what was said of it may have been lost, or
    /// have come before the announcement of that epoch.
    pub(super) fn tell_who_waits_in_an_old_epoch(&mut self, from: PeerId, epoch: Epoch) {
        let is_elsewhere = epoch <= self.epoch && !self.members.contains(from) && self.everybody.contains(from);
        let is_silent = self.is_over || self.is_left_out() || self.timeouts.split == Split::Quorum;
        if !is_elsewhere || is_silent {
            return;
        }
        if self.is_stalled() {
            let word = self.own_word();
            self.order(Order::Say { to: from, word });
        } else {
            self.say_running(from);
        }
    }

    pub(super) fn say_running(&mut self, to: PeerId) {
        let (epoch, version) = (self.epoch, self.group_version());
        let word = Word::Running { epoch, members: self.members.clone(), version };
        self.order(Order::Say { to, word });
    }

    /// Two groups that reach each other are to become one.
    pub(super) fn tell_other_groups(&mut self, now: Time) {
        if self.timeouts.split == Split::Quorum || now < self.tells_others_at {
            return;
        }
        self.tells_others_at = now + TELL_OTHERS;
        let others = self.everybody.without(&self.members);
        at_work(&self.ended, &others).iter().for_each(|to| self.say_running(to));
    }

    /// Decides as soon as everybody has been heard who can be.
    pub(super) fn decide_early(&mut self, now: Time) {
        let Phase::Stalled(stall) = &self.phase else { return };
        let is_heard = |peer: PeerId| peer == self.me || stall.heard.contains_key(&peer);
        let is_lowest = stall.heard.keys().next().is_none_or(|lowest| *lowest > self.me);
        let are_all_heard = !self.members.is_empty() && self.members.iter().all(is_heard);
        if self.timeouts.split == Split::EachGoesOn && is_lowest && are_all_heard {
            self.decide(now);
        }
    }

    /// Somebody is out of reach.
    pub(super) fn forget(&mut self, now: Time, peer: PeerId) {
        self.everybody.remove(peer);
        self.outside.remove(&peer);
        self.given.remove(&peer);
        if let Phase::Stalled(stall) = &mut self.phase {
            stall.heard.remove(&peer);
            stall.forget_running(peer);
        }
        self.come_back_at_the_end(now);
        if !self.members.contains(peer) || self.timeouts.split == Split::Quorum || self.is_over {
            return;
        }
        // Those left need not wait for it when they agree.
        self.members.remove(peer);
        if !self.is_stalled() {
            self.stall(now);
        }
        self.decide_early(now);
    }

    /// Time to agree with those that were heard, or to go on listening.
    pub(super) fn decide(&mut self, now: Time) {
        let believed = self.believed();
        let own = match self.own_word() {
            Word::Stalled(own) => own,
            _ => unreachable!("a member says of itself that it stands still"),
        };
        let Phase::Stalled(stall) = &mut self.phase else { return };
        stall.heard.retain(|_, heard| now.saturating_since(heard.0) <= believed);
        let all = || stall.heard.iter().map(|(peer, said)| (*peer, &said.1)).chain([(self.me, &own)]);
        let is_awaited = stall.running.values().any(|heard| now.saturating_since(*heard) <= believed);
        let present = mutually_reached(&all().map(|(peer, said)| (peer, &said.reaches)).collect());
        let here = || all().filter(|(peer, _)| present.contains(*peer));
        let latest = here().map(|(_, said)| said).max_by_key(|said| said.epoch).expect("this member itself");
        let may_go_on = match self.timeouts.split {
            Split::Quorum => present.is_quorum_of(&latest.members),
            Split::EachGoesOn => !is_awaited,
        };
        // A group of several that go on has more to lose than who is alone.
        let is_group = |members: &Members| at_work(&self.ended, members).len() > 1;
        let furthest = here()
            .filter_map(|(_, said)| said.version.map(|version| (is_group(&said.members), version)))
            .max()
            .map(|(_, version)| version);
        let (Some(version), true) = (furthest, may_go_on && present.lowest() == Some(self.me)) else {
            return self.stall(now);
        };
        if present.len() + ended_ahead(&self.ended, &present, version) < self.timeouts.members_min {
            return self.stall(now);
        }
        let with_it = || here().filter(|(_, said)| said.version == Some(version));
        let epoch = Epoch::after(latest.epoch.number, self.me).filter(|_| version.operations < OPERATIONS_MAX);
        let Some(epoch) = epoch else { return self.stall(now) };
        let digest = most_common(with_it().map(|(_, said)| said.digest));
        let is_current = |said: &Stalled| said.digest == digest || said.digest == 0 || digest == 0;
        let current: Members = with_it().filter(|(_, said)| is_current(said)).map(|(peer, _)| peer).collect();
        // Whom not all of these reach yet is taken in later, without having to say so once more.
        let left_out = stall.heard.iter().filter(|(peer, _)| !present.contains(**peer));
        self.outside.extend(left_out.map(|(peer, (heard, said))| (*peer, Outside::of(*heard, said))));
        self.announce(now, Announced { epoch, members: present, version, current });
    }

    /// The leader takes in who has come.
    pub(super) fn invite_those_outside(&mut self, now: Time) {
        if self.epoch.leader != self.me {
            return;
        }
        let believed = self.believed();
        self.outside.retain(|_, one| now.saturating_since(one.heard) <= believed);
        let latest = self.outside.values().map(|one| one.epoch).max().unwrap_or(0).max(self.epoch.number);
        let Some(epoch) = Epoch::after(latest, self.me) else { return };
        let outside: Members = self.outside.keys().copied().collect();
        let stay = self.members.without(&outside);
        let back = self.taken_in(&stay);
        self.outside.clear();
        if !back.is_empty() {
            let (members, current) = (stay.union(&back), stay);
            self.announce(now, Announced { epoch, members, version: self.version, current });
        }
    }

    /// Those outside who reach all that `stay` and each other. A group with another one would come to no sum.
    fn taken_in(&self, stay: &Members) -> Members {
        let mut back = Members::default();
        for (peer, one) in &self.outside {
            let is_mutual = |other: PeerId| one.reaches.contains(other) && self.outside[&other].reaches.contains(*peer);
            let reaches_all = stay.iter().all(|member| one.reaches.contains(member)) && back.iter().all(is_mutual);
            if reaches_all || self.timeouts.split == Split::Quorum {
                back.insert(*peer);
            }
        }
        back
    }

    fn announce(&mut self, now: Time, announced: Announced) {
        let word = Word::Announced(announced.clone());
        self.say_to_all(&announced.members, &word);
        self.announced = Some(word);
        self.adopt(now, announced);
    }

    pub(super) fn on_announced(&mut self, now: Time, announced: Announced) {
        let is_away = self.is_over || self.is_left_out();
        if announced.epoch <= self.epoch || !announced.members.contains(self.me) || is_away {
            self.counts.ignored += 1;
            return;
        }
        // The announcer has just finished the operation that is still under way here.
        let next = Version { operations: self.version.operations + 1, epoch: self.epoch };
        if matches!(self.phase, Phase::Reducing(_)) && announced.version == next {
            self.deferred = Some(announced);
        } else if self.has_state && self.version > announced.version && !self.seeks {
            // This member has finished what the announcer has not heard of: it takes another agreement.
            (self.epoch, self.members) = (announced.epoch, announced.members);
            self.stall(now);
        } else {
            self.adopt(now, announced);
        }
    }

    pub(super) fn say_to_all(&mut self, members: &Members, word: &Word) {
        for to in members.iter() {
            if to != self.me {
                self.order(Order::Say { to, word: word.clone() });
            }
        }
    }
}

/// The lowest one, and everybody after it who reaches all before and is reached by them.
fn mutually_reached(all: &BTreeMap<PeerId, &Members>) -> Members {
    let mut group = Members::default();
    for (peer, reaches) in all {
        let is_mutual = |other: PeerId| reaches.contains(other) && all[&other].contains(*peer);
        if group.iter().all(is_mutual) {
            group.insert(*peer);
        }
    }
    group
}

/// The digest that most have, the lowest of several; 0 only where nobody knows any.
fn most_common(digests: impl Iterator<Item = u64>) -> u64 {
    let mut votes: BTreeMap<u64, u32> = BTreeMap::new();
    digests.filter(|digest| *digest != 0).for_each(|digest| *votes.entry(digest).or_default() += 1);
    votes.into_iter().rev().max_by_key(|(_, count)| *count).map_or(0, |(digest, _)| digest)
}

//! Agreement on who goes on, after an operation has taken too long or somebody has come back.
//!
//! Safety rests on two rules. An epoch needs a quorum of the latest epoch that any of its members knows, so two epochs
//! over one group share a member; and whoever begins an operation has the same [`Standing`], which names the epoch of the
//! last operation, so a member that finished one that the others did not copies their state, or they its.

use std::collections::BTreeMap;

use super::executor::Phase;
use super::{Collective, Epoch, Members, Order, Place, Standing, Word};
use crate::Time;

/// How many of its own waits a member believes what another one has said.
const WAITS_BELIEVED: u32 = 2;

/// The search for a new epoch.
#[derive(Clone, Debug)]
pub(super) struct Stall {
    /// Since when nothing useful is done.
    pub(super) since: Time,
    /// When is decided with those that were heard.
    pub(super) until: Time,
    heard: BTreeMap<Place, (Time, Epoch, Members, Standing)>,
}

impl Collective {
    /// Drops the operation under way and tells everybody.
    pub(super) fn stall(&mut self, now: Time) {
        let since = match &self.phase {
            Phase::Reducing(reduction) => reduction.begun,
            Phase::Copying { since, .. } => *since,
            Phase::Stalled(stall) => stall.since,
            Phase::Contributing => now,
        };
        let heard = match &mut self.phase {
            Phase::Stalled(stall) => std::mem::take(&mut stall.heard),
            _ => BTreeMap::new(),
        };
        self.phase = Phase::Stalled(Stall { since, until: now + self.limit(), heard });
        let word = Word::Stalled { epoch: self.epoch, members: self.members, standing: self.standing };
        self.say_to_all(self.everybody, word);
    }

    pub(super) fn on_stalled(&mut self, now: Time, from: Place, said: (Epoch, Members, Standing)) {
        let (epoch, members, standing) = said;
        if !self.everybody.contains(from) || from == self.place {
            self.counts.ignored += 1;
            return;
        }
        let is_ours = epoch == self.epoch && self.members.contains(from);
        if is_ours && !self.is_stalled() {
            // An announcement that waited for the end of this operation will not see it.
            if let Some((epoch, members, standing, current)) = self.deferred.take() {
                return self.adopt(now, epoch, members, standing, current);
            }
            self.stall(now);
        }
        if let Phase::Stalled(stall) = &mut self.phase {
            stall.heard.insert(from, (now, epoch, members, standing));
        } else if !self.members.contains(from) {
            self.outside.insert(from, now);
        } else if let Some(word) = self.announced.filter(|_| epoch < self.epoch) {
            // It has missed the announcement, and nothing goes on without it.
            self.order(Order::Say { to: from, word });
        }
    }

    /// Time to agree with those that were heard, or to go on listening.
    pub(super) fn decide(&mut self, now: Time) {
        let limit = self.limit();
        let Phase::Stalled(stall) = &mut self.phase else { return };
        stall.heard.retain(|_, heard| now.saturating_since(heard.0) <= limit * WAITS_BELIEVED);
        let own = (now, self.epoch, self.members, self.standing);
        let all = || stall.heard.iter().map(|(place, said)| (*place, *said)).chain([(self.place, own)]);
        let present: Members = all().map(|(place, _)| place).collect();
        let (latest, latest_members) =
            all().map(|(_, said)| (said.1, said.2)).max_by_key(|(epoch, _)| *epoch).expect("this member itself");
        let standing = all().map(|(_, said)| said.3).max().expect("this member itself");
        let current: Members = all().filter(|(_, said)| said.3 == standing).map(|(place, _)| place).collect();
        if present.is_quorum_of(latest_members) && present.lowest() == Some(self.place) {
            let epoch = Epoch { number: latest.number + 1, leader: self.place };
            self.announce(now, epoch, present, standing, current);
        } else {
            self.stall(now);
        }
    }

    /// At the end of an operation the leader takes in who has come back.
    pub(super) fn invite_those_outside(&mut self, now: Time) {
        if self.epoch.leader != self.place {
            return;
        }
        let believed = self.limit() * WAITS_BELIEVED;
        let back: Members = self
            .outside
            .iter()
            .filter(|(_, heard)| now.saturating_since(**heard) <= believed)
            .map(|(place, _)| *place)
            .collect();
        self.outside.clear();
        if !back.is_empty() {
            let epoch = Epoch { number: self.epoch.number + 1, leader: self.place };
            let current = self.members.without(back);
            self.announce(now, epoch, self.members.union(back), self.standing, current);
        }
    }

    fn announce(&mut self, now: Time, epoch: Epoch, members: Members, standing: Standing, current: Members) {
        let word = Word::Announced { epoch, members, standing, current };
        self.say_to_all(members, word);
        self.announced = Some(word);
        self.adopt(now, epoch, members, standing, current);
    }

    pub(super) fn on_announced(&mut self, now: Time, announced: (Epoch, Members, Standing, Members)) {
        let (epoch, members, standing, current) = announced;
        if epoch <= self.epoch || !members.contains(self.place) {
            self.counts.ignored += 1;
            return;
        }
        // The announcer has just finished the operation that is still under way here.
        let is_under_way = matches!(self.phase, Phase::Reducing(_))
            && standing == Standing { operations: self.standing.operations + 1, epoch: self.epoch };
        if is_under_way {
            self.deferred = Some(announced);
        } else if self.standing > standing {
            // This member has finished what the announcer has not heard of: it takes another agreement.
            (self.epoch, self.members) = (epoch, members);
            self.stall(now);
        } else {
            self.adopt(now, epoch, members, standing, current);
        }
    }

    fn say_to_all(&mut self, places: Members, word: Word) {
        for to in places.iter() {
            if to != self.place {
                self.order(Order::Say { to, word });
            }
        }
    }
}

//! Whether a copied model is that of the swarm: before it is trained on, other members compare it with theirs.
//!
//! A check is an exchange that moves nothing. Each fragment of the model is checked once, so that no donor can hide a part
//! where nobody looks. One objection brings another check, two drop the copy. Who declines because it is busy is asked
//! again, and others once that has lasted; where checks are not answered the copy is made once more from others, and believed
//! with a notice after that.
//!
//! One party may run many members, but hardly in many ranges of addresses. So members of one range have one voice: a fragment
//! is as it should be where a member says so in whose range no donor is, or members of two ranges do, and objections of two
//! ranges drop the copy. Where no range is left that has not been heard, as among machines of one local network, members
//! count as such. Then a range that agrees with its own donors does not outvote another one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::*;
use crate::fragments::Holding;
use crate::peer::{AddressRange, PeerId};
use crate::time::Time;

/// Why a copied model is not checked, or not further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchecked {
    /// No other member has a model to compare it with.
    NobodyElse,
    /// Members that were asked did not answer in time.
    Unanswered,
    /// Members objected, as they did to the copies before.
    Disputed,
}

/// A member that has sent some of a copy, or may look at it: where it is reached, as far as that is known, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Witness {
    pub(crate) peer: PeerId,
    pub(crate) range: Option<AddressRange>,
    pub(crate) holding: Holding,
}

/// A copied model under check.
#[derive(Debug)]
pub(super) struct Check {
    /// At most one for each request that its copy needed.
    pub(super) donors: Vec<Witness>,
    /// Since when those that were asked have been busy, without an answer of anybody meanwhile. At most [`CONNECTIONS_MAX`].
    busy: BTreeMap<PeerId, Time>,
    /// Which of the model are to be checked.
    fragments: Vec<u16>,
    /// How many of them others have found near their own.
    near: usize,
    /// Whether nobody else held some, which are believed.
    has_left_out: bool,
    /// Who has found the next one near its own: at most one of each range.
    agreeing: Vec<Witness>,
    /// The smallest limit that those have set.
    clip: Option<f64>,
    /// Checks without an answer since the last one with one.
    unanswered: u32,
    /// Who found it far from its own model: a liar may be among them, as among donors.
    objectors: Vec<Witness>,
    /// Who has no model, or exchanges nothing for now.
    unable: Vec<PeerId>,
    /// Who did not answer: its range is waited for no longer. At most [`CHECKS_UNANSWERED_MAX`].
    silent: Vec<PeerId>,
}

impl Check {
    /// `fragments`: of the model, which the node holds.
    pub(super) fn new(donors: Vec<Witness>, fragments: Vec<u16>) -> Check {
        Check {
            donors,
            busy: BTreeMap::new(),
            fragments,
            near: 0,
            has_left_out: false,
            agreeing: Vec::new(),
            clip: None,
            unanswered: 0,
            objectors: Vec::new(),
            unable: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// The fragment to check now; none after the last.
    pub(super) fn fragment(&self) -> Option<u16> {
        self.fragments.get(self.near).copied()
    }

    /// Whom to ask next of the `members` that are connected, be it that they have been asked already. Nobody where no more
    /// are asked.
    pub(super) fn checkers(&self, members: &[Witness]) -> Vec<PeerId> {
        if self.is_over(members) {
            return Vec::new();
        }
        let mut checkers = self.unheard(members);
        if checkers.is_empty() {
            let is_checker = |member: &&Witness| self.is_able(member) && !self.is_donor(member);
            checkers = members.iter().filter(is_checker).copied().collect();
        }
        checkers.iter().map(|checker| checker.peer).collect()
    }

    /// Whether somebody is connected who is no donor and may have a model.
    pub(super) fn has_others(&self, members: &[Witness]) -> bool {
        members.iter().any(|member| self.is_able(member) && !self.is_donor(member))
    }

    /// Members of ranges that have not been heard of this fragment: best those in whose range no donor is. A donor can tell
    /// of the parts that others have sent.
    fn unheard(&self, members: &[Witness]) -> Vec<Witness> {
        let is_heard = |range| self.agreeing.iter().chain(&self.objectors).any(|heard| heard.range == Some(range));
        let is_unheard = |member: &Witness| {
            let may_answer = self.is_able(member) && !self.silent.contains(&member.peer);
            may_answer && member.range.is_some_and(|range| !is_heard(range))
        };
        let unheard = members.iter().map(|member| self.known(*member)).filter(is_unheard);
        let ranked: Vec<(u8, Witness)> = unheard.filter_map(|member| Some((self.rank(&member)?, member))).collect();
        let best = ranked.iter().map(|(rank, _)| *rank).min();
        ranked.into_iter().filter(|(rank, _)| Some(*rank) == best).map(|(_, member)| member).collect()
    }

    /// How well a member can check the copy, 0 for best; `None` for a donor of all of it, or all of whose fellows are of its
    /// range.
    fn rank(&self, member: &Witness) -> Option<u8> {
        if self.is_donor(member) {
            return self.donors.iter().any(|donor| donor.range != member.range).then_some(2);
        }
        Some(u8::from(self.donors.iter().any(|donor| donor.range == member.range)))
    }

    /// A donor has one voice, wherever it is reached meanwhile.
    fn known(&self, member: Witness) -> Witness {
        self.donors.iter().find(|donor| donor.peer == member.peer).copied().unwrap_or(member)
    }

    fn is_able(&self, member: &Witness) -> bool {
        !self.unable.contains(&member.peer) && !self.objectors.iter().any(|objector| objector.peer == member.peer)
    }

    fn is_donor(&self, member: &Witness) -> bool {
        self.donors.iter().any(|donor| donor.peer == member.peer)
    }

    /// Whether no more members are asked.
    fn is_over(&self, members: &[Witness]) -> bool {
        let is_dropped = ranges_of(&self.objectors) >= OBJECTIONS_MAX
            || (self.unheard(members).is_empty()
                && (self.objectors.len() >= OBJECTIONS_MAX || !self.agreeing.is_empty()));
        self.unanswered >= CHECKS_UNANSWERED_MAX || is_dropped
    }

    pub(super) fn on_unanswered(&mut self, checker: PeerId) {
        self.unanswered += 1;
        self.silent.push(checker);
    }

    /// A member is busy. Where that goes on for as long as `timeout`, it is no answer, and others are asked.
    pub(super) fn on_declined(&mut self, now: Time, checker: PeerId, timeout: Duration) {
        if self.busy.len() >= CONNECTIONS_MAX && !self.busy.contains_key(&checker) {
            self.busy.pop_first();
        }
        if now - *self.busy.entry(checker).or_insert(now) >= timeout {
            self.on_unanswered(checker);
        }
    }

    /// Leaves out the fragment that is to be checked now, which nobody else holds, unless it is the only one: the others are checked all
    /// the same. Where it does, whether it is the first.
    pub(super) fn leave_out(&mut self) -> Option<bool> {
        if self.why() != Unchecked::NobodyElse || self.fragments.len() == 1 {
            return None;
        }
        self.fragments.remove(self.near);
        self.agreeing.clear();
        self.silent.clear();
        Some(!std::mem::replace(&mut self.has_left_out, true))
    }

    pub(super) fn on_unable(&mut self, peer: PeerId) {
        if self.unable.len() < CONNECTIONS_MAX && !self.unable.contains(&peer) {
            self.unable.push(peer);
        }
    }

    /// Whether one of the two is alone with its model only a third can tell, so the first objection brings another check.
    pub(super) fn on_objection(&mut self, checker: Witness) {
        self.on_answer();
        self.objectors.push(self.known(checker));
    }

    /// Somebody answers: a model of many fragments takes many checks, and some of them meet a busy member.
    fn on_answer(&mut self) {
        self.unanswered = 0;
        self.busy.clear();
    }

    /// A fragment is near that of a member that lets in `clip`.
    pub(super) fn on_near(&mut self, fragment: u16, clip: f64, checker: Witness) {
        self.on_answer();
        let checker = self.known(checker);
        if Some(fragment) == self.fragment() && self.agreeing.iter().all(|agreeing| agreeing.range != checker.range) {
            self.agreeing.push(checker);
            self.clip = Some(self.clip.map_or(clip, |least| least.min(clip)));
        }
    }

    /// Goes on to the next fragment where enough has been said of this one. Returns the smallest limit that was set, once that
    /// was the last.
    pub(super) fn agreement(&mut self, members: &[Witness]) -> Option<f64> {
        if self.is_agreed(members) {
            self.near += 1;
            self.agreeing.clear();
            self.silent.clear();
        }
        self.clip.filter(|_| self.near >= self.fragments.len())
    }

    fn is_agreed(&self, members: &[Witness]) -> bool {
        let is_outside = |agreeing: &Witness| {
            let is_other = |donor: &Witness| donor.range.is_some() && donor.range != agreeing.range;
            agreeing.range.is_some() && self.donors.iter().all(is_other)
        };
        let is_contradicted = self.objectors.iter().any(|objector| {
            objector.range.is_some() && self.agreeing.iter().all(|agreeing| agreeing.range != objector.range)
        });
        self.agreeing.iter().any(is_outside)
            || ranges_of(&self.agreeing) > 1
            || (!self.agreeing.is_empty() && !is_contradicted && self.unheard(members).is_empty())
    }

    /// Why it is over, or there is nobody to ask.
    pub(super) fn why(&self) -> Unchecked {
        match self.unanswered {
            _ if !self.objectors.is_empty() => Unchecked::Disputed,
            0 => Unchecked::NobodyElse,
            _ => Unchecked::Unanswered,
        }
    }
}

/// How many ranges are known among those of some members.
fn ranges_of(members: &[Witness]) -> usize {
    let mut ranges: Vec<AddressRange> = members.iter().filter_map(|member| member.range).collect();
    ranges.sort_unstable();
    ranges.dedup();
    ranges.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member of a range; of none where that is 0.
    fn member(key: u8, range: u64) -> Witness {
        let range = Some(AddressRange(range)).filter(|range| range.0 > 0);
        Witness { peer: PeerId::from_public_key([key; 32]), range, holding: Holding::ALL }
    }

    fn checkers(check: &Check, members: &[Witness]) -> Vec<u8> {
        check.checkers(members).iter().map(|peer| peer.as_bytes()[0]).collect()
    }

    /// What has become of a check of one fragment after such answers: believed, dropped, or whom to ask next.
    fn after(donors: &[Witness], members: &[Witness], answers: &[(Witness, bool)]) -> (Option<f64>, Vec<u8>) {
        let mut check = Check::new(donors.to_vec(), vec![0]);
        for (checker, is_near) in answers {
            assert!(check.checkers(members).contains(&checker.peer), "{checker:?} is not asked: {check:?}");
            if *is_near { check.on_near(0, 3.0, *checker) } else { check.on_objection(*checker) }
        }
        let clip = check.agreement(members);
        (clip, checkers(&check, members))
    }

    #[test]
    fn every_fragment_is_looked_at_before_a_copy_is_believed() {
        let checker = member(1, 0);
        let mut check = Check::new(Vec::new(), vec![0, 1, 2, 5]);
        for fragment in 0..3 {
            assert_eq!(check.fragment(), Some(fragment));
            check.on_near(fragment, 5.0 - f64::from(fragment), checker);
            assert_eq!(check.agreement(&[checker]), None);
            check.on_near(fragment, 0.1, checker);
            assert_eq!(check.agreement(&[checker]), None, "the same one again is no news");
        }
        check.on_near(5, 9.0, checker);
        assert_eq!(check.agreement(&[checker]), Some(3.0), "the smallest limit of those that count");
    }

    #[test]
    fn members_of_one_range_do_not_confirm_each_others_model_where_another_range_is_known() {
        let liars = [1, 2, 3, 4].map(|key| member(key, 1));
        let honest = member(9, 2);
        let all = [liars[0], liars[1], liars[2], liars[3], honest];
        assert_eq!(after(&[liars[0]], &all, &[]), (None, vec![9]), "whose range is another");
        let (clip, next) = after(&[liars[0]], &all, &[(honest, false), (liars[1], true)]);
        assert_eq!((clip, next), (None, vec![]), "one range against another: dropped");
        assert_eq!(after(&[liars[0]], &all, &[(honest, true)]).0, Some(3.0));
        // It was a donor as well: then it is asked of the others' parts.
        let donors = [liars[0], honest];
        assert_eq!(after(&donors, &all, &[(liars[1], true)]), (None, vec![9]));
        assert_eq!(after(&donors, &all, &[(liars[1], true), (honest, false)]), (None, vec![]));
        assert_eq!(after(&donors, &all, &[(liars[1], true), (honest, true)]).0, Some(3.0));
    }

    #[test]
    fn members_of_one_range_cannot_drop_a_copy_alone_where_others_are_known() {
        let liars = [1, 2, 3].map(|key| member(key, 1));
        let honest = [7, 8].map(|key| member(key, u64::from(key)));
        let all = [liars[0], liars[1], liars[2], honest[0], honest[1]];
        let objections = [(liars[0], false)];
        assert_eq!(after(&honest[..1], &all, &objections), (None, vec![8]), "their range has been heard");
        assert_eq!(after(&honest[..1], &all, &[objections[0], (honest[1], true)]).0, Some(3.0));
    }

    #[test]
    fn where_all_are_of_one_range_or_of_none_members_count() {
        for range in [0, 1] {
            let all = [1, 2, 3, 4].map(|key| member(key, range));
            assert_eq!(after(&all[..1], &all, &[]), (None, vec![2, 3, 4]));
            assert_eq!(after(&all[..1], &all, &[(all[1], true)]).0, Some(3.0));
            assert_eq!(after(&all[..1], &all, &[(all[1], false)]), (None, vec![3, 4]));
            assert_eq!(after(&all[..1], &all, &[(all[1], false), (all[2], true)]).0, Some(3.0));
            assert_eq!(after(&all[..1], &all, &[(all[1], false), (all[2], false)]), (None, vec![]), "two outvote it");
        }
    }

    /// The fragments of a large model take a check each, and some of those asked are busy.
    #[test]
    fn refusals_and_silence_count_since_the_last_answer() {
        let (all, timeout) = ([member(1, 0), member(2, 0)], Duration::from_secs(10));
        let at = |second: u64| Time::ZERO + Duration::from_secs(second);
        let mut check = Check::new(vec![all[0]], (0..8).collect());
        for fragment in 0..8 {
            check.on_declined(at(20 * u64::from(fragment)), all[1].peer, timeout);
            check.on_declined(at(20 * u64::from(fragment) + 9), all[1].peer, timeout);
            check.on_unanswered(all[1].peer);
            assert_eq!(checkers(&check, &all), [2], "fragment {fragment}");
            check.on_near(fragment, 3.0, all[1]);
            assert_eq!(check.agreement(&all).is_some(), fragment == 7);
        }
        let mut check = Check::new(vec![all[0]], vec![0]);
        check.on_declined(at(0), all[1].peer, timeout);
        (10..13).for_each(|second| check.on_declined(at(second), all[1].peer, timeout));
        assert!(checkers(&check, &all).is_empty(), "busy for as long as that, and nobody else is there");
    }

    /// One that was always busy ended the check of a copy that others would have found near.
    #[test]
    fn who_is_always_busy_is_waited_for_no_longer_than_who_does_not_answer() {
        let (all, timeout) = ([member(1, 1), member(2, 1), member(3, 2)], Duration::from_secs(10));
        let mut check = Check::new(vec![all[0]], vec![0]);
        for second in 0..=10 {
            assert_eq!(checkers(&check, &all), [3], "after {second} s");
            check.on_declined(Time::ZERO + Duration::from_secs(second), all[2].peer, timeout);
        }
        assert_eq!(checkers(&check, &all), [2]);
        check.on_near(0, 3.0, all[1]);
        assert_eq!(check.agreement(&all), Some(3.0));
    }

    #[test]
    fn a_range_that_does_not_answer_is_waited_for_no_longer() {
        let all = [member(1, 1), member(2, 1), member(3, 2)];
        let mut check = Check::new(vec![all[0]], vec![0]);
        assert_eq!(checkers(&check, &all), [3]);
        check.on_unanswered(all[2].peer);
        assert_eq!(checkers(&check, &all), [2]);
        check.on_near(0, 3.0, all[1]);
        assert_eq!(check.agreement(&all), Some(3.0));
    }
}

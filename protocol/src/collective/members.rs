//! A set of members, sorted by peer id.

use std::fmt;

use bincode::{Decode, Encode};

use super::MEMBERS_MAX;
use crate::peer::PeerId;

/// Members that take part, each once and in the order of their ids.
#[derive(Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Members(Vec<PeerId>);

impl Members {
    /// Whether what a peer has sent is a set: in order, nobody twice, at most [`MEMBERS_MAX`].
    pub fn is_sound(&self) -> bool {
        self.0.len() <= MEMBERS_MAX && self.0.windows(2).all(|two| two[0] < two[1])
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this member takes part.
    pub fn contains(&self, member: PeerId) -> bool {
        self.0.binary_search(&member).is_ok()
    }

    /// Adds a member, unless there are [`MEMBERS_MAX`]; returns whether it is one now.
    pub fn insert(&mut self, member: PeerId) -> bool {
        match self.0.binary_search(&member) {
            Ok(_) => true,
            Err(at) if self.0.len() < MEMBERS_MAX => {
                self.0.insert(at, member);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes a member out.
    pub fn remove(&mut self, member: PeerId) {
        self.0.retain(|one| *one != member);
    }

    /// Those of both, the lowest first where they are more than [`MEMBERS_MAX`].
    pub fn union(&self, other: &Members) -> Members {
        self.iter().chain(other.iter()).collect()
    }

    /// Those in both.
    pub fn intersection(&self, other: &Members) -> Members {
        self.iter().filter(|member| other.contains(*member)).collect()
    }

    /// Those of this set that are not in the other one.
    pub fn without(&self, other: &Members) -> Members {
        self.iter().filter(|member| !other.contains(*member)).collect()
    }

    /// The lowest one.
    pub fn lowest(&self) -> Option<PeerId> {
        self.0.first().copied()
    }

    /// All of them, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.0.iter().copied()
    }

    /// How many lower ones take part.
    pub fn rank(&self, member: PeerId) -> u16 {
        self.0.partition_point(|one| *one < member) as u16
    }

    /// The member of this rank.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn at(&self, rank: u16) -> PeerId {
        self.0[usize::from(rank)]
    }

    /// Whether these are enough of `all` to go on for them: more than half, or half with the lowest. Two sets that have no
    /// member in common are never both enough.
    pub fn is_quorum_of(&self, all: &Members) -> bool {
        let here = self.intersection(all);
        let has_lowest = all.lowest().is_some_and(|lowest| here.contains(lowest));
        2 * here.len() > all.len() || (2 * here.len() == all.len() && has_lowest)
    }
}

impl FromIterator<PeerId> for Members {
    fn from_iter<I: IntoIterator<Item = PeerId>>(all: I) -> Members {
        let mut all: Vec<PeerId> = all.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(MEMBERS_MAX);
        Members(all)
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: usize) -> PeerId {
        PeerId::from_public_key([number as u8; 32])
    }

    fn members(numbers: impl IntoIterator<Item = usize>) -> Members {
        numbers.into_iter().map(member).collect()
    }

    #[test]
    fn ranks_and_members_are_inverse() {
        let some = members([63, 0, 17, 3, 3]);
        assert_eq!(some.iter().map(|member| some.rank(member)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((0..4).map(|rank| some.at(rank)).collect::<Vec<_>>(), [0, 3, 17, 63].map(member));
        assert_eq!((some.len(), some.lowest(), some.contains(member(64))), (4, Some(member(0)), false));
    }

    #[test]
    fn a_set_is_never_larger_than_its_bound_and_what_a_peer_sends_is_looked_at() {
        let mut full = members(0..100);
        assert_eq!((full.len(), full.insert(member(100)), full.insert(member(5))), (MEMBERS_MAX, false, true));
        assert!(full.is_sound());
        assert!(!Members(vec![member(2), member(1)]).is_sound());
        assert!(!Members(vec![member(1), member(1)]).is_sound());
        assert!(!Members((0..100).map(member).collect()).is_sound());
    }

    #[test]
    fn of_two_parts_at_most_one_is_a_quorum() {
        for count in 1..=8 {
            let all = members(0..count);
            for bits in 0..1_usize << count {
                let one = members((0..count).filter(|number| bits >> number & 1 == 1));
                let other = all.without(&one);
                assert!(one.is_quorum_of(&all) != other.is_quorum_of(&all), "{one:?} of {all:?}");
            }
        }
    }
}

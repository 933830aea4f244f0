//! A set of members: one bit for each place.

use std::fmt;

use super::{MEMBERS_MAX, Place};

/// Places of a run that take part, at most [`MEMBERS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Members(u64);

impl Members {
    /// The first `count` places.
    ///
    /// # Panics
    /// When there are more than [`MEMBERS_MAX`].
    pub fn first(count: usize) -> Members {
        assert!(count <= MEMBERS_MAX, "at most {MEMBERS_MAX} members, not {count}");
        (0..count as Place).collect()
    }

    /// Number of members.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this place takes part; places beyond the last one never do.
    pub fn contains(self, place: Place) -> bool {
        usize::from(place) < MEMBERS_MAX && self.0 >> place & 1 == 1
    }

    /// Adds a place.
    ///
    /// # Panics
    /// When it is not below [`MEMBERS_MAX`].
    pub fn insert(&mut self, place: Place) {
        assert!(usize::from(place) < MEMBERS_MAX, "places are below {MEMBERS_MAX}");
        self.0 |= 1 << place;
    }

    /// Those of both.
    pub fn union(self, other: Members) -> Members {
        Members(self.0 | other.0)
    }

    /// Those in both.
    pub fn intersection(self, other: Members) -> Members {
        Members(self.0 & other.0)
    }

    /// Those of this set that are not in the other one.
    pub fn without(self, other: Members) -> Members {
        Members(self.0 & !other.0)
    }

    /// The lowest place.
    pub fn lowest(self) -> Option<Place> {
        (!self.is_empty()).then(|| self.0.trailing_zeros() as Place)
    }

    /// All of them, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = Place> {
        (0..MEMBERS_MAX as Place).filter(move |place| self.contains(*place))
    }

    /// How many lower places take part.
    pub fn rank(self, place: Place) -> u16 {
        (self.0 & ((1 << place) - 1)).count_ones() as u16
    }

    /// The place of this rank.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn at(self, rank: u16) -> Place {
        self.iter().nth(usize::from(rank)).expect("a rank is below the number of members")
    }

    /// Whether these are enough of `all` to go on for them: more than half, or half with the lowest. Two sets that have no
    /// place in common are never both enough.
    pub fn is_quorum_of(self, all: Members) -> bool {
        let here = self.intersection(all);
        let has_lowest = all.lowest().is_some_and(|lowest| here.contains(lowest));
        2 * here.len() > all.len() || (2 * here.len() == all.len() && has_lowest)
    }
}

impl FromIterator<Place> for Members {
    fn from_iter<I: IntoIterator<Item = Place>>(places: I) -> Members {
        let mut members = Members::default();
        places.into_iter().for_each(|place| members.insert(place));
        members
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

    #[test]
    fn ranks_and_places_are_inverse() {
        let members: Members = [0, 3, 17, 63].into_iter().collect();
        assert_eq!(members.iter().map(|place| members.rank(place)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((0..4).map(|rank| members.at(rank)).collect::<Vec<_>>(), [0, 3, 17, 63]);
        assert_eq!((members.len(), members.lowest(), members.contains(64)), (4, Some(0), false));
    }

    #[test]
    fn of_two_parts_at_most_one_is_a_quorum() {
        for count in 1..=8 {
            let all = Members::first(count);
            for bits in 0..1u64 << count {
                let one = Members(bits);
                let other = all.without(one);
                assert!(one.is_quorum_of(all) != other.is_quorum_of(all), "{one:?} of {all:?}");
            }
        }
    }
}

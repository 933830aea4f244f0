//! Which fragment is exchanged in which round.

use std::collections::BTreeMap;

use crate::fragments::{Fragments, Holding};
use crate::part::{Fragment, Part, Vector};

/// The fragments of the model that this node holds, and in which of its own rounds it was each one's turn last.
#[derive(Debug)]
pub(crate) struct Turns {
    /// In how many fragments the model is cut.
    count: u16,
    /// Those that are not empty, in order.
    filled: Vec<u16>,
    /// Of those, what this node holds.
    held: Vec<u16>,
    last: BTreeMap<u16, u64>,
}

impl Turns {
    pub(crate) fn new(fragments: &Fragments, holding: Holding) -> Turns {
        let filled: Vec<u16> = fragments.filled().collect();
        let mut turns = Turns { count: fragments.count(), held: filled.clone(), filled, last: BTreeMap::new() };
        turns.hold(holding);
        turns
    }

    /// These are held from now on.
    pub(crate) fn hold(&mut self, holding: Holding) {
        self.held = self.filled.iter().copied().filter(|index| holding.holds(*index)).collect();
    }

    /// In how many fragments the model is cut.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// Those that this node holds.
    pub(crate) fn held(&self) -> &[u16] {
        &self.held
    }

    /// How many those are.
    pub(crate) fn held_count(&self) -> u16 {
        self.held.len() as u16
    }

    /// In how many rounds of a member with the whole model this node has one: so each fragment's turns are as far apart for
    /// all who hold it.
    pub(crate) fn rounds_apart(&self) -> f64 {
        self.filled.len() as f64 / f64::from(self.held_count().max(1))
    }

    /// Which share of the model's fragments this holding is, 0 to 1.
    pub(crate) fn share_of(&self, holding: Holding) -> f64 {
        let held = self.filled.iter().filter(|fragment| holding.holds(**fragment)).count();
        held as f64 / self.filled.len().max(1) as f64
    }

    /// How many of them a partner holds as well, at least 1.
    pub(crate) fn shared_count(&self, partner: Holding) -> u16 {
        (self.held.iter().filter(|fragment| partner.holds(**fragment)).count() as u16).max(1)
    }

    /// Whether this node holds a part.
    pub(crate) fn holds(&self, part: Part) -> bool {
        self.held.contains(&part.fragment.index)
    }

    /// Whether the run's model is cut so.
    pub(crate) fn is_cut(&self, Fragment { index, count }: Fragment) -> bool {
        count == self.count && index < count
    }

    /// A fragment of the model.
    pub(crate) fn part(&self, index: u16) -> Part {
        Part { vector: Vector::Model, fragment: Fragment { index, count: self.count } }
    }

    /// What is exchanged in this own round: of the fragments that this node holds, and for which there is a partner, the one
    /// whose turn was longest ago. The same one again where another partner is tried in the same round.
    pub(crate) fn take(&mut self, round: u64, has_partner: impl Fn(u16) -> bool) -> Option<Part> {
        let count = u64::from(self.count);
        let turn = |fragment: &u16| {
            let last = self.last.get(fragment).copied();
            (last != Some(round), last, (u64::from(*fragment) + count - round % count) % count)
        };
        let next =
            *self.held.iter().filter(|fragment| has_partner(**fragment)).min_by_key(|fragment| turn(fragment))?;
        self.last.insert(next, round);
        Some(self.part(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(turns: &mut Turns, rounds: std::ops::Range<u64>, has_partner: impl Fn(u16) -> bool) -> Vec<Option<u16>> {
        rounds.map(|round| turns.take(round, &has_partner).map(|part| part.fragment.index)).collect()
    }

    #[test]
    fn fragments_take_turns_and_one_that_had_no_partner_is_next() {
        let mut turns = Turns::new(&Fragments::equal(1000, 3), Holding::ALL);
        assert_eq!(taken(&mut turns, 4..10, |_| true), [1, 2, 0, 1, 2, 0].map(Some));
        assert_eq!(turns.take(9, |_| true), Some(turns.part(0)), "another partner is tried");
        assert_eq!(taken(&mut turns, 10..13, |fragment| fragment != 1), [2, 0, 2].map(Some));
        assert_eq!(taken(&mut turns, 13..15, |_| true), [1, 0].map(Some));
        assert_eq!(turns.take(15, |_| false), None);
    }

    #[test]
    fn only_what_is_held_has_a_turn() {
        let mut turns = Turns::new(&Fragments::equal(1000, 4), Holding::of([0, 3]));
        assert_eq!((turns.held_count(), turns.holds(turns.part(3)), turns.holds(turns.part(1))), (2, true, false));
        assert_eq!(taken(&mut turns, 0..4, |_| true), [0, 3, 0, 3].map(Some));
        assert_eq!(turns.take(4, |fragment| fragment == 1), None);
        let shared = [Holding::ALL, Holding::of([2, 3]), Holding::of([1])].map(|partner| turns.shared_count(partner));
        assert_eq!(shared, [2, 1, 1]);
        assert_eq!(turns.rounds_apart(), 2.0, "half of the fragments, in half of the rounds");
    }

    #[test]
    fn an_empty_fragment_has_no_turn() {
        let mut turns = Turns::new(&Fragments::equal(300, 3), Holding::ALL);
        assert_eq!(turns.held(), [1, 2], "two blocks");
        assert_eq!(taken(&mut turns, 0..4, |_| true), [1, 2, 1, 2].map(Some));
    }

    #[test]
    fn what_is_held_may_change() {
        let mut turns = Turns::new(&Fragments::equal(1000, 4), Holding::ALL);
        assert_eq!(taken(&mut turns, 0..2, |_| true), [0, 1].map(Some));
        turns.hold(Holding::of([1, 3]));
        assert_eq!((turns.held(), turns.rounds_apart(), turns.holds(turns.part(0))), (&[1, 3][..], 2.0, false));
        assert_eq!(taken(&mut turns, 2..5, |_| true), [3, 1, 3].map(Some));
        turns.hold(Holding::ALL);
        assert_eq!((turns.held_count(), turns.rounds_apart()), (4, 1.0));
        assert_eq!(taken(&mut turns, 5..9, |_| true), [2, 0, 1, 3].map(Some), "those that were away are next");
    }
}

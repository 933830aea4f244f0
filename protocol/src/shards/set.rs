//! A set of a run's shards, by index: one bit each, so that a node can tell in sixteen bytes what it holds.

use std::fmt;

use bincode::{Decode, Encode};

use crate::bounds::SHARDS_MAX;

/// Shards by index, 0 to [`SHARDS_MAX`] − 1.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct ShardSet(u128);

impl ShardSet {
    /// None.
    pub const EMPTY: ShardSet = ShardSet(0);

    /// Adds a shard.
    ///
    /// # Panics
    /// When `index` is not below [`SHARDS_MAX`].
    pub fn insert(&mut self, index: usize) {
        assert!(index < SHARDS_MAX, "a shard has an index below {SHARDS_MAX}");
        self.0 |= 1 << index;
    }

    /// Takes a shard out.
    pub fn remove(&mut self, index: usize) {
        if index < SHARDS_MAX {
            self.0 &= !(1 << index);
        }
    }

    /// Whether a shard is in it.
    pub fn contains(self, index: usize) -> bool {
        index < SHARDS_MAX && self.0 >> index & 1 == 1
    }

    /// Whether all of `other` is in it.
    pub fn contains_all(self, other: ShardSet) -> bool {
        other.0 & !self.0 == 0
    }

    /// What is in either.
    pub fn union(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 | other.0)
    }

    /// What is in both.
    pub fn intersection(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 & other.0)
    }

    /// What is in this one alone.
    pub fn without(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 & !other.0)
    }

    /// Number of shards in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Indices, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..SHARDS_MAX).filter(move |index| self.contains(*index))
    }
}

impl FromIterator<usize> for ShardSet {
    fn from_iter<Indices: IntoIterator<Item = usize>>(indices: Indices) -> ShardSet {
        let mut set = ShardSet::EMPTY;
        indices.into_iter().for_each(|index| set.insert(index));
        set
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let mut set: ShardSet = [0, 5, SHARDS_MAX - 1].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, SHARDS_MAX - 1]);
        assert!(set.contains(5) && !set.contains(4) && !set.contains(1000));
        set.remove(5);
        assert_eq!((set.len(), set.without(set), set.union(set)), (2, ShardSet::EMPTY, set));
        assert!(set.contains_all([0].into_iter().collect()) && !set.contains_all([0, 5].into_iter().collect()));
    }
}

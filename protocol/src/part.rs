//! What an exchange is about: a vector of the node's state, and a fragment of it.
//!
//! Exchanging a fragment at a time spreads a large model's traffic over several exchanges (Streaming DiLoCo, arXiv
//! 2501.18512); the outer momentum is exchanged by the same rules as the model itself.

use std::ops::Range;

use bincode::{Decode, Encode};

use crate::bulk::BLOCK;

/// Which vector of a node's state; all have the length of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum Vector {
    /// θ, the parameters.
    Model,
    /// u, the outer momentum.
    Momentum,
}

/// A part of a vector: an equal share of its blocks. Exchanges of whole vectors use [`Fragment::WHOLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Fragment {
    /// Which part, from 0.
    pub index: u16,
    /// Of how many.
    pub count: u16,
}

impl Fragment {
    /// The whole vector.
    pub const WHOLE: Fragment = Fragment { index: 0, count: 1 };

    /// Its parameters among `parameters` in all: whole blocks of [`BLOCK`], but for the last one of the model. Empty
    /// where there are fewer blocks than fragments.
    ///
    /// # Panics
    /// When `index` is not below `count`.
    pub fn range(self, parameters: usize) -> Range<usize> {
        assert!(self.index < self.count, "a fragment is one of its count");
        let blocks = parameters.div_ceil(BLOCK);
        let boundary = |index: u16| (blocks * usize::from(index) / usize::from(self.count) * BLOCK).min(parameters);
        boundary(self.index)..boundary(self.index + 1)
    }
}

/// What one exchange averages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Part {
    /// Of which vector.
    pub vector: Vector,
    /// Which blocks.
    pub fragment: Fragment,
}

impl Part {
    /// All parameters.
    pub const MODEL: Part = Part { vector: Vector::Model, fragment: Fragment::WHOLE };
}

/// What a snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// One part, for an exchange.
    Part(Part),
    /// The state, for joiners: θ. The outer momentum is left out, for nobody could check a stranger's; it begins anew.
    State,
    /// All that members of a synchronous run have in common, as a vector that only the trainer reads: the parameters and
    /// the optimizer's moments, or the parameters and the outer momentum.
    Replica,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_cover_a_model_without_overlap() {
        for (parameters, count) in [(1, 1), (1000, 3), (256, 4), (10_000, 7)] {
            let ranges: Vec<_> = (0..count).map(|index| Fragment { index, count }.range(parameters)).collect();
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, parameters));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
            assert!(ranges.iter().all(|range| range.start % BLOCK == 0), "{ranges:?}");
        }
    }
}

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

/// A stretch of what a joiner copies, in values: of θ, and behind it φ and u where the run has an outer momentum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first value.
    pub start: usize,
    /// The first value behind it.
    pub end: usize,
}

impl Stretch {
    /// Its values where the state consists of `vectors`, one behind the other. What lies beyond their end is left out.
    pub fn of(self, vectors: &[&[f32]]) -> Vec<f32> {
        let total: usize = vectors.iter().map(|vector| vector.len()).sum();
        let mut values = Vec::with_capacity(self.end.min(total) - self.start.min(total));
        let mut offset = 0;
        for vector in vectors {
            let place = |position: usize| position.clamp(offset, offset + vector.len()) - offset;
            values.extend_from_slice(&vector[place(self.start)..place(self.end)]);
            offset += vector.len();
        }
        values
    }
}

/// What a snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// One part, for an exchange.
    Part(Part),
    /// A stretch of the state, for a joiner.
    State(Stretch),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_of_a_state_run_across_its_vectors() {
        let vectors: [&[f32]; 3] = [&[0.0, 1.0, 2.0], &[3.0, 4.0, 5.0], &[6.0, 7.0, 8.0]];
        for start in 0..9 {
            for end in start..9 {
                let expected: Vec<f32> = (start..end).map(|value| value as f32).collect();
                assert_eq!(Stretch { start, end }.of(&vectors), expected);
            }
        }
    }

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

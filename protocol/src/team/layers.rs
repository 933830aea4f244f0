//! Which layers of a model are meant.

use bincode::{Decode, Encode};

use super::bounds::LAYERS_MAX;

/// A contiguous run of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct LayerRange {
    /// The first one.
    pub first: u32,
    /// The one behind the last.
    pub end: u32,
}

impl LayerRange {
    /// Whether others are some of these, at least one.
    pub fn contains(self, others: LayerRange) -> bool {
        self.first <= others.first && others.first < others.end && others.end <= self.end
    }

    /// How many.
    pub fn len(self) -> u32 {
        self.end - self.first
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.first == self.end
    }

    /// Their numbers.
    pub fn numbers(self) -> std::ops::Range<u32> {
        self.first..self.end
    }

    /// Whether there is a layer, and none beyond [`LAYERS_MAX`].
    pub fn is_sound(self) -> bool {
        self.first < self.end && self.end <= LAYERS_MAX
    }
}

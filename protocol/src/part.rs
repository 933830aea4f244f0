//! What an exchange is about: a vector of the node's state, and a fragment of it.
//!
//! Exchanging a fragment at a time spreads a large model's traffic over several exchanges (Streaming DiLoCo, arXiv
//! 2501.18512); the outer momentum is exchanged by the same rules as the model itself.

use bincode::{Decode, Encode};

/// Which vector of a node's state; all have the length of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum Vector {
    /// θ, the parameters.
    Model,
    /// u, the outer momentum.
    Momentum,
}

/// A part of a vector, as [`Fragments`](crate::Fragments) cuts it. Exchanges of whole vectors use [`Fragment::WHOLE`].
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
    /// The state, for joiners: θ, or those fragments of it that the node holds, one after the other. The outer momentum is left
    /// out, for nobody could check a stranger's; it begins anew.
    State,
    /// Some values of the state, where it is large: `first` to before `end`.
    Values {
        /// The first one's place in the state.
        first: usize,
        /// Behind the last one's.
        end: usize,
    },
    /// All that members of a synchronous run have in common, as a vector that only the trainer reads: the parameters and
    /// the optimizer's moments, or the parameters and the outer momentum.
    Replica,
}

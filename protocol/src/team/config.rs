//! What a captain and a helper are told when they begin.

use std::time::Duration;

use super::cut::{ModelCosts, Place};
use super::message::{Lanes, Offer};
use super::work::Wire;

/// What a captain is told when it begins.
#[derive(Clone, Debug)]
pub struct CaptainConfig {
    /// Number of the first cut. Greater than that of any cut of an earlier life of this captain, so that nothing of those is taken
    /// for something of this one: seconds since 1970 times 2^20, say.
    pub epoch: u64,
    /// What the model's parts cost.
    pub model: ModelCosts,
    /// The captain's own machine.
    pub captain: Place,
    /// How streams are written.
    pub wire: Wire,
    /// Width of a stream.
    pub width: u32,
    /// Rows of a stream (a microbatch's sequences times tokens), at most.
    pub rows_max: u32,
    /// Microbatches of a usual batch: for predictions and what is held.
    pub lanes: Lanes,
    /// Trained tensors of each layer: so many squares a helper tells for it.
    pub tensors_per_layer: u32,
    /// Trained tensors of the embedding, and of the last norm and the head.
    pub tensors_of_ends: (u32, u32),
    /// Bytes of the training state of a layer, at most: what a helper sends is refused beyond it.
    pub state_bytes_per_layer: u64,
    /// The run file's text, for helpers.
    pub run: String,
    /// Whether helpers send their training state after every step: with adapters it is small.
    pub copies_after_steps: bool,
    /// Helpers with which the first cut is made at once, at least 1; with fewer after [`TeamTimeouts::gathering`].
    pub helpers_wanted: usize,
    /// How long to wait for what.
    pub timeouts: TeamTimeouts,
}

/// How long a captain waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeamTimeouts {
    /// For a piece of work of a helper, before anything is known of it.
    pub initial: Duration,
    /// The least ever, for a piece of work.
    pub floor: Duration,
    /// For a stage to be loaded and for a state to be copied, before anything is known.
    pub loading: Duration,
    /// For a lost helper to return, before the model is cut anew without it.
    pub grace: Duration,
    /// For more helpers, before the first cut.
    pub gathering: Duration,
}

impl Default for TeamTimeouts {
    /// Guesses: a minute for the first piece of work, two seconds at least, ten minutes to load, five seconds to return, twenty to gather.
    fn default() -> TeamTimeouts {
        TeamTimeouts {
            initial: Duration::from_secs(60),
            floor: Duration::from_secs(2),
            loading: Duration::from_secs(600),
            grace: Duration::from_secs(5),
            gathering: Duration::from_secs(20),
        }
    }
}

/// What a helper is told when it begins.
#[derive(Clone, Debug)]
pub struct HelperConfig {
    /// What it has to give; [`Offer::held`] is filled in by the machine.
    pub offer: Offer,
    /// How long it keeps its stage after its captain is gone.
    pub kept_for: Duration,
}

//! What an own exchange sends, and what came of it.

use crate::part::Part;
use crate::peer::PeerId;

/// How an own exchange ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) partner: PeerId,
    pub(crate) part: Part,
    pub(crate) outcome: Outcome,
}

/// What came of an own exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// Merged, this many own steps after the proposal.
    Merged { steps: u64 },
    /// The distance is known, but where a block was beyond the grid.
    Probed { distance: Option<f64>, partner_clip: f64, progress_difference: f64 },
    /// The partner would not; another may.
    Rejected,
    /// The partner never answered.
    Unanswered,
    /// It broke off later.
    BrokenOff,
}

/// What an own exchange sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Nothing is moved; codes of 16 bits tell the distance.
    Probe,
    /// Codes on a grid.
    Grid,
    /// Signs, on a link.
    Link,
}

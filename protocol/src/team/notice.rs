//! What people and logs want to know of a team.

use std::time::Duration;

use super::cut::{Cut, Place};
use crate::peer::PeerId;

/// How a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// All stages have stepped, but for those that were lost in between.
    Stepped,
    /// An evaluation is complete.
    Evaluated,
    /// The owner did not want the step.
    Discarded,
    /// It came to nothing: all stages are as they were before it. The owner may begin it anew.
    Dropped(DropReason),
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// All helpers have written.
    Complete,
    /// But for some that were lost.
    Partial,
    /// The cut for which it was is over: nobody has written.
    Nothing,
}

/// Why a batch came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// A helper's connection was lost.
    HelperLost,
    /// A helper was silent beyond the time it is trusted to take.
    HelperLate,
    /// What a helper sent cannot be.
    HelperMisbehaved,
    /// The state that a helper sent cannot be read.
    StateUnfit,
    /// A value is not finite: as a gradient that is no number, not to be tried again.
    NotFinite,
    /// A stage could not compute.
    Failed,
    /// The team was ended.
    Ended,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum TeamNotice {
    /// A helper offers itself.
    HelperOffered {
        /// The helper's id.
        helper: PeerId,
    },
    /// A helper is gone, or treated as if it were.
    HelperLost {
        /// The helper's id.
        helper: PeerId,
        /// Why it is gone.
        reason: DropReason,
    },
    /// A helper is let go for good: it is not taken again for as long as this captain lives. On the helper's side: it has been.
    HelperDismissed {
        /// The helper's id.
        helper: PeerId,
        /// Why, in words for people.
        reason: String,
    },
    /// A helper could not take its stage.
    HelperCannot {
        /// The helper's id.
        helper: PeerId,
        /// Why, in its words.
        reason: String,
    },
    /// A helper that was to be a member of the swarm by itself has reached nobody there.
    HelperApart {
        /// The helper's id.
        helper: PeerId,
    },
    /// The model is cut anew and all stages are in memory.
    CutTaken {
        /// Of the cut.
        epoch: u64,
        /// Who has which layers.
        cut: Cut,
        /// Predicted tokens a second of the captain alone; `None` where it has no room for the whole model.
        alone: Option<f64>,
    },
    /// The captain could not build its own stages, or read out what it keeps. It is tried again now and then.
    LoadFailed {
        /// Why, in words for people.
        reason: String,
    },
    /// The model fits nowhere: the captain waits for a helper.
    Waiting {
        /// Bytes that are missing, at least.
        missing_bytes: u64,
    },
    /// A helper wants to leave, and its layers fit nowhere else: they are copied, then it is let go, and the captain waits.
    HelperLeaves {
        /// The helper's id.
        helper: PeerId,
    },
    /// Layers go on from an older copy, since their helper was lost: so many of its steps are lost.
    StepsLost {
        /// First layer, and the one behind the last.
        layers: (u32, u32),
        /// How many revisions of the parameters.
        revisions: u64,
        /// And of the moments, which may be older.
        of_moments: u64,
    },
    /// A helper's captain is gone; the stage is kept for so long.
    CaptainLost {
        /// How long.
        kept_for: Duration,
    },
    /// A stage is in memory.
    StageLoaded {
        /// First layer, and the one behind the last.
        layers: (u32, u32),
    },
    /// A stage is not in memory any more.
    StageUnloaded,
}

/// What a team does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamPhase {
    /// Waits for helpers: there are too few, or too little memory.
    Waiting,
    /// Copies states and loads stages of a new cut.
    Cutting,
    /// Has a cut and nothing to do.
    Ready,
    /// Computes a batch.
    Computing,
    /// All stages step.
    Stepping,
    /// Reads states of helpers, or writes them.
    Copying,
    /// Has ended.
    Ended,
}

/// Counts since the machine began. A helper counts its own part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeamCounts {
    /// Batches that all stages stepped with.
    pub stepped: u64,
    /// Batches that came to nothing.
    pub dropped: u64,
    /// Cuts that were taken up.
    pub cuts: u64,
    /// Helpers lost, each time.
    pub helpers_lost: u64,
    /// Steps that may be lost to one stage: its helper was lost between the first commit and the end of the step.
    pub steps_missed: u64,
    /// Revisions that parameters of layers went back when they began from an older copy.
    pub revisions_lost: u64,
    /// Revisions that their moments went back, which may be older than the parameters.
    pub moments_lost: u64,
    /// Messages, frames and states of an epoch or a batch that is over, and second ones.
    pub stale: u64,
    /// Those that nobody may send: out of range, unasked for, of a wrong length.
    pub misbehaved: u64,
}

/// Where a captain stands.
#[derive(Clone, Debug, PartialEq)]
pub struct TeamStatus {
    /// What it does.
    pub phase: TeamPhase,
    /// Of the cut, or of the one that is being made.
    pub epoch: u64,
    /// The last cut that was taken up, where there was one; while the captain waits or cuts, it is not whole.
    pub cut: Option<Cut>,
    /// Of the model's state.
    pub revision: u64,
    /// Helpers that are connected and have offered.
    pub helpers: Vec<PeerId>,
    /// Their machines, as fast as they were measured in batches, else as they have offered.
    pub places: Vec<(PeerId, Place)>,
    /// Operations a second that the captain's own stages have reached; `None` before a batch.
    pub own_speed: Option<f64>,
    /// Whether a helper of this cut, which was to be a member of the swarm by itself, has reached nobody there.
    pub is_apart: bool,
    /// How often the captain has begun to exchange layers that are older than what a helper, which is gone, has exchanged.
    pub own_outdated: u64,
    /// Of the helpers that have something to do for a batch or a copy, the one that has had it longest, and for how long.
    pub awaits: Option<(PeerId, Duration)>,
    /// Bytes that are missing where it waits, else 0.
    pub missing_bytes: u64,
    /// How long the owner has waited in all while the team had no cut.
    pub waited: Duration,
    /// Counts.
    pub counts: TeamCounts,
}

//! Orders to the trainer, carried out at step boundaries.

use murmur_protocol::{Correction, Ending, Part, Payload, RequestId, Selection};

/// What the engine may order.
#[derive(Debug)]
pub enum TrainerOrder {
    /// Copy a part of the model, or the state for a joiner.
    TakeSnapshot(RequestId, Selection),
    /// Add a correction, and its shift to the progress.
    ApplyCorrection(RequestId, Part, Correction, f64),
    /// Take over a peer's model at this progress.
    LoadState(RequestId, Vec<Payload>, f64),
    /// Take a step of the outer momentum.
    AdvanceOuter,
    /// The model is averaged with so many members, this node counted.
    MatchBatch(f64),
    /// The founder has ordered the end of the run.
    Finish(Ending),
    /// Train from now on.
    Begin,
    /// Train no more, but go on answering.
    End,
    /// Evaluate and write a checkpoint.
    Complete,
}

impl TrainerOrder {
    /// Whose reply is awaited, where one is.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            TrainerOrder::TakeSnapshot(request, _)
            | TrainerOrder::ApplyCorrection(request, ..)
            | TrainerOrder::LoadState(request, ..) => Some(*request),
            TrainerOrder::AdvanceOuter
            | TrainerOrder::MatchBatch(_)
            | TrainerOrder::Finish(_)
            | TrainerOrder::Begin
            | TrainerOrder::End
            | TrainerOrder::Complete => None,
        }
    }
}

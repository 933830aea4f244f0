//! What a captain and its helpers say to each other. Small; streams and states travel as [frames](super::Frame).

use bincode::{Decode, Encode};

use super::bounds::{
    FRAME_BYTES_MAX, IN_FLIGHT_MAX, MICROBATCHES_MAX, NUMBER_MAX, REASON_BYTES_MAX, ROWS_MAX, RUN_TEXT_BYTES_MAX,
    TENSORS_MAX, TICKET_BYTES_MAX, WIDTH_MAX,
};
use super::frame::StateKind;
use super::layers::LayerRange;
use super::work::Wire;
use crate::numerics::StreamCodec;

/// A message between a captain and a helper. Encoded by [`codec`](crate::codec).
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum TeamMessage {
    /// Helper: what it has to give. On connection, and when it changes.
    Offer(Offer),
    /// Captain: take this stage.
    Assign(Box<Assign>),
    /// Helper: the frozen base of its layers is missing here; the captain is to send it.
    WantsBase {
        /// From the assignment.
        epoch: u64,
    },
    /// Helper: the stage is in memory, with the state that the assignment names.
    Ready {
        /// From the assignment.
        epoch: u64,
    },
    /// Helper: it will not be.
    Cannot {
        /// From the assignment.
        epoch: u64,
        /// Why, for people.
        reason: String,
    },
    /// Captain: a batch begins. Frames of it may come before this.
    Begin {
        /// Of the cut.
        epoch: u64,
        /// Its number; greater than all before.
        batch: u64,
        /// Training or evaluation.
        kind: BatchKind,
        /// Its microbatches.
        lanes: Lanes,
        /// Of training: where the helper is to be a member of the swarm by itself, from now on.
        membership: Option<Membership>,
    },
    /// Helper: all backwards are done; the sum of the squares of each tensor of the gradient, in the order of the layout.
    Sums {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
        /// One for each tensor; not finite where the gradient is not.
        squares: Vec<f64>,
        /// How long the stage computed for this batch, in nanoseconds.
        busy_nanos: u64,
    },
    /// Captain: step with the gradient.
    Commit {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
        /// The factors of this step, the same for all stages.
        factors: StepFactors,
        /// Of the state after the step.
        revision: u64,
        /// Whether the helper is to send its training state after the step, as an answer to the request with the batch's number.
        wants_copy: bool,
    },
    /// Helper: it has stepped.
    Done {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
    },
    /// Captain: forget the batch; parameters and moments stay as they were before it.
    Drop {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
    },
    /// Helper: the batch comes to nothing here.
    Failed {
        /// Of the cut.
        epoch: u64,
        /// Number of the batch.
        batch: u64,
        /// What happened.
        cause: FailureCause,
    },
    /// Captain: send a copy of a state.
    Copy {
        /// Of the cut.
        epoch: u64,
        /// Names the answer.
        request: u64,
        /// Training state or parameters.
        kind: StateKind,
        /// Of which of its layers.
        layers: LayerRange,
        /// Whether the helper stays a member of the swarm, where it is one; else nothing changes its parameters after this copy but
        /// steps and writes.
        stays_member: bool,
    },
    /// Helper: a state that was sent is taken up.
    Written {
        /// Of the cut.
        epoch: u64,
        /// From the state's header.
        request: u64,
    },
    /// Captain: a stage of this cut, or of one before, is not needed any more.
    Release {
        /// Of the cut.
        epoch: u64,
    },
    /// Helper: it leaves on purpose, as soon as the captain lets it go.
    Leaving,
    /// Captain: it does not take this helper any more. Its stage is not needed.
    Dismiss {
        /// Why, for people.
        reason: String,
    },
    /// Helper: nobody of the swarm whose member it is to be could be reached. The captain is to exchange its layers.
    Apart {
        /// Of the cut.
        epoch: u64,
    },
}

/// Why a batch comes to nothing at a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum FailureCause {
    /// A value of what it computed is not finite.
    NotFinite,
    /// What it got cannot be decoded.
    InputUnfit,
    /// It could not compute.
    Failed,
}

/// What a helper has to give.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Offer {
    /// Bytes for a stage.
    pub memory_bytes: u64,
    /// Operations a second that its device reaches, measured.
    pub operations_per_second: f64,
    /// Bytes a second that it may send; 0 where nobody knows.
    pub up_bytes_per_second: u64,
    /// Bytes a second that it may receive; 0 where nobody knows.
    pub down_bytes_per_second: u64,
    /// What it still has of an earlier assignment.
    pub held: Option<HeldLayers>,
}

/// What a helper still has of an earlier assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct HeldLayers {
    /// Of that assignment.
    pub epoch: u64,
    /// Its layers.
    pub layers: LayerRange,
    /// Of its state; no batch is half done.
    pub revision: u64,
}

/// A helper's stage.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Assign {
    /// Of the cut; greater than all before. Epochs, batches and requests of a captain are drawn from one growing count, so that no
    /// two of them are the same number.
    pub epoch: u64,
    /// Number of the stage, at least 1: the captain has the first one.
    pub stage: u32,
    /// Its layers, at least one.
    pub layers: LayerRange,
    /// Trained tensors of the stage: so many squares belong into `Sums`.
    pub tensors: u32,
    /// Microbatches whose activations it holds, at most.
    pub in_flight: u32,
    /// Frames that wait for it in each direction, at most.
    pub waiting: u32,
    /// Rows of a stream, at most.
    pub rows_max: u32,
    /// Width of a stream.
    pub width: u32,
    /// How streams are written.
    pub wire: Wire,
    /// Of the state with which it begins, from now on.
    pub revision: u64,
    /// Whether it goes on with the state that it holds, as it told in its offer. Else the training state comes, as the answer to
    /// the request with the epoch's number.
    pub keeps_state: bool,
    /// The run file's text, from which the model is built; at most [`RUN_TEXT_BYTES_MAX`].
    pub run: String,
}

/// What a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum BatchKind {
    /// Forwards and backwards, then a step.
    Training,
    /// Forwards alone.
    Evaluation,
}

/// How many microbatches a batch has in each of two lanes. A replica that computes in two lanes adds up two gradients; so a team does the
/// same to have its bits. Microbatches are numbered through, first those of the first lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Lanes {
    /// In the first lane, at least 1.
    pub first: u32,
    /// In the second one; 0 where there is one lane.
    pub second: u32,
}

impl Lanes {
    /// So many microbatches in one lane.
    pub fn one(microbatches: u32) -> Lanes {
        Lanes { first: microbatches, second: 0 }
    }

    /// Microbatches of the batch.
    pub fn microbatches(self) -> u32 {
        self.first + self.second
    }

    /// The lane of a microbatch, and whether it is the first there.
    pub fn place(self, microbatch: u32) -> (u8, bool) {
        if microbatch < self.first { (0, microbatch == 0) } else { (1, microbatch == self.first) }
    }

    /// Whether there is a microbatch, and no more than [`MICROBATCHES_MAX`].
    pub fn is_sound(self) -> bool {
        self.first > 0 && self.first <= MICROBATCHES_MAX && self.second <= MICROBATCHES_MAX - self.first
    }
}

/// What a helper has to know to be a member of the swarm by itself, with its stage's fragments of the model.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Membership {
    /// How it comes there: a [`Ticket`](crate::Ticket), at most [`TICKET_BYTES_MAX`] bytes.
    pub ticket: String,
    /// Swarm progress of the model, in steps: finite, at least 0.
    pub progress: f64,
    /// Whether the helper's layers are older than what another one has exchanged that is gone: the swarm has newer ones.
    pub is_outdated: bool,
}

/// What all stages step with.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct StepFactors {
    /// Of the whole gradient, before clipping.
    pub gradient_norm: f64,
    /// Of this step.
    pub learning_rate: f64,
    /// Members with which the model is averaged, the node counted: for the optimizer's second moments.
    pub members: f64,
}

impl TeamMessage {
    /// Whether its numbers are within their bounds. One that is not is counted and never used.
    pub fn is_sound(&self) -> bool {
        let number = |number: &u64| *number < NUMBER_MAX;
        match self {
            TeamMessage::Offer(offer) => offer.is_sound(),
            TeamMessage::Assign(assign) => assign.is_sound(),
            TeamMessage::WantsBase { epoch }
            | TeamMessage::Ready { epoch }
            | TeamMessage::Release { epoch }
            | TeamMessage::Apart { epoch } => number(epoch),
            TeamMessage::Cannot { epoch, reason } => number(epoch) && reason.len() <= REASON_BYTES_MAX,
            TeamMessage::Begin { epoch, batch, kind: _, lanes, membership } => {
                let is_sound = membership.as_ref().is_none_or(Membership::is_sound);
                number(epoch) && number(batch) && lanes.is_sound() && is_sound
            }
            TeamMessage::Sums { epoch, batch, squares, busy_nanos } => {
                let unlike_squares = squares.iter().any(|square| *square < 0.0);
                number(epoch)
                    && number(batch)
                    && number(busy_nanos)
                    && squares.len() <= TENSORS_MAX as usize
                    && !unlike_squares
            }
            TeamMessage::Commit { epoch, batch, factors, revision, wants_copy: _ } => {
                number(epoch) && number(batch) && number(revision) && factors.is_sound()
            }
            TeamMessage::Done { epoch, batch }
            | TeamMessage::Drop { epoch, batch }
            | TeamMessage::Failed { epoch, batch, cause: _ } => number(epoch) && number(batch),
            TeamMessage::Copy { epoch, request, kind, layers, stays_member: _ } => {
                let is_copied = matches!(kind, StateKind::Training | StateKind::Parameters);
                number(epoch) && number(request) && is_copied && layers.is_sound()
            }
            TeamMessage::Written { epoch, request } => number(epoch) && number(request),
            TeamMessage::Leaving => true,
            TeamMessage::Dismiss { reason } => reason.len() <= REASON_BYTES_MAX,
        }
    }
}

impl Offer {
    fn is_sound(&self) -> bool {
        let is_sound =
            |held: HeldLayers| held.epoch < NUMBER_MAX && held.revision < NUMBER_MAX && held.layers.is_sound();
        self.held.is_none_or(is_sound) && self.operations_per_second.is_finite() && self.operations_per_second > 0.0
    }
}

impl Assign {
    fn is_sound(&self) -> bool {
        let held = |count: u32| (1..=IN_FLIGHT_MAX).contains(&count);
        self.epoch < NUMBER_MAX
            && self.revision < NUMBER_MAX
            && self.stage > 0
            && self.layers.is_sound()
            && (1..=TENSORS_MAX).contains(&self.tensors)
            && held(self.in_flight)
            && held(self.waiting)
            && (1..=ROWS_MAX).contains(&self.rows_max)
            && (1..=WIDTH_MAX).contains(&self.width)
            && StreamCodec::new(self.wire, self.width as usize).bytes(self.rows_max as usize) as u64 <= FRAME_BYTES_MAX
            && self.run.len() <= RUN_TEXT_BYTES_MAX
    }
}

impl Membership {
    fn is_sound(&self) -> bool {
        self.ticket.len() <= TICKET_BYTES_MAX && self.progress.is_finite() && self.progress >= 0.0
    }
}

impl StepFactors {
    fn is_sound(&self) -> bool {
        let StepFactors { gradient_norm, learning_rate, members } = *self;
        let within = |value: f64| value.is_finite() && value >= 0.0;
        within(gradient_norm) && within(learning_rate) && within(members)
    }
}

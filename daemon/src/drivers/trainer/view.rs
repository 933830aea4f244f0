//! What the training thread shows of itself, for reports.

use murmur_training::Scores;

use super::{PrivacyReport, StepTimes};

/// What the trainer shows of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingView {
    /// Own steps.
    pub steps: u64,
    /// Swarm progress, in steps.
    pub progress: f64,
    /// Models copied from members.
    pub copies: u64,
    /// Running average of the training loss, in nats per byte, token or image.
    pub loss: Option<f64>,
    /// At the last evaluation, in nats per byte, token or image.
    pub validation_loss: Option<f64>,
    /// Share of held-out images or rows that were classified rightly at the last evaluation; none for texts.
    pub accuracy: Option<f64>,
    /// How well held-out rows were predicted at the last evaluation; none where no table is read.
    pub scores: Option<Scores>,
    /// Running average.
    pub tokens_per_second: f64,
    /// Running average, in seconds.
    pub step_seconds: f64,
    /// Where the time since the first step went.
    pub times: StepTimes,
    /// Whether the model is being evaluated now; no step is made meanwhile.
    pub is_evaluating: bool,
    /// Whether the final evaluation and checkpoint are done, and the model has not changed since.
    pub completed: bool,
    /// What training has told of the records, where its steps are private.
    pub privacy: Option<PrivacyReport>,
    /// Why training has ended for good, if it has.
    pub failure: Option<String>,
}

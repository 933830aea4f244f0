//! One life of a host, from the beginning of a process to its end.

use std::ops::Range;
use std::time::Duration;

use crate::scenario::HostIndex;

/// One life of a host.
#[derive(Clone, Debug)]
pub struct LifeRecord {
    /// The host's number.
    pub host: HostIndex,
    /// Whether it still lives, has a model and takes part.
    pub active: bool,
    /// Whether its node holds the run for over, and its trainer stands still.
    pub is_completed: bool,
    /// Whether it deceives nobody.
    pub is_honest: bool,
    /// The model that it began with, own or copied; empty for the dead.
    pub first_model: Vec<f32>,
    /// The model now; empty for the dead.
    pub model: Vec<f32>,
    /// What of it this host holds; nothing else of it says anything.
    pub held: Vec<Range<usize>>,
    /// The trainer's objective at the model, with the rest of another one where this host does not hold all; 0 for the dead.
    pub loss: f64,
    /// How far the model has moved beyond its own training and the corrections that its node ordered, as a Euclidean
    /// norm.
    pub unexplained: f64,
    /// An upper bound on the rounding of all additions to the model.
    pub rounding: f64,
    /// Steps of its trainer in this life.
    pub steps: u64,
    /// Swarm progress now, or at the end.
    pub progress: f64,
    /// Time of one step, by the time that steps of this life took.
    pub step_time: Duration,
    /// Steps that the time since training first began held, at the pace of its trainer; pauses of the process taken off,
    /// and the time after an end of training that has a reason. An end that its node orders while it trains has none.
    pub steps_expected: f64,
    /// Pauses, and ends of training with a reason: each may cost or give a part of a step.
    pub interruptions: u64,
    /// Corrections of the model that became part of it while it trained.
    pub corrections: u64,
    /// Sum of 2γ · partner's share over those, each times the share of the model that it covers.
    pub gain: f64,
    /// Sum of their delays, from the snapshot to the addition.
    pub delay: Duration,
    /// The same in rounds of the node at that time.
    pub delay_rounds: f64,
    /// Rounds of the node, as long as it had them: the mean steps between exchanges that it starts.
    pub rounds: f64,
    /// How long its trainer had to train, pauses of the process taken off.
    pub trained: Duration,
    /// Exchanges that it took part in, as its node tells.
    pub exchanges: u64,
    /// Peers connected now.
    pub connected: usize,
    /// How long ago the last exchange ended well, or this life began: from now, or from when nobody begins exchanges any more.
    pub last_exchange_ago: Duration,
}

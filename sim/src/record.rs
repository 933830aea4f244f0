//! What a run leaves behind for the checks: plain values, which a test may also forge.

use std::time::Duration;

use murmur_protocol::event::Misbehaviour;
use murmur_protocol::{Correction, Notice, Time};

use crate::scenario::HostIndex;

/// Everything that checks look at.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Every life of every host, the dead first.
    pub lives: Vec<LifeRecord>,
    /// Every correction that a node ordered, in the order of ordering.
    pub merges: Vec<MergeRecord>,
    /// The largest of everything that is bounded.
    pub peaks: Peaks,
    /// Whom honest nodes took for misbehaving.
    pub accusations: Vec<Accusation>,
    /// Times at which a node asked to be woken at once, over and over.
    pub busy_wakes: u64,
    /// All other notices, with their time and host.
    pub notices: Vec<(Time, HostIndex, Notice)>,
    /// Bytes of payloads sent.
    pub payload_bytes: u64,
}

/// One life of a host.
#[derive(Clone, Debug)]
pub struct LifeRecord {
    /// Whose.
    pub host: HostIndex,
    /// Whether it still lives, has a model and takes part.
    pub active: bool,
    /// The model that it began with, own or copied.
    pub first_model: Vec<f32>,
    /// The model now, or when it died.
    pub model: Vec<f32>,
    /// Sum of all that its own training did to the model.
    pub local_movement: Vec<f64>,
    /// Steps of its trainer.
    pub steps: u64,
    /// Time of one step.
    pub step_time: Duration,
    /// How long its trainer was ordered to train, pauses of the process taken off.
    pub training_time: Duration,
    /// Pauses and ends of training: each may cost or give a part of a step.
    pub interruptions: u64,
}

/// Which side of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// It proposed.
    Starter,
    /// It answered.
    Responder,
}

/// One side's correction of one exchange.
#[derive(Clone, Debug)]
pub struct MergeRecord {
    /// Names the exchange on both sides: its nonce, 64 random bits.
    pub exchange: u64,
    /// On which host.
    pub host: HostIndex,
    /// In which of all lives: a host that came back knows nothing of what it merged before.
    pub life: u64,
    /// Which side it is.
    pub side: Side,
    /// When it was ordered.
    pub at: Time,
    /// What was to be added.
    pub correction: Correction,
    /// 2γ · partner's share.
    pub factor: f64,
    /// κ‖s·d‖.
    pub clipped_distance: f64,
    /// Whether it became part of the model before the host died.
    pub landed: bool,
}

/// The largest of everything that is bounded, over all nodes and times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Members with addresses in a view.
    pub known: usize,
    /// Connected members.
    pub connected: usize,
    /// Peers in the count of misbehaviours.
    pub misbehaving: usize,
    /// Effects that awaited a reply at once.
    pub awaited: usize,
    /// Merges under way at once on one node.
    pub merging: usize,
    /// States on their way from one node at once.
    pub giving: usize,
    /// Bytes of one payload.
    pub payload_bytes: usize,
    /// Effects of one event.
    pub effects: usize,
}

/// An honest node took another honest node for misbehaving.
#[derive(Clone, Debug)]
pub struct Accusation {
    /// When.
    pub at: Time,
    /// By whom.
    pub by: HostIndex,
    /// Of what.
    pub misbehaviour: Misbehaviour,
}

impl Record {
    /// Corrections that landed while the other side's did not.
    pub fn one_sided(&self) -> Vec<&MergeRecord> {
        let is_alone = |merge: &&MergeRecord| merge.landed && self.twin(merge).is_none_or(|twin| !twin.landed);
        self.merges.iter().filter(is_alone).collect()
    }

    /// The other side of a merge. A responder that crashed and came back may have merged once in each life; then the
    /// starter has answered the last of them.
    pub fn twin(&self, merge: &MergeRecord) -> Option<&MergeRecord> {
        let of_side =
            |side| self.merges.iter().rev().filter(move |one| (one.exchange, one.side) == (merge.exchange, side));
        match merge.side {
            Side::Starter => of_side(Side::Responder).find(|one| one.at <= merge.at),
            Side::Responder => of_side(Side::Starter).find(|starter| {
                self.twin(starter).is_some_and(|answered| (answered.life, answered.at) == (merge.life, merge.at))
            }),
        }
    }

    /// Models of all who take part now.
    pub fn active_models(&self) -> Vec<&[f32]> {
        self.lives.iter().filter(|life| life.active).map(|life| life.model.as_slice()).collect()
    }

    /// The largest Euclidean distance of a model from the mean of all.
    pub fn disagreement(&self) -> f64 {
        let models = self.active_models();
        let Some(first) = models.first() else { return 0.0 };
        let mut mean = vec![0.0f64; first.len()];
        for model in &models {
            mean.iter_mut().zip(*model).for_each(|(mean, value)| *mean += f64::from(*value) / models.len() as f64);
        }
        let distance = |model: &&[f32]| {
            model.iter().zip(&mean).map(|(value, mean)| (f64::from(*value) - mean).powi(2)).sum::<f64>().sqrt()
        };
        models.iter().map(distance).fold(0.0, f64::max)
    }
}

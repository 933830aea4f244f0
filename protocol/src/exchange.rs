//! Exchanges with partners: one that we start, a few that we answer.
//!
//! ```text
//!   starter                                    responder
//!   PROPOSE ──────────────────────────────────► has room?
//!          ◄────────────────────────────────── ACCEPT (or REJECT)
//!   snapshot, encode
//!   steps, checks, codes ═════════════════════► snapshot, merge
//!          ◄═════════════════════════════════ checks, codes, digest
//!   merge; θ += correction                      θ += correction
//! ```
//!
//! A small proposal goes first, so that no byte of a model travels to a partner that has no room for it. Whatever gets
//! lost, the starter repeats the small proposal under the same number, and the responder says or sends again what it
//! had said or sent; it merges only once.

mod clip;
mod responder;
mod starter;

pub(crate) use clip::ClipHistory;
pub(crate) use responder::{Admission, Responder};
pub(crate) use starter::Starter;

use std::time::Duration;

use crate::event::{Misbehaviour, TrainingReport};
use crate::manifest::GossipSpec;
use crate::message::Standing;
use crate::numerics::{CodeWidth, Merged, StepSizes};
use crate::status::ExchangeCounters;

/// What both roles share: this node's part in averaging.
#[derive(Debug)]
pub(crate) struct Averaging {
    pub(crate) gossip: GossipSpec,
    /// See [`bounds::exchange_timeout`](crate::bounds::exchange_timeout).
    pub(crate) timeout: Duration,
    pub(crate) training: TrainingReport,
    /// `None` before the first exchange.
    pub(crate) steps: Option<StepSizes>,
    pub(crate) clip: ClipHistory,
    pub(crate) counters: ExchangeCounters,
    /// ‖s·d‖ of the last exchange.
    pub(crate) last_distance: Option<f64>,
    /// Own steps when the last exchange was merged.
    last_merge_steps: u64,
}

impl Averaging {
    pub(crate) fn new(gossip: GossipSpec, timeout: Duration, training: TrainingReport) -> Averaging {
        let clip = ClipHistory::new(gossip.clip_factor);
        Averaging {
            gossip,
            timeout,
            training,
            steps: None,
            clip,
            counters: ExchangeCounters::default(),
            last_distance: None,
            last_merge_steps: training.steps,
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing {
            weight: self.training.tokens_per_second as f32,
            clip: self.clip.norm(self.training.travel) as f32,
            gamma: self.gossip.gamma as f32,
            age_steps: u32::try_from(self.training.steps.saturating_sub(self.last_merge_steps)).unwrap_or(u32::MAX),
            progress: self.training.progress,
        }
    }

    /// Takes in what a merge found out; the correction itself goes to the trainer.
    fn on_merged(&mut self, merged: &Merged, terms: &Terms) {
        self.steps = Some(merged.steps.clone());
        self.clip.record(merged.distance);
        self.last_distance = Some(merged.distance);
        self.last_merge_steps = self.training.steps;
        self.counters.coarse += u64::from(terms.width == CodeWidth::Sixteen);
        self.counters.masked_blocks += u64::from(merged.masked_blocks);
    }
}

/// What both partners agreed on before any bulk moves.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Terms {
    width: CodeWidth,
    nonce: u64,
    /// The starter's share of the joint weight.
    starter_share: f32,
    /// The smaller τ of the two.
    clip: f64,
    /// What this side adds to its swarm progress, in steps.
    progress_shift: f64,
}

impl Terms {
    /// Terms for the side that stands at `own`.
    fn new(
        width: CodeWidth,
        nonce: u64,
        gamma: f64,
        starter_share: f32,
        own: &Standing,
        partner: &Standing,
        is_responder: bool,
    ) -> Terms {
        let starter = f64::from(starter_share);
        let partner_share = if is_responder { starter } else { 1.0 - starter };
        Terms {
            width,
            nonce,
            starter_share,
            clip: f64::from(own.clip.min(partner.clip)),
            progress_shift: 2.0 * gamma * partner_share * (partner.progress - own.progress),
        }
    }
}

/// The most steps that a run can have: see `schedule.total_steps`.
const PROGRESS_MAX: f64 = 1e9;

pub(crate) fn screen(standing: &Standing) -> Result<(), Misbehaviour> {
    let Standing { weight, clip, gamma, progress, age_steps: _ } = standing;
    if !(weight.is_finite() && *weight >= 0.0) {
        return Err(Misbehaviour::OutOfRange("weight"));
    }
    if !(clip.is_finite() && *clip >= 0.0) {
        return Err(Misbehaviour::OutOfRange("clip norm"));
    }
    if !(0.0..=0.5).contains(gamma) {
        return Err(Misbehaviour::OutOfRange("gamma"));
    }
    if !(0.0..=PROGRESS_MAX).contains(progress) {
        return Err(Misbehaviour::OutOfRange("progress"));
    }
    Ok(())
}

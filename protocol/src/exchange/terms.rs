//! What both partners of an exchange agree on before any bulk moves, and what neither may say.

use crate::Payload;
use crate::bounds::{PROGRESS_MAX, WEIGHT_CLAMP};
use crate::message::{Accept, Propose, Standing};
use crate::misbehaviour::Misbehaviour;
use crate::numerics::{CodeWidth, EncodeJob, EncodeRole, Encoded, MergeJob, MergeRole, Merged, Reference, Scales};
use crate::part::{Part, Vector};

/// The scale of the 4-bit grid of the outer momentum, as a fraction of the rms difference: ±7 of it are then ±4.9 of it.
const MOMENTUM_STEP_FRACTION: f64 = 0.7;

/// A partner that lets in less than one in so many parts of the usual rebuffs us (a guess: honest clip norms of one swarm
/// lie within a factor of two of each other).
const REBUFF_FACTOR: f64 = 4.0;

/// A correction so many times as long as one that is agreed on now moves nobody (a guess: what is usual falls by half within fourteen
/// exchanges at the earliest).
const OUTDATED_FACTOR: f64 = 2.0;

/// The terms, as one side holds them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Terms {
    pub(super) part: Part,
    pub(super) width: CodeWidth,
    pub(super) nonce: u64,
    /// The smaller γ of the two; 0 for a probe.
    gamma: f64,
    /// The starter's share of the joint weight.
    starter_share: f32,
    /// The smaller τ of the two.
    clip: f64,
    /// The partner's share of the joint weight, which is its speed: the work that it does in the time of both.
    pub(super) partner_share: f64,
    /// Own share of what the difference changes: 2γ times the partner's share of the weight.
    pub(super) factor: f64,
    /// The partner's progress less our own, in steps.
    pub(super) progress_difference: f64,
    /// The τ that the partner has declared.
    pub(super) partner_clip: f64,
    own_clip: f64,
}

impl Terms {
    /// As the responder holds them, with what it is about to answer.
    pub(super) fn of_responder(propose: &Propose, width: CodeWidth, accept: &Accept) -> Terms {
        let share = f64::from(accept.starter_share);
        Terms::new(propose, width, accept, &accept.standing, &propose.standing, share)
    }

    /// As the starter holds them.
    pub(super) fn of_starter(propose: &Propose, width: CodeWidth, accept: &Accept) -> Terms {
        let share = 1.0 - f64::from(accept.starter_share);
        Terms::new(propose, width, accept, &propose.standing, &accept.standing, share)
    }

    fn new(
        propose: &Propose,
        width: CodeWidth,
        accept: &Accept,
        own: &Standing,
        partner: &Standing,
        partner_share: f64,
    ) -> Terms {
        let gamma = f64::from(own.gamma.min(partner.gamma));
        Terms {
            part: propose.part,
            width,
            nonce: propose.nonce,
            gamma,
            starter_share: accept.starter_share,
            clip: f64::from(own.clip.min(partner.clip)),
            partner_share,
            factor: 2.0 * gamma * partner_share,
            progress_difference: partner.progress - own.progress,
            partner_clip: f64::from(partner.clip),
            own_clip: f64::from(own.clip),
        }
    }

    /// Whether the partner lets in but little of a difference that this node would take: one of the two is far from the
    /// swarm, and it is not the one whose usual distances are small.
    pub(super) fn is_rebuff(&self, distance: f64) -> bool {
        self.partner_clip * REBUFF_FACTOR < self.own_clip.min(distance)
    }

    /// Whether neither side takes more than a little of the difference.
    pub(super) fn is_far_apart(&self, distance: f64) -> bool {
        self.partner_clip.max(self.own_clip) * REBUFF_FACTOR < distance
    }

    /// Whether a correction is far longer than what this side lets in now, `reach`: the exchange took so long that models have come
    /// nearer since it was agreed on.
    pub(super) fn is_outdated(&self, merged: &Merged, reach: f32) -> bool {
        !self.is_probe() && merged.clip_scale * merged.norm > OUTDATED_FACTOR * f64::from(reach)
    }

    /// Whether nothing is to be moved.
    pub(super) fn is_probe(&self) -> bool {
        self.gamma == 0.0
    }

    /// How the starter encodes. `scales`: its own of the part.
    pub(super) fn starter_encodes(&self, scales: Option<Scales>, reference: Option<Reference>) -> EncodeJob {
        let role = match self.width {
            CodeWidth::One => EncodeRole::Link { reference, received: None },
            // The scales may be newer than the proposal, but its width stands.
            CodeWidth::Sixteen => EncodeRole::Starter { scales: None },
            _ => EncodeRole::Starter { scales },
        };
        EncodeJob { role, nonce: self.nonce, width: self.width }
    }

    /// How the responder encodes, with the starter's scales, or its new reference.
    pub(super) fn responder_encodes(&self, scales: Payload, reference: Option<Reference>) -> EncodeJob {
        let role = match self.width {
            CodeWidth::One => EncodeRole::Link { reference, received: Some(scales) },
            _ => EncodeRole::Responder { scales },
        };
        EncodeJob { role, nonce: self.nonce, width: self.width }
    }

    /// `parameters`: of the part. `grid`: the run's `gossip.step_fraction`, and this side's scales of the part.
    pub(super) fn merge_job(
        &self,
        role: MergeRole,
        parameters: usize,
        own: Encoded,
        received: Payload,
        grid: (f64, Option<Scales>),
    ) -> MergeJob {
        let step_fraction = match self.part.vector {
            Vector::Model => grid.0,
            Vector::Momentum => MOMENTUM_STEP_FRACTION,
        };
        MergeJob {
            role,
            parameters,
            reference: own.reference.clone(),
            own,
            received,
            width: self.width,
            nonce: self.nonce,
            gamma: self.gamma,
            starter_share: self.starter_share,
            clip: self.clip,
            step_fraction,
            scales: grid.1,
        }
    }
}

/// # Errors
/// When a value is not finite or out of its range.
pub(crate) fn screen(standing: &Standing) -> Result<(), Misbehaviour> {
    let Standing { weight, clip, gamma, progress } = standing;
    if !(weight.is_finite() && *weight >= 0.0) {
        return Err(Misbehaviour::OutOfRange("weight".into()));
    }
    if !(clip.is_finite() && *clip >= 0.0) {
        return Err(Misbehaviour::OutOfRange("clip norm".into()));
    }
    if !(0.0..=0.5).contains(gamma) {
        return Err(Misbehaviour::OutOfRange("gamma".into()));
    }
    if !(0.0..=PROGRESS_MAX).contains(progress) {
        return Err(Misbehaviour::OutOfRange("progress".into()));
    }
    Ok(())
}

/// As [`screen`], for what answers this proposal.
pub(super) fn screen_accept(propose: &Propose, accept: &Accept) -> Result<(), Misbehaviour> {
    screen(&accept.standing)?;
    if accept.reference != 0 && accept.reference != propose.reference {
        return Err(Misbehaviour::OutOfRange("reference".into()));
    }
    // Speeds count within a factor of WEIGHT_CLAMP of a median, so no share is more lopsided than its square.
    let least = 0.99 / (1.0 + WEIGHT_CLAMP * WEIGHT_CLAMP);
    if (least..=1.0 - least).contains(&accept.starter_share) {
        Ok(())
    } else {
        Err(Misbehaviour::OutOfRange("share".into()))
    }
}

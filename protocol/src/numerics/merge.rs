//! Two sets of codes into one correction a side.
//!
//! Each side recomputes its own indices from its snapshot, subtracts the codes and gets the same integers as its
//! partner with the opposite sign. Blocks in which a code wrapped are found by the check and left out on both sides;
//! the norm is summed from integers in a fixed order, so both sides clip by the same factor, bit by bit.

use super::codes::check;
use super::encode::write_checks_and_codes;
use super::packing::unpack;
use super::steps::StepSizes;
use super::width::{CodeWidth, proposal_bytes, reply_bytes};
use crate::bulk::{BLOCK, Codes, Correction, Payload, Snapshot};
use crate::event::Misbehaviour;

/// Which side of the exchange this is.
#[derive(Clone, Debug, PartialEq)]
pub enum MergeRole {
    /// Received the starter's payload; makes the reply.
    Responder,
    /// Received the responder's payload.
    Starter {
        /// What this side sent: its steps are those of the exchange.
        proposal: Payload,
        /// The responder's digest of the differences.
        digest: u64,
    },
}

/// How a side merges.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeJob {
    /// Which side this is.
    pub role: MergeRole,
    /// The partner's payload.
    pub received: Payload,
    /// From the exchange.
    pub width: CodeWidth,
    /// From the exchange.
    pub nonce: u64,
    /// γ, 0 to 0.5; 0 measures the distance and moves nothing.
    pub gamma: f64,
    /// The starter's share of the joint weight, 0 to 1. Each side moves by the other's.
    pub starter_share: f32,
    /// The smaller τ of the two, a Euclidean norm.
    pub clip: f64,
    /// The run's `gossip.step_fraction`.
    pub step_fraction: f64,
    /// This node's steps before the exchange.
    pub steps: Option<StepSizes>,
}

impl MergeJob {
    /// The partner's share of the joint weight, 0 to 1: how far this side moves.
    pub fn partner_share(&self) -> f64 {
        let starter_share = f64::from(self.starter_share);
        if self.role == MergeRole::Responder { starter_share } else { 1.0 - starter_share }
    }
}

/// What a merge gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// To be added to this side's model.
    pub correction: Correction,
    /// The responder's payload, for the starter.
    pub reply: Option<Payload>,
    /// ‖s·d‖ over the blocks that did not wrap: how far apart the models were.
    pub distance: f64,
    /// κ, 0 to 1.
    pub clip_scale: f64,
    /// Blocks left out.
    pub masked_blocks: u32,
    /// Digest of the differences, the mask and the terms, equal on both sides.
    pub digest: u64,
    /// This node's steps from now on.
    pub steps: StepSizes,
}

/// Compares `snapshot`, as it was encoded, with the partner's codes.
///
/// # Errors
/// When the partner's payload has a wrong length, absurd steps, or (for the starter) another digest.
pub fn merge(snapshot: &Snapshot, job: &MergeJob) -> Result<Merged, Misbehaviour> {
    let values = snapshot.values();
    let exchange = match &job.role {
        MergeRole::Responder => {
            let received = of_length(&job.received, proposal_bytes(values.len(), job.width))?;
            let (step_bytes, rest) = received.split_at(2 * values.len().div_ceil(BLOCK));
            let steps = StepSizes::read(step_bytes).ok_or(Misbehaviour::OutOfRange("step size"))?;
            Exchange { steps, partner: rest }
        }
        MergeRole::Starter { proposal, .. } => {
            let partner = of_length(&job.received, reply_bytes(values.len(), job.width))?;
            let step_bytes = &proposal.bytes()[..2 * values.len().div_ceil(BLOCK)];
            let steps = StepSizes::read(step_bytes).expect("the steps that this side sent are sound");
            Exchange { steps, partner }
        }
    };
    let (own_payload, mut differences) = match job.width {
        CodeWidth::Sixteen => difference::<i16>(values, &exchange, job),
        _ => difference::<i8>(values, &exchange, job),
    };
    // Terms that differ would be as bad as codes that differ: the corrections would not cancel.
    for term in [job.gamma.to_bits(), job.clip.to_bits(), u64::from(job.starter_share.to_bits())] {
        differences.digest = mix(differences.digest, term);
    }
    if let MergeRole::Starter { digest, .. } = &job.role
        && *digest != differences.digest
    {
        return Err(Misbehaviour::Disagreement);
    }
    let distance = differences.norm_squared.sqrt();
    // Not `clip / distance` alone: a distance of zero must not become NaN.
    let clip_scale = if distance > job.clip { job.clip.max(0.0) / distance } else { 1.0 };
    let factor = (2.0 * job.gamma * job.partner_share()) as f32;
    let scaled_steps = exchange.steps.values().iter().map(|step| factor * (clip_scale as f32 * step)).collect();
    let steps = StepSizes::after_exchange(
        job.steps.as_ref(),
        &exchange.steps,
        &differences.rms,
        job.step_fraction as f32,
        values,
    );
    Ok(Merged {
        correction: Correction::new(differences.codes, scaled_steps),
        reply: matches!(job.role, MergeRole::Responder).then(|| own_payload.into()),
        distance,
        clip_scale,
        masked_blocks: differences.masked_blocks,
        digest: differences.digest,
        steps,
    })
}

fn of_length(payload: &Payload, expected: usize) -> Result<&[u8], Misbehaviour> {
    if payload.len() == expected {
        Ok(payload.bytes())
    } else {
        Err(Misbehaviour::WrongLength { expected: expected as u64, actual: payload.len() as u64 })
    }
}

/// The steps in use and the partner's checks and codes.
struct Exchange<'a> {
    steps: StepSizes,
    partner: &'a [u8],
}

/// Partner minus own, in whole steps.
struct Differences {
    codes: Codes,
    /// Σ (s·d)² over the blocks that count.
    norm_squared: f64,
    /// Per block; `None` where it wrapped.
    rms: Vec<Option<f32>>,
    masked_blocks: u32,
    digest: u64,
}

/// A difference of two codes.
trait Code: Copy + Default + Into<i32> {
    /// The codes of a block, in the low bits.
    fn unpack(input: &[u8], width: CodeWidth) -> [i32; BLOCK];
    fn hold(codes: Vec<Self>) -> Codes;
    fn narrow(difference: i32) -> Self;
}

impl Code for i8 {
    fn unpack(input: &[u8], width: CodeWidth) -> [i32; BLOCK] {
        let mut codes = [0; BLOCK];
        unpack(input, width, &mut codes);
        codes.map(i32::from)
    }
    fn hold(codes: Vec<i8>) -> Codes {
        Codes::Narrow(codes)
    }
    fn narrow(difference: i32) -> i8 {
        difference as i8
    }
}

impl Code for i16 {
    fn unpack(input: &[u8], _: CodeWidth) -> [i32; BLOCK] {
        let mut codes = [0; BLOCK];
        for (code, pair) in codes.iter_mut().zip(input.chunks_exact(2)) {
            *code = i32::from(i16::from_le_bytes([pair[0], pair[1]]));
        }
        codes
    }
    fn hold(codes: Vec<i16>) -> Codes {
        Codes::Wide(codes)
    }
    fn narrow(difference: i32) -> i16 {
        difference as i16
    }
}

/// Own checks and codes (the reply of a responder) and the differences, in one pass over the model.
fn difference<C: Code>(values: &[f32], exchange: &Exchange<'_>, job: &MergeJob) -> (Vec<u8>, Differences) {
    let (partner_checks, partner_codes) = exchange.partner.split_at(2 * values.len().div_ceil(BLOCK));
    let mut codes = vec![C::default(); values.len()];
    let mut result = Differences {
        codes: Codes::Narrow(Vec::new()),
        norm_squared: 0.0,
        rms: Vec::with_capacity(exchange.steps.values().len()),
        masked_blocks: 0,
        digest: 0,
    };
    let mut own_payload = Vec::new();
    write_checks_and_codes(values, &exchange.steps, job.nonce, job.width, &mut own_payload, |number, own| {
        let start = number * BLOCK;
        let bytes = job.width.packed_bytes(start)..job.width.packed_bytes(start + own.len());
        let partner = C::unpack(&partner_codes[bytes], job.width);
        let block = &mut codes[start..start + own.len()];
        let spare_bits = 32 - u32::from(job.width.bits());
        let mut theirs = [0i32; BLOCK];
        let mut half_way = false;
        for (position, (code, partner)) in block.iter_mut().zip(partner).enumerate() {
            let difference = (partner.wrapping_sub(own[position]) << spare_bits) >> spare_bits;
            *code = C::narrow(difference);
            half_way |= difference == i32::MIN >> spare_bits;
            theirs[position] = own[position].wrapping_add(difference);
        }
        let partner_check = u16::from_le_bytes([partner_checks[2 * number], partner_checks[2 * number + 1]]);
        if half_way || check(&theirs[..own.len()], job.width) != partner_check {
            block.fill(C::default());
            result.masked_blocks += 1;
            result.rms.push(None);
            result.digest = mix(result.digest, u64::MAX);
            return;
        }
        let squares: u64 = block.iter().map(|code| u64::from((*code).into().unsigned_abs()).pow(2)).sum();
        let step = f64::from(exchange.steps.values()[number]);
        result.norm_squared += step * step * squares as f64;
        result.rms.push(Some((step * (squares as f64 / own.len() as f64).sqrt()) as f32));
        result.digest = mix(result.digest, squares);
    });
    result.codes = C::hold(codes);
    (own_payload, result)
}

/// Chains a block's number into a digest. It finds mistakes, not forgeries: a partner that lies about its model can
/// lie about this as well.
fn mix(digest: u64, block: u64) -> u64 {
    let mixed = (digest ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;

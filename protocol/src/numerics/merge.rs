//! Two sets of codes into one correction a side.
//!
//! Each side subtracts its own codes from its partner's and gets the same integers as its partner with the opposite
//! sign. Blocks in which a code wrapped are found by the check and left out on both sides; the norm is summed from
//! integers in a fixed order, so both sides clip by the same factor, bit by bit.

use super::buffers::Buffers;
use super::difference::{Comparison, Differences, MergeTerms, Side};
use super::encode::Encoded;
use super::instruction_set::InstructionSet;
use super::link::{self, Reference};
use super::scales::{Scales, sane_scales, scale_from_wire};
use super::width::{CodeWidth, codes_bytes};
use crate::bulk::{BLOCK, Correction, Payload};
use crate::event::Misbehaviour;

/// Which side of an exchange merges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MergeRole {
    /// The first to merge.
    Responder,
    /// Merges what the responder has merged.
    Starter {
        /// The responder's digest of the differences.
        digest: u64,
    },
}

/// How a side merges.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeJob {
    /// Which side this is.
    pub role: MergeRole,
    /// Number of parameters that are exchanged: those of any range of whole blocks of a model.
    pub parameters: usize,
    /// This side's codes.
    pub own: Encoded,
    /// The partner's codes.
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
    /// This node's scales before the exchange.
    pub scales: Option<Scales>,
    /// On a link: what the codes refer to.
    pub reference: Option<Reference>,
}

impl MergeJob {
    /// The partner's share of the joint weight, 0 to 1: how far this side moves.
    pub fn partner_share(&self) -> f64 {
        let starter_share = f64::from(self.starter_share);
        if self.role == MergeRole::Responder { starter_share } else { 1.0 - starter_share }
    }

    /// κ, for differences of this length.
    pub(super) fn clip_scale(&self, norm: f64) -> f64 {
        // Not `clip / norm` alone: a norm of zero must not become NaN.
        if norm > self.clip { self.clip.max(0.0) / norm } else { 1.0 }
    }

    /// The digest of the differences and of the terms: terms or scales that differ would be as bad as codes that differ, for
    /// the corrections would not cancel. The scales are in the norm.
    ///
    /// # Errors
    /// When the responder has found another.
    pub(super) fn finish_digest(&self, differences: &mut Differences) -> Result<u64, Misbehaviour> {
        let norm_bits = differences.norm_squared.to_bits();
        for term in [norm_bits, self.gamma.to_bits(), self.clip.to_bits(), u64::from(self.starter_share.to_bits())] {
            differences.mix(term);
        }
        match self.role {
            MergeRole::Starter { digest } if digest != differences.digest => Err(Misbehaviour::Disagreement),
            _ => Ok(differences.digest),
        }
    }
}

/// What a merge gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// To be added to this side's model.
    pub correction: Correction,
    /// How far apart the models were, a Euclidean norm; at least so far where blocks wrapped.
    pub distance: f64,
    /// The same over the blocks that did not wrap: what is clipped.
    pub norm: f64,
    /// κ, 0 to 1.
    pub clip_scale: f64,
    /// Blocks left out.
    pub masked_blocks: u32,
    /// Those among them that this node's grid does not reach though it has grown.
    pub stuck_blocks: u32,
    /// Digest of the differences, the mask and the terms, equal on both sides.
    pub digest: u64,
    /// This node's scales from now on; a link leaves them as they were.
    pub scales: Option<Scales>,
    /// On a link: its reference from now on.
    pub reference: Option<Reference>,
}

/// Compares this side's codes with the partner's; all memory comes from `buffers`.
///
/// # Errors
/// When the partner's payload has a wrong length, or (for the starter) another digest.
///
/// # Panics
/// When this side's codes, or the job's scales, are not of so many parameters.
pub fn merge(job: &MergeJob, buffers: &Buffers) -> Result<Merged, Misbehaviour> {
    merge_with(InstructionSet::best(), job, buffers)
}

/// [`merge`] with the loops of `instructions`.
pub(super) fn merge_with(
    instructions: InstructionSet,
    job: &MergeJob,
    buffers: &Buffers,
) -> Result<Merged, Misbehaviour> {
    if let Some(reference) = &job.reference {
        return link::merge(instructions, job, reference, buffers);
    }
    let (parameters, blocks) = (job.parameters, job.parameters.div_ceil(BLOCK));
    if let Some(scales) = &job.scales {
        assert_eq!(scales.values().len(), blocks, "one scale per block");
    }
    let length = codes_bytes(parameters, job.width);
    let wire_scales = sane_scales(&job.own.scales, parameters).expect("this side has encoded with them");
    let own = job.own.codes.of_length(length).expect("this side has encoded so many parameters");
    let received = job.received.of_length(length)?;
    let mut new_scales = buffers.take(blocks);
    let terms = MergeTerms {
        nonce: job.nonce,
        width: job.width,
        wire_scales,
        previous_scales: job.scales.as_ref().map(Scales::values),
        step_fraction: job.step_fraction as f32,
    };
    let [own, partner] = [own, received].map(|payload| Side::new(payload, blocks));
    let comparison = Comparison { parameters, terms, own, partner };
    let (codes, mut differences) = comparison.run(instructions, buffers, &mut new_scales);
    let digest = job.finish_digest(&mut differences)?;
    let Differences { norm_squared, masked_norm_squared, masked_blocks, stuck_blocks, .. } = differences;
    let norm = norm_squared.sqrt();
    let clip_scale = job.clip_scale(norm);
    let factor = (2.0 * job.gamma * job.partner_share()) as f32;
    let mut correction_scales = buffers.take(blocks);
    for (scaled, bytes) in correction_scales.iter_mut().zip(wire_scales) {
        *scaled = factor * (clip_scale as f32 * scale_from_wire(*bytes));
    }
    Ok(Merged {
        correction: Correction::from_pooled(codes, correction_scales),
        distance: (norm_squared + masked_norm_squared).sqrt(),
        norm,
        clip_scale,
        masked_blocks,
        stuck_blocks,
        digest,
        scales: Some(Scales::from_pooled(new_scales)),
        reference: None,
    })
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;

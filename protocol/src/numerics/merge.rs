//! Two sets of codes into one correction a side.
//!
//! Each side subtracts its own codes from its partner's and gets the same integers as its partner with the opposite
//! sign. Blocks in which a code wrapped are found by the check and left out on both sides; the norm is summed from
//! integers in a fixed order, so both sides clip by the same factor, bit by bit.

use super::buffers::Buffers;
use super::difference::{Comparison, Differences, MergeTerms, Side};
use super::instruction_set::InstructionSet;
use super::jobs::{MergeJob, Merged};
use super::link;
use super::scales::{Scales, sane_scales, scale_from_wire};
use super::width::codes_bytes;
use crate::bulk::{BLOCK, Correction};
use crate::misbehaviour::Misbehaviour;

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

//! A snapshot into codes, in one pass.
//!
//! The starter's payload holds `steps | checks | codes`, the responder's `checks | codes`, all little-endian: 1.016
//! and 1.008 bytes a parameter at 8 bits.

use super::codes::{Indices, check, indices};
use super::packing::pack;
use super::steps::StepSizes;
use super::width::{CodeWidth, proposal_bytes, reply_bytes};
use crate::bulk::{BLOCK, Payload, Snapshot};

/// How a starter encodes its snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodeJob {
    /// Seeds the dither; the same for both partners.
    pub nonce: u64,
    /// How wide the codes are; 16 bits in a first exchange.
    pub width: CodeWidth,
    /// The node's steps; `None` before its first exchange, which takes them from the model itself.
    pub steps: Option<StepSizes>,
}

/// The starter's payload.
pub fn encode(snapshot: &Snapshot, job: &EncodeJob) -> Payload {
    let values = snapshot.values();
    let width = job.width;
    let first_steps;
    let steps = match &job.steps {
        Some(steps) => steps,
        None => {
            first_steps = StepSizes::for_first_exchange(values);
            &first_steps
        }
    };
    let mut output = Vec::with_capacity(proposal_bytes(values.len(), width));
    steps.write(&mut output);
    write_checks_and_codes(values, steps, job.nonce, width, &mut output, |_, _| {});
    output.into()
}

/// Appends checks and codes of `values`; shows each block's number and indices to `visit` while they are at hand.
pub(super) fn write_checks_and_codes(
    values: &[f32],
    steps: &StepSizes,
    nonce: u64,
    width: CodeWidth,
    output: &mut Vec<u8>,
    mut visit: impl FnMut(usize, &[i32]),
) {
    let mut block_indices: Indices = [0; BLOCK];
    let start = output.len();
    output.resize(start + reply_bytes(values.len(), width), 0);
    let (checks, codes) = output[start..].split_at_mut(2 * values.len().div_ceil(BLOCK));
    let blocks = values.chunks(BLOCK).zip(steps.values());
    let outputs = checks.chunks_mut(2).zip(codes.chunks_mut(width.packed_bytes(BLOCK)));
    for (number, ((block, step), (check_bytes, code_bytes))) in blocks.zip(outputs).enumerate() {
        indices(block, number, *step, nonce, &mut block_indices);
        let block_indices = &block_indices[..block.len()];
        check_bytes.copy_from_slice(&check(block_indices, width).to_le_bytes());
        if width == CodeWidth::Sixteen {
            for (code, index) in code_bytes.chunks_exact_mut(2).zip(block_indices) {
                code.copy_from_slice(&(*index as u16).to_le_bytes());
            }
        } else {
            let mut codes = [0u8; BLOCK];
            codes.iter_mut().zip(block_indices).for_each(|(code, index)| *code = *index as u8);
            pack(&codes, width, code_bytes);
        }
        visit(number, block_indices);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_lengths_are_as_announced() {
        for parameters in [1, BLOCK - 1, BLOCK, BLOCK + 1, 1000] {
            let snapshot = Snapshot::from(vec![0.5; parameters]);
            let steps = Some(StepSizes::for_first_exchange(snapshot.values()));
            for width in [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen] {
                for steps in [None, steps.clone()] {
                    let payload = encode(&snapshot, &EncodeJob { nonce: 1, width, steps });
                    assert_eq!(payload.len(), proposal_bytes(parameters, width));
                }
            }
        }
    }
}

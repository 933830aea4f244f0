//! A snapshot into codes, in one pass over the model.
//!
//! The starter's payload holds `steps | checks | codes`, the responder's `checks | codes`, all little-endian: 1.016
//! and 1.008 bytes a parameter at 8 bits.

use super::buffers::Buffers;
use super::check::{self, Weights};
use super::code::Code;
use super::grid::{Grid, Indices};
use super::instruction_set::{InstructionSet, Kernel};
use super::steps::{StepSizes, first_step, step_for_values, step_to_wire};
use super::width::{CodeWidth, proposal_bytes};
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

/// The starter's payload, in memory from `buffers`. A snapshot may be any range of whole blocks of a model.
///
/// # Panics
/// When there are steps, but not one for each block.
pub fn encode(snapshot: &Snapshot, job: &EncodeJob, buffers: &Buffers) -> Payload {
    encode_with(InstructionSet::best(), snapshot, job, buffers)
}

/// [`encode`] with the loops of `instructions`.
pub(super) fn encode_with(
    instructions: InstructionSet,
    snapshot: &Snapshot,
    job: &EncodeJob,
    buffers: &Buffers,
) -> Payload {
    let values = snapshot.values();
    let blocks = values.len().div_ceil(BLOCK);
    if let Some(steps) = &job.steps {
        assert_eq!(steps.values().len(), blocks, "one step per block");
    }
    let mut output = buffers.take(proposal_bytes(values.len(), job.width));
    let (steps, rest) = output.split_at_mut(2 * blocks);
    let (checks, codes) = rest.split_at_mut(2 * blocks);
    let output_parts = Output { steps, checks, codes };
    match job.width {
        CodeWidth::Sixteen => instructions.run(Encoding::<i16>::new(values, job, output_parts)),
        _ => instructions.run(Encoding::<i8>::new(values, job, output_parts)),
    }
    Payload::from(output)
}

/// The parts of a starter's payload.
struct Output<'a> {
    steps: &'a mut [u8],
    checks: &'a mut [u8],
    codes: &'a mut [u8],
}

struct Encoding<'a, C> {
    values: &'a [f32],
    job: &'a EncodeJob,
    output: Output<'a>,
    code: std::marker::PhantomData<C>,
}

impl<'a, C: Code> Encoding<'a, C> {
    fn new(values: &'a [f32], job: &'a EncodeJob, output: Output<'a>) -> Encoding<'a, C> {
        Encoding { values, job, output, code: std::marker::PhantomData }
    }
}

impl<C: Code> Kernel for Encoding<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Encoding { values, job, output, .. } = self;
        let (grid, weights) = (Grid::new(job.nonce), Weights::new(job.nonce));
        let blocks = Blocks::new(values);
        let (mut indices, mut codes): (Indices, _) = ([0; BLOCK], [C::default(); BLOCK]);
        let packed = output.codes.chunks_mut(job.width.packed_bytes(BLOCK));
        let checks = output.checks.as_chunks_mut::<2>().0.iter_mut();
        let steps = output.steps.as_chunks_mut::<2>().0.iter_mut();
        for (number, ((packed, check), wire_step)) in packed.zip(checks).zip(steps).enumerate() {
            let block = blocks.get(number);
            let step = match &job.steps {
                Some(steps) => step_for_values(steps.values()[number], block),
                None => first_step(block, blocks.length(number)),
            };
            *wire_step = step_to_wire(step);
            grid.indices(block, number, step, &mut indices);
            *check = check::of_sum(weights.sum(&indices), job.width).to_le_bytes();
            codes_of(&indices, &mut codes);
            C::pack(&codes, job.width, packed);
        }
    }
}

/// The codes of a block's indices.
#[inline(always)]
pub(super) fn codes_of<C: Code>(indices: &Indices, codes: &mut [C; BLOCK]) {
    for (code, index) in codes.iter_mut().zip(indices) {
        *code = C::of_index(*index);
    }
}

/// A model as whole blocks, the last one filled up with zeros: those have index zero, whatever the dither, so they
/// weigh nothing in any sum.
pub(super) struct Blocks<'a> {
    whole: &'a [[f32; BLOCK]],
    last: [f32; BLOCK],
    last_length: usize,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(values: &'a [f32]) -> Blocks<'a> {
        let (whole, rest) = values.as_chunks();
        let mut last = [0.0; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        Blocks { whole, last, last_length: rest.len() }
    }

    #[inline(always)]
    pub(super) fn get(&self, number: usize) -> &[f32; BLOCK] {
        self.whole.get(number).unwrap_or(&self.last)
    }

    /// How many of a block's values count.
    #[inline(always)]
    pub(super) fn length(&self, number: usize) -> usize {
        if number < self.whole.len() { BLOCK } else { self.last_length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_lengths_are_as_announced() {
        let buffers = Buffers::new();
        for parameters in [1, BLOCK - 1, BLOCK, BLOCK + 1, 1000] {
            let snapshot = Snapshot::from(vec![0.5; parameters]);
            let steps = Some(StepSizes::for_first_exchange(snapshot.values()));
            for width in [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen] {
                for steps in [None, steps.clone()] {
                    let payload = encode(&snapshot, &EncodeJob { nonce: 1, width, steps }, &buffers);
                    assert_eq!(payload.len(), proposal_bytes(parameters, width));
                }
            }
        }
    }

    #[test]
    fn the_steps_of_a_first_exchange_come_from_the_model() {
        let snapshot = Snapshot::from((0..1000).map(|index| (index as f32).sin()).collect::<Vec<_>>());
        let job = |steps| EncodeJob { nonce: 1, width: CodeWidth::Sixteen, steps };
        let steps = StepSizes::for_first_exchange(snapshot.values());
        let buffers = Buffers::new();
        assert_eq!(encode(&snapshot, &job(None), &buffers), encode(&snapshot, &job(Some(steps)), &buffers));
    }
}

//! A snapshot into codes, in one pass over the model.
//!
//! Each side sends `checks | codes`, little-endian, 1.008 bytes a parameter at 8 bits. The starter sends the steps of the
//! exchange ahead of them, two bytes a block: with those the responder encodes while the starter's codes are on their way.

use super::buffers::Buffers;
use super::check::{self, Weights};
use super::code::Code;
use super::grid::{Grid, Indices, saturates};
use super::instruction_set::{InstructionSet, Kernel};
use super::steps::{
    BlockStep, StepSizes, WireStep, first_step, sane_steps, step_for_values, step_from_wire, step_to_wire,
};
use super::width::{CodeWidth, codes_bytes, steps_bytes};
use crate::bulk::{BLOCK, Payload, Snapshot};
use crate::event::Misbehaviour;

/// How a side encodes its snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodeJob {
    /// Which side this is.
    pub role: EncodeRole,
    /// Seeds the dither; the same for both partners.
    pub nonce: u64,
    /// How wide the codes are; 16 bits in a first exchange.
    pub width: CodeWidth,
}

/// Which side of an exchange encodes.
#[derive(Clone, Debug, PartialEq)]
pub enum EncodeRole {
    /// Chooses the steps of the exchange.
    Starter {
        /// The node's steps; `None` before its first exchange, which takes them from the model itself.
        steps: Option<StepSizes>,
    },
    /// Takes the starter's steps.
    Responder {
        /// As they were received.
        steps: Payload,
    },
}

/// A model on the grid of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// The steps of the exchange, each a bfloat16.
    pub steps: Payload,
    /// Checks and codes.
    pub codes: Payload,
}

/// Encodes a snapshot, which may be any range of whole blocks of a model, into memory from `buffers`.
///
/// # Errors
/// When the starter's steps, as a responder has received them, are not one for each block, or absurd.
///
/// # Panics
/// When a starter's own steps are not one for each block.
pub fn encode(snapshot: &Snapshot, job: &EncodeJob, buffers: &Buffers) -> Result<Encoded, Misbehaviour> {
    encode_with(InstructionSet::best(), snapshot, job, buffers)
}

/// [`encode`] with the loops of `instructions`.
pub(super) fn encode_with(
    instructions: InstructionSet,
    snapshot: &Snapshot,
    job: &EncodeJob,
    buffers: &Buffers,
) -> Result<Encoded, Misbehaviour> {
    let values = snapshot.values();
    let steps_length = steps_bytes(values.len());
    match &job.role {
        EncodeRole::Starter { steps } => {
            let previous = steps.as_ref().map(StepSizes::values);
            assert!(previous.is_none_or(|steps| steps.len() == values.len().div_ceil(BLOCK)), "one step per block");
            let mut output = buffers.take(steps_length + codes_bytes(values.len(), job.width));
            let (wire, codes) = output.split_at_mut(steps_length);
            Encoding::run(instructions, values, job, Steps::Chosen(previous, wire.as_chunks_mut().0), codes);
            let output = Payload::from(output);
            let part = |range| output.slice(range).expect("as long as just made");
            Ok(Encoded { steps: part(0..steps_length), codes: part(steps_length..output.len()) })
        }
        EncodeRole::Responder { steps } => {
            let wire = sane_steps(steps, values.len())?;
            let mut codes = buffers.take(codes_bytes(values.len(), job.width));
            Encoding::run(instructions, values, job, Steps::Given(wire), &mut codes);
            Ok(Encoded { steps: steps.clone(), codes: Payload::from(codes) })
        }
    }
}

/// The steps of the exchange.
enum Steps<'a> {
    /// From the node's own, where it has some, or from the model; written down for the partner.
    Chosen(Option<&'a [BlockStep]>, &'a mut [WireStep]),
    Given(&'a [WireStep]),
}

struct Encoding<'a, C> {
    values: &'a [f32],
    nonce: u64,
    width: CodeWidth,
    steps: Steps<'a>,
    checks: &'a mut [[u8; 2]],
    codes: &'a mut [u8],
    code: std::marker::PhantomData<C>,
}

impl Encoding<'_, ()> {
    /// Writes checks and codes to `output`.
    fn run(instructions: InstructionSet, values: &[f32], job: &EncodeJob, steps: Steps<'_>, output: &mut [u8]) {
        let (checks, codes) = output.split_at_mut(2 * values.len().div_ceil(BLOCK));
        let (checks, EncodeJob { role: _, nonce, width }) = (checks.as_chunks_mut().0, job);
        let (nonce, width) = (*nonce, *width);
        let code = std::marker::PhantomData;
        if width == CodeWidth::Sixteen {
            instructions.run(Encoding::<i16> { values, nonce, width, steps, checks, codes, code });
        } else {
            let code = std::marker::PhantomData;
            instructions.run(Encoding::<i8> { values, nonce, width, steps, checks, codes, code });
        }
    }
}

impl<C: Code> Kernel for Encoding<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Encoding { values, nonce, width, mut steps, checks, codes: output, .. } = self;
        let (grid, weights) = (Grid::new(nonce), Weights::new(nonce));
        let blocks = Blocks::new(values);
        let (mut indices, mut codes): (Indices, _) = ([0; BLOCK], [C::default(); BLOCK]);
        let packed = output.chunks_mut(width.packed_bytes(BLOCK));
        for (number, (packed, check)) in packed.zip(checks).enumerate() {
            let block = blocks.get(number);
            let (step, saturates) = match &mut steps {
                Steps::Chosen(previous, wire) => {
                    let step = match previous {
                        Some(previous) => step_for_values(previous[number].step, block),
                        None => first_step(block, blocks.length(number)),
                    };
                    wire[number] = step_to_wire(step);
                    (step, false)
                }
                Steps::Given(wire) => {
                    let step = step_from_wire(wire[number]);
                    (step, saturates(block, step))
                }
            };
            grid.indices(block, number, step, &mut indices);
            let mut sum = weights.sum(&indices);
            // Indices that saturate are all wrong by about the same power of two, which the check's 16 bits often do not
            // see, and never in a whole block of one sign. With one more it sees them.
            if saturates {
                sum = sum.wrapping_add(1 << width.bits());
            }
            *check = check::of_sum(sum, width).to_le_bytes();
            codes_of(&indices, &mut codes);
            C::pack(&codes, width, packed);
        }
    }
}

/// The codes of a block's indices.
#[inline(always)]
fn codes_of<C: Code>(indices: &Indices, codes: &mut [C; BLOCK]) {
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

    fn starting(width: CodeWidth, steps: Option<StepSizes>) -> EncodeJob {
        EncodeJob { role: EncodeRole::Starter { steps }, nonce: 1, width }
    }

    #[test]
    fn payload_lengths_are_as_announced() {
        let buffers = Buffers::new();
        for parameters in [1, BLOCK - 1, BLOCK, BLOCK + 1, 1000] {
            let snapshot = Snapshot::from(vec![0.5; parameters]);
            let steps = Some(StepSizes::for_first_exchange(snapshot.values()));
            for width in [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen] {
                for steps in [None, steps.clone()] {
                    let encoded = encode(&snapshot, &starting(width, steps), &buffers).expect("own steps");
                    assert_eq!(encoded.steps.len(), steps_bytes(parameters));
                    assert_eq!(encoded.codes.len(), codes_bytes(parameters, width));
                }
            }
        }
    }

    #[test]
    fn the_steps_of_a_first_exchange_come_from_the_model() {
        let snapshot = Snapshot::from((0..1000).map(|index| (index as f32).sin()).collect::<Vec<_>>());
        let steps = StepSizes::for_first_exchange(snapshot.values());
        let [from_model, from_steps] =
            [None, Some(steps)].map(|steps| encode(&snapshot, &starting(CodeWidth::Sixteen, steps), &Buffers::new()));
        assert_eq!(from_model, from_steps);
    }

    #[test]
    fn both_sides_encode_the_same_model_alike() {
        let snapshot = Snapshot::from((0..1000).map(|index| (index as f32).sin()).collect::<Vec<_>>());
        for width in [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen] {
            let starter = encode(&snapshot, &starting(width, None), &Buffers::new()).expect("own steps");
            let role = EncodeRole::Responder { steps: starter.steps.clone() };
            let job = EncodeJob { role, ..starting(width, None) };
            assert_eq!(encode(&snapshot, &job, &Buffers::new()), Ok(starter));
        }
    }

    #[test]
    fn unfit_steps_are_refused() {
        let snapshot = Snapshot::from(vec![0.5; BLOCK + 1]);
        let answer = |steps: Vec<u8>| {
            let role = EncodeRole::Responder { steps: steps.into() };
            encode(&snapshot, &EncodeJob { role, ..starting(CodeWidth::Eight, None) }, &Buffers::new())
        };
        assert_eq!(answer(vec![1; 3]), Err(Misbehaviour::WrongLength { expected: 4, actual: 3 }));
        let [one, zero, infinite] = [1.0, 0.0, f32::INFINITY].map(step_to_wire);
        assert!(answer([one, one].concat()).is_ok());
        for unfit in [zero, infinite, step_to_wire(f32::NAN), step_to_wire(-1.0)] {
            assert_eq!(answer([one, unfit].concat()), Err(Misbehaviour::OutOfRange("step size")));
        }
    }
}

//! A snapshot into codes, in one pass over the model.
//!
//! Each side sends `checks | codes`, little-endian, 1.008 bytes a parameter at 8 bits. The starter sends the scales of the
//! exchange ahead of them, two bytes a block: with those the responder encodes while the starter's codes are on their way.

use super::block_scale::BlockScale;
use super::blocks::Blocks;
use super::buffers::Buffers;
use super::check::{self, Weights};
use super::code::Code;
use super::grid::{Grid, Indices, saturates};
use super::instruction_set::{InstructionSet, Kernel};
use super::jobs::{EncodeJob, EncodeRole, Encoded};
use super::link;
use super::scales::{Scales, WireScale, first_scale, sane_scales, scale_for_values, scale_from_wire, scale_to_wire};
use super::width::{CodeWidth, codes_bytes, scales_bytes};
use crate::bulk::{BLOCK, Payload, Snapshot};
use crate::misbehaviour::Misbehaviour;

/// Encodes a snapshot, which may be any range of whole blocks of a model, into memory from `buffers`.
///
/// # Errors
/// When the starter's scales or reference, as a responder has received them, are of a wrong length, or absurd.
///
/// # Panics
/// When a starter's own scales are not one for each block.
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
    let (values, norm) = (snapshot.values(), snapshot.norm_about());
    let scales_length = scales_bytes(values.len());
    match &job.role {
        EncodeRole::Starter { scales } => {
            let previous = scales.as_ref().map(Scales::values);
            assert!(previous.is_none_or(|scales| scales.len() == values.len().div_ceil(BLOCK)), "one scale per block");
            let mut output = buffers.take(scales_length + codes_bytes(values.len(), job.width));
            let (wire, codes) = output.split_at_mut(scales_length);
            Encoding::run(instructions, values, job, ScaleSource::Chosen(previous, wire.as_chunks_mut().0), codes);
            let output = Payload::from(output);
            let part = |range| output.slice(range).expect("as long as just made");
            let [scales, codes] = [part(0..scales_length), part(scales_length..output.len())];
            Ok(Encoded { scales, codes, reference: None, norm })
        }
        EncodeRole::Responder { scales } => {
            let wire = sane_scales(scales, values.len())?;
            let mut codes = buffers.take(codes_bytes(values.len(), job.width));
            Encoding::run(instructions, values, job, ScaleSource::Given(wire), &mut codes);
            Ok(Encoded { scales: scales.clone(), codes: Payload::from(codes), reference: None, norm })
        }
        EncodeRole::Link { reference, received } => {
            link::encode(instructions, snapshot, reference.as_ref(), received.as_ref(), buffers)
        }
    }
}

/// The scales of the exchange.
enum ScaleSource<'a> {
    /// From the node's own, where it has some, or from the model; written down for the partner.
    Chosen(Option<&'a [BlockScale]>, &'a mut [WireScale]),
    Given(&'a [WireScale]),
}

struct Encoding<'a, C> {
    values: &'a [f32],
    nonce: u64,
    width: CodeWidth,
    scales: ScaleSource<'a>,
    checks: &'a mut [[u8; 2]],
    codes: &'a mut [u8],
    code: std::marker::PhantomData<C>,
}

impl Encoding<'_, ()> {
    /// Writes checks and codes to `output`.
    fn run(instructions: InstructionSet, values: &[f32], job: &EncodeJob, scales: ScaleSource<'_>, output: &mut [u8]) {
        let (checks, codes) = output.split_at_mut(2 * values.len().div_ceil(BLOCK));
        let (checks, EncodeJob { role: _, nonce, width }) = (checks.as_chunks_mut().0, job);
        let (nonce, width) = (*nonce, *width);
        let code = std::marker::PhantomData;
        if width == CodeWidth::Sixteen {
            instructions.run(Encoding::<i16> { values, nonce, width, scales, checks, codes, code });
        } else {
            let code = std::marker::PhantomData;
            instructions.run(Encoding::<i8> { values, nonce, width, scales, checks, codes, code });
        }
    }
}

impl<C: Code> Kernel for Encoding<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Encoding { values, nonce, width, mut scales, checks, codes: output, .. } = self;
        let (grid, weights) = (Grid::new(nonce), Weights::of(nonce));
        let blocks = Blocks::new(values);
        let (mut indices, mut codes): (Indices, _) = ([0; BLOCK], [C::default(); BLOCK]);
        let packed = output.chunks_mut(width.packed_bytes(BLOCK));
        for (number, (packed, check)) in packed.zip(checks).enumerate() {
            let block = blocks.get(number);
            let (scale, saturates) = match &mut scales {
                ScaleSource::Chosen(previous, wire) => {
                    let scale = match previous {
                        Some(previous) => scale_for_values(previous[number].scale, block),
                        None => first_scale(block, blocks.length(number)),
                    };
                    wire[number] = scale_to_wire(scale);
                    (scale, false)
                }
                ScaleSource::Given(wire) => {
                    let scale = scale_from_wire(wire[number]);
                    (scale, saturates(block, scale))
                }
            };
            grid.indices(block, number, scale, &mut indices);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn starting(width: CodeWidth, scales: Option<Scales>) -> EncodeJob {
        EncodeJob { role: EncodeRole::Starter { scales }, nonce: 1, width }
    }

    #[test]
    fn payload_lengths_are_as_announced() {
        let buffers = Buffers::new();
        for parameters in [1, BLOCK - 1, BLOCK, BLOCK + 1, 1000] {
            let snapshot = Snapshot::from(vec![0.5; parameters]);
            let scales = Some(Scales::for_first_exchange(snapshot.values()));
            for width in [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen] {
                for scales in [None, scales.clone()] {
                    let encoded = encode(&snapshot, &starting(width, scales), &buffers).expect("own scales");
                    assert_eq!(encoded.scales.len(), scales_bytes(parameters));
                    assert_eq!(encoded.codes.len(), codes_bytes(parameters, width));
                }
            }
        }
    }

    #[test]
    fn the_scales_of_a_first_exchange_come_from_the_model() {
        let snapshot = Snapshot::from((0..1000).map(|index| (index as f32).sin()).collect::<Vec<_>>());
        let scales = Scales::for_first_exchange(snapshot.values());
        let [from_model, from_scales] = [None, Some(scales)]
            .map(|scales| encode(&snapshot, &starting(CodeWidth::Sixteen, scales), &Buffers::new()));
        assert_eq!(from_model, from_scales);
    }

    #[test]
    fn both_sides_encode_the_same_model_alike() {
        let snapshot = Snapshot::from((0..1000).map(|index| (index as f32).sin()).collect::<Vec<_>>());
        for width in [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen] {
            let starter = encode(&snapshot, &starting(width, None), &Buffers::new()).expect("own scales");
            let role = EncodeRole::Responder { scales: starter.scales.clone() };
            let job = EncodeJob { role, ..starting(width, None) };
            assert_eq!(encode(&snapshot, &job, &Buffers::new()), Ok(starter));
        }
    }

    #[test]
    fn unfit_scales_are_refused() {
        let snapshot = Snapshot::from(vec![0.5; BLOCK + 1]);
        let answer = |scales: Vec<u8>| {
            let role = EncodeRole::Responder { scales: scales.into() };
            encode(&snapshot, &EncodeJob { role, ..starting(CodeWidth::Eight, None) }, &Buffers::new())
        };
        assert_eq!(answer(vec![1; 3]), Err(Misbehaviour::WrongLength { expected: 4, actual: 3 }));
        let [one, zero, infinite] = [1.0, 0.0, f32::INFINITY].map(scale_to_wire);
        assert!(answer([one, one].concat()).is_ok());
        for unfit in [zero, infinite, scale_to_wire(f32::NAN), scale_to_wire(-1.0)] {
            assert_eq!(answer([one, unfit].concat()), Err(Misbehaviour::OutOfRange("scale".into())));
        }
    }
}

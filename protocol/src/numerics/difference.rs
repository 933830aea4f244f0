//! The differences of two sets of codes, block by block, in one pass over all that an exchange touches.

use super::block_scale::BlockScale;
use super::buffers::{Buffers, Pooled};
use super::check::{self, Weights};
use super::code::Code;
use super::instruction_set::{InstructionSet, Kernel};
use super::packing::copy_block;
use super::scales::{WireScale, scale_after_exchange, scale_from_wire};
use super::width::CodeWidth;
use crate::bulk::{BLOCK, PooledCodes};

/// What to compare.
pub(super) struct Comparison<'a> {
    /// Number of parameters.
    pub(super) parameters: usize,
    pub(super) terms: MergeTerms<'a>,
    pub(super) own: Side<'a>,
    pub(super) partner: Side<'a>,
}

/// What the exchange and the node bring along.
#[derive(Clone, Copy)]
pub(super) struct MergeTerms<'a> {
    pub(super) nonce: u64,
    pub(super) width: CodeWidth,
    /// The scales of the exchange.
    pub(super) wire_scales: &'a [WireScale],
    /// This node's scales before it.
    pub(super) previous_scales: Option<&'a [BlockScale]>,
    pub(super) step_fraction: f32,
}

/// Checks and codes as they travel.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    checks: &'a [[u8; 2]],
    codes: &'a [u8],
}

impl<'a> Side<'a> {
    /// Of a payload of `checks | codes` for so many blocks.
    pub(super) fn new(payload: &'a [u8], blocks: usize) -> Side<'a> {
        let (checks, codes) = payload.split_at(2 * blocks);
        Side { checks: checks.as_chunks().0, codes }
    }

    #[inline(always)]
    fn check(&self, number: usize) -> u16 {
        u16::from_le_bytes(self.checks[number])
    }

    #[inline(always)]
    fn unpack<C: Code>(&self, number: usize, width: CodeWidth, codes: &mut [C; BLOCK]) {
        let bytes = width.packed_bytes(BLOCK);
        let start = number * bytes;
        C::unpack(&self.codes[start..self.codes.len().min(start + bytes)], width, codes);
    }
}

/// What both sides find, besides the differences themselves.
#[derive(Default)]
pub(super) struct Differences {
    /// Σ (s·d)² over the blocks that count.
    pub(super) norm_squared: f64,
    /// The same over those that do not: at least so much, since a code that wrapped looks nearer than it is.
    pub(super) masked_norm_squared: f64,
    pub(super) masked_blocks: u32,
    pub(super) stuck_blocks: u32,
    pub(super) digest: u64,
}

impl Differences {
    /// Chains a number into the digest. It finds mistakes, not forgeries: a partner that lies about its model can lie
    /// about this as well.
    #[inline(always)]
    pub(super) fn mix(&mut self, number: u64) {
        let mixed = (self.digest ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.digest = mixed ^ (mixed >> 29);
    }
}

impl Comparison<'_> {
    /// Partner minus own, in multiples of the scale, masked blocks as zeros. Writes this node's scales from now on to `new_scales`.
    pub(super) fn run(
        self,
        instructions: InstructionSet,
        buffers: &Buffers,
        new_scales: &mut [BlockScale],
    ) -> (PooledCodes, Differences) {
        if self.terms.width == CodeWidth::Sixteen {
            let mut codes: Pooled<i16> = buffers.take(self.parameters);
            let output = Output { differences: &mut codes, new_scales };
            let differences = instructions.run(Pass { comparison: self, output });
            (PooledCodes::Wide(codes), differences)
        } else {
            let mut codes: Pooled<i8> = buffers.take(self.parameters);
            let output = Output { differences: &mut codes, new_scales };
            let differences = instructions.run(Pass { comparison: self, output });
            (PooledCodes::Narrow(codes), differences)
        }
    }
}

/// Where the results go.
struct Output<'a, C> {
    differences: &'a mut [C],
    new_scales: &'a mut [BlockScale],
}

struct Pass<'a, C> {
    comparison: Comparison<'a>,
    output: Output<'a, C>,
}

impl<C: Code> Kernel for Pass<'_, C> {
    type Output = Differences;

    #[inline(always)]
    fn run(self) -> Differences {
        let Pass { comparison: Comparison { terms, own, partner, .. }, output } = self;
        let weights = Weights::of(terms.nonce);
        let mut result = Differences::default();
        let (mut ours, mut theirs) = ([C::default(); BLOCK], [C::default(); BLOCK]);
        let outputs = output.differences.chunks_mut(BLOCK).zip(output.new_scales.iter_mut());
        for (number, (differences, new_scale)) in outputs.enumerate() {
            let scale = scale_from_wire(terms.wire_scales[number]);
            own.unpack(number, terms.width, &mut ours);
            partner.unpack(number, terms.width, &mut theirs);
            let block = compare(&weights, (&ours, own.check(number)), (&theirs, partner.check(number)), terms.width);
            let norm_squared = f64::from(scale) * f64::from(scale) * block.squares as f64;
            new_scale.scale = if block.wrapped {
                differences.fill(C::default());
                result.masked_norm_squared += norm_squared;
                result.masked_blocks += 1;
                result.mix(u64::MAX);
                WRAPPED
            } else {
                copy_block(&block.differences, differences);
                result.norm_squared += norm_squared;
                result.mix(block.squares);
                // Squares alone would let a code pass that was spoilt into its opposite. The two sides' sums have
                // opposite signs.
                result.mix(u64::from((block.sum as i32).unsigned_abs()));
                block.squares as f32 / differences.len() as f32
            };
        }
        update_scales(&terms, output.new_scales);
        let stuck = output.new_scales.iter().filter(|block| block.wraps_in_row >= WRAPS_OF_STUCK);
        result.stuck_blocks = stuck.count() as u32;
        result
    }
}

/// In place of the mean square of a block that wrapped.
const WRAPPED: f32 = -1.0;

/// A block that has wrapped so often in a row is beyond a grid that has grown twice by then: no chance, but parts of a swarm
/// that lie apart.
const WRAPS_OF_STUCK: u32 = 3;

/// Turns each block's mean square difference, in multiples of its scale, into its next scale. Apart from the loop over the model, since
/// it takes roots, which are slow one by one.
#[inline(always)]
fn update_scales(terms: &MergeTerms<'_>, scales: &mut [BlockScale]) {
    let fraction = terms.step_fraction;
    match terms.previous_scales {
        Some(previous) => {
            for ((next, wire), previous) in scales.iter_mut().zip(terms.wire_scales).zip(previous) {
                let used = scale_from_wire(*wire);
                *next = scale_after_exchange(Some(*previous), used, seen(used, next.scale), fraction);
            }
        }
        None => {
            for (next, wire) in scales.iter_mut().zip(terms.wire_scales) {
                let used = scale_from_wire(*wire);
                *next = scale_after_exchange(None, used, seen(used, next.scale), fraction);
            }
        }
    }
}

/// A block's rms difference.
#[inline(always)]
fn seen(scale: f32, mean_square: f32) -> Option<f32> {
    (mean_square != WRAPPED).then(|| scale * mean_square.sqrt())
}

struct BlockDifferences<C> {
    differences: [C; BLOCK],
    /// Σ w_k · d_k, modulo 2^32.
    sum: u32,
    /// Σ d².
    squares: u64,
    /// Whether a code wrapped or lies half way.
    wrapped: bool,
}

#[inline(always)]
fn compare<C: Code>(
    weights: &Weights,
    (own, own_check): (&[C; BLOCK], u16),
    (partner, partner_check): (&[C; BLOCK], u16),
    width: CodeWidth,
) -> BlockDifferences<C> {
    let half_way = C::half_way(width);
    let mut differences = [C::default(); BLOCK];
    let mut smallest = C::default();
    for ((difference, own), partner) in differences.iter_mut().zip(own).zip(partner) {
        *difference = C::difference(*partner, *own, half_way);
        smallest = smallest.min(*difference);
    }
    // The one difference that has no opposite: both sides would move the same way.
    let lies_half_way = smallest.into() == -1 << (width.bits() - 1);
    let sum = weights.sum_of_codes(&differences);
    let own_sum = check::sum_of(own_check, weights.sum_of_codes(own), width);
    let partner_sum = own_sum.wrapping_add(sum);
    let wrapped = lies_half_way || check::of_sum(partner_sum, width) != partner_check;
    let squares = C::sum_of_squares(&differences);
    BlockDifferences { differences, sum, squares, wrapped }
}

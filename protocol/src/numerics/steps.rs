//! Step sizes: one per block of 256 parameters, following how far apart the swarm's models are.
//!
//! Too small a step and codes wrap; too large a one and quantization noise drowns the difference. The size is a fixed
//! fraction of the block's running rms difference. On the wire a step is the upper half of an `f32` (bfloat16), and
//! steps are rounded to that when they are made, so both partners compute with the same bits.

use std::fmt;
use std::sync::Arc;

use super::buffers::Pooled;
use super::encode::Blocks;
use super::grid::largest;
use super::width::steps_bytes;
use crate::bulk::{BLOCK, Payload};
use crate::event::Misbehaviour;

/// A step grows at most this much from one exchange to the next: a single odd partner must not blow up the grid.
const GROWTH_MAX: f32 = 2.0;

/// Where a block wrapped again, its step becomes this multiple of the larger one of both sides': the true difference is
/// unknown, only that it is large.
const GROWTH_AFTER_WRAP: f32 = 4.0;

/// And at most this multiple of its own: a partner's step may be any.
const GROWTH_AFTER_WRAP_MAX: f32 = 16.0;

/// In a first exchange a step is this fraction of its block's rms value: 16-bit codes then reach ±32 times that rms,
/// beyond any difference of two models of one run, with a resolution finer than a training step.
const FIRST_STEP_FRACTION: f32 = 1e-3;

/// A step on the wire is at least this fraction of the starter's largest value of the block. A quotient then has at most
/// 21 of the 24 bits of an `f32`'s mantissa, which leaves three for the dither, and the grid still has room for a
/// partner's values of twice that size.
const STEP_FRACTION_OF_LARGEST_MIN: f32 = 1.0 / 2_097_152.0;

/// The smallest step of all, for blocks of zeros.
const STEP_MIN: f32 = 1e-9;

/// The largest step accepted from a peer: a model whose parameters differ by more has diverged.
const STEP_MAX: f32 = 1e3;

/// The step size of a block of [`BLOCK`] parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockStep {
    /// In the parameters' unit, a positive bfloat16.
    pub step: f32,
    /// Exchanges in a row, whoever the partners were, in which the block wrapped.
    pub wraps_in_row: u32,
}

/// One step size per block.
#[derive(Clone, PartialEq)]
pub struct StepSizes(Arc<Pooled<BlockStep>>);

impl StepSizes {
    /// Steps for a first exchange, from the model alone.
    pub fn for_first_exchange(values: &[f32]) -> StepSizes {
        let blocks = Blocks::new(values);
        let steps =
            (0..values.len().div_ceil(BLOCK)).map(|number| first_step(blocks.get(number), blocks.length(number)));
        StepSizes::from_pooled(steps.map(|step| BlockStep { step, wraps_in_row: 0 }).collect::<Vec<_>>().into())
    }

    /// Those of all blocks.
    pub fn values(&self) -> &[BlockStep] {
        &self.0
    }

    /// Takes steps of wire precision.
    pub(super) fn from_pooled(steps: Pooled<BlockStep>) -> StepSizes {
        StepSizes(Arc::new(steps))
    }
}

/// A block's step in a first exchange; `length` of its values count, the others are zero.
#[inline(always)]
pub(super) fn first_step(block: &[f32; BLOCK], length: usize) -> f32 {
    // Side by side, so that it takes vectors, and in an order that does not depend on their width.
    let mut squares = [0f64; 8];
    for row in block.as_chunks::<8>().0 {
        for (sum, value) in squares.iter_mut().zip(row) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    let mean_square = squares.iter().sum::<f64>() / length as f64;
    step_for_values(to_wire_precision(FIRST_STEP_FRACTION * mean_square.sqrt() as f32), block)
}

/// A step on whose grid the block's values are representable: `step`, or the next larger one that will do.
#[inline(always)]
pub(super) fn step_for_values(step: f32, block: &[f32; BLOCK]) -> f32 {
    // With a NaN, which only a diverged model has, `>` is false.
    let smallest = largest(block) * STEP_FRACTION_OF_LARGEST_MIN;
    if smallest > step { to_wire_precision(smallest) } else { step }
}

/// A block's step after an exchange. `used` is the step of the exchange, `previous` that of this node before it
/// (`None` before its first), `seen` the block's rms difference in the parameters' unit, or `None` where it wrapped;
/// `fraction` is the run's `gossip.step_fraction`. The first wrap in a row changes nothing: one odd partner must not blow
/// up the grid, and part of a swarm that has moved away must.
#[inline(always)]
pub(super) fn step_after_exchange(
    previous: Option<BlockStep>,
    used: f32,
    seen: Option<f32>,
    fraction: f32,
) -> BlockStep {
    let wraps_before = previous.map_or(0, |previous| previous.wraps_in_row);
    let step = match (previous, seen) {
        (None, None) => used * GROWTH_AFTER_WRAP,
        (Some(BlockStep { step, .. }), None) if wraps_before == 0 => step,
        (Some(BlockStep { step, .. }), None) => (used.max(step) * GROWTH_AFTER_WRAP).min(step * GROWTH_AFTER_WRAP_MAX),
        (None, Some(difference)) => fraction * difference,
        (Some(BlockStep { step, .. }), Some(difference)) => {
            // Half of the running mean square is new.
            let aimed = fraction * difference;
            let target = (0.5 * (step * step + aimed * aimed)).sqrt();
            target.min(step * GROWTH_MAX)
        }
    };
    let wraps_in_row = if seen.is_none() { wraps_before.saturating_add(1) } else { 0 };
    BlockStep { step: to_wire_precision(step), wraps_in_row }
}

/// The upper half of a step, little-endian.
pub(super) type WireStep = [u8; 2];

/// A step as it travels.
#[inline(always)]
pub(super) fn step_to_wire(step: f32) -> WireStep {
    ((step.to_bits() >> 16) as u16).to_le_bytes()
}

/// The inverse of [`step_to_wire`].
#[inline(always)]
pub(super) fn step_from_wire(bytes: WireStep) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Whether a step from a peer is positive, finite and within reason.
#[inline(always)]
fn is_sane(step: f32) -> bool {
    (STEP_MIN..=STEP_MAX).contains(&step)
}

/// A peer's steps for a model of so many parameters.
///
/// # Errors
/// When they are not one for each block, positive, finite and within reason.
pub(super) fn sane_steps(payload: &Payload, parameters: usize) -> Result<&[WireStep], Misbehaviour> {
    let steps = payload.of_length(steps_bytes(parameters))?.as_chunks().0;
    if steps.iter().all(|bytes| is_sane(step_from_wire(*bytes))) {
        Ok(steps)
    } else {
        Err(Misbehaviour::OutOfRange("step size"))
    }
}

/// The next bfloat16 at or above `step`, within what the wire allows.
#[inline(always)]
fn to_wire_precision(step: f32) -> f32 {
    #[expect(clippy::manual_clamp, reason = "a NaN, which only a diverged model gives, becomes the smallest step")]
    let step = step.max(STEP_MIN * 1.01).min(STEP_MAX * 0.99);
    f32::from_bits((step.to_bits() + 0xffff) & 0xffff_0000)
}

impl fmt::Debug for StepSizes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = self.0.iter().fold(0.0f32, |largest, block| largest.max(block.step));
        write!(formatter, "StepSizes({} blocks, up to {largest:e})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_survive_the_wire_bit_by_bit() {
        let values: Vec<f32> = (0..1000).map(|index| (index as f32 - 500.0) * 1e-3).collect();
        for BlockStep { step, .. } in StepSizes::for_first_exchange(&values).values() {
            assert_eq!(step_from_wire(step_to_wire(*step)).to_bits(), step.to_bits());
        }
    }

    #[test]
    fn steps_of_any_model_are_sane() {
        for value in [0.0, 1e-30, 1e30, f32::NAN, f32::INFINITY] {
            let step = first_step(&[value; BLOCK], BLOCK);
            assert!(is_sane(step_from_wire(step_to_wire(step))), "of a model of {value}");
            assert!(is_sane(step_for_values(0.1, &[value; BLOCK])), "for a model of {value}");
        }
    }

    #[test]
    fn hostile_steps_are_not_sane() {
        for step in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e6] {
            assert!(!is_sane(step), "{step}");
        }
    }

    #[test]
    fn a_step_grows_until_its_block_fits_the_grid() {
        let mut block = [0.0; BLOCK];
        block[200] = -8.0;
        assert_eq!(step_for_values(0.5, &block), 0.5, "wide enough");
        let step = step_for_values(1e-8, &block);
        assert!(8.0 / step <= 2_097_152.0 && 8.0 / step > 2_000_000.0, "{step}");
    }

    #[test]
    fn steps_follow_the_difference_and_never_leap() {
        let step = to_wire_precision;
        let after = |previous: Option<f32>, seen| {
            let previous = previous.map(|previous| BlockStep { step: step(previous), wraps_in_row: 0 });
            step_after_exchange(previous, step(0.01), seen, 0.2).step
        };
        assert_eq!(after(None, Some(0.5)), step(0.1), "calibrated by the first exchange");
        assert!(after(Some(0.01), Some(50.0)) <= 0.0202, "at most doubled");
        assert!(after(Some(0.01), Some(0.0)) < 0.0075, "calm narrows it");
    }

    #[test]
    fn a_block_that_wraps_again_grows_from_the_larger_step_of_both_sides() {
        let own = BlockStep { step: to_wire_precision(0.01), wraps_in_row: 0 };
        let wrap = |previous: BlockStep, used: f32| step_after_exchange(Some(previous), used, None, 0.2);
        let once = wrap(own, 1.0);
        assert_eq!(once, BlockStep { wraps_in_row: 1, ..own }, "one odd partner changes nothing");
        let grown = |used| wrap(once, to_wire_precision(used)).step / own.step;
        assert!((3.9..4.1).contains(&grown(0.001)), "from its own");
        assert!((7.9..8.2).contains(&grown(0.02)), "from the partner's");
        assert!((15.9..16.2).contains(&grown(1e3)), "but never by more than 16 at once");
        let calm = step_after_exchange(Some(wrap(once, 1.0)), 0.01, Some(0.05), 0.2);
        assert_eq!(calm.wraps_in_row, 0, "only wraps in a row count");
        assert!(wrap(calm, 1.0).step == calm.step);
    }
}

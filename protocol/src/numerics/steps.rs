//! Step sizes: one per block of 256 parameters, following how far apart the swarm's models are.
//!
//! Too small a step and codes wrap; too large a one and quantization noise drowns the difference. The size is a fixed
//! fraction of the block's running rms difference. On the wire a step is the upper half of an `f32` (bfloat16), and
//! steps are rounded to that when they are made, so both partners compute with the same bits.

use std::fmt;
use std::sync::Arc;

use crate::bulk::BLOCK;

/// A step grows at most this much from one exchange to the next: a single odd partner must not blow up the grid.
const GROWTH_MAX: f32 = 2.0;

/// A step grows this much when its block wrapped: the true difference is unknown, only that it is large.
const GROWTH_AFTER_WRAP: f32 = 4.0;

/// In a first exchange a step is this fraction of its block's rms value: 16-bit codes then reach ±32 times that rms,
/// beyond any difference of two models of one run, with a resolution finer than a training step.
const FIRST_STEP_FRACTION: f32 = 1e-3;

/// A step is at least this fraction of the block's largest value: below it the quotient outgrows the 24 bits of an
/// `f32`'s mantissa.
const STEP_FRACTION_OF_LARGEST_MIN: f32 = 1.0 / 4_194_304.0;

/// The smallest step of all, for blocks of zeros.
const STEP_MIN: f32 = 1e-9;

/// The largest step accepted from a peer: a model whose parameters differ by more has diverged.
const STEP_MAX: f32 = 1e3;

/// One step size per block of [`BLOCK`] parameters, in the parameters' unit, each a positive bfloat16.
#[derive(Clone, PartialEq)]
pub struct StepSizes(Arc<[f32]>);

impl StepSizes {
    /// Steps for a first exchange, from the model alone.
    pub fn for_first_exchange(values: &[f32]) -> StepSizes {
        let step = |block: &[f32]| {
            let mean_square = block.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / block.len() as f64;
            to_wire_precision(FIRST_STEP_FRACTION * mean_square.sqrt() as f32, block)
        };
        StepSizes(values.chunks(BLOCK).map(step).collect())
    }

    /// The steps of all blocks.
    pub fn values(&self) -> &[f32] {
        &self.0
    }

    /// The steps after an exchange. `seen` tells, for each block, its rms difference in the parameters' unit, or
    /// `None` where the block wrapped; `fraction` is the run's `gossip.step_fraction`.
    ///
    /// `self` are the steps of this node, `None` before its first exchange; `used` those of the exchange.
    pub(super) fn after_exchange(
        previous: Option<&StepSizes>,
        used: &StepSizes,
        seen: &[Option<f32>],
        fraction: f32,
        values: &[f32],
    ) -> StepSizes {
        let steps = values.chunks(BLOCK).enumerate().map(|(block, values)| {
            let used = used.0[block];
            let step = match (previous.map(|steps| steps.0[block]), seen[block]) {
                (_, None) => used * GROWTH_AFTER_WRAP,
                (None, Some(difference)) => fraction * difference,
                (Some(step), Some(difference)) => {
                    // Half of the running mean square is new.
                    let target = (0.5 * (step * step + (fraction * difference).powi(2))).sqrt();
                    target.min(step * GROWTH_MAX)
                }
            };
            to_wire_precision(step, values)
        });
        StepSizes(steps.collect())
    }

    /// Appends the upper halves of the steps, little-endian.
    pub(super) fn write(&self, output: &mut Vec<u8>) {
        for step in self.0.iter() {
            output.extend_from_slice(&((step.to_bits() >> 16) as u16).to_le_bytes());
        }
    }

    /// Reads steps written by [`write`](Self::write); `None` where one is not positive, not finite or absurd.
    pub(super) fn read(bytes: &[u8]) -> Option<StepSizes> {
        let steps: Arc<[f32]> = bytes
            .chunks_exact(2)
            .map(|pair| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16))
            .collect();
        let sane = |step: &f32| (STEP_MIN..=STEP_MAX).contains(step);
        steps.iter().all(sane).then_some(StepSizes(steps))
    }
}

/// The next bfloat16 at or above `step`, within what the block's values and the wire allow.
fn to_wire_precision(step: f32, block: &[f32]) -> f32 {
    let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    // `max` also turns a NaN, which only a diverged model gives, into the smallest step.
    let step = step.max(largest * STEP_FRACTION_OF_LARGEST_MIN).max(STEP_MIN * 1.01);
    let step = step.min(STEP_MAX * 0.99);
    f32::from_bits((step.to_bits().saturating_add(0xffff)) & 0xffff_0000)
}

impl fmt::Debug for StepSizes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = self.0.iter().fold(0.0f32, |largest, step| largest.max(*step));
        write!(formatter, "StepSizes({} blocks, up to {largest:e})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_survive_the_wire_bit_by_bit() {
        let values: Vec<f32> = (0..1000).map(|index| (index as f32 - 500.0) * 1e-3).collect();
        let steps = StepSizes::for_first_exchange(&values);
        let mut bytes = Vec::new();
        steps.write(&mut bytes);
        assert_eq!(bytes.len(), 2 * values.len().div_ceil(BLOCK));
        assert_eq!(StepSizes::read(&bytes), Some(steps));
    }

    #[test]
    fn steps_of_any_model_are_readable() {
        for value in [0.0, 1e-30, 1e30, f32::NAN, f32::INFINITY] {
            let mut bytes = Vec::new();
            StepSizes::for_first_exchange(&[value; BLOCK]).write(&mut bytes);
            assert!(StepSizes::read(&bytes).is_some(), "of a model of {value}");
        }
    }

    #[test]
    fn hostile_steps_are_refused() {
        for step in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e6] {
            let bytes = ((step.to_bits() >> 16) as u16).to_le_bytes();
            assert_eq!(StepSizes::read(&bytes), None, "{step}");
        }
    }

    #[test]
    fn steps_follow_the_difference_and_never_leap() {
        let values = [1.0; BLOCK];
        let steps = |step: f32| StepSizes(vec![to_wire_precision(step, &values)].into());
        let after = |previous: Option<&StepSizes>, seen| {
            StepSizes::after_exchange(previous, &steps(0.01), &[seen], 0.2, &values).0[0]
        };
        assert_eq!(after(None, Some(0.5)), to_wire_precision(0.1, &values), "calibrated by the first exchange");
        assert!(after(Some(&steps(0.01)), Some(50.0)) <= 0.0202, "at most doubled");
        assert!(after(Some(&steps(0.01)), None) >= 0.04, "a wrap widens the grid");
        assert!(after(Some(&steps(0.01)), Some(0.0)) < 0.0075, "calm narrows it");
    }
}

//! Scales: one per block of 256 parameters, following how far apart the swarm's models are.
//!
//! Too small a scale and codes wrap; too large a one and quantization noise drowns the difference. The size is a fixed
//! fraction of the block's running rms difference. On the wire a scale is the upper half of an `f32` (bfloat16), and
//! scales are rounded to that when they are made, so both partners compute with the same bits.

use std::fmt;
use std::sync::Arc;

use super::block_scale::BlockScale;
use super::blocks::Blocks;
use super::buffers::Pooled;
use super::grid::largest;
use super::width::scales_bytes;
use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};

use crate::bulk::{BLOCK, Payload};
use crate::misbehaviour::Misbehaviour;

/// A scale grows at most this much from one exchange to the next: a single odd partner must not blow up the grid.
const GROWTH_MAX: f32 = 2.0;

/// Where a block wrapped again, its scale becomes this multiple of the larger one of both sides': the true difference is
/// unknown, only that it is large.
const GROWTH_AFTER_WRAP: f32 = 4.0;

/// And at most this multiple of its own: a partner's scale may be any.
const GROWTH_AFTER_WRAP_MAX: f32 = 16.0;

/// In a first exchange a scale is this fraction of its block's rms value: 16-bit codes then reach ±32 times that rms,
/// beyond any difference of two models of one run, with a resolution finer than a training step.
const FIRST_SCALE_FRACTION: f32 = 1e-3;

/// A scale on the wire is at least this fraction of the starter's largest value of the block. A quotient then has at most
/// 21 of the 24 bits of an `f32`'s mantissa, which leaves three for the dither, and the grid still has room for a
/// partner's values of twice that size.
const SCALE_FRACTION_OF_LARGEST_MIN: f32 = 1.0 / 2_097_152.0;

/// The smallest scale of all, for blocks of zeros.
pub(super) const SCALE_MIN: f32 = 1e-9;

/// The largest scale accepted from a peer: a model whose parameters differ by more has diverged.
pub(super) const SCALE_MAX: f32 = 1e3;

/// One scale per block.
#[derive(Clone, PartialEq)]
pub struct Scales(Arc<Pooled<BlockScale>>);

impl Scales {
    /// Scales for a first exchange, from the model alone.
    pub fn for_first_exchange(values: &[f32]) -> Scales {
        let blocks = Blocks::new(values);
        let scales =
            (0..values.len().div_ceil(BLOCK)).map(|number| first_scale(blocks.get(number), blocks.length(number)));
        Scales::from_pooled(scales.map(|scale| BlockScale { scale, wraps_in_row: 0 }).collect::<Vec<_>>().into())
    }

    /// Those of all blocks.
    pub fn values(&self) -> &[BlockScale] {
        &self.0
    }

    /// Takes scales of wire precision.
    pub(super) fn from_pooled(scales: Pooled<BlockScale>) -> Scales {
        Scales(Arc::new(scales))
    }
}

/// In a recording nothing of them is kept but that they are there.
impl Encode for Scales {
    fn encode<E: Encoder>(&self, _: &mut E) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl<Context> Decode<Context> for Scales {
    fn decode<D: Decoder<Context = Context>>(_: &mut D) -> Result<Scales, DecodeError> {
        Ok(Scales::for_first_exchange(&[]))
    }
}

bincode::impl_borrow_decode!(Scales);

/// A block's scale in a first exchange; `length` of its values count, the others are zero.
#[inline(always)]
pub(super) fn first_scale(block: &[f32; BLOCK], length: usize) -> f32 {
    // Side by side, so that it takes vectors, and in an order that does not depend on their width.
    let mut squares = [0f64; 8];
    for row in block.as_chunks::<8>().0 {
        for (sum, value) in squares.iter_mut().zip(row) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    let mean_square = squares.iter().sum::<f64>() / length as f64;
    scale_for_values(to_wire_precision(FIRST_SCALE_FRACTION * mean_square.sqrt() as f32), block)
}

/// A scale on whose grid the block's values are representable: `scale`, or the next larger one that will do.
#[inline(always)]
pub(super) fn scale_for_values(scale: f32, block: &[f32; BLOCK]) -> f32 {
    // With a NaN, which only a diverged model has, `>` is false.
    let smallest = largest(block) * SCALE_FRACTION_OF_LARGEST_MIN;
    if smallest > scale { to_wire_precision(smallest) } else { scale }
}

/// A block's scale after an exchange. `used` is the scale of the exchange, `previous` that of this node before it
/// (`None` before its first), `seen` the block's rms difference in the parameters' unit, or `None` where it wrapped;
/// `fraction` is the run's `gossip.step_fraction`. The first wrap in a row changes nothing: one odd partner must not blow
/// up the grid, and part of a swarm that has moved away must.
#[inline(always)]
pub(super) fn scale_after_exchange(
    previous: Option<BlockScale>,
    used: f32,
    seen: Option<f32>,
    fraction: f32,
) -> BlockScale {
    let wraps_before = previous.map_or(0, |previous| previous.wraps_in_row);
    let scale = match (previous, seen) {
        (None, None) => used * GROWTH_AFTER_WRAP,
        (Some(BlockScale { scale, .. }), None) if wraps_before == 0 => scale,
        // What wraps on a finer grid than this node's says nothing of its own.
        (Some(BlockScale { scale, .. }), None) => {
            (used * GROWTH_AFTER_WRAP).max(scale).min(scale * GROWTH_AFTER_WRAP_MAX)
        }
        (None, Some(difference)) => fraction * difference,
        (Some(BlockScale { scale, .. }), Some(difference)) => {
            // Half of the running mean square is new.
            let aimed = fraction * difference;
            let target = (0.5 * (scale * scale + aimed * aimed)).sqrt();
            target.min(scale * GROWTH_MAX)
        }
    };
    let wraps_in_row = if seen.is_none() { wraps_before.saturating_add(1) } else { 0 };
    BlockScale { scale: to_wire_precision(scale), wraps_in_row }
}

/// The upper half of a scale, little-endian.
pub(super) type WireScale = [u8; 2];

/// A scale as it travels.
#[inline(always)]
pub(super) fn scale_to_wire(scale: f32) -> WireScale {
    ((scale.to_bits() >> 16) as u16).to_le_bytes()
}

/// The inverse of [`scale_to_wire`].
#[inline(always)]
pub(super) fn scale_from_wire(bytes: WireScale) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Whether a scale from a peer is positive, finite and within reason.
#[inline(always)]
fn is_sane(scale: f32) -> bool {
    (SCALE_MIN..=SCALE_MAX).contains(&scale)
}

/// A peer's scales for a model of so many parameters.
///
/// # Errors
/// When they are not one for each block, positive, finite and within reason.
pub(super) fn sane_scales(payload: &Payload, parameters: usize) -> Result<&[WireScale], Misbehaviour> {
    sane(payload.of_length(scales_bytes(parameters))?)
}

/// The same of the bytes alone.
///
/// # Errors
/// When one is not positive, finite and within reason.
pub(super) fn sane(bytes: &[u8]) -> Result<&[WireScale], Misbehaviour> {
    let scales = bytes.as_chunks().0;
    if scales.iter().all(|bytes| is_sane(scale_from_wire(*bytes))) {
        Ok(scales)
    } else {
        Err(Misbehaviour::OutOfRange("scale".into()))
    }
}

/// The next bfloat16 at or above `scale`, within what the wire allows.
#[inline(always)]
fn to_wire_precision(scale: f32) -> f32 {
    #[expect(clippy::manual_clamp, reason = "a NaN, which only a diverged model gives, becomes the smallest scale")]
    let scale = scale.max(SCALE_MIN * 1.01).min(SCALE_MAX * 0.99);
    f32::from_bits((scale.to_bits() + 0xffff) & 0xffff_0000)
}

impl fmt::Debug for Scales {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = self.0.iter().fold(0.0f32, |largest, block| largest.max(block.scale));
        write!(formatter, "Scales({} blocks, up to {largest:e})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_survive_the_wire_bit_by_bit() {
        let values: Vec<f32> = (0..1000).map(|index| (index as f32 - 500.0) * 1e-3).collect();
        for BlockScale { scale, .. } in Scales::for_first_exchange(&values).values() {
            assert_eq!(scale_from_wire(scale_to_wire(*scale)).to_bits(), scale.to_bits());
        }
    }

    #[test]
    fn scales_of_any_model_are_sane() {
        for value in [0.0, 1e-30, 1e30, f32::NAN, f32::INFINITY] {
            let scale = first_scale(&[value; BLOCK], BLOCK);
            assert!(is_sane(scale_from_wire(scale_to_wire(scale))), "of a model of {value}");
            assert!(is_sane(scale_for_values(0.1, &[value; BLOCK])), "for a model of {value}");
        }
    }

    #[test]
    fn hostile_scales_are_not_sane() {
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e6] {
            assert!(!is_sane(scale), "{scale}");
        }
    }

    #[test]
    fn a_scale_grows_until_its_block_fits_the_grid() {
        let mut block = [0.0; BLOCK];
        block[200] = -8.0;
        assert_eq!(scale_for_values(0.5, &block), 0.5, "wide enough");
        let scale = scale_for_values(1e-8, &block);
        assert!(8.0 / scale <= 2_097_152.0 && 8.0 / scale > 2_000_000.0, "{scale}");
    }

    #[test]
    fn scales_follow_the_difference_and_never_leap() {
        let scale = to_wire_precision;
        let after = |previous: Option<f32>, seen| {
            let previous = previous.map(|previous| BlockScale { scale: scale(previous), wraps_in_row: 0 });
            scale_after_exchange(previous, scale(0.01), seen, 0.2).scale
        };
        assert_eq!(after(None, Some(0.5)), scale(0.1), "calibrated by the first exchange");
        assert!(after(Some(0.01), Some(50.0)) <= 0.0202, "at most doubled");
        assert!(after(Some(0.01), Some(0.0)) < 0.0075, "calm narrows it");
    }

    #[test]
    fn a_block_that_wraps_again_grows_where_its_own_grid_was_too_fine() {
        let own = BlockScale { scale: to_wire_precision(0.01), wraps_in_row: 0 };
        let wrap = |previous: BlockScale, used: f32| scale_after_exchange(Some(previous), used, None, 0.2);
        let once = wrap(own, 1.0);
        assert_eq!(once, BlockScale { wraps_in_row: 1, ..own }, "one odd partner changes nothing");
        let grown = |used| wrap(once, to_wire_precision(used)).scale / own.scale;
        assert_eq!(grown(0.001), 1.0, "only the partner's was");
        assert!((3.9..4.1).contains(&grown(0.01)), "from its own");
        assert!((7.9..8.2).contains(&grown(0.02)), "from the partner's");
        assert!((15.9..16.2).contains(&grown(1e3)), "but never by more than 16 at once");
        let calm = scale_after_exchange(Some(wrap(once, 1.0)), 0.01, Some(0.05), 0.2);
        assert_eq!(calm.wraps_in_row, 0, "only wraps in a row count");
        assert!(wrap(calm, 1.0).scale == calm.scale);
    }

    /// A model that is a little off answers others, whose grids are finer, and sees no difference on its own.
    #[test]
    fn wraps_on_finer_grids_do_not_widen_a_grid_without_end() {
        let mut block = BlockScale { scale: to_wire_precision(0.01), wraps_in_row: 0 };
        for _ in 0..20 {
            for seen in [None, None, Some(0.0)] {
                let used = if seen.is_some() { block.scale } else { to_wire_precision(1e-5) };
                block = scale_after_exchange(Some(block), used, seen, 0.2);
            }
        }
        assert!(block.scale <= 0.01, "{block:?}");
    }
}

//! A vector in blocks, and the scale of one.

use crate::bulk::BLOCK;

/// The scale of a block of [`BLOCK`] parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockScale {
    /// In the parameters' unit, a positive bfloat16.
    pub scale: f32,
    /// Exchanges in a row, whoever the partners were, in which the block wrapped.
    pub wraps_in_row: u32,
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

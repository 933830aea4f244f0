//! A vector in blocks.

use crate::bulk::BLOCK;

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

//! A code as it is held: a byte for widths up to 8 bits, two bytes for 16.

use super::buffers::Element;
use super::packing::{pack, unpack};
use super::width::CodeWidth;
use crate::bulk::BLOCK;

/// A code, or the difference of two. Everything is modulo `2^bits`, so codes need no sign.
pub(super) trait Code: Element + Ord + Into<i32> {
    /// The low bits of an index.
    fn of_index(index: i32) -> Self;

    /// `partner − own`, wrapped into the range of codes whose highest bit is `half_way`.
    fn difference(partner: Self, own: Self, half_way: Self) -> Self;

    /// The highest bit of a code.
    fn half_way(width: CodeWidth) -> Self;

    /// Σ d², exactly.
    fn sum_of_squares(differences: &[Self; BLOCK]) -> u64;

    /// Packs the codes of a block into `output`, which ends with the last one that counts.
    fn pack(codes: &[Self; BLOCK], width: CodeWidth, output: &mut [u8]);

    /// Unpacks `input`; the codes behind its end become zeros. What is above the width is arbitrary.
    fn unpack(input: &[u8], width: CodeWidth, codes: &mut [Self; BLOCK]);
}

impl Code for i8 {
    #[inline(always)]
    fn of_index(index: i32) -> i8 {
        index as i8
    }

    #[inline(always)]
    fn difference(partner: i8, own: i8, half_way: i8) -> i8 {
        // The low bits, with their sign spread over the spare ones: vectors have no shift of single bytes.
        let low_bits = partner.wrapping_sub(own) & (half_way | half_way.wrapping_sub(1));
        (low_bits ^ half_way).wrapping_sub(half_way)
    }

    #[inline(always)]
    fn half_way(width: CodeWidth) -> i8 {
        (1u8 << (width.bits() - 1)) as i8
    }

    #[inline(always)]
    fn sum_of_squares(differences: &[i8; BLOCK]) -> u64 {
        // At most 256 · 2^14.
        let mut sum = 0i32;
        for difference in differences {
            let difference = i32::from(*difference);
            sum += difference * difference;
        }
        sum as u64
    }

    #[inline(always)]
    fn pack(codes: &[i8; BLOCK], width: CodeWidth, output: &mut [u8]) {
        pack(bytemuck::cast_ref(codes), width, output);
    }

    #[inline(always)]
    fn unpack(input: &[u8], width: CodeWidth, codes: &mut [i8; BLOCK]) {
        unpack(input, width, bytemuck::cast_mut(codes));
    }
}

impl Code for i16 {
    #[inline(always)]
    fn of_index(index: i32) -> i16 {
        index as i16
    }

    #[inline(always)]
    fn difference(partner: i16, own: i16, _: i16) -> i16 {
        partner.wrapping_sub(own)
    }

    #[inline(always)]
    fn half_way(_: CodeWidth) -> i16 {
        i16::MIN
    }

    #[inline(always)]
    fn sum_of_squares(differences: &[i16; BLOCK]) -> u64 {
        let mut sum = 0u64;
        for difference in differences {
            let difference = i32::from(*difference);
            // At most 2^30.
            sum += u64::from((difference * difference) as u32);
        }
        sum
    }

    #[inline(always)]
    fn pack(codes: &[i16; BLOCK], _: CodeWidth, output: &mut [u8]) {
        for (pair, code) in output.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *pair = code.to_le_bytes();
        }
    }

    #[inline(always)]
    fn unpack(input: &[u8], _: CodeWidth, codes: &mut [i16; BLOCK]) {
        let (pairs, _) = input.as_chunks::<2>();
        for (code, pair) in codes.iter_mut().zip(pairs) {
            *code = i16::from_le_bytes(*pair);
        }
        codes[pairs.len()..].fill(0);
    }
}

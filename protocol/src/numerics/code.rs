//! A code as it is held: a byte for widths up to 8 bits, two bytes for 16.

use super::buffers::Element;
use super::check::WEIGHTS;
use super::packing::{pack, unpack};
use super::width::CodeWidth;
use crate::bulk::BLOCK;

/// A code, or the difference of two. Everything is modulo `2^bits`, so codes need no sign.
pub(super) trait Code: Element + Ord + Into<i32> {
    /// Number of bits held.
    const BITS: u32;

    /// The low bits of an index.
    fn of_index(index: i32) -> Self;

    /// `partner − own` for codes of as many bits fewer than [`BITS`](Self::BITS) as `spare_bits` says, wrapped into
    /// their range.
    fn difference(partner: Self, own: Self, spare_bits: u32) -> Self;

    /// Σ d², exactly.
    fn sum_of_squares(differences: &[Self; BLOCK]) -> u64;

    /// Packs the codes of a block into `output`, which ends with the last one that counts.
    fn pack(codes: &[Self; BLOCK], width: CodeWidth, output: &mut [u8]);

    /// Unpacks `input`; the codes behind its end become zeros. What is above the width is arbitrary.
    fn unpack(input: &[u8], width: CodeWidth, codes: &mut [Self; BLOCK]);
}

/// Σ (2k + 1) · code, modulo 2^32 and, for codes of fewer bits than are held, modulo two to the power of the width.
#[inline(always)]
pub(super) fn weighted_sum<C: Code>(codes: &[C; BLOCK]) -> u32 {
    let mut sum = 0i32;
    for (code, weight) in codes.iter().zip(&WEIGHTS) {
        let code: i32 = (*code).into();
        sum = sum.wrapping_add(code.wrapping_mul(i32::from(*weight)));
    }
    sum as u32
}

impl Code for i8 {
    const BITS: u32 = 8;

    #[inline(always)]
    fn of_index(index: i32) -> i8 {
        index as i8
    }

    #[inline(always)]
    fn difference(partner: i8, own: i8, spare_bits: u32) -> i8 {
        (partner.wrapping_sub(own) << spare_bits) >> spare_bits
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
    const BITS: u32 = 16;

    #[inline(always)]
    fn of_index(index: i32) -> i16 {
        index as i16
    }

    #[inline(always)]
    fn difference(partner: i16, own: i16, _: u32) -> i16 {
        partner.wrapping_sub(own)
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

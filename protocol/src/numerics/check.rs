//! The check on a block's indices: 16 bits that their codes do not already tell.
//!
//! The sum `S = Σ (2k + 1) · Q_k` over the *unwrapped* indices is known modulo `2^bits` to whoever knows the codes, so
//! its next 16 bits are the ones worth sending. The sum is linear: `S_partner − S_own = Σ (2k + 1) · d_k`, which holds
//! in those bits for the differences `d` that were read from the codes unless a code wrapped. A wrap by `m` at position
//! `k` shifts them by `(2k + 1) · m`: odd weights up to 511 leave no single wrap, no pair and no triple of wraps by one
//! unseen.

use super::grid::Indices;
use super::width::CodeWidth;
use crate::bulk::BLOCK;

/// The weights, odd and all different.
const WEIGHTS: [i32; BLOCK] = {
    let mut weights = [0; BLOCK];
    let mut position = 0;
    while position < BLOCK {
        weights[position] = 2 * position as i32 + 1;
        position += 1;
    }
    weights
};

/// The same for codes: vectors multiply numbers of 16 bits at twice the rate, and add pairs on the way.
const CODE_WEIGHTS: [i16; BLOCK] = {
    let mut weights = [0; BLOCK];
    let mut position = 0;
    while position < BLOCK {
        weights[position] = WEIGHTS[position] as i16;
        position += 1;
    }
    weights
};

/// `S` of a block's indices, modulo 2^32.
#[inline(always)]
pub(super) fn weighted_sum(indices: &Indices) -> u32 {
    let mut sum = 0i32;
    for (index, weight) in indices.iter().zip(&WEIGHTS) {
        sum = sum.wrapping_add(index.wrapping_mul(*weight));
    }
    sum as u32
}

/// The same sum of codes or of differences of codes.
#[inline(always)]
pub(super) fn weighted_sum_of_codes<Code: Copy + Into<i32>>(codes: &[Code; BLOCK]) -> u32 {
    let mut sum = 0i32;
    for (code, weight) in codes.iter().zip(&CODE_WEIGHTS) {
        sum = sum.wrapping_add((*code).into().wrapping_mul(i32::from(*weight)));
    }
    sum as u32
}

/// The bits of `S` that are sent.
#[inline(always)]
pub(super) fn of_sum(sum: u32, width: CodeWidth) -> u16 {
    (sum >> width.bits()) as u16
}

/// What is known of `S` from a check and the weighted sum of the codes: its lowest `bits + 16` bits.
#[inline(always)]
pub(super) fn sum_of(check: u16, codes_sum: u32, width: CodeWidth) -> u32 {
    (u32::from(check) << width.bits()) | (codes_sum & ((1 << width.bits()) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: [CodeWidth; 4] = [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen];

    fn some_indices() -> Indices {
        std::array::from_fn(|position| (position as i32 - 77).wrapping_mul(0x2545_f491))
    }

    #[test]
    fn no_one_or_two_wraps_escape_the_check() {
        let base = [0; BLOCK];
        for width in WIDTHS {
            let clean = of_sum(weighted_sum(&base), width);
            let wrap = 1 << width.bits();
            for first in 0..BLOCK {
                for sign in [-wrap, wrap] {
                    let mut wrapped = base;
                    wrapped[first] += sign;
                    assert_ne!(of_sum(weighted_sum(&wrapped), width), clean, "a wrap at {first}");
                    for second in first + 1..BLOCK {
                        let mut twice = wrapped;
                        for second_sign in [-wrap, wrap] {
                            twice[second] = base[second] + second_sign;
                            let check = of_sum(weighted_sum(&twice), width);
                            assert_ne!(check, clean, "wraps at {first} and {second} of {width:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_check_and_the_codes_tell_all_bits_that_count() {
        let sum = weighted_sum(&some_indices());
        for width in WIDTHS {
            let codes: Indices = some_indices().map(|index| index & ((1 << width.bits()) - 1));
            let known = sum_of(of_sum(sum, width), weighted_sum(&codes), width);
            let bits = u32::from(width.bits()) + 16;
            assert_eq!(u64::from(known), u64::from(sum) & ((1 << bits) - 1), "{width:?}");
        }
    }
}

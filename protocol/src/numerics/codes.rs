//! From a parameter to its code, block by block.
//!
//! `Q = floor(θ / s + dither)` is a parameter's index on a grid of step `s`. The dither is a hash of the exchange's
//! nonce and the position, the same for both partners, so that the expected difference of two indices is the exact
//! difference of the parameters. Only the low bits of `Q` are sent.

use super::width::CodeWidth;
use crate::bulk::BLOCK;

/// The indices of one block, at most [`BLOCK`] of them; the rest is unused.
pub(super) type Indices = [i32; BLOCK];

/// Writes the indices of `block`, the `number`-th of the model, on the grid of `step`.
///
/// Values beyond the range of `i32` saturate: their blocks then fail the check and are left out.
pub(super) fn indices(block: &[f32], number: usize, step: f32, nonce: u64, output: &mut Indices) {
    let inverse = 1.0 / step;
    let seed = block_seed(nonce, number);
    for (position, (value, index)) in block.iter().zip(output.iter_mut()).enumerate() {
        let scaled = value * inverse + dither(seed, position as u32);
        let truncated = scaled as i32;
        // Truncation rounds negative values up. (`f32::floor` is a function call on the x86-64 baseline.)
        *index = truncated.saturating_sub(i32::from(truncated as f32 > scaled));
    }
}

/// A check on the *unwrapped* indices of a block: 16 bits that their codes do not already tell.
///
/// The sum `Σ (2k + 1) · Q_k` is known modulo `2^bits` to whoever knows the codes, so its next 16 bits are the ones
/// worth sending. A wrap by `m` at position `k` shifts them by `(2k + 1) · m`: odd weights up to 511 leave no single
/// wrap, no pair and no triple of wraps by one unseen.
pub(super) fn check(indices: &[i32], width: CodeWidth) -> u16 {
    let sum = indices
        .iter()
        .enumerate()
        .fold(0u32, |sum, (position, index)| sum.wrapping_add((2 * position as u32 + 1).wrapping_mul(*index as u32)));
    (sum >> width.bits()) as u16
}

/// Spreads nonce and block number over 32 bits (the finalizer of SplitMix64, Steele et al. 2014).
fn block_seed(nonce: u64, number: usize) -> u32 {
    let mut mixed = nonce ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) as u32
}

/// Uniform in [0, 1) with 24 bits (the finalizer of MurmurHash3 on a Weyl sequence).
fn dither(seed: u32, position: u32) -> f32 {
    let mut mixed = seed.wrapping_add(position.wrapping_mul(0x9e37_79b9));
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    // Through i32, which every instruction set converts quickly: the value is below 2^24.
    ((mixed ^ (mixed >> 16)) >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_the_floor_of_the_dithered_quotient() {
        let values: Vec<f32> = (0..BLOCK).map(|position| position as f32 * 0.37 - 50.0).collect();
        let mut output = [0; BLOCK];
        indices(&values, 3, 0.25, 99, &mut output);
        for (position, (value, index)) in values.iter().zip(output).enumerate() {
            let exact = value * 4.0 + dither(block_seed(99, 3), position as u32);
            assert_eq!(index, exact.floor() as i32, "position {position}");
        }
    }

    #[test]
    fn dither_is_uniform() {
        let seed = block_seed(1, 2);
        let mean: f64 = (0..100_000).map(|position| f64::from(dither(seed, position))).sum::<f64>() / 1e5;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
    }

    #[test]
    fn no_one_or_two_wraps_escape_the_check() {
        let base = [0; BLOCK];
        let clean = check(&base, CodeWidth::Eight);
        for first in 0..BLOCK {
            for sign in [-256, 256] {
                let mut wrapped = base;
                wrapped[first] += sign;
                assert_ne!(check(&wrapped, CodeWidth::Eight), clean, "a wrap at {first}");
                for second in first + 1..BLOCK {
                    let mut twice = wrapped;
                    for second_sign in [-256, 256] {
                        twice[second] = base[second] + second_sign;
                        assert_ne!(check(&twice, CodeWidth::Eight), clean, "wraps at {first} and {second}");
                    }
                }
            }
        }
    }
}

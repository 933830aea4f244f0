//! From a parameter to its index on the grid of an exchange, block by block.
//!
//! `Q = floor(θ / s + dither)` is a parameter's index on a grid of scale `s`. The dither depends on the exchange's nonce
//! and the position alone, the same for both partners, so that the expected difference of two indices is the exact
//! difference of the parameters. Only the low bits of `Q` are sent.

use crate::bulk::BLOCK;
use crate::random::spread;

/// The indices of one block.
pub(super) type Indices = [i32; BLOCK];

/// Quotients beyond this count as this, and NaN as its negative: a limit within which every f32 has its floor among
/// the `f32`s, and the trick of [`Grid::indices`] holds.
const QUOTIENT_MAX: f32 = 4_194_304.0;

/// 1.5 · 2^23: an f32 of this size has a unit in the last place of 1, so adding it rounds to a whole number, which
/// then stands in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// Lengths of the random tables behind the dither: a block starts anywhere in its first half.
const DITHERS: usize = 2 * BLOCK;

/// The dither of one exchange.
///
/// A block's dither is a window of a table of independent random numbers, at an offset of its own and with some bits
/// flipped, offset and bits drawn by a hash of its number. So within a block the numbers are independent, and those of
/// any two positions in the model are pairwise independent over nonces. That takes one operation a parameter where a
/// hash of each position took nine.
pub(super) struct Grid {
    nonce: u64,
    /// Mantissas of 23 random bits.
    table: [u32; DITHERS],
}

impl Grid {
    pub(super) fn new(nonce: u64) -> Grid {
        let mut table = [0; DITHERS];
        for (position, mantissa) in table.iter_mut().enumerate() {
            // Block numbers count up from zero, table positions down from the largest number.
            *mantissa = (hash(nonce, u64::MAX - position as u64) >> 41) as u32;
        }
        Grid { nonce, table }
    }

    /// Writes the indices of `block`, the `number`-th of the model, on the grid of `scale`.
    ///
    /// Values beyond [`QUOTIENT_MAX`] times the scale saturate: see [`saturates`].
    #[inline(always)]
    pub(super) fn indices(&self, block: &[f32; BLOCK], number: usize, scale: f32, output: &mut Indices) {
        let inverse = 1.0 / scale;
        let (window, flips) = self.window(number);
        for (position, index) in output.iter_mut().enumerate() {
            // Written as comparisons, which every instruction set has as one operation, NaN included.
            let dithered = block[position] * inverse + f32::from_bits(window[position] ^ flips);
            let dithered = if dithered > -QUOTIENT_MAX { dithered } else { -QUOTIENT_MAX };
            let dithered = if dithered < QUOTIENT_MAX { dithered } else { QUOTIENT_MAX };
            let shifted = dithered + ROUNDER;
            let rounded_up = i32::from(shifted - ROUNDER > dithered);
            // One less, for the dither here lies in [1, 2).
            *index = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32 + 1) - rounded_up;
        }
    }

    /// The table's part for a block and the bits to flip in it; together the bits of f32s in [1, 2).
    #[inline(always)]
    fn window(&self, number: usize) -> (&[u32; BLOCK], u32) {
        let drawn = hash(self.nonce, number as u64);
        let offset = drawn as usize % BLOCK;
        let window = self.table[offset..].first_chunk().expect("a window from the first half fits");
        (window, 1f32.to_bits() | (drawn >> 41) as u32)
    }
}

/// Whether some index of `block` would be another on a grid without limits. A proposal's scales fit its own values, but a
/// reply's values may be far beyond them.
#[inline(always)]
pub(super) fn saturates(block: &[f32; BLOCK], scale: f32) -> bool {
    let quotient = largest(block) * (1.0 / scale);
    // Two less, for the dither.
    quotient.is_nan() || quotient >= QUOTIENT_MAX - 2.0
}

/// The largest absolute value; NaN is above all others.
#[inline(always)]
pub(super) fn largest(block: &[f32; BLOCK]) -> f32 {
    // Without their sign, the bits of floats are in the order of the floats.
    let bits = |value: &f32| (value.to_bits() & 0x7fff_ffff) as i32;
    f32::from_bits(block.iter().fold(0, |largest, value| largest.max(bits(value))) as u32)
}

/// Spreads a nonce and a number over 64 bits.
#[inline(always)]
pub(super) fn hash(nonce: u64, number: u64) -> u64 {
    spread(nonce ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dither(grid: &Grid, number: usize) -> [f64; BLOCK] {
        let (window, flips) = grid.window(number);
        window.map(|mantissa| f64::from(f32::from_bits(mantissa ^ flips)) - 1.0)
    }

    fn indices(grid: &Grid, values: &[f32; BLOCK], number: usize, scale: f32) -> Indices {
        let mut output = [0; BLOCK];
        grid.indices(values, number, scale, &mut output);
        output
    }

    /// Pearson's coefficient.
    fn correlation(pairs: &[(f64, f64)]) -> f64 {
        let count = pairs.len() as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let (left, right) = (mean(&|pair| pair.0), mean(&|pair| pair.1));
        let together = mean(&|pair| (pair.0 - left) * (pair.1 - right));
        together / (mean(&|pair| (pair.0 - left).powi(2)) * mean(&|pair| (pair.1 - right).powi(2))).sqrt()
    }

    #[test]
    fn an_index_is_the_floor_of_the_dithered_quotient() {
        let grid = Grid::new(99);
        for scale in [0.0, 1e-30, 0.37, 4000.0] {
            let values: [f32; BLOCK] = std::array::from_fn(|position| (position as f32 - 100.0) * scale);
            for (position, index) in indices(&grid, &values, 3, 0.25).into_iter().enumerate() {
                let exact = values[position] * 4.0 + (dither(&grid, 3)[position] as f32 + 1.0);
                assert_eq!(index, exact.floor() as i32 - 1, "{} at position {position}", values[position]);
            }
        }
    }

    #[test]
    fn whole_numbers_of_scales_keep_their_index() {
        let grid = Grid::new(7);
        let values: [f32; BLOCK] = std::array::from_fn(|position| position as f32 - 128.0);
        let expected: Indices = std::array::from_fn(|position| position as i32 - 128);
        (0..100).for_each(|number| assert_eq!(indices(&grid, &values, number, 1.0), expected));
    }

    #[test]
    fn values_beyond_reason_saturate() {
        let grid = Grid::new(1);
        let mut values = [0.0; BLOCK];
        values[..4].copy_from_slice(&[f32::INFINITY, 1e30, f32::NEG_INFINITY, f32::NAN]);
        let indices = indices(&grid, &values, 0, 1e-9);
        assert_eq!(indices[..5], [4_194_303, 4_194_303, -4_194_305, -4_194_305, 0]);
    }

    /// The mean over nonces of an index is the quotient: what makes averaging unbiased.
    #[test]
    fn the_expected_index_is_the_quotient() {
        let values: [f32; BLOCK] = std::array::from_fn(|position| position as f32 * 0.013 - 2.0);
        let mut sums = [0f64; BLOCK];
        for nonce in 0..4000 {
            let indices = indices(&Grid::new(nonce), &values, 5, 0.5);
            sums.iter_mut().zip(indices).for_each(|(sum, index)| *sum += f64::from(index));
        }
        for (sum, value) in sums.iter().zip(values) {
            let error = sum / 4000.0 - f64::from(value) / 0.5;
            // Six standard errors of an index that is one of two: 6 · ½ / √4000.
            assert!(error.abs() < 0.048, "{value}: {error}");
        }
    }

    #[test]
    fn dither_is_uniform() {
        for nonce in [0, 1, u64::MAX] {
            let grid = Grid::new(nonce);
            let mut bins = [0u32; 64];
            for number in 0..1000 {
                dither(&grid, number).iter().for_each(|dither| bins[(dither * 64.0) as usize] += 1);
            }
            // 4000 expected in each bin.
            let chi_squared: f64 = bins.iter().map(|count| (f64::from(*count) - 4000.0).powi(2) / 4000.0).sum();
            assert!(chi_squared < 130.0, "nonce {nonce}: {chi_squared} for 63 degrees of freedom");
        }
    }

    #[test]
    fn neighbours_in_position_in_block_and_in_nonce_are_uncorrelated() {
        let mut apart = [const { Vec::new() }; 4];
        for nonce in 0..200 {
            let (grid, next) = (Grid::new(nonce), Grid::new(nonce + 1));
            for number in 0..20 {
                let (here, there) = (dither(&grid, number), dither(&grid, number + 1));
                apart[0].extend(here.iter().copied().zip(here[1..].iter().copied()));
                apart[1].extend(here.iter().copied().zip(here[2..].iter().copied()));
                apart[2].extend(here.into_iter().zip(there));
                apart[3].extend(here.into_iter().zip(dither(&next, number)));
            }
        }
        for (kind, pairs) in apart.iter().enumerate() {
            // A million pairs: five standard errors.
            assert!(correlation(pairs).abs() < 0.005, "kind {kind}: {}", correlation(pairs));
        }
    }
}

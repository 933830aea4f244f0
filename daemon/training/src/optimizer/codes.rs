//! Moments in codes of 8 bits (Dettmers et al., arXiv 2110.02861): blocks of 256 values with a scale each, the largest of a
//! block at the end of the code's range. Both codes are finer near zero, as most of a block's values are far below its largest:
//! they are squares of whole numbers.
//!
//! | of | code q | value |
//! |---|---|---|
//! | a mean of gradients | −127 to 127 | scale · q·abs(q) |
//! | a mean of their squares | 0 to 255 | (scale · q²)² |
//!
//! A value is rounded to one of the two codes around it, drawn so that it is right on average: what decays by a hundredth
//! a step would else stay at its code forever. The draw follows from the step, the tensor's name and the value's place in it, so
//! that the bits of a run do not depend on threads or on where a model is cut. A mean of squares above zero never has code 0: it
//! divides.

/// Values that share a scale.
pub(super) const BLOCK: usize = 256;

/// Of the largest code of a mean of gradients.
const SIGNED_MAX: f32 = 127.0;

/// Of the largest code of a mean of squares.
const SQUARES_MAX: f32 = 255.0;

/// Blocks with smaller scales are zero: their inverse would be near the largest `f32`.
const SCALE_MIN: f32 = 1e-30;

/// Added to a whole number in `f32`, it leaves that number's two's complement in the lowest bits: 1.5 · 2²³.
const TO_BITS: f32 = 12_582_912.0;

/// Codes of some tensors, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockCodes {
    /// One for each value; of a mean of gradients in two's complement.
    pub codes: Vec<u8>,
    /// One for each block, 0 or more; a tensor begins a block.
    pub scales: Vec<f32>,
}

impl BlockCodes {
    /// Zeros, for tensors of these lengths.
    pub(crate) fn zeros(lengths: impl Iterator<Item = usize> + Clone) -> BlockCodes {
        let blocks = lengths.clone().map(|length| length.div_ceil(BLOCK)).sum();
        BlockCodes { codes: vec![0; lengths.sum()], scales: vec![0.0; blocks] }
    }

    pub(crate) fn parts(&mut self) -> CodedMut<'_> {
        CodedMut { codes: &mut self.codes, scales: &mut self.scales }
    }

    /// Whether every value is finite.
    pub(crate) fn is_finite(&self) -> bool {
        let largest = SQUARES_MAX * SQUARES_MAX;
        self.scales.iter().all(|scale| *scale >= 0.0 && (scale * largest * (scale * largest)).is_finite())
    }

    pub(crate) fn append(&mut self, other: &BlockCodes) {
        self.codes.extend_from_slice(&other.codes);
        self.scales.extend_from_slice(&other.scales);
    }
}

/// Codes that are being read and replaced.
pub(crate) struct CodedMut<'a> {
    pub(super) codes: &'a mut [u8],
    pub(super) scales: &'a mut [f32],
}

impl<'a> CodedMut<'a> {
    /// Cuts the first tensor off, of so many values.
    pub(crate) fn take(&mut self, values: usize) -> CodedMut<'a> {
        CodedMut {
            codes: super::take(&mut self.codes, values),
            scales: super::take(&mut self.scales, values.div_ceil(BLOCK)),
        }
    }

    /// Reads all of it with [`signed`] or [`root`].
    pub(super) fn decode(&self, values: &mut [f32], decode: impl Fn(u8, f32) -> f32) {
        let blocks = values.chunks_mut(BLOCK).zip(self.codes.chunks(BLOCK)).zip(&*self.scales);
        for ((values, codes), scale) in blocks {
            values.iter_mut().zip(codes).for_each(|(value, code)| *value = decode(*code, *scale));
        }
    }

    /// Replaces all of it with [`encode_signed`] or [`encode_roots`].
    pub(super) fn encode(self, values: &[f32], dither: Dither, encode: impl Fn(&[f32], &[f32], &mut [u8]) -> f32) {
        let blocks = values.chunks(BLOCK).zip(self.codes.chunks_mut(BLOCK)).zip(self.scales);
        for (block, ((values, codes), scale)) in blocks.enumerate() {
            let draw = |offset| lower(dither.draw((block * BLOCK + offset) as u32));
            let draws: Vec<f32> = (0..values.len()).map(draw).collect();
            *scale = encode(values, &draws, codes);
        }
    }
}

/// From what the rounding of a tensor is drawn in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dither(u32);

impl Dither {
    /// `tensor` as [`tensor_key`] has it.
    pub(crate) fn of(tensor: u32, steps: u64) -> Dither {
        Dither(mixed(mixed(tensor ^ steps as u32) ^ (steps >> 32) as u32))
    }

    /// 32 bits for the value at a place.
    #[inline(always)]
    pub(super) fn draw(self, place: u32) -> u32 {
        mixed(self.0.wrapping_add(place))
    }
}

/// The end of MurmurHash3 (Appleby): every bit depends on every other.
#[inline(always)]
fn mixed(mut bits: u32) -> u32 {
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x85EB_CA6B);
    bits = (bits ^ (bits >> 13)).wrapping_mul(0xC2B2_AE35);
    bits ^ (bits >> 16)
}

/// FNV-1a of a tensor's name.
pub(crate) fn tensor_key(name: &str) -> u32 {
    name.bytes().fold(0x811C_9DC5, |key, byte| (key ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A number from 0 to below 1 of the lower 16 bits of a draw.
#[inline(always)]
pub(super) fn lower(draw: u32) -> f32 {
    (draw & 0xFFFF) as i32 as f32 * (1.0 / 65_536.0)
}

/// The same of the upper 16.
#[inline(always)]
pub(super) fn upper(draw: u32) -> f32 {
    (draw >> 16) as i32 as f32 * (1.0 / 65_536.0)
}

/// A third one, of a draw whose halves are used up.
#[inline(always)]
pub(super) fn third(draw: u32) -> f32 {
    upper(draw.wrapping_mul(0x9E37_79B1))
}

/// The largest magnitude of some finite values.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    // As whole numbers, whose order is the same, for compilers know how to take the largest of many at once.
    f32::from_bits(values.iter().fold(0, |largest, value| largest.max(value.abs().to_bits())))
}

/// (the scale of a block whose largest code has this magnitude, one over it).
#[inline(always)]
fn scale_of(values: &[f32], largest_code: f32) -> (f32, f32) {
    let scale = largest(values) / (largest_code * largest_code);
    if scale < SCALE_MIN { (0.0, 0.0) } else { (scale, 1.0 / scale) }
}

/// A mean of gradients.
#[inline(always)]
pub(super) fn signed(code: u8, scale: f32) -> f32 {
    let code = f32::from(code as i8);
    scale * (code * code.abs())
}

/// The root of a mean of squares.
#[inline(always)]
pub(super) fn root(code: u8, scale: f32) -> f32 {
    let code = f32::from(code);
    scale * (code * code)
}

/// Replaces a block of means of gradients; `draws` are 0 to below 1.
#[inline(always)]
pub(super) fn encode_signed(values: &[f32], draws: &[f32], codes: &mut [u8]) -> f32 {
    let (scale, inverse) = scale_of(values, SIGNED_MAX);
    for ((value, draw), code) in values.iter().zip(draws).zip(codes) {
        let square = value.abs() * inverse;
        let low = square.sqrt().floor();
        let is_up = draw * (2.0 * low + 1.0) < square - low * low;
        let magnitude = low + if is_up { 1.0 } else { 0.0 };
        let magnitude = if magnitude > SIGNED_MAX { SIGNED_MAX } else { magnitude };
        *code = (magnitude.copysign(*value) + TO_BITS).to_bits() as u8;
    }
    scale
}

/// Replaces a block of means of squares, of which these are the roots.
#[inline(always)]
pub(super) fn encode_roots(roots: &[f32], draws: &[f32], codes: &mut [u8]) -> f32 {
    let (scale, inverse) = scale_of(roots, SQUARES_MAX);
    for ((value, draw), code) in roots.iter().zip(draws).zip(codes) {
        let square = value * inverse;
        let low = square.sqrt().floor();
        let below = low * low;
        // Of the fourth powers of the two codes around it.
        let apart = (2.0 * low + 1.0) * (2.0 * below + 2.0 * low + 1.0);
        let is_up = draw * apart < (square - below) * (square + below);
        let code_of = low + if is_up { 1.0 } else { 0.0 };
        let code_of = if code_of > SQUARES_MAX { SQUARES_MAX } else { code_of };
        let code_of = if code_of < 1.0 && square > 0.0 { 1.0 } else { code_of };
        *code = (code_of + TO_BITS).to_bits() as u8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::random_values;

    /// Of both codes, what the mean of many roundings of a block is, and one of them.
    fn rounded(values: &[f32], roundings: u64, is_signed: bool) -> (Vec<f64>, Vec<f32>) {
        let (mut sums, mut last) = (vec![0.0; values.len()], Vec::new());
        for step in 0..roundings {
            let dither = Dither::of(tensor_key("some"), step);
            let draws: Vec<f32> = (0..values.len() as u32).map(|place| lower(dither.draw(place))).collect();
            let mut codes = vec![0; values.len()];
            last = if is_signed {
                let scale = encode_signed(values, &draws, &mut codes);
                codes.iter().map(|code| signed(*code, scale)).collect()
            } else {
                let roots: Vec<f32> = values.iter().map(|value| value.sqrt()).collect();
                let scale = encode_roots(&roots, &draws, &mut codes);
                codes.iter().map(|code| root(*code, scale).powi(2)).collect()
            };
            sums.iter_mut().zip(&last).for_each(|(sum, value)| *sum += f64::from(*value) / roundings as f64);
        }
        (sums, last)
    }

    /// Values over eight powers of ten, as moments are.
    fn spread(count: usize) -> Vec<f32> {
        let drawn = random_values(count, 5);
        let power = |place: usize| 10_f32.powi(-((place % 9) as i32));
        drawn.iter().enumerate().map(|(place, value)| value * power(place)).collect()
    }

    #[test]
    fn a_rounded_value_is_near_and_right_on_average() {
        let values = spread(200);
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let (means, once) = rounded(&values, 4000, true);
        for (index, value) in values.iter().enumerate() {
            // Two codes q and q + 1 are (2q + 1) scales apart.
            let apart = largest / 127.0 * (2.0 * (value.abs() / largest).sqrt() + 1.0 / 127.0);
            assert!((once[index] - value).abs() <= apart * 1.001, "{value}: {}", once[index]);
            let error = (means[index] - f64::from(*value)).abs();
            assert!(error <= f64::from(apart) * 0.04, "{value}: {} on average, codes {apart} apart", means[index]);
            assert!(once[index] == 0.0 || (once[index] > 0.0) == (*value > 0.0));
        }
        let squares: Vec<f32> = values.iter().map(|value| value * value).collect();
        let (means, once) = rounded(&squares, 4000, false);
        for (index, square) in squares.iter().enumerate() {
            assert!(once[index] > 0.0 || *square == 0.0, "{square} divides");
            let code = (square.sqrt() / largest).sqrt() * 255.0;
            if code > 1.0 {
                let apart = ((code + 1.0).powi(4) - (code - 1.0).max(0.0).powi(4)) * (largest / 65_025.0).powi(2);
                assert!((once[index] - square).abs() <= apart, "{square}: {}", once[index]);
                let error = (means[index] - f64::from(*square)).abs();
                assert!(error <= f64::from(apart) * 0.04, "{square}: {} on average", means[index]);
            }
        }
    }

    #[test]
    fn nothing_and_next_to_nothing_are_zeros() {
        for values in [[0.0; 5], [1e-40; 5]] {
            let (mut codes, draws) = ([7; 5], [0.0; 5]);
            assert_eq!((encode_signed(&values, &draws, &mut codes), codes), (0.0, [0; 5]));
            assert_eq!((encode_roots(&values, &draws, &mut codes), codes), (0.0, [0; 5]));
        }
    }

    #[test]
    fn what_would_decode_to_no_number_is_told() {
        let of = |scale| BlockCodes { codes: vec![1], scales: vec![scale] }.is_finite();
        assert!(of(0.0) && of(1e-3) && of(1e10));
        assert!(!of(f32::NAN) && !of(f32::INFINITY) && !of(1e15) && !of(-1.0));
    }
}

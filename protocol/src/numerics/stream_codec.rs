//! How the streams between the stages of a [team](crate::team) are written: exact, or a byte a value.
//!
//! Eight bits are symmetric codes in blocks of 64 along the width, so that a channel that stands out coarsens its own block and
//! no other, with a bfloat16 scale each and rounding to nearest (dithered rounding would make the error 1.4 times as large). A
//! value moves by half a scale at most, 0.4 % of the largest of its block.
//!
//! Values that are not finite are refused, on both sides.

use super::{InstructionSet, Kernel};
use crate::team::Wire;

/// Values that share a scale.
const BLOCK: usize = 64;

/// The largest code.
const LARGEST: f32 = 127.0;

/// Blocks whose largest value is below this are zeros: where numbers lose digits, there is no scale for them.
const LEAST: f32 = f32::MIN_POSITIVE * 256.0;

/// Bits of 2^127. Values of that size and beyond count as not finite: decoding could carry them over the end of the range.
const BEYOND: u32 = 0x7f00_0000;

/// Added to a number of at most 2^22, it leaves the nearest integer in the lowest bits (1.5 × 2^23, ties to even).
const ROUNDING: f32 = 12_582_912.0;

/// A value that is not finite, or 2^127 and more away from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stream holds a value that is not finite")]
pub struct StreamNotFinite;

/// Why bytes are no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// They are more or fewer than rows and width call for.
    #[error("a stream of {actual} bytes where {expected} belong")]
    Length {
        /// Bytes that belong there.
        expected: usize,
        /// Bytes there are.
        actual: usize,
    },
    /// A value is not finite, or no encoder writes such a code or scale.
    #[error("a stream holds what no encoder writes")]
    Unfit,
}

/// Writes and reads streams `[rows, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCodec {
    wire: Wire,
    width: usize,
}

impl StreamCodec {
    /// Of streams of this width, at least 1.
    pub fn new(wire: Wire, width: usize) -> StreamCodec {
        StreamCodec { wire, width: width.max(1) }
    }

    /// Bytes of a stream of so many rows.
    pub fn bytes(self, rows: usize) -> usize {
        let values = rows.saturating_mul(self.width);
        match self.wire {
            Wire::F32 => values.saturating_mul(4),
            Wire::Codes8 => values.saturating_add(2 * rows.saturating_mul(self.width.div_ceil(BLOCK))),
        }
    }

    /// Writes a stream: codes, then scales, row by row.
    ///
    /// # Errors
    /// When a value is not finite.
    ///
    /// # Panics
    /// When the values are not whole rows.
    pub fn encode(self, values: &[f32]) -> Result<Vec<u8>, StreamNotFinite> {
        assert!(values.len().is_multiple_of(self.width), "{} values in rows of {}", values.len(), self.width);
        match self.wire {
            Wire::F32 if !InstructionSet::best().run(AllFinite { values }) => Err(StreamNotFinite),
            Wire::F32 if cfg!(target_endian = "little") => Ok(bytemuck::cast_slice(values).to_vec()),
            Wire::F32 => Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            Wire::Codes8 => {
                let mut bytes = vec![0; self.bytes(values.len() / self.width)];
                let (codes, scales) = bytes.split_at_mut(values.len());
                let are_finite = InstructionSet::best().run(Coding { values, width: self.width, codes, scales });
                are_finite.then_some(bytes).ok_or(StreamNotFinite)
            }
        }
    }

    /// Reads a stream that [`encode`](Self::encode) has written, into all of `places`.
    ///
    /// # Errors
    /// When the bytes are no stream of that length. The places then hold anything.
    ///
    /// # Panics
    /// When the places are not whole rows.
    pub fn decode(self, bytes: &[u8], places: &mut [f32]) -> Result<(), StreamError> {
        assert!(places.len().is_multiple_of(self.width), "{} values in rows of {}", places.len(), self.width);
        self.check_length(bytes, places.len() / self.width)?;
        let is_fit = match self.wire {
            Wire::F32 => {
                if cfg!(target_endian = "little") {
                    bytemuck::cast_slice_mut(places).copy_from_slice(bytes);
                } else {
                    let values = places.iter_mut().zip(bytes.as_chunks().0);
                    values.for_each(|(value, four)| *value = f32::from_le_bytes(*four));
                }
                InstructionSet::best().run(AllFinite { values: places })
            }
            Wire::Codes8 => {
                let (codes, scales) = bytes.split_at(places.len());
                InstructionSet::best().run(Decoding { codes, scales, width: self.width, places })
            }
        };
        if is_fit { Ok(()) } else { Err(StreamError::Unfit) }
    }

    /// The root of the mean square of a stream's values, without a place for them; `None` where the bytes are no stream of so many
    /// rows. Differs by rounding from what decoded values give.
    pub fn measure(self, bytes: &[u8], rows: usize) -> Option<f32> {
        self.check_length(bytes, rows).ok()?;
        let values = (rows * self.width).max(1);
        let squares = match self.wire {
            Wire::F32 => InstructionSet::best().run(MeasuringExact { bytes })?,
            Wire::Codes8 => {
                let (codes, scales) = bytes.split_at(rows * self.width);
                InstructionSet::best().run(Measuring { codes, scales, width: self.width })?
            }
        };
        Some((squares / values as f64).sqrt() as f32)
    }

    fn check_length(self, bytes: &[u8], rows: usize) -> Result<(), StreamError> {
        let (expected, actual) = (self.bytes(rows), bytes.len());
        if expected == actual { Ok(()) } else { Err(StreamError::Length { expected, actual }) }
    }
}

#[inline(always)]
fn magnitude(value: f32) -> u32 {
    // As integers, bits of numbers without a sign are in the order of the numbers, and those of no number are above all.
    value.to_bits() & !(1 << 31)
}

/// The least bfloat16 that is no smaller; its upper half. A scale rounded up keeps all codes within the largest.
#[inline(always)]
fn rounded_up(scale: f32) -> u16 {
    (scale.to_bits().wrapping_add(0xffff) >> 16) as u16
}

#[inline(always)]
fn widened(half: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16)
}

/// Whether a scale is one that encoders write: no sign, and finite.
#[inline(always)]
fn is_scale(scale: f32) -> bool {
    scale.to_bits() < BEYOND
}

struct AllFinite<'a> {
    values: &'a [f32],
}

impl Kernel for AllFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        self.values.iter().map(|value| magnitude(*value)).fold(0, u32::max) < BEYOND
    }
}

/// Whether all values are finite; else the bytes mean nothing.
struct Coding<'a> {
    values: &'a [f32],
    width: usize,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
}

impl Kernel for Coding<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let mut scales = self.scales.as_chunks_mut::<2>().0.iter_mut();
        let mut largest_of_all = 0;
        for (values, codes) in self.values.chunks_exact(self.width).zip(self.codes.chunks_exact_mut(self.width)) {
            let ((whole, rest), (whole_codes, rest_codes)) =
                (values.as_chunks::<BLOCK>(), codes.as_chunks_mut::<BLOCK>());
            for ((values, codes), scale) in whole.iter().zip(whole_codes).zip(&mut scales) {
                largest_of_all = code_block(values, codes, scale).max(largest_of_all);
            }
            if !rest.is_empty() {
                let scale = scales.next().expect("one for each block");
                largest_of_all = code_block(rest, rest_codes, scale).max(largest_of_all);
            }
        }
        largest_of_all < BEYOND
    }
}

/// Returns the bits of the largest value.
#[inline(always)]
fn code_block(values: &[f32], codes: &mut [u8], scale: &mut [u8; 2]) -> u32 {
    let largest = values.iter().map(|value| magnitude(*value)).fold(0, u32::max);
    if (LEAST.to_bits()..BEYOND).contains(&largest) {
        let half = rounded_up(f32::from_bits(largest) / LARGEST).to_le_bytes();
        *scale = half;
        let per_scale = 1.0 / widened(half);
        codes.iter_mut().zip(values).for_each(|(code, value)| *code = (value * per_scale + ROUNDING).to_bits() as u8);
    } else {
        *scale = [0; 2];
        codes.fill(0);
    }
    largest
}

/// Whether the bytes are such as encoders write.
struct Decoding<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    width: usize,
    places: &'a mut [f32],
}

impl Kernel for Decoding<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let mut scales = self.scales.as_chunks::<2>().0.iter();
        let mut is_fit = true;
        for (codes, places) in self.codes.chunks_exact(self.width).zip(self.places.chunks_exact_mut(self.width)) {
            let ((whole, rest), (whole_places, rest_places)) =
                (codes.as_chunks::<BLOCK>(), places.as_chunks_mut::<BLOCK>());
            for ((codes, places), scale) in whole.iter().zip(whole_places).zip(&mut scales) {
                is_fit &= decode_block(codes, *scale, places);
            }
            if !rest.is_empty() {
                is_fit &= decode_block(rest, *scales.next().expect("one for each block"), rest_places);
            }
        }
        is_fit
    }
}

#[inline(always)]
fn decode_block(codes: &[u8], scale: [u8; 2], places: &mut [f32]) -> bool {
    let scale = widened(scale);
    places.iter_mut().zip(codes).for_each(|(place, code)| *place = f32::from(*code as i8) * scale);
    is_block(codes, scale)
}

/// Whether an encoder writes such a block: codes are symmetric, and products stay finite.
#[inline(always)]
fn is_block(codes: &[u8], scale: f32) -> bool {
    let least = codes.iter().map(|code| *code as i8).fold(0, i8::min);
    least > i8::MIN && is_scale(scale) && (scale * LARGEST).is_finite()
}

/// The sum of the squares; `None` where the bytes are none that encoders write.
struct Measuring<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    width: usize,
}

impl Kernel for Measuring<'_> {
    type Output = Option<f64>;

    #[inline(always)]
    fn run(self) -> Option<f64> {
        let mut scales = self.scales.as_chunks::<2>().0.iter();
        let (mut squares, mut is_fit) = (0.0, true);
        for codes in self.codes.chunks_exact(self.width) {
            for (codes, scale) in codes.chunks(BLOCK).zip(&mut scales) {
                let scale = widened(*scale);
                is_fit &= is_block(codes, scale);
                // 64 squares of 127 at most.
                let of_codes: i32 = codes.iter().map(|code| i32::from(*code as i8).pow(2)).sum();
                squares += f64::from(of_codes) * f64::from(scale).powi(2);
            }
        }
        is_fit.then_some(squares)
    }
}

struct MeasuringExact<'a> {
    bytes: &'a [u8],
}

impl Kernel for MeasuringExact<'_> {
    type Output = Option<f64>;

    #[inline(always)]
    fn run(self) -> Option<f64> {
        let (mut squares, mut largest) = ([0.0_f64; 8], 0);
        for eight in self.bytes.as_chunks::<4>().0.chunks(8) {
            for (sum, four) in squares.iter_mut().zip(eight) {
                let value = f32::from_le_bytes(*four);
                largest = magnitude(value).max(largest);
                *sum += f64::from(value) * f64::from(value);
            }
        }
        (largest < BEYOND).then_some(squares.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{RngExt, stream};

    const WIDTHS: [usize; 7] = [1, 5, 63, 64, 65, 128, 200];

    fn sample(rows: usize, width: usize, seed: u64) -> Vec<f32> {
        let mut dice = stream(seed, "streams", &[]);
        let size = [1e-44_f32, 1e-38, 1e-20, 1e-3, 1.0, 1e10, 1e38][seed as usize % 7];
        (0..rows * width).map(|_| size * (dice.random::<f32>() - 0.5) * dice.random::<f32>()).collect()
    }

    fn decoded(codec: StreamCodec, bytes: &[u8], values: usize) -> Result<Vec<f32>, StreamError> {
        let mut places = vec![f32::NAN; values];
        codec.decode(bytes, &mut places).map(|()| places)
    }

    #[test]
    fn exact_streams_keep_every_bit_and_codes_stay_within_half_a_scale_of_their_block() {
        for (seed, width) in (0..70).flat_map(|seed| WIDTHS.map(|width| (seed, width))) {
            let values = sample(3, width, seed);
            let exact = StreamCodec::new(Wire::F32, width);
            let bytes = exact.encode(&values).expect("finite");
            assert_eq!(bytes.len(), exact.bytes(3));
            assert_eq!(decoded(exact, &bytes, values.len()).expect("a stream"), values);
            let coded = StreamCodec::new(Wire::Codes8, width);
            let bytes = coded.encode(&values).expect("finite");
            assert_eq!(bytes.len(), 3 * (width + 2 * width.div_ceil(64)));
            let rounded = decoded(coded, &bytes, values.len()).expect("a stream");
            for (values, rounded) in values.chunks(width).zip(rounded.chunks(width)) {
                for (values, rounded) in values.chunks(64).zip(rounded.chunks(64)) {
                    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                    // A scale of 8 bits is up to 1/128 above what the block needs.
                    let bound = largest / 127.0 * (1.0 + 1.0 / 128.0) / 2.0 * 1.000_01 + LEAST;
                    for (value, rounded) in values.iter().zip(rounded) {
                        assert!((value - rounded).abs() <= bound, "{value:e} as {rounded:e}, bound {bound:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn all_instruction_sets_write_and_read_the_same_bits() {
        for width in WIDTHS {
            let values = sample(4, width, 11);
            let length = StreamCodec::new(Wire::Codes8, width).bytes(4);
            let run = |set: InstructionSet| {
                let mut bytes = vec![0; length];
                let (codes, scales) = bytes.split_at_mut(values.len());
                assert!(set.run(Coding { values: &values, width, codes, scales }));
                let (codes, scales) = bytes.split_at(values.len());
                let mut places = vec![0.0; values.len()];
                assert!(set.run(Decoding { codes, scales, width, places: &mut places }));
                let squares = set.run(Measuring { codes, scales, width }).expect("a stream");
                (bytes, places.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), squares.to_bits())
            };
            let all: Vec<_> = InstructionSet::available().into_iter().map(run).collect();
            assert!(all.iter().all(|one| *one == all[0]));
        }
    }

    #[test]
    fn ties_go_to_even_codes_and_the_largest_value_has_the_largest_code() {
        // A scale of 1: the largest is 127.
        let codec = StreamCodec::new(Wire::Codes8, 8);
        let bytes = codec.encode(&[127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49]).expect("finite");
        let codes: Vec<i8> = bytes[..8].iter().map(|code| *code as i8).collect();
        assert_eq!(codes, [127, -127, 0, 2, 2, 0, -2, 0]);
        assert_eq!(widened([bytes[8], bytes[9]]), 1.0);
    }

    #[test]
    fn values_that_are_not_finite_are_refused_wherever_they_stand() {
        for (wire, width) in [Wire::F32, Wire::Codes8].into_iter().flat_map(|wire| WIDTHS.map(|width| (wire, width))) {
            let codec = StreamCodec::new(wire, width);
            for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
                for at in [0, width / 2, 2 * width - 1] {
                    let mut values = sample(2, width, 4);
                    values[at] = odd;
                    assert_eq!(codec.encode(&values), Err(StreamNotFinite), "{odd} at {at}");
                    if wire == Wire::F32 {
                        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                        assert_eq!(decoded(codec, &bytes, values.len()), Err(StreamError::Unfit));
                        assert_eq!(codec.measure(&bytes, 2), None);
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_that_no_encoder_writes_are_refused_and_never_become_values_that_are_not_finite() {
        let codec = StreamCodec::new(Wire::Codes8, 70);
        let bytes = codec.encode(&sample(2, 70, 3)).expect("finite");
        assert_eq!(bytes.len(), 148);
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            bytes
        };
        // A code of −128; a negative scale; one beyond the range.
        for unfit in [with(3, 0x80), with(141, 0xbf), with(147, 0x7f), with(147, 0xff)] {
            assert_eq!(decoded(codec, &unfit, 140), Err(StreamError::Unfit));
            assert_eq!(codec.measure(&unfit, 2), None);
        }
        let short = decoded(codec, &bytes[1..], 140);
        assert_eq!(short, Err(StreamError::Length { expected: 148, actual: 147 }));
        assert_eq!(codec.measure(&bytes[1..], 2), None);
        let mut dice = stream(1, "random streams", &[]);
        let mut fit = 0;
        for _ in 0..2000 {
            let random: Vec<u8> = (0..codec.bytes(1)).map(|_| dice.random::<u8>()).collect();
            if let Ok(values) = decoded(codec, &random, 70) {
                assert!(values.iter().all(|value| value.is_finite()) && codec.measure(&random, 1).is_some());
                fit += 1;
            }
        }
        assert!(fit > 100, "{fit}");
    }

    #[test]
    fn a_measure_is_the_size_of_the_decoded_values() {
        for (wire, width) in [Wire::F32, Wire::Codes8].into_iter().flat_map(|wire| WIDTHS.map(|width| (wire, width))) {
            let codec = StreamCodec::new(wire, width);
            let values = sample(5, width, 4);
            let bytes = codec.encode(&values).expect("finite");
            let squares: f64 = decoded(codec, &bytes, values.len())
                .expect("a stream")
                .iter()
                .map(|value| f64::from(*value).powi(2))
                .sum();
            let expected = (squares / values.len() as f64).sqrt();
            let found = f64::from(codec.measure(&bytes, 5).expect("a stream"));
            assert!((found - expected).abs() <= 1e-5 * expected, "{found} {expected}");
        }
    }
}

//! How the slices of an all-reduce are written: as they are, rounded to 16 bits, or in 8 bits with a scale a block.
//!
//! Rounding twice is rounding once: what has been decoded encodes to values that decode to the same bits. So a sum may go
//! from member to member, cut and joined as a schedule likes, and all of them have the same values of it.

use std::ops::Range;

use super::{InstructionSet, Kernel};
use crate::bulk::BLOCK;
use crate::collective::{Action, Slices};

/// The largest code.
const LARGEST: f32 = 127.0;

/// Blocks whose largest value is below this are zeros: where numbers lose digits, rounding twice would not be rounding once.
const LEAST: f32 = f32::MIN_POSITIVE * 256.0;

/// How a value is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SliceCodec {
    /// As `f32`, four bytes: nothing is rounded.
    #[default]
    Float32,
    /// As the upper half of an `f32`, rounded to nearest and ties to even (bfloat16), two bytes.
    Bfloat16,
    /// As a code of −127 to 127, one byte, and for each block of [`BLOCK`] values the largest of them as `f32`.
    Int8,
}

impl SliceCodec {
    /// All of them.
    pub const ALL: [SliceCodec; 3] = [SliceCodec::Float32, SliceCodec::Bfloat16, SliceCodec::Int8];

    /// Whether values change when they are written.
    pub fn rounds(self) -> bool {
        self != SliceCodec::Float32
    }

    /// Bytes of so many values that lie behind each other.
    pub fn bytes(self, values: usize) -> usize {
        match self {
            SliceCodec::Float32 => 4 * values,
            SliceCodec::Bfloat16 => 2 * values,
            SliceCodec::Int8 => values + 4 * values.div_ceil(BLOCK),
        }
    }

    /// The values of slices, of a vector of `length`: whole blocks where blocks have a scale, so that slices which are sent
    /// one by one and those that are sent as one are cut into the same blocks.
    pub fn elements(self, slices: Slices, length: usize) -> Range<usize> {
        if self != SliceCodec::Int8 {
            return slices.elements(length);
        }
        let blocks = slices.elements(length.div_ceil(BLOCK));
        (blocks.start * BLOCK).min(length)..(blocks.end * BLOCK).min(length)
    }

    /// Writes values.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            SliceCodec::Float32 if cfg!(target_endian = "little") => bytemuck::cast_slice(values).to_vec(),
            SliceCodec::Float32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            SliceCodec::Bfloat16 => {
                let mut bytes = vec![0; self.bytes(values.len())];
                let places = bytes.as_chunks_mut::<2>().0.iter_mut();
                places.zip(values).for_each(|(place, value)| *place = upper_half(*value).to_le_bytes());
                bytes
            }
            SliceCodec::Int8 => InstructionSet::best().run(Coding { values }),
        }
    }

    /// Reads what [`encode`](Self::encode) has written, and adds it to `places`, or puts it there.
    ///
    /// # Panics
    /// When there are not as many bytes as the places call for.
    pub fn decode(self, bytes: &[u8], places: &mut [f32], action: Action) {
        assert_eq!(bytes.len(), self.bytes(places.len()), "as many as the places call for");
        match self {
            SliceCodec::Float32 => {
                take_all(action, places, bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)));
            }
            SliceCodec::Bfloat16 => {
                let values = bytes.as_chunks().0.iter().map(|two| from_upper_half(u16::from_le_bytes(*two)));
                take_all(action, places, values);
            }
            SliceCodec::Int8 => InstructionSet::best().run(Decoding { bytes, places, action }),
        }
    }
}

#[inline(always)]
fn take_all(action: Action, places: &mut [f32], values: impl Iterator<Item = f32>) {
    let pairs = places.iter_mut().zip(values);
    match action {
        Action::Add => pairs.for_each(|(place, value)| *place += value),
        Action::Replace => pairs.for_each(|(place, value)| *place = value),
    }
}

fn upper_half(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 1;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn from_upper_half(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Codes, then the blocks' largest values.
struct Coding<'a> {
    values: &'a [f32],
}

impl Kernel for Coding<'_> {
    type Output = Vec<u8>;

    #[inline(always)]
    fn run(self) -> Vec<u8> {
        let mut bytes = vec![0; SliceCodec::Int8.bytes(self.values.len())];
        let (codes, scales) = bytes.split_at_mut(self.values.len());
        let blocks = self.values.chunks(BLOCK).zip(codes.chunks_mut(BLOCK));
        for ((values, codes), scale) in blocks.zip(scales.as_chunks_mut::<4>().0) {
            let largest = largest(values);
            *scale = largest.to_le_bytes();
            if largest >= LEAST {
                let steps = LARGEST / largest;
                for (code, value) in codes.iter_mut().zip(values) {
                    *code = (value * steps).round_ties_even() as i8 as u8;
                }
            }
        }
        bytes
    }
}

/// The largest of a block without its sign, 0 below [`LEAST`], no number where one of them is none.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    // As integers bits of numbers without a sign are in the order of the numbers, and those of no number are above all.
    let bits = values.iter().map(|value| value.to_bits() & !(1 << 31)).fold(0, u32::max);
    match f32::from_bits(bits) {
        largest if !largest.is_finite() => f32::NAN,
        largest if largest < LEAST => 0.0,
        largest => largest,
    }
}

struct Decoding<'a> {
    bytes: &'a [u8],
    places: &'a mut [f32],
    action: Action,
}

impl Kernel for Decoding<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (codes, scales) = self.bytes.split_at(self.places.len());
        let blocks = self.places.chunks_mut(BLOCK).zip(codes.chunks(BLOCK));
        for ((places, codes), scale) in blocks.zip(scales.as_chunks::<4>().0) {
            let largest = f32::from_le_bytes(*scale);
            // The division first: then the largest value comes back as it was, whatever its digits are.
            take_all(self.action, places, codes.iter().map(|code| f32::from(*code as i8) / LARGEST * largest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{RngExt, stream};

    fn decoded(codec: SliceCodec, values: &[f32]) -> Vec<f32> {
        let mut places = vec![0.0; values.len()];
        codec.decode(&codec.encode(values), &mut places, Action::Replace);
        places
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Of many sizes, the smallest and the largest numbers among them.
    fn samples() -> impl Iterator<Item = Vec<f32>> {
        (0..400_u64).map(|seed| {
            let mut dice = stream(seed, "values", &[]);
            let size = [1e-44_f32, 1e-38, 3e-36, 1e-20, 1e-3, 1.0, 1e10, 1e38][seed as usize % 8];
            let length = dice.random_range(1..600);
            (0..length).map(|_| size * (dice.random::<f32>() - 0.5) * dice.random::<f32>()).collect()
        })
    }

    #[test]
    fn rounding_twice_is_rounding_once_and_stays_within_the_bound() {
        for values in samples() {
            for codec in SliceCodec::ALL {
                let once = decoded(codec, &values);
                assert_eq!(bits(&once), bits(&decoded(codec, &once)), "{codec:?} of {values:?}");
                for (block, rounded) in values.chunks(BLOCK).zip(once.chunks(BLOCK)) {
                    let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                    for (value, rounded) in block.iter().zip(rounded) {
                        let bound = match codec {
                            SliceCodec::Float32 => 0.0,
                            SliceCodec::Bfloat16 => value.abs() / 256.0 + f32::MIN_POSITIVE / 128.0,
                            SliceCodec::Int8 => largest / 253.0 + LEAST,
                        };
                        assert!((value - rounded).abs() <= bound, "{codec:?}: {value:e} as {rounded:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn slices_written_one_by_one_and_as_one_are_the_same_values() {
        for codec in SliceCodec::ALL {
            for (length, of) in [(37, 3), (1000, 4), (5000, 7)] {
                let vector: Vec<f32> = (0..length).map(|at| (at as f32).sin() * (at % 300) as f32).collect();
                let whole = decoded(codec, &vector);
                for (start, end) in (0..of).flat_map(|start| (start + 1..=of).map(move |end| (start, end))) {
                    let range = codec.elements(Slices { start, end, of }, length);
                    assert_eq!(decoded(codec, &vector[range.clone()]), whole[range], "{codec:?} {start} to {end}");
                }
                let all = codec.elements(Slices { start: 0, end: of, of }, length);
                assert_eq!(all, 0..length);
            }
        }
    }

    #[test]
    fn what_is_no_number_is_none_afterwards() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for codec in SliceCodec::ALL {
                let mut values = vec![1.0; 300];
                values[7] = odd;
                assert!(!decoded(codec, &values)[7].is_finite(), "{codec:?} of {odd}");
                assert_eq!(decoded(codec, &values)[299], 1.0, "another block");
            }
        }
    }

    #[test]
    fn values_are_added_or_put_in_place() {
        for codec in SliceCodec::ALL {
            let bytes = codec.encode(&[2.0, -2.0]);
            let mut places = [1.0, 1.0];
            codec.decode(&bytes, &mut places, Action::Add);
            assert_eq!(places, [3.0, -1.0]);
            codec.decode(&bytes, &mut places, Action::Replace);
            assert_eq!(places, [2.0, -2.0]);
        }
    }
}

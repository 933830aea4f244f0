//! `f32`s in fewer bytes, for slow lines.
//!
//! Of a model's values signs and mantissas are as good as random. Exponents are not: most values are within a few powers of two of
//! each other, so that a Huffman code writes eight bits of them in less than three. A block is packed as the 24 other bits of all its
//! values, then the exponents, coded (DEFLATE without matches, RFC 1951): about 83 % of its bytes. No other bits are coded, so a
//! packed block is never shorter than three quarters of it, whatever a hostile sender makes of it.

use miniz_oxide::DataFormat;
use miniz_oxide::deflate::core::{CompressionStrategy, CompressorOxide, TDEFLFlush, TDEFLStatus, compress};
use miniz_oxide::inflate::decompress_slice_iter_to_slice;

use crate::bounds::ROOM_START_BYTES;

/// Bytes of a payload that are packed together, as the wire has them.
pub(super) const BLOCK_BYTES: usize = 16 * 1024;

// Room is made for whole blocks.
const _: () = assert!(ROOM_START_BYTES.is_multiple_of(BLOCK_BYTES));

/// What says how many bytes of a block follow, little endian: all of it as it is, or fewer, packed.
pub(super) const BLOCK_WORD_BYTES: usize = 4;

/// Where packing saves less than this share of a block, what is sent is not `f32`s of a model.
const SAVED_MIN: f64 = 0.05;

/// Packs the blocks of one payload.
pub(super) struct Packer {
    compressor: Box<CompressorOxide>,
    exponents: Vec<u8>,
    block: Vec<u8>,
    /// Until a block was not worth it.
    packs: bool,
}

impl Packer {
    pub(super) fn new() -> Packer {
        let strategy = CompressionStrategy::HuffmanOnly;
        let compressor = Box::new(CompressorOxide::with_params(DataFormat::Raw, 1, strategy, 15));
        Packer { compressor, exponents: Vec::new(), block: Vec::new(), packs: true }
    }

    /// What to send for a block of at most [`BLOCK_BYTES`]: its length, and its bytes, packed where that is shorter.
    pub(super) fn pack(&mut self, plain: &[u8]) -> &[u8] {
        self.packs = self.packs && self.pack_exponents(plain);
        if !self.packs {
            self.block.clear();
            self.block.extend_from_slice(&word(plain.len()));
            self.block.extend_from_slice(plain);
        }
        &self.block
    }

    /// Whether it is worth it.
    fn pack_exponents(&mut self, plain: &[u8]) -> bool {
        let (values, rest) = plain.as_chunks::<4>();
        let most = (plain.len() as f64 * (1.0 - SAVED_MIN)) as usize;
        let others = BLOCK_WORD_BYTES + 3 * values.len();
        if !rest.is_empty() || values.is_empty() {
            return false;
        }
        self.block.clear();
        self.block.resize(BLOCK_WORD_BYTES + most, 0);
        self.exponents.clear();
        for (value, place) in values.iter().zip(self.block[BLOCK_WORD_BYTES..].as_chunks_mut::<3>().0) {
            let [low, middle, high, exponent] = u32::from_le_bytes(*value).rotate_left(1).to_le_bytes();
            *place = [low, middle, high];
            self.exponents.push(exponent);
        }
        self.compressor.reset();
        let place = &mut self.block[others..];
        let (status, _, coded) = compress(&mut self.compressor, &self.exponents, place, TDEFLFlush::Finish);
        self.block.truncate(others + coded);
        let length = word(self.block.len() - BLOCK_WORD_BYTES);
        self.block[..BLOCK_WORD_BYTES].copy_from_slice(&length);
        status == TDEFLStatus::Done
    }
}

fn word(bytes: usize) -> [u8; BLOCK_WORD_BYTES] {
    u32::try_from(bytes).expect("a block").to_le_bytes()
}

/// A packed block that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotPacked;

/// Writes to all of `plain`, of at most [`BLOCK_BYTES`], what was packed.
pub(super) fn unpack(packed: &[u8], plain: &mut [u8]) -> Result<(), NotPacked> {
    let (values, rest) = plain.as_chunks_mut::<4>();
    let (others, coded) = packed.split_at_checked(3 * values.len()).ok_or(NotPacked)?;
    let exponents = &mut [0; BLOCK_BYTES / 4][..values.len()];
    let count = decompress_slice_iter_to_slice(exponents, std::iter::once(coded), false, true);
    if !rest.is_empty() || count != Ok(values.len()) {
        return Err(NotPacked);
    }
    for ((value, [low, middle, high]), exponent) in values.iter_mut().zip(others.as_chunks().0).zip(exponents) {
        *value = u32::from_le_bytes([*low, *middle, *high, *exponent]).rotate_right(1).to_le_bytes();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers of about a normal distribution, as bytes.
    fn weights(count: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).flat_map(|_| (0.02 * (0..12).map(|_| uniform()).sum::<f32>()).to_le_bytes()).collect()
    }

    /// Without its word.
    fn packed(plain: &[u8]) -> Vec<u8> {
        let block = Packer::new().pack(plain).to_vec();
        let (length, block) = block.split_first_chunk().expect("a word");
        assert_eq!(u32::from_le_bytes(*length) as usize, block.len());
        block.to_vec()
    }

    #[test]
    fn a_block_of_weights_comes_back_bit_for_bit_from_five_sixths_of_its_bytes() {
        for count in [100, 4095, 4096] {
            let plain = weights(count);
            let packed = packed(&plain);
            let share = packed.len() as f64 / plain.len() as f64;
            assert!((0.75..if count > 4000 { 0.84 } else { 0.95 }).contains(&share), "{share} of {count} values");
            let mut back = vec![0; plain.len()];
            assert_eq!(unpack(&packed, &mut back), Ok(()));
            assert!(back == plain);
        }
    }

    #[test]
    fn special_values_keep_their_bits() {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, f32::MAX, 1e-45, f32::NAN];
        let plain: Vec<u8> = special.iter().cycle().take(4096).flat_map(|value| value.to_le_bytes()).collect();
        let mut back = vec![1; plain.len()];
        assert_eq!(unpack(&packed(&plain), &mut back), Ok(()));
        assert!(back == plain);
    }

    #[test]
    fn what_is_not_worth_it_is_sent_as_it_is_and_not_tried_again() {
        let mut codes = vec![0; BLOCK_BYTES];
        blake3::Hasher::new().finalize_xof().fill(&mut codes);
        for plain in [&codes[..], &weights(4)[..15], &[]] {
            assert_eq!(packed(plain), plain, "{} bytes", plain.len());
        }
        let mut packer = Packer::new();
        packer.pack(&codes);
        assert_eq!(packer.pack(&weights(4096)).len(), BLOCK_WORD_BYTES + BLOCK_BYTES);
    }

    #[test]
    fn what_is_no_packed_block_is_an_error() {
        let plain = weights(4096);
        let packed = packed(&plain);
        let mut back = vec![0; plain.len()];
        for length in [0, 1, 3 * 4096, packed.len() / 2, packed.len() - 1] {
            assert_eq!(unpack(&packed[..length], &mut back), Err(NotPacked), "cut to {length}");
        }
        assert_eq!(unpack(&packed, &mut back[..plain.len() - 4]), Err(NotPacked), "fewer values than were packed");
        let mut more = packed.clone();
        more.extend(weights(1));
        assert_eq!(unpack(&more, &mut vec![0; BLOCK_BYTES - 8]), Err(NotPacked));
        for place in 0..64 {
            let mut damaged = packed.clone();
            damaged[3 * 4096 + place] ^= 0x5a;
            let _ = unpack(&damaged, &mut back);
        }
    }
}

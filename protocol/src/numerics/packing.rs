//! Codes as bytes on the wire: 4-bit codes two in a byte, 6-bit codes four in three bytes, the lowest bits first.
//!
//! Works on whole blocks. A partial last block is filled up with zeros and its bytes are cut off after the last code.

use super::width::CodeWidth;
use crate::bulk::BLOCK;

/// Bytes of a block of 6-bit codes.
const SIXES: usize = BLOCK / 8 * 6;

/// Packs the low bits of `codes` into `output`, which is as long as the codes that count.
#[inline(always)]
pub(super) fn pack(codes: &[u8; BLOCK], width: CodeWidth, output: &mut [u8]) {
    match width {
        CodeWidth::Four => {
            let mut packed = [0u8; BLOCK / 2];
            for (byte, two) in packed.iter_mut().zip(codes.as_chunks::<2>().0) {
                *byte = (two[0] & 0x0f) | (two[1] << 4);
            }
            copy_block(&packed, output);
        }
        CodeWidth::Six => {
            let mut words = [0u64; BLOCK / 8];
            for (word, eight) in words.iter_mut().zip(codes.as_chunks::<8>().0) {
                *word = close_gaps(u64::from_le_bytes(*eight));
            }
            match output.first_chunk_mut() {
                Some(output) => write_sixes(&words, output),
                None => {
                    let mut packed = [0; SIXES];
                    write_sixes(&words, &mut packed);
                    output.copy_from_slice(&packed[..output.len()]);
                }
            }
        }
        CodeWidth::Eight => copy_block(codes, output),
        CodeWidth::One | CodeWidth::Sixteen => unreachable!("neither signs nor 16-bit codes are bytes"),
    }
}

/// Unpacks `input` into the low bits of `codes`; the codes behind its end become zeros.
#[inline(always)]
pub(super) fn unpack(input: &[u8], width: CodeWidth, codes: &mut [u8; BLOCK]) {
    match width {
        CodeWidth::Four => {
            let mut packed = [0u8; BLOCK / 2];
            fill_block(&mut packed, input);
            for (two, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(&packed) {
                *two = [byte & 0x0f, byte >> 4];
            }
        }
        CodeWidth::Six => {
            let words = match input.first_chunk() {
                Some(input) => read_sixes(input),
                None => {
                    let mut packed = [0; SIXES];
                    fill_block(&mut packed, input);
                    read_sixes(&packed)
                }
            };
            for (eight, word) in codes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *eight = open_gaps(word).to_le_bytes();
            }
        }
        CodeWidth::Eight => fill_block(codes, input),
        CodeWidth::One | CodeWidth::Sixteen => unreachable!("neither signs nor 16-bit codes are bytes"),
    }
}

/// Writes the lowest six bytes of each word.
#[inline(always)]
fn write_sixes(words: &[u64; BLOCK / 8], output: &mut [u8; SIXES]) {
    for (number, word) in words[..BLOCK / 8 - 1].iter().enumerate() {
        // Eight bytes at a time, straight to where they belong; the next word overwrites the last two.
        output[6 * number..6 * number + 8].copy_from_slice(&word.to_le_bytes());
    }
    output[SIXES - 6..].copy_from_slice(&words[BLOCK / 8 - 1].to_le_bytes()[..6]);
}

/// Reads each six bytes into the lowest ones of a word.
#[inline(always)]
fn read_sixes(input: &[u8; SIXES]) -> [u64; BLOCK / 8] {
    // Eight bytes at a time: above the six of a word are two of the next.
    let mut words = std::array::from_fn(|number| {
        let start = (6 * number).min(SIXES - 8);
        u64::from_le_bytes(*input[start..].first_chunk().expect("eight bytes before the end"))
    });
    words[BLOCK / 8 - 1] >>= 16;
    words
}

/// Copies as much of `block` as `output` holds. All of it, but for a model's last block: then the length is known to the
/// compiler, and the copy needs no call.
#[inline(always)]
pub(super) fn copy_block<T: Copy, const LENGTH: usize>(block: &[T; LENGTH], output: &mut [T]) {
    match output.first_chunk_mut::<LENGTH>() {
        Some(output) => *output = *block,
        None => output.copy_from_slice(&block[..output.len()]),
    }
}

/// Copies `input` to the beginning of `block` and fills up with zeros.
#[inline(always)]
fn fill_block<const LENGTH: usize>(block: &mut [u8; LENGTH], input: &[u8]) {
    match input.first_chunk::<LENGTH>() {
        Some(input) => *block = *input,
        None => {
            block[..input.len()].copy_from_slice(input);
            block[input.len()..].fill(0);
        }
    }
}

/// Eight 6-bit numbers, one in each byte, into the lowest 48 bits: first pairs move together, then fours, then all.
#[inline(always)]
fn close_gaps(bytes: u64) -> u64 {
    let pairs = (bytes & 0x003f_003f_003f_003f) | ((bytes & 0x3f00_3f00_3f00_3f00) >> 2);
    let fours = (pairs & 0x0000_0fff_0000_0fff) | ((pairs & 0x0fff_0000_0fff_0000) >> 4);
    (fours & 0x0000_0000_00ff_ffff) | ((fours & 0x00ff_ffff_0000_0000) >> 8)
}

/// The inverse of [`close_gaps`].
#[inline(always)]
fn open_gaps(bits: u64) -> u64 {
    let fours = (bits & 0x0000_0000_00ff_ffff) | ((bits & 0x0000_ffff_ff00_0000) << 8);
    let pairs = (fours & 0x0000_0fff_0000_0fff) | ((fours & 0x00ff_f000_00ff_f000) << 4);
    (pairs & 0x003f_003f_003f_003f) | ((pairs & 0x0fc0_0fc0_0fc0_0fc0) << 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_packing_at_every_length() {
        for width in [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight] {
            let mask = (1u16 << width.bits()) as u8;
            for length in 1..=BLOCK {
                let mut codes = [0u8; BLOCK];
                for (position, code) in codes[..length].iter_mut().enumerate() {
                    *code = (position as u8).wrapping_mul(167).wrapping_add(3) & mask.wrapping_sub(1);
                }
                let mut packed = vec![0; width.packed_bytes(length)];
                pack(&codes, width, &mut packed);
                let mut unpacked = [0xff; BLOCK];
                unpack(&packed, width, &mut unpacked);
                assert_eq!(unpacked, codes, "{length} codes of {} bits", width.bits());
            }
        }
    }

    #[test]
    fn the_lowest_bits_come_first() {
        let mut codes = [0u8; BLOCK];
        codes[..4].copy_from_slice(&[0b00_0001, 0b00_0010, 0b00_0011, 0b10_0000]);
        let mut packed = [0; 3];
        pack(&codes, CodeWidth::Six, &mut packed);
        assert_eq!(packed, [0b1000_0001, 0b0011_0000, 0b1000_0000]);
    }

    #[test]
    fn bits_above_the_width_are_not_sent() {
        for width in [CodeWidth::Four, CodeWidth::Six] {
            let (mut high, mut low) = ([0; 192], [0; 192]);
            let bytes = width.packed_bytes(BLOCK);
            pack(&[0xff; BLOCK], width, &mut high[..bytes]);
            pack(&[(1 << width.bits()) - 1; BLOCK], width, &mut low[..bytes]);
            assert_eq!(high, low);
        }
    }
}

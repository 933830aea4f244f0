//! How many bits of an index are sent, and what that makes a payload weigh.

use crate::bulk::BLOCK;

/// How many bits of an index are sent.
///
/// A difference of two codes wraps into ±(2^(bits−1) − 1), so the width also says how far apart, in multiples of the scale, two models
/// may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeWidth {
    /// A sign, on a link.
    One,
    /// 4 bits, two codes in a byte.
    Four,
    /// 6 bits, four codes in three bytes: the lean wire.
    Six,
    /// 8 bits: the steady state.
    Eight,
    /// 16 bits: a first exchange, when nobody knows how far apart the models are.
    Sixteen,
}

impl CodeWidth {
    /// From the number of bits on the wire.
    pub fn from_bits(bits: u8) -> Option<CodeWidth> {
        match bits {
            1 => Some(CodeWidth::One),
            4 => Some(CodeWidth::Four),
            6 => Some(CodeWidth::Six),
            8 => Some(CodeWidth::Eight),
            16 => Some(CodeWidth::Sixteen),
            _ => None,
        }
    }

    /// Number of bits on the wire.
    pub fn bits(self) -> u8 {
        match self {
            CodeWidth::One => 1,
            CodeWidth::Four => 4,
            CodeWidth::Six => 6,
            CodeWidth::Eight => 8,
            CodeWidth::Sixteen => 16,
        }
    }

    /// Bytes of so many codes; a last byte that is not full counts as one.
    pub(super) fn packed_bytes(self, codes: usize) -> usize {
        let bits = usize::from(self.bits());
        // Block by block, so that no model is too large for the product.
        codes / BLOCK * (BLOCK * bits / 8) + (codes % BLOCK * bits).div_ceil(8)
    }
}

/// Length of the scales for a model of so many parameters, in bytes.
pub fn scales_bytes(parameters: usize) -> usize {
    2 * parameters.div_ceil(BLOCK)
}

/// Length of a new reference of a link for a model of so many parameters, in bytes.
pub(super) fn reference_bytes(parameters: usize) -> usize {
    scales_bytes(parameters) + parameters
}

/// Length of a side's checks and codes (on a link its scales and signs) for a model of so many parameters, in bytes.
pub fn codes_bytes(parameters: usize, width: CodeWidth) -> usize {
    2 * parameters.div_ceil(BLOCK) + width.packed_bytes(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_survives_its_number_of_bits() {
        for width in [CodeWidth::One, CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen] {
            assert_eq!(CodeWidth::from_bits(width.bits()), Some(width));
        }
        assert!((0..=u8::MAX).filter(|bits| CodeWidth::from_bits(*bits).is_some()).count() == 5);
    }

    #[test]
    fn a_partial_block_rounds_up_to_whole_bytes() {
        let bytes = |codes| [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight].map(|width| width.packed_bytes(codes));
        assert_eq!(bytes(BLOCK), [128, 192, 256]);
        assert_eq!(bytes(BLOCK + 1), [129, 193, 257]);
        assert_eq!(bytes(3), [2, 3, 3]);
    }

    #[test]
    fn a_large_model_costs_about_a_bit_more_than_its_codes() {
        let bytes = |width| scales_bytes(1_000_000) + codes_bytes(1_000_000, width);
        assert!(bytes(CodeWidth::Eight) < 1_020_000);
        assert!(bytes(CodeWidth::Six) < 770_000);
    }
}

//! The vector that both ends of a link keep.

use std::fmt;
use std::sync::Arc;

use super::blocks::Blocks;
use super::buffers::{Buffers, Pooled};
use super::grid::largest;
use super::scales::{scale_from_wire, scale_to_wire};
use super::width::{reference_bytes, scales_bytes};
use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};

use crate::bulk::{BLOCK, Payload};
use crate::misbehaviour::Misbehaviour;

/// A new reference is sent in 8 bits, each of so many units of the 16 bits that are kept: what that leaves out is no more
/// than what some steps of training change. Values may grow to twice their size before a block's unit doubles.
const COARSE: i16 = 128;

/// The vector that both ends of a link keep: integers of 16 bits, and for each block what one of them is worth.
#[derive(Clone, PartialEq)]
pub struct Reference(Arc<Parts>);

/// What a reference is made of.
#[derive(PartialEq)]
pub(super) struct Parts {
    /// Integers, one for each parameter.
    pub(super) values: Pooled<i16>,
    /// A power of two for each block.
    pub(super) scales: Pooled<f32>,
    digest: u64,
    exchanges: u32,
}

impl Reference {
    /// Tells references apart: of the values, and of the exchange that has made them. Never 0.
    pub fn digest(&self) -> u64 {
        self.0.digest
    }

    /// Exchanges that have moved it.
    pub fn exchanges(&self) -> u32 {
        self.0.exchanges
    }

    pub(super) fn parts(&self) -> &Parts {
        &self.0
    }

    /// What an exchange has made of it. `digest`: not 0.
    pub(super) fn followed_by(&self, values: Pooled<i16>, scales: Pooled<f32>, digest: u64) -> Reference {
        Reference(Arc::new(Parts { values, scales, digest, exchanges: self.0.exchanges + 1 }))
    }

    /// The vector as plain values.
    pub fn to_values(&self) -> Vec<f32> {
        let blocks = self.0.values.chunks(BLOCK).zip(self.0.scales.iter());
        blocks.flat_map(|(block, scale)| block.iter().map(move |value| f32::from(*value) * scale)).collect()
    }

    /// A model on a grid of 8 bits.
    pub(super) fn of_model(values: &[f32], buffers: &Buffers) -> Reference {
        let mut integers = buffers.take::<i16>(values.len());
        let mut scales = buffers.take(values.len().div_ceil(BLOCK));
        let blocks = Blocks::new(values);
        for (number, (integers, scale)) in integers.chunks_mut(BLOCK).zip(scales.iter_mut()).enumerate() {
            let block = blocks.get(number);
            let coarse = power_of_two(largest(block) / f32::from(i8::MAX));
            *scale = coarse / f32::from(COARSE);
            for (integer, value) in integers.iter_mut().zip(block) {
                *integer = i16::from((value / coarse).round() as i8) * COARSE;
            }
        }
        Reference::new(integers, scales)
    }

    pub(super) fn new(values: Pooled<i16>, scales: Pooled<f32>) -> Reference {
        let mut hasher = blake3::Hasher::new();
        hasher.update(bytemuck::cast_slice(&values)).update(bytemuck::cast_slice(&scales));
        let digest = u64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes"));
        Reference(Arc::new(Parts { values, scales, digest: digest.max(1), exchanges: 0 }))
    }

    /// As a starter sends it before any exchange: `scales | values`, a byte each.
    pub(super) fn to_payload(&self, buffers: &Buffers) -> Payload {
        let parameters = self.0.values.len();
        let mut bytes = buffers.take::<u8>(reference_bytes(parameters));
        let (scales, values) = bytes.split_at_mut(scales_bytes(parameters));
        for (wire, scale) in scales.as_chunks_mut().0.iter_mut().zip(self.0.scales.iter()) {
            *wire = scale_to_wire(*scale);
        }
        for (wire, value) in values.iter_mut().zip(self.0.values.iter()) {
            *wire = (value / COARSE) as u8;
        }
        Payload::from(bytes)
    }

    /// # Errors
    /// When it is not for so many parameters, or a scale is absurd.
    pub(super) fn from_payload(
        payload: &Payload,
        parameters: usize,
        buffers: &Buffers,
    ) -> Result<Reference, Misbehaviour> {
        let bytes = payload.of_length(reference_bytes(parameters))?;
        let (wire_scales, wire_values) = bytes.split_at(scales_bytes(parameters));
        let mut scales = buffers.take::<f32>(parameters.div_ceil(BLOCK));
        for (scale, wire) in scales.iter_mut().zip(wire_scales.as_chunks().0) {
            *scale = scale_from_wire(*wire);
            if *scale * f32::from(COARSE) != power_of_two(*scale * f32::from(COARSE)) {
                return Err(Misbehaviour::OutOfRange("scale".into()));
            }
        }
        let mut values = buffers.take::<i16>(parameters);
        for (value, wire) in values.iter_mut().zip(wire_values) {
            *value = i16::from(*wire as i8) * COARSE;
        }
        Ok(Reference::new(values, scales))
    }
}

/// In a recording by what tells references apart.
impl Encode for Reference {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.digest(), self.exchanges()).encode(encoder)
    }
}

/// Without a vector: nobody can average with it.
impl<Context> Decode<Context> for Reference {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Reference, DecodeError> {
        let (digest, exchanges) = Decode::decode(decoder)?;
        let (values, scales) = (Vec::new().into(), Vec::new().into());
        Ok(Reference(Arc::new(Parts { values, scales, digest, exchanges })))
    }
}

bincode::impl_borrow_decode!(Reference);

impl fmt::Debug for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { values, digest, exchanges, .. } = &*self.0;
        write!(formatter, "Reference({} values, {digest:016x}, {exchanges} exchanges)", values.len())
    }
}

/// The least power of two that is not below `value`, within what a scale may be: then a quotient is exact.
fn power_of_two(value: f32) -> f32 {
    const MANTISSA: u32 = (1 << 23) - 1;
    // 2^-29 and 2^9 lie within the bounds of scales. A NaN, which only a diverged model has, becomes the least.
    let bits = value.max(2f32.powi(-29)).min(2f32.powi(9)).to_bits();
    f32::from_bits((bits + MANTISSA) & !MANTISSA)
}

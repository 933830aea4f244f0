//! Streams between stages, as they cross the wire.

use murmur_protocol::Payload;
use murmur_protocol::numerics::{StreamCodec, StreamError};
use murmur_protocol::team::{Outcome, Stream};

/// The values of a stream.
pub(super) fn decoded((codec, width): (StreamCodec, usize), stream: &Stream) -> Result<Vec<f32>, StreamError> {
    let (rows, actual) = (stream.rows as usize, stream.payload.len());
    let expected = codec.bytes(rows);
    if actual != expected {
        // Before anything is allocated.
        return Err(StreamError::Length { expected, actual });
    }
    let mut values = vec![0.0; rows * width];
    codec.decode(stream.payload.bytes(), &mut values)?;
    Ok(values)
}

/// A stream of these values `[rows, width]`, or that one of them is not finite.
pub(super) fn encoded((codec, width): (StreamCodec, usize), values: &[f32]) -> Outcome {
    let rows = (values.len() / width) as u32;
    match codec.encode(values) {
        Ok(bytes) => Outcome::Output(Some(Stream { rows, payload: Payload::from(bytes) })),
        Err(_) => Outcome::NotFinite,
    }
}

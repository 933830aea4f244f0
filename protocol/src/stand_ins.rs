//! How a recording keeps what is as large as the model: by its length. When it is read, something of the same length stands
//! for it, which is enough for a node: it never looks inside.

use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};

use crate::bulk::{Codes, Correction, Payload, Snapshot};

/// What stands for bulk: of the same length, and nothing in it.
#[derive(Clone, Debug)]
pub(crate) struct StandIns {
    /// The longest payload of a model of this size, with room for what a peer adds.
    bytes: Payload,
    values_max: usize,
}

impl StandIns {
    /// For a model of so many parameters.
    pub(crate) fn new(parameters: usize) -> StandIns {
        // Memory of zeros that nobody looks at is not taken from the system.
        let bytes = parameters.saturating_mul(8).saturating_add(1 << 20);
        StandIns { bytes: vec![0; bytes].into(), values_max: parameters }
    }
}

impl Encode for Payload {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.len() as u64).encode(encoder)
    }
}

impl Decode<StandIns> for Payload {
    fn decode<D: Decoder<Context = StandIns>>(decoder: &mut D) -> Result<Payload, DecodeError> {
        let bytes = u64::decode(decoder)?;
        let whole = &decoder.context().bytes;
        // A longer one came from a peer and fits no model.
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(whole.len());
        Ok(whole.slice(0..bytes).expect("not longer"))
    }
}

impl Encode for Snapshot {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.values().len() as u64).encode(encoder)
    }
}

impl Decode<StandIns> for Snapshot {
    fn decode<D: Decoder<Context = StandIns>>(decoder: &mut D) -> Result<Snapshot, DecodeError> {
        let values = usize::try_from(u64::decode(decoder)?).unwrap_or(usize::MAX);
        if values > decoder.context().values_max {
            return Err(DecodeError::Other("more values than the model has"));
        }
        Ok(vec![0.0; values].into())
    }
}

/// No node reads it: nothing stands for it.
impl Encode for Correction {
    fn encode<E: Encoder>(&self, _: &mut E) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl<Context> Decode<Context> for Correction {
    fn decode<D: Decoder<Context = Context>>(_: &mut D) -> Result<Correction, DecodeError> {
        Ok(Correction::new(Codes::Narrow(Vec::new()), Vec::new()))
    }
}

bincode::impl_borrow_decode_with_context!(Payload, StandIns);
bincode::impl_borrow_decode_with_context!(Snapshot, StandIns);
bincode::impl_borrow_decode!(Correction);

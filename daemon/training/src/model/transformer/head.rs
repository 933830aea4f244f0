//! The end of the model: last norm, head and loss, some rows at a time, so that the logits of all rows never exist at
//! once (a batch of 4,096 tokens and 256k different ones would take 4 GiB).

use std::ops::Range;

use candle_core::Result;
use murmur_protocol::ModelLayout;

use super::operations::{Buffer, Operations, Projection};
use super::workspace::{Pass, Work};

/// Where the last norm and the head lie in the flat vector.
pub(crate) struct Head {
    pub(super) norm: Range<usize>,
    /// The embedding's table where the head is tied, or a copy of it.
    pub(super) weight: Projection,
}

impl Head {
    pub(super) fn new(layout: &ModelLayout) -> Head {
        let named = |name: &str| layout.tensor(name);
        let norm = named("model.norm.weight").expect("the layout has every tensor of the model").range();
        let weight = named("lm_head.weight").or_else(|| named("model.embed_tokens.weight"));
        let weight = weight.expect("the layout has every tensor of the model");
        let (outputs, inputs) = (weight.shape[0], weight.shape[1]);
        Head { norm, weight: Projection { weight: weight.range(), bias: None, inputs, outputs } }
    }

    /// Tokens that it tells apart.
    pub(super) fn vocabulary(&self) -> usize {
        self.weight.outputs
    }

    /// The losses of the last stream; with a share, the gradient of so much of their sum goes to that of the stream and of the
    /// weights.
    pub(super) fn losses<O: Operations>(
        &self,
        device: &mut O,
        pass: &Pass<O::Memory>,
        work: &mut Work<O::Memory>,
        share: Option<f32>,
    ) -> Result<()> {
        let stream = pass.streams.last().expect("one more than blocks");
        let logits = work.logits.as_mut().expect("a stage with a head has logits");
        let (normalised, to_normalised) = (&mut work.scratch.normalised, &mut work.scratch.to_normalised);
        let (rows, at_once) = (device.rows(), device.predicted_at_once(self.vocabulary()));
        device.normalise(&self.norm, stream, normalised)?;
        for first in (0..rows).step_by(at_once) {
            let some = first..rows.min(first + at_once);
            device.predict(&self.weight, some.clone(), normalised, logits)?;
            device.cross_entropy(some.clone(), &pass.tokens, logits, share)?;
            if share.is_some() {
                device.predict_backward(&self.weight, some, normalised, logits, to_normalised)?;
            }
        }
        if share.is_some() {
            device.clear(&mut work.to_stream)?;
            device.normalise_backward(&self.norm, stream, to_normalised, &mut work.to_stream)?;
        }
        Ok(())
    }

    /// The logits of the token after the last one.
    pub(super) fn next_logits<O: Operations>(
        &self,
        device: &O,
        pass: &Pass<O::Memory>,
        work: &mut Work<O::Memory>,
        logits: &mut Buffer<O>,
    ) -> Result<Vec<f32>> {
        let (stream, normalised) = (pass.streams.last().expect("one more than blocks"), &mut work.scratch.normalised);
        device.normalise(&self.norm, stream, normalised)?;
        device.predict(&self.weight, device.rows() - 1..device.rows(), normalised, logits)?;
        device.read_logits(logits)
    }
}

//! The same forward for a text that is read part by part, with the keys and values of earlier tokens kept (a key-value cache): a
//! token then costs one row through each matrix, instead of all rows before it again.

use candle_core::{Result, bail};

use super::network::Network;
use super::operations::{Operations, Storage};
use super::workspace::{Pass, Work};
use crate::data::TokenBatch;

/// Tokens that go through the model at once, which bounds the memory of what lies between layers. A guess.
const TOKENS_AT_ONCE: usize = 128;

/// What a whole model has read of a text, on any device.
pub(crate) struct Decoder<S: Storage> {
    context: usize,
    /// Tokens that the caches hold, at most the context.
    length: usize,
    /// Of each block.
    caches: Vec<S::Cache>,
    /// Of the part before, with a row of logits: for the next one where it has as many tokens.
    buffers: Option<(Pass<S>, Work<S>, S::Buffer)>,
}

/// Parts of a text that can be read one after the other.
pub(crate) fn parts(tokens: &[u32]) -> impl Iterator<Item = TokenBatch> {
    // Of targets there are as many, and nobody asks how likely they are.
    let part = |tokens: &[u32]| TokenBatch { inputs: tokens.to_vec(), targets: tokens.to_vec(), sequences: 1 };
    tokens.chunks(TOKENS_AT_ONCE).map(part)
}

impl<S: Storage> Decoder<S> {
    /// Of a model with this context; it has read nothing.
    pub(crate) fn new(context: usize) -> Decoder<S> {
        Decoder { context, length: 0, caches: Vec::new(), buffers: None }
    }

    /// Tokens read.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Reads the part of the text that the device has as its batch, and gives the logits of the token after it.
    pub(crate) fn read<O: Operations<Memory = S>>(&mut self, network: &Network, device: &O) -> Result<Vec<f32>> {
        let length = self.length + device.rows();
        if length > self.context {
            bail!("{length} tokens for a context of {}", self.context);
        }
        let head = network.head.as_ref().expect("the whole model has a head");
        while self.caches.len() < network.blocks.len() {
            self.caches.push(device.new_cache()?);
        }
        if !self.buffers.as_ref().is_some_and(|(pass, ..)| pass.fits(device)) {
            // First the old ones go.
            self.buffers = None;
            let pass = Pass::new(device, network.widths, (network.blocks.len(), 0), false)?;
            let work = Work::new(device, network.widths, true, (None, false))?;
            self.buffers = Some((pass, work, device.new_buffer(head.vocabulary())?));
        }
        let (pass, work, logits) = self.buffers.as_mut().expect("they have just been made");
        device.load_batch(&mut pass.tokens)?;
        network.forward(device, pass, work, &mut self.caches)?;
        self.length = length;
        head.next_logits(device, pass, work, logits)
    }
}

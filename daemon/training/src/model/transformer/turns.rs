//! One microbatch in one stage at a time, on any device: for a model whose stages take turns in the memory of one. Who drives it
//! keeps the streams between stages; what blocks keep for their backward is computed again.

use candle_core::Result;

use super::network::Network;
use super::operations::{Operations, Storage};
use super::workspace::{Pass, Work};

/// The buffers of all stages, which have one block at most.
pub(crate) struct Turns<S: Storage> {
    /// Tokens that the head tells apart.
    vocabulary: usize,
    work: Option<Work<S>>,
    pass: Option<Pass<S>>,
}

/// A microbatch in a stage.
pub(crate) struct Turn<'a, S: Storage> {
    network: &'a Network,
    pass: &'a mut Pass<S>,
    work: &'a mut Work<S>,
}

impl<S: Storage> Turns<S> {
    /// Without memory so far.
    pub(crate) fn new(vocabulary: usize) -> Turns<S> {
        Turns { vocabulary, work: None, pass: None }
    }

    /// Makes room for a microbatch and loads its tokens.
    pub(crate) fn enter<'a, O: Operations<Memory = S>>(
        &'a mut self,
        network: &'a Network,
        device: &O,
    ) -> Result<Turn<'a, S>> {
        if !self.work.as_ref().is_some_and(|work| work.fits(device)) {
            // First the old one goes.
            self.work = None;
            self.work = Some(Work::new(device, network.widths, true, (Some(self.vocabulary), false))?);
        }
        if !self.pass.as_ref().is_some_and(|pass| pass.fits(device)) {
            self.pass = None;
            self.pass = Some(Pass::new(device, network.widths, (1, 0), true)?);
        }
        let (pass, work) = (self.pass.as_mut(), self.work.as_mut());
        let (pass, work) = (pass.expect("it has just been made"), work.expect("it has just been made"));
        device.load_batch(&mut pass.tokens)?;
        Ok(Turn { network, pass, work })
    }
}

impl<S: Storage> Turn<'_, S> {
    /// Where the stream that the stage reads is to be.
    pub(crate) fn input(&mut self) -> &mut S::Buffer {
        // A head reads the last one.
        &mut self.pass.streams[usize::from(self.network.head.is_some())]
    }

    /// Where the stream is that the stage gave.
    pub(crate) fn output(&mut self) -> &mut S::Buffer {
        &mut self.pass.streams[self.network.blocks.len()]
    }

    /// Where the gradient of the stage's output is to be, and that of its input is after the backward.
    pub(crate) fn stream_gradient(&mut self) -> &mut S::Buffer {
        &mut self.work.to_stream
    }

    /// From the tokens or the input to the output, of a stage without a head.
    pub(crate) fn forward<O: Operations<Memory = S>>(&mut self, device: &O) -> Result<()> {
        self.network.forward(device, self.pass, self.work, &mut [])
    }

    /// From the input to the losses, of a stage that is the head; with a share, back to the gradient of the input.
    pub(crate) fn losses<O: Operations<Memory = S>>(&mut self, device: &mut O, share: Option<f32>) -> Result<()> {
        let head = self.network.head.as_ref().expect("only a head gives losses");
        head.losses(device, self.pass, self.work, share)
    }

    /// From the input and the gradient of the output to that of the input, or of the embedding, of a stage without a head.
    pub(crate) fn backward<O: Operations<Memory = S>>(&mut self, device: &mut O) -> Result<()> {
        self.network.backward(device, self.pass, self.work)
    }
}

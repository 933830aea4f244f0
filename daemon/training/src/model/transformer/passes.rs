//! The microbatches that are under way through a stage, on any device.

use std::collections::VecDeque;

use candle_core::Result;

use super::network::Network;
use super::operations::{Operations, Storage};
use super::workspace::{Pass, Work};

/// Keeps what forwards leave for their backwards, and buffers that are free for the next.
pub(crate) struct Passes<S: Storage> {
    /// Whether the backward computes activations again.
    recompute: bool,
    /// From the microbatch before.
    work: Option<Work<S>>,
    /// Forwards whose backward is to come, in order.
    waiting: VecDeque<Pass<S>>,
    /// Buffers of passes that are over.
    free: Vec<Pass<S>>,
}

impl<S: Storage> Passes<S> {
    /// None so far.
    pub(crate) fn new(recompute: bool) -> Passes<S> {
        Passes { recompute, work: None, waiting: VecDeque::new(), free: Vec::new() }
    }

    pub(crate) fn recompute(&self) -> bool {
        self.recompute
    }

    /// Forgets forwards that wait for a backward that never comes.
    pub(crate) fn abandon(&mut self) {
        self.waiting.clear();
    }

    /// Gives back what no backward waits for.
    pub(crate) fn release(&mut self) {
        self.work = None;
        self.free.clear();
    }

    /// Makes room for a microbatch.
    fn prepare<O: Operations<Memory = S>>(&mut self, network: &Network, device: &O) -> Result<()> {
        if !self.work.as_ref().is_some_and(|work| work.fits(device)) {
            // First the old one goes.
            self.work = None;
            let vocabulary = network.head.as_ref().map(|head| head.vocabulary());
            self.work = Some(Work::new(device, network.widths, self.recompute, (vocabulary, network.is_parted))?);
        }
        self.free.retain(|pass| pass.fits(device));
        Ok(())
    }

    /// A pass that has been through the network's forward.
    fn through<O: Operations<Memory = S>>(
        &mut self,
        network: &Network,
        device: &O,
        input: Option<Vec<f32>>,
    ) -> Result<Pass<S>> {
        self.prepare(network, device)?;
        let layers = network.blocks.len();
        let counts = (layers, if self.recompute { 0 } else { layers });
        let new_pass = || Pass::new(device, network.widths, counts, network.reads_stream());
        let mut pass = self.free.pop().map_or_else(new_pass, Ok)?;
        device.load_batch(&mut pass.tokens)?;
        match (network.reads_stream(), input) {
            (false, _) => {}
            (true, Some(input)) => device.take_over(input, &mut pass.streams[0])?,
            (true, None) => panic!("a stage that does not embed reads a stream"),
        }
        let work = self.work.as_mut().expect("it has been prepared");
        network.forward(device, &mut pass, work, &mut [])?;
        Ok(pass)
    }

    /// The embedding of a microbatch alone, which other stages read. Its backward needs nothing of it.
    fn embed<O: Operations<Memory = S>>(&mut self, network: &Network, device: &O) -> Result<Vec<f32>> {
        self.prepare(network, device)?;
        let Work { to_stream, tokens, .. } = self.work.as_mut().expect("it has been prepared");
        let tokens = tokens.as_mut().expect("a stage that is parted has a place for them");
        device.load_batch(tokens)?;
        let table = network.embedding.as_ref().expect("a stage that is parted embeds");
        device.embed(table, tokens, to_stream)?;
        device.give_away(to_stream)
    }

    /// The backward of that from the gradient of what it gave.
    fn embed_backward<O: Operations<Memory = S>>(
        &mut self,
        network: &Network,
        device: &mut O,
        to_output: Vec<f32>,
    ) -> Result<()> {
        self.prepare(network, device)?;
        let Work { to_stream, tokens, .. } = self.work.as_mut().expect("it has been prepared");
        let tokens = tokens.as_mut().expect("a stage that is parted has a place for them");
        device.load_batch(tokens)?;
        device.take_over(to_output, to_stream)?;
        network.embed_backward(device, tokens, to_stream)
    }

    /// The forward of a microbatch, of which the stream is given away where the stage does not predict. What its backward needs
    /// is kept. A parted stage ([`StageSpec::is_parted`](crate::model::StageSpec::is_parted)) that is given no stream embeds.
    pub(crate) fn forward<O: Operations<Memory = S>>(
        &mut self,
        network: &Network,
        device: &O,
        input: Option<Vec<f32>>,
    ) -> Result<Option<Vec<f32>>> {
        if network.is_parted && input.is_none() {
            return self.embed(network, device).map(Some);
        }
        let mut pass = self.through(network, device, input)?;
        let last = &mut pass.streams[network.blocks.len()];
        let output = network.head.is_none().then(|| device.give_away(last)).transpose()?;
        self.waiting.push_back(pass);
        Ok(output)
    }

    /// The backward of the oldest forward that waits: from the losses, with so large a share, or from the gradient of the
    /// output. Gives that of the input away where it came from another stage. Of a parted stage that is given a gradient it is that of
    /// the embedding.
    pub(crate) fn backward<O: Operations<Memory = S>>(
        &mut self,
        network: &Network,
        device: &mut O,
        mut to_output: Option<Vec<f32>>,
        share: f32,
    ) -> Result<Option<Vec<f32>>> {
        if let Some(to_output) = to_output.take_if(|_| network.is_parted) {
            self.embed_backward(network, device, to_output)?;
            return Ok(None);
        }
        let mut pass = self.waiting.pop_front().expect("a backward comes after its forward");
        self.prepare(network, device)?;
        let work = self.work.as_mut().expect("it has been prepared");
        match (&network.head, to_output) {
            (Some(head), _) => head.losses(device, &pass, work, Some(share))?,
            (None, Some(to_output)) => device.take_over(to_output, &mut work.to_stream)?,
            (None, None) => panic!("a stage that does not predict is given the gradient of its output"),
        }
        network.backward(device, &mut pass, work)?;
        let to_input = network.reads_stream().then(|| device.give_away(&mut work.to_stream)).transpose()?;
        // A buffer that was taken over takes the place of the one that was given away.
        let (first, last) = pass.streams.split_at_mut(1);
        match (network.reads_stream(), &network.head, last.last_mut()) {
            (true, None, Some(last)) => device.replace(last, &mut first[0]),
            (true, Some(_), _) => device.replace(&mut work.to_stream, &mut first[0]),
            (false, None, Some(last)) => device.replace(last, &mut work.to_stream),
            _ => {}
        }
        self.free.push(pass);
        Ok(to_input)
    }

    /// A forward without a backward to come: gives the last stream away where the stage does not predict.
    pub(crate) fn evaluate<O: Operations<Memory = S>>(
        &mut self,
        network: &Network,
        device: &mut O,
        input: Option<Vec<f32>>,
    ) -> Result<Option<Vec<f32>>> {
        if network.is_parted && input.is_none() {
            return self.embed(network, device).map(Some);
        }
        let mut pass = self.through(network, device, input)?;
        let work = self.work.as_mut().expect("it has been prepared");
        let output = match &network.head {
            Some(head) => head.losses(device, &pass, work, None).map(|()| None)?,
            None => Some(device.give_away(&mut pass.streams[network.blocks.len()])?),
        };
        self.free.push(pass);
        Ok(output)
    }
}

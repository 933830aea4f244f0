//! A stage of the model from end to end: from tokens or a stream to losses or a stream, and back.

use std::ops::Range;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::TransformerModel;

use super::block::Block;
use super::head::Head;
use super::operations::{Buffer, Cache, Operations, Tokens};
use super::workspace::{Pass, Widths, Work};
use crate::model::stage::StageSpec;

/// Where the weights of a stage lie, in the order in which it computes with them.
pub(crate) struct Network {
    pub(super) widths: Widths,
    /// Of a stage that embeds.
    pub(super) embedding: Option<Range<usize>>,
    /// Whether the embedding's table is the head's as well, of this stage or another.
    is_tied: bool,
    /// Whether other stages are between the embedding and the blocks.
    pub(super) is_parted: bool,
    pub(super) blocks: Vec<Block>,
    /// Of a stage that predicts.
    pub(super) head: Option<Head>,
}

impl Network {
    /// Of this layout.
    pub(crate) fn new(spec: &TransformerModel, stage: &StageSpec, layout: &ModelLayout) -> Network {
        let [stream, inner, queries] = [spec.width, spec.feed_forward, spec.query_width()].map(|width| width as usize);
        Network {
            widths: Widths { stream, queries, inner },
            embedding: layout.tensor("model.embed_tokens.weight").map(|tensor| tensor.range()),
            is_tied: spec.tied_head,
            is_parted: stage.is_parted(),
            blocks: stage.layers.clone().map(|layer| Block::new(layout, spec, layer)).collect(),
            head: stage.predicts.then(|| Head::new(layout)),
        }
    }

    /// Whether the first block's input comes from another stage.
    pub(super) fn reads_stream(&self) -> bool {
        self.embedding.is_none() || self.is_parted
    }

    /// Fills the streams, the first of which is there where it comes from another stage, and what is kept of the blocks. With a
    /// cache for each block where a text is read part by part, else with none.
    pub(super) fn forward<O: Operations>(
        &self,
        device: &O,
        pass: &mut Pass<O::Memory>,
        work: &mut Work<O::Memory>,
        caches: &mut [Cache<O>],
    ) -> Result<()> {
        let Work { shared, scratch, .. } = work;
        if let Some(table) = self.embedding.as_ref().filter(|_| !self.is_parted) {
            device.embed(table, &pass.tokens, &mut pass.streams[0])?;
        }
        let norm_of = |layer: usize| self.blocks.get(layer).map(Block::first_norm);
        if let Some(norm) = norm_of(0) {
            device.normalise(norm, &pass.streams[0], &mut scratch.normalised)?;
        }
        for (layer, block) in self.blocks.iter().enumerate() {
            let kept = shared.as_mut().unwrap_or_else(|| &mut pass.kept[layer]);
            let (before, after) = pass.streams.split_at_mut(layer + 1);
            block.activate(device, &before[layer], kept, caches.get_mut(layer), scratch)?;
            block.finish(device, kept, &mut after[0], norm_of(layer + 1), scratch)?;
        }
        Ok(())
    }

    /// Turns the gradient of the last stream into that of the first, and gives the weights theirs.
    pub(super) fn backward<O: Operations>(
        &self,
        device: &mut O,
        pass: &mut Pass<O::Memory>,
        work: &mut Work<O::Memory>,
    ) -> Result<()> {
        let Work { shared, scratch, to_stream, .. } = work;
        for (layer, block) in self.blocks.iter().enumerate().rev() {
            let input = &pass.streams[layer];
            let kept = match shared {
                Some(shared) => {
                    device.normalise(block.first_norm(), input, &mut scratch.normalised)?;
                    block.activate(device, input, shared, None, scratch)?;
                    shared
                }
                None => &mut pass.kept[layer],
            };
            block.backward(device, input, kept, to_stream, scratch)?;
        }
        if self.reads_stream() { Ok(()) } else { self.embed_backward(device, &pass.tokens, to_stream) }
    }

    /// Gives the embedding its gradient, where the stage has one.
    pub(super) fn embed_backward<O: Operations>(
        &self,
        device: &mut O,
        tokens: &Tokens<O>,
        to_stream: &Buffer<O>,
    ) -> Result<()> {
        let Some(table) = &self.embedding else { return Ok(()) };
        device.embed_backward(table, self.is_tied, tokens, to_stream)
    }
}

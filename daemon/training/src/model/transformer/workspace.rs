//! The buffers of a transformer's forward and backward, made once and used again at every step: one [`Pass`] for each
//! microbatch whose backward is to come, and one [`Work`] for all.

use candle_core::Result;
use murmur_protocol::manifest::TransformerModel;

use super::operations::{Operations, Storage};

/// What a block keeps for its backward.
pub(crate) struct Kept<S: Storage> {
    pub(super) heads: S::Heads,
    /// What attention gives: `[rows, query width]`.
    pub(super) attended: S::Buffer,
    /// The stream between attention and feed-forward: `[rows, width]`.
    pub(super) middle: S::Buffer,
    /// Gate and up side by side; in the backward their gradient: `[rows, 2 · inner]`.
    pub(super) gate_up: S::Buffer,
}

/// What is free again after each block.
pub(crate) struct Scratch<S: Storage> {
    /// `[rows, width]`, and of the gradient of what attention gives `[rows, query width]`.
    pub(super) normalised: S::Buffer,
    /// `[rows, width]`.
    pub(super) to_normalised: S::Buffer,
    pub(super) to_heads: S::Heads,
    /// `[rows, inner]`.
    pub(super) hidden: S::Buffer,
}

/// What is used by one microbatch at a time, for so many rows.
pub(crate) struct Work<S: Storage> {
    rows: usize,
    /// What all blocks keep by turns, where activations are computed again.
    pub(super) shared: Option<Kept<S>>,
    pub(super) scratch: Scratch<S>,
    /// The gradient of a stream: `[rows, width]`.
    pub(super) to_stream: S::Buffer,
    /// Of as many rows as are predicted at a time, of a stage that predicts.
    pub(super) logits: Option<S::Buffer>,
    /// Of a stage whose embedding is computed apart from its blocks.
    pub(super) tokens: Option<S::Tokens>,
}

/// One microbatch between its forward and its backward.
pub(crate) struct Pass<S: Storage> {
    rows: usize,
    pub(super) tokens: S::Tokens,
    /// The stream before each block and after the last: `[rows, width]` each.
    pub(super) streams: Vec<S::Buffer>,
    /// For each block; none where they share it.
    pub(super) kept: Vec<Kept<S>>,
}

/// Of rows.
#[derive(Clone, Copy)]
pub(crate) struct Widths {
    pub(super) stream: usize,
    pub(super) queries: usize,
    /// Inside the feed-forward part.
    pub(super) inner: usize,
}

impl<S: Storage> Kept<S> {
    fn new<O: Operations<Memory = S>>(device: &O, widths: Widths) -> Result<Kept<S>> {
        let rows = device.rows();
        Ok(Kept {
            heads: device.new_heads(true)?,
            attended: device.new_buffer(rows * widths.queries)?,
            middle: device.new_stream(false)?,
            gate_up: device.new_buffer(rows * 2 * widths.inner)?,
        })
    }
}

impl<S: Storage> Work<S> {
    /// Where blocks share what they keep, or not; with logits where so many tokens are told apart. The gradient of the stream is
    /// given where they are not.
    pub(super) fn new<O: Operations<Memory = S>>(
        device: &O,
        widths: Widths,
        shares_kept: bool,
        (vocabulary, is_parted): (Option<usize>, bool),
    ) -> Result<Work<S>> {
        let rows = device.rows();
        let logits = |vocabulary| device.new_buffer(device.predicted_at_once(vocabulary) * vocabulary);
        Ok(Work {
            rows,
            shared: shares_kept.then(|| Kept::new(device, widths)).transpose()?,
            scratch: Scratch {
                normalised: device.new_buffer(rows * widths.stream.max(widths.queries))?,
                to_normalised: device.new_buffer(rows * widths.stream)?,
                to_heads: device.new_heads(false)?,
                hidden: device.new_buffer(rows * widths.inner)?,
            },
            to_stream: device.new_stream_gradient(vocabulary.is_none())?,
            logits: vocabulary.map(logits).transpose()?,
            tokens: is_parted.then(|| device.new_tokens()).transpose()?,
        })
    }

    /// Whether it does for the batch.
    pub(super) fn fits<O: Operations<Memory = S>>(&self, device: &O) -> bool {
        device.fits(self.rows)
    }
}

impl<S: Storage> Pass<S> {
    /// Through `layers` blocks, of which `kept` are kept, from a first stream of its own or one that is given.
    pub(super) fn new<O: Operations<Memory = S>>(
        device: &O,
        widths: Widths,
        (layers, kept): (usize, usize),
        is_given: bool,
    ) -> Result<Pass<S>> {
        let stream = |index: usize| device.new_stream(index == 0 && is_given);
        Ok(Pass {
            rows: device.rows(),
            tokens: device.new_tokens()?,
            streams: (0..=layers).map(stream).collect::<Result<_>>()?,
            kept: (0..kept).map(|_| Kept::new(device, widths)).collect::<Result<_>>()?,
        })
    }

    /// Whether it does for the batch.
    pub(super) fn fits<O: Operations<Memory = S>>(&self, device: &O) -> bool {
        device.fits(self.rows)
    }
}

/// Blocks whose activations a stage keeps, with so many microbatches under way.
pub(crate) fn kept_blocks(layers: usize, passes: usize, recompute: bool) -> usize {
    // Where activations are computed again, all blocks and microbatches take turns.
    if recompute { 1 } else { passes * layers }
}

/// Values that such a stage holds for each row, without logits: (those of streams, those that products read or give).
pub(crate) fn row_values(spec: &TransformerModel, layers: usize, passes: usize, recompute: bool) -> (usize, usize) {
    let [width, inner] = [spec.width, spec.feed_forward].map(|width| width as usize);
    let [queries, keys] = [spec.query_width(), spec.key_width()].map(|width| width as usize);
    let (joint, raw) = (queries + 2 * keys, if spec.head_norm { queries + keys } else { 0 });
    let kept = kept_blocks(layers, passes, recompute);
    let scratch = width.max(queries) + width + joint + inner;
    ((passes * (layers + 1) + kept + 1) * width, kept * (joint + raw + queries + 2 * inner) + scratch)
}

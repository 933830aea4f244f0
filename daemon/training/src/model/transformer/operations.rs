//! What a transformer asks of a device: some twenty operations over buffers of its memory. The processor has them as the
//! functions of `ops` (`host.rs`), an NVIDIA GPU as kernels (`gpu/transformer/operations.rs`); `block.rs` and `head.rs` say
//! once what is computed with them.
//!
//! They are as coarse as the device that does most at once: a GPU adds to the stream and normalises in one kernel, and
//! multiplies with the weights of queries, keys and values at once.

use std::ops::Range;

use candle_core::{Result, bail};
use murmur_protocol::manifest::TransformerModel;

use crate::data::TokenBatch;
use crate::ops::attention::Attention;
use crate::ops::rotary::Turn;

/// What is held in a device's memory.
pub(crate) trait Storage {
    /// Values, a row for each token; maybe of more tokens than a batch has.
    type Buffer;
    /// Queries, keys and values of a block, and what the backward needs of how they were made; or their gradients.
    type Heads;
    /// Keys and values of a block, of all tokens of a text that have been read.
    type Cache;
    /// The tokens of a batch, and those that follow them.
    type Tokens;
}

pub(crate) type Buffer<O> = <<O as Operations>::Memory as Storage>::Buffer;
pub(crate) type Heads<O> = <<O as Operations>::Memory as Storage>::Heads;
pub(crate) type Cache<O> = <<O as Operations>::Memory as Storage>::Cache;
pub(crate) type Tokens<O> = <<O as Operations>::Memory as Storage>::Tokens;

/// `y = x·Wᵀ + b` of each row `x`, and what adapters beside `W` add to it.
pub(crate) struct Projection {
    /// Where `W` `[outputs, inputs]` lies among the weights.
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Option<Range<usize>>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
}

/// What makes a block's queries, keys and values.
pub(crate) struct HeadWeights {
    /// In this order, and their weights lie side by side.
    pub(crate) projections: [Projection; 3],
    /// The scales of the norms of queries' heads and of keys' heads.
    pub(crate) norms: Option<[Range<usize>; 2]>,
    /// Whether queries and keys are turned by their positions.
    pub(crate) has_rope: bool,
}

/// A device that computes one batch with some weights. Ranges are places of weights. Backwards write or add the gradient of the
/// weights that are trained to where the device was told.
pub(crate) trait Operations {
    type Memory: Storage;

    /// Tokens of the batch.
    fn rows(&self) -> usize;

    /// Whether memory that was made for so many tokens does for the batch.
    fn fits(&self, rows: usize) -> bool;

    /// For the residual stream `[rows, width]`, or for one that will be taken over.
    fn new_stream(&self, is_given: bool) -> Result<Buffer<Self>>;

    /// The same for its gradient.
    fn new_stream_gradient(&self, is_given: bool) -> Result<Buffer<Self>>;

    /// For so many values that products read or give.
    fn new_buffer(&self, values: usize) -> Result<Buffer<Self>>;

    /// With what the backward needs, or without.
    fn new_heads(&self, is_kept: bool) -> Result<Heads<Self>>;

    /// For the tokens of a whole context, of a text that is read part by part.
    fn new_cache(&self) -> Result<Cache<Self>>;

    fn new_tokens(&self) -> Result<Tokens<Self>>;

    fn load_batch(&self, tokens: &mut Tokens<Self>) -> Result<()>;

    /// Takes over a stream or its gradient.
    fn take_over(&self, values: Vec<f32>, stream: &mut Buffer<Self>) -> Result<()>;

    /// Gives a stream or its gradient away; what is written to it next has a buffer of its own again.
    fn give_away(&self, stream: &mut Buffer<Self>) -> Result<Vec<f32>>;

    /// Puts a buffer that nobody needs into the place of one that was given away, so that none has to be made.
    fn replace(&self, given: &mut Buffer<Self>, spare: &mut Buffer<Self>);

    /// The rows of `table` that the tokens name.
    fn embed(&self, table: &Range<usize>, tokens: &Tokens<Self>, stream: &mut Buffer<Self>) -> Result<()>;

    /// `is_tied`: whether the table is the head's as well. The head's gradient of a batch is there before the last microbatch comes
    /// here, with which the embedding's is added to it.
    fn embed_backward(
        &mut self,
        table: &Range<usize>,
        is_tied: bool,
        tokens: &Tokens<Self>,
        to_stream: &Buffer<Self>,
    ) -> Result<()>;

    /// RMSNorm of each row of the stream.
    fn normalise(&self, scale: &Range<usize>, stream: &Buffer<Self>, normalised: &mut Buffer<Self>) -> Result<()>;

    /// Adds to the gradient of the stream.
    fn normalise_backward(
        &mut self,
        scale: &Range<usize>,
        stream: &Buffer<Self>,
        to_normalised: &Buffer<Self>,
        to_stream: &mut Buffer<Self>,
    ) -> Result<()>;

    fn project(&self, projection: &Projection, input: &Buffer<Self>, output: &mut Buffer<Self>) -> Result<()>;

    fn project_backward(
        &mut self,
        projection: &Projection,
        input: &Buffer<Self>,
        to_output: &Buffer<Self>,
        to_input: &mut Buffer<Self>,
    ) -> Result<()>;

    /// `sum` = `stream` + the projection of `input`; and what the norm with this scale makes of it, where there is one.
    fn add_projection(
        &self,
        projection: &Projection,
        input: &Buffer<Self>,
        stream: &Buffer<Self>,
        sum: &mut Buffer<Self>,
        norm: Option<&Range<usize>>,
        normalised: &mut Buffer<Self>,
    ) -> Result<()>;

    /// Queries, keys and values of what was normalised, with their biases.
    fn project_heads(&self, weights: &HeadWeights, input: &Buffer<Self>, heads: &mut Heads<Self>) -> Result<()>;

    fn project_heads_backward(
        &mut self,
        weights: &HeadWeights,
        input: &Buffer<Self>,
        to_heads: &Heads<Self>,
        to_input: &mut Buffer<Self>,
    ) -> Result<()>;

    /// RMSNorm of each query and each key, where there is one.
    fn normalise_heads(&self, weights: &HeadWeights, heads: &mut Heads<Self>) -> Result<()>;

    fn normalise_heads_backward(
        &mut self,
        weights: &HeadWeights,
        heads: &Heads<Self>,
        to_heads: &mut Heads<Self>,
    ) -> Result<()>;

    /// Turns queries and keys by their positions, where they are turned; backwards their gradients. It is the last step in which
    /// heads are made, and the first one back, also where nothing turns: a device may hold them otherwise before.
    fn turn_heads(&self, weights: &HeadWeights, heads: &mut Heads<Self>, turn: Turn) -> Result<()>;

    /// Causal softmax attention: of a batch, or where there is a cache of the next tokens of its text, which see what it holds.
    /// Their keys and values are added to it.
    fn attend(
        &self,
        heads: &mut Heads<Self>,
        cache: Option<&mut Cache<Self>>,
        attended: &mut Buffer<Self>,
    ) -> Result<()>;

    fn attend_backward(
        &self,
        heads: &Heads<Self>,
        attended: &Buffer<Self>,
        to_attended: &Buffer<Self>,
        to_heads: &mut Heads<Self>,
    ) -> Result<()>;

    /// `silu(gate) · up`, of which `gate_up` has both side by side.
    fn swiglu(&self, gate_up: &Buffer<Self>, hidden: &mut Buffer<Self>) -> Result<()>;

    /// The backward of a projection of what [`Operations::swiglu`] has made: `gate_up` becomes its gradient.
    fn project_swiglu_backward(
        &mut self,
        projection: &Projection,
        gate_up: &mut Buffer<Self>,
        hidden: &mut Buffer<Self>,
        to_output: &Buffer<Self>,
    ) -> Result<()>;

    /// How many tokens are predicted at once, so that the logits of all never exist together.
    fn predicted_at_once(&self, vocabulary: usize) -> usize;

    /// The logits of some rows of what was normalised.
    fn predict(
        &self,
        head: &Projection,
        rows: Range<usize>,
        normalised: &Buffer<Self>,
        logits: &mut Buffer<Self>,
    ) -> Result<()>;

    /// A row of logits, for the host.
    fn read_logits(&self, logits: &Buffer<Self>) -> Result<Vec<f32>>;

    /// The losses of these rows, which the device keeps; with a `share`, logits become the gradient of so much of their sum.
    fn cross_entropy(
        &mut self,
        rows: Range<usize>,
        tokens: &Tokens<Self>,
        logits: &mut Buffer<Self>,
        share: Option<f32>,
    ) -> Result<()>;

    /// Fills these rows of `to_normalised`.
    fn predict_backward(
        &mut self,
        head: &Projection,
        rows: Range<usize>,
        normalised: &Buffer<Self>,
        to_logits: &Buffer<Self>,
        to_normalised: &mut Buffer<Self>,
    ) -> Result<()>;

    /// Makes the gradient of the stream zero.
    fn clear(&self, to_stream: &mut Buffer<Self>) -> Result<()>;
}

/// The sizes of attention for a batch of this model.
///
/// # Errors
/// When the batch has sequences that are longer than the context, or tokens outside of the vocabulary.
pub(crate) fn attention_of(spec: &TransformerModel, batch: &TokenBatch) -> Result<Attention> {
    let length = batch.length();
    if length == 0 || length > spec.context as usize {
        bail!("a sequence of {length} tokens for a context of {}", spec.context);
    }
    let tokens = batch.inputs.iter().chain(&batch.targets);
    if let Some(token) = tokens.max().filter(|token| **token >= spec.vocabulary) {
        bail!("token {token} of a vocabulary of {}", spec.vocabulary);
    }
    Ok(Attention {
        sequences: batch.sequences,
        length,
        heads: spec.heads as usize,
        key_heads: spec.resolved_key_value_heads() as usize,
        head_width: spec.resolved_head_width() as usize,
    })
}

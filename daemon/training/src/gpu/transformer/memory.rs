//! The memory that a batch takes beside parameters, gradient and moments: allocated for the first batch, kept for the next.

use candle_core::Result;
use murmur_protocol::manifest::TransformerModel;

use super::GpuModel;
use crate::engine::options::Precision;
use crate::gpu::{ATTENTION_WIDTHS, Accelerator, Kind, Memory, Span, sizes, sum};
use crate::model::transformer::operations::Storage;
use crate::model::transformer::{kept_blocks, row_values};
use crate::model::{Evaluation, StageSpec};
use crate::ops::attention::Attention;

/// Memory of at least as many rows as a batch has.
pub(crate) struct GpuMemory;

impl Storage for GpuMemory {
    type Buffer = GpuBuffer;
    type Heads = GpuHeads;
    type Cache = GpuCache;
    type Tokens = GpuTokens;
}

pub(crate) struct GpuBuffer {
    pub(super) values: Memory,
    /// Of the gradient of the stream, what products read where these do not read `f32`.
    pub(super) rounded: Option<Memory>,
}

impl GpuBuffer {
    pub(super) fn span(&self) -> Span {
        self.values.span()
    }

    /// As products read it.
    pub(super) fn for_products(&self) -> Span {
        self.rounded.as_ref().unwrap_or(&self.values).span()
    }
}

/// `[sequences, heads, length, head width]` each; or the gradients of these.
pub(crate) struct GpuHeads {
    pub(super) query: Memory,
    pub(super) key: Memory,
    pub(super) value: Memory,
    /// Queries and keys before the norm of heads, where there is one `[rows, query | key]`, of the products' kind.
    pub(super) raw: Option<Memory>,
    /// Where attention is one kernel, log₂ of the sum of e^score of each query `[sequences, heads, length]`.
    pub(super) log_sums: Option<Memory>,
}

impl GpuHeads {
    /// Of queries, keys and values.
    pub(super) fn spans(&self) -> [Span; 3] {
        [self.query.span(), self.key.span(), self.value.span()]
    }

    /// With what is kept for the backward, or without.
    pub(super) fn new(model: &GpuModel, sizes: &Attention, is_kept: bool) -> Result<GpuHeads> {
        let (rows, queries, keys) = (sizes.rows(), sizes.query_width(), sizes.key_width());
        let rounded = |width: usize| model.device.allocate(model.kind, rows * width);
        let has_raw = is_kept && model.spec.head_norm;
        let row_sums = || model.device.allocate(Kind::F32, rows * sizes.heads);
        Ok(GpuHeads {
            query: rounded(queries)?,
            key: rounded(keys)?,
            value: rounded(keys)?,
            raw: has_raw.then(|| rounded(queries + keys)).transpose()?,
            log_sums: (is_kept && model.fuses_attention).then(row_sums).transpose()?,
        })
    }
}

/// `[context, key heads · head width]` each.
pub(crate) struct GpuCache {
    pub(super) key: Memory,
    pub(super) value: Memory,
}

pub(crate) struct GpuTokens {
    pub(super) inputs: Memory,
    pub(super) targets: Memory,
}

/// What operations need for themselves, for sequences of a length; [`activation_values`] counts it.
pub(super) struct Scratch {
    rows: usize,
    length: usize,
    /// Whether it is for parts of a text.
    is_read: bool,
    /// `[rows, query | key | value]`: heads until they are turned, and their gradients once these are turned back.
    pub(super) joint: Memory,
    /// `[rows, width]`: what is to be added to the stream.
    pub(super) added: Memory,
    /// Where attention is products: what it gives `[rows, query width]`, in heads; and scores.
    pub(super) in_heads: Memory,
    pub(super) scores: Memory,
    pub(super) to_scores: Memory,
    /// Where attention is products that are rounded, the gradients of some heads' keys and values `[heads, length, head width]` until all
    /// is added to them.
    pub(super) to_keys: Memory,
    pub(super) to_values: Memory,
    /// Where attention is one kernel, of each query's output and its gradient `[sequences, heads, length]`.
    pub(super) products: Memory,
    /// `[rows, rank]`: what an adapter multiplies by A, and its gradient.
    pub(super) low: Memory,
    pub(super) to_low: Memory,
    /// `[rows]`.
    pub(super) losses: Memory,
    pub(super) hits: Memory,
}

impl Scratch {
    /// For a batch, or for parts of a text.
    pub(super) fn new(model: &GpuModel, sizes: &Attention, is_read: bool) -> Result<Scratch> {
        let (rows, length) = (sizes.rows(), sizes.length);
        let exact = |values: usize| model.device.allocate(Kind::F32, values);
        let rounded = |values: usize| model.device.allocate(model.kind, values);
        let is_fused = model.fuses_attention;
        let in_heads = if is_fused { 0 } else { rows * sizes.query_width() };
        let [scores, to_scores] = match (is_read, is_fused) {
            (true, _) => [rows * sizes.heads * model.spec.context as usize, 0],
            (false, true) => [0, 0],
            (false, false) => [units_at_once(sizes.key_heads, sizes.sequences, length) * unit_scores(length); 2],
        };
        let key_sums = if is_read || is_fused { 0 } else { key_sums(model.kind, sizes) };
        Ok(Scratch {
            rows,
            length,
            is_read,
            joint: rounded(rows * sizes.joint_width())?,
            added: rounded(rows * model.width())?,
            in_heads: rounded(in_heads)?,
            scores: rounded(scores)?,
            to_scores: rounded(to_scores)?,
            to_keys: exact(key_sums)?,
            to_values: exact(key_sums)?,
            products: exact(if is_fused { rows * sizes.heads } else { 0 })?,
            low: rounded(rows * model.rank)?,
            to_low: rounded(rows * model.rank)?,
            losses: exact(rows)?,
            hits: exact(rows)?,
        })
    }

    /// The one that is there, or a new one where it does not do for a batch, which may be read after what caches hold.
    pub(super) fn that_fits<'a>(
        place: &'a mut Option<Scratch>,
        model: &GpuModel,
        sizes: &Attention,
        is_read: bool,
    ) -> Result<&'a Scratch> {
        if !place.as_ref().is_some_and(|scratch| scratch.fits(sizes, is_read)) {
            // First the old one goes.
            *place = None;
            *place = Some(Scratch::new(model, sizes, is_read)?);
        }
        Ok(place.as_ref().expect("it has just been made"))
    }

    /// How well so many predictions of the last batch were; `sums` is for a sum that is on its way to the host.
    pub(super) fn evaluation(&self, device: &dyn Accelerator, predictions: usize, sums: Span) -> Result<Evaluation> {
        let correct = sum(device, "sum_values", self.hits.span().first(predictions), sums)? as usize;
        Ok(Evaluation { loss_sum: self.loss_sum(device, predictions, sums)?, predictions, correct })
    }

    /// The sum of the losses of these.
    pub(super) fn loss_sum(&self, device: &dyn Accelerator, predictions: usize, sums: Span) -> Result<f64> {
        sum(device, "sum_values", self.losses.span().first(predictions), sums)
    }

    fn fits(&self, sizes: &Attention, is_read: bool) -> bool {
        self.rows >= sizes.rows() && self.length == sizes.length && self.is_read == is_read
    }
}

/// Whether attention is one kernel.
pub(super) fn fuses_attention(kind: Kind, head_width: usize) -> bool {
    kind == Kind::Bf16 && ATTENTION_WIDTHS.contains(&head_width)
}

/// Scores of some queries of a head of one sequence.
fn unit_scores(length: usize) -> usize {
    sizes().queries_at_once.min(length) * length
}

/// How many of these are held at once.
pub(super) fn units_at_once(key_heads: usize, sequences: usize, length: usize) -> usize {
    (sizes().scores / unit_scores(length)).clamp(1, sequences * key_heads)
}

/// Values of the gradients of keys, or of values, that are held at once in 32 bits beside those that products read.
fn key_sums(kind: Kind, sizes: &Attention) -> usize {
    let units = units_at_once(sizes.key_heads, sizes.sequences, sizes.length);
    if kind == Kind::F32 { 0 } else { units * sizes.length * sizes.head_width }
}

pub(super) fn logit_rows_at_once(vocabulary: usize, rows: usize) -> usize {
    (sizes().logits / vocabulary).max(sizes().logit_rows).min(rows)
}

/// What a batch of so many whole windows takes beside parameters, gradient and moments, in values of four bytes, in a stage
/// that has so many microbatches under way, with adapters of a rank (0: without): the sizes of
/// [`Scratch`] and of what `model/transformer/workspace.rs` holds.
pub(crate) fn activation_values(
    spec: &TransformerModel,
    (stage, passes): (&StageSpec, usize),
    sequences: usize,
    precision: Precision,
    (recompute, rank): (bool, usize),
) -> usize {
    let [width, length, vocabulary, heads] =
        [spec.width, spec.context, spec.vocabulary, spec.heads].map(|size| size as usize);
    let [queries, joint] = [spec.query_width(), spec.query_width() + 2 * spec.key_width()].map(|size| size as usize);
    let (key_heads, head_width) = (spec.resolved_key_value_heads() as usize, spec.resolved_head_width() as usize);
    let (layers, rows) = (stage.layers.len(), sequences * length);
    let (streams, others) = row_values(spec, layers, passes, recompute);
    // Angles once more, of no turn, for layers without positions.
    let tables = if spec.layers_without_rope.is_empty() { 1 } else { 2 };
    let is_fused = fuses_attention(precision.into(), head_width);
    // What attention holds beside heads and rows: sums of each row, or scores and what it gives in heads.
    let scores = units_at_once(key_heads, sequences, length) * unit_scores(length);
    let (sums, in_heads, scores) = if is_fused { (heads, 0, 0) } else { (0, queries, scores) };
    let sums = (kept_blocks(layers, passes, recompute) + 1) * sums;
    let attention = Attention { sequences, length, heads, key_heads, head_width };
    let key_sums = if is_fused { 0 } else { 2 * key_sums(precision.into(), &attention) };
    let exact = rows * (streams + sums + 2 * passes + 2) + tables * length * head_width + key_sums;
    // The gradient of the stream once more as products read it.
    let to_stream = if precision == Precision::F32 { 0 } else { width };
    let rounded = rows * (others + in_heads + joint + width + to_stream + 2 * rank) + 2 * scores;
    let rounded = rounded + if stage.predicts { vocabulary * logit_rows_at_once(vocabulary, rows) } else { 0 };
    exact + (rounded * Kind::from(precision).size()).div_ceil(Kind::F32.size())
}

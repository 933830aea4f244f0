//! The memory that a batch takes beside parameters, gradient and moments: allocated for the first batch, kept for the next.

use candle_core::Result;
use murmur_protocol::manifest::ModelSpec;

use super::{Frame, GpuTransformer};
use crate::engine::options::Precision;
use crate::gpu::{ATTENTION_WIDTHS, Kind, Memory, Span};
use crate::model::StageSpec;

/// Queries of a head that are attended at once by products: few enough that most of what none of them sees is not computed.
pub(super) const QUERIES_AT_ONCE: usize = if cfg!(test) { 5 } else { 128 };

/// Attention scores that are held at once, unless those queries of one sequence have more.
const SCORES: usize = if cfg!(test) { 600 } else { 32 << 20 };

/// Logits that are held at once, unless 128 rows have more.
const LOGITS: usize = if cfg!(test) { 600 } else { 32 << 20 };

/// Rows of logits that are held at once, at least.
const LOGIT_ROWS: usize = if cfg!(test) { 10 } else { 128 };

/// Memory for so many rows; [`activation_values`] counts it.
pub(super) struct Workspace {
    pub(super) rows: usize,
    pub(super) length: usize,
    /// The microbatch that is being computed.
    pub(super) pass: Option<Pass>,
    /// `[rows, width]`: after a norm, in rows and, where attention is products, in heads, and the gradient of the stream
    /// rounded. The first two hold what attention gives as well, `[rows, query width]`.
    pub(super) normalised: Memory,
    pub(super) in_heads: Memory,
    pub(super) rounded: Memory,
    /// `[rows, width]`: what is to be added to the stream.
    pub(super) added: Memory,
    /// `[rows, query | key | value]`.
    pub(super) joint: Memory,
    /// The gradient of a block's heads.
    pub(super) to_heads: Heads,
    pub(super) scores: Memory,
    pub(super) to_scores: Memory,
    /// `[rows, inner]`, and its gradient.
    pub(super) hidden: Memory,
    pub(super) to_hidden: Memory,
    /// `[rows, rank]`: what an adapter multiplies by A, and its gradient.
    pub(super) low: Memory,
    pub(super) to_low: Memory,
    /// Where attention is one kernel, of each query's output and its gradient `[sequences, heads, length]`.
    pub(super) products: Memory,
    pub(super) logits: Memory,
    pub(super) to_stream: Memory,
    pub(super) to_normalised: Memory,
    /// `[rows]`.
    pub(super) losses: Memory,
    pub(super) hits: Memory,
}

/// One microbatch between its forward and its backward.
pub(super) struct Pass {
    pub(super) rows: usize,
    pub(super) tokens: Memory,
    pub(super) targets: Memory,
    /// Before each block and after the last `[rows, width]`.
    pub(super) streams: Vec<Memory>,
    pub(super) kept: Vec<Kept>,
}

/// What the backward needs of a block's forward.
pub(super) struct Kept {
    pub(super) heads: Heads,
    /// Queries and keys before the norm of heads, where there is one `[rows, query | key]`, of the products' kind.
    pub(super) raw: Option<Memory>,
    /// `[rows, query width]`, of the products' kind.
    pub(super) attended: Memory,
    /// Where attention is one kernel, log₂ of the sum of e^score of each query `[sequences, heads, length]`.
    pub(super) log_sums: Option<Memory>,
    /// `[rows, gate | up]`, of the products' kind.
    pub(super) gate_up: Memory,
    /// The stream between attention and feed-forward `[rows, width]`.
    pub(super) middle: Memory,
}

/// `[sequences, heads, length, head width]`.
pub(super) struct Heads {
    pub(super) query: Memory,
    pub(super) key: Memory,
    pub(super) value: Memory,
}

impl Heads {
    /// Of queries, keys and values.
    pub(super) fn spans(&self) -> [Span; 3] {
        [self.query.span(), self.key.span(), self.value.span()]
    }
}

/// Whether attention is one kernel.
pub(super) fn fuses_attention(kind: Kind, head_width: usize) -> bool {
    kind == Kind::Bf16 && ATTENTION_WIDTHS.contains(&head_width)
}

/// Scores of some queries of a head of one sequence.
fn unit_scores(length: usize) -> usize {
    QUERIES_AT_ONCE.min(length) * length
}

/// How many of these are held at once.
pub(super) fn units_at_once(key_heads: usize, sequences: usize, length: usize) -> usize {
    (SCORES / unit_scores(length)).clamp(1, sequences * key_heads)
}

pub(super) fn logit_rows_at_once(vocabulary: usize, rows: usize) -> usize {
    (LOGITS / vocabulary).max(LOGIT_ROWS).min(rows)
}

/// What a batch of so many whole windows takes beside parameters, gradient and moments, in values of four bytes, in a stage
/// that has so many microbatches under way, with adapters of a rank (0: without): the sizes of a [`Workspace`] and of its [`Pass`]es.
pub(crate) fn activation_values(
    spec: &ModelSpec,
    (stage, passes): (&StageSpec, usize),
    sequences: usize,
    precision: Precision,
    (recompute, rank): (bool, usize),
) -> usize {
    let [width, inner, length] = [spec.width, spec.feed_forward, spec.context].map(|size| size as usize);
    let [heads, vocabulary] = [spec.heads, spec.vocabulary].map(|size| size as usize);
    let layers = stage.layers.len();
    let key_heads = spec.resolved_key_value_heads() as usize;
    let [queries, keys, head_width] =
        [spec.query_width(), spec.key_width(), spec.resolved_head_width()].map(|size| size as usize);
    let (rows, joint) = (sequences * length, queries + 2 * keys);
    let raw = if spec.head_norm { queries + keys } else { 0 };
    let kept = if recompute { 1 } else { layers };
    // Angles once more, of no turn, for layers without positions.
    let tables = if spec.layers_without_rope.is_empty() { 1 } else { 2 };
    let is_fused = fuses_attention(precision.into(), head_width);
    // What attention holds beside heads and rows: sums of each row, or scores and what it gives in heads.
    let (sums, in_heads) = if is_fused { (heads, 0) } else { (0, queries) };
    let of_pass = (layers + 1 + kept) * width + kept * sums + 2;
    let exact = rows * (passes * of_pass + width + sums + 2) + tables * length * head_width;
    let scores = units_at_once(key_heads, sequences, length) * unit_scores(length);
    let scores = if is_fused { 0 } else { scores };
    let of_batch = width.max(queries) + in_heads + 3 * width + 2 * joint + 2 * inner + 2 * rank;
    let rounded = rows * (passes * kept * (joint + raw + queries + 2 * inner) + of_batch);
    let rounded = rounded + 2 * scores;
    let rounded = rounded + if stage.predicts { vocabulary * logit_rows_at_once(vocabulary, rows) } else { 0 };
    exact + (rounded * Kind::from(precision).size()).div_ceil(Kind::F32.size())
}

impl GpuTransformer {
    pub(super) fn new_pass(&self, frame: Frame) -> Result<Pass> {
        let rows = frame.rows;
        let rounded = |values: usize| self.device.allocate(self.kind, values);
        let raw_values = self.has_head_norm.then(|| rows * (self.query_width() + self.key_width()));
        let kept = || {
            Ok::<Kept, candle_core::Error>(Kept {
                heads: self.new_heads(rows)?,
                raw: raw_values.map(rounded).transpose()?,
                attended: rounded(rows * self.query_width())?,
                log_sums: self.fuses_attention.then(|| self.row_sums(rows)).transpose()?,
                gate_up: rounded(rows * 2 * self.inner)?,
                middle: self.device.allocate(Kind::F32, rows * self.width)?,
            })
        };
        let kept_blocks = if self.recompute { 1 } else { self.blocks.len() };
        let stream = |_| self.device.allocate(Kind::F32, rows * self.width);
        Ok(Pass {
            rows,
            tokens: self.device.allocate(Kind::U32, rows)?,
            targets: self.device.allocate(Kind::U32, rows)?,
            streams: (0..=self.blocks.len()).map(stream).collect::<Result<_>>()?,
            kept: (0..kept_blocks).map(|_| kept()).collect::<Result<_>>()?,
        })
    }

    /// A value for each row of each head.
    fn row_sums(&self, rows: usize) -> Result<Memory> {
        self.device.allocate(Kind::F32, rows * self.heads)
    }

    fn new_heads(&self, rows: usize) -> Result<Heads> {
        let key = || self.device.allocate(self.kind, rows * self.key_width());
        let query = self.device.allocate(self.kind, rows * self.query_width())?;
        Ok(Heads { query, key: key()?, value: key()? })
    }

    pub(super) fn new_workspace(&self, frame: Frame) -> Result<Workspace> {
        let Frame { rows, length, .. } = frame;
        let (exact, rounded) = (
            |values: usize| self.device.allocate(Kind::F32, values),
            |values: usize| self.device.allocate(self.kind, values),
        );
        let is_fused = self.fuses_attention;
        let scores = units_at_once(self.key_heads, frame.sequences, length) * unit_scores(length);
        let (scores, in_heads) = if is_fused { (0, 0) } else { (scores, rows * self.query_width()) };
        let logits = if self.end.is_some() { logit_rows_at_once(self.vocabulary, rows) * self.vocabulary } else { 0 };
        Ok(Workspace {
            rows,
            length,
            pass: None,
            normalised: rounded(rows * self.width.max(self.query_width()))?,
            in_heads: rounded(in_heads)?,
            rounded: rounded(rows * self.width)?,
            added: rounded(rows * self.width)?,
            joint: rounded(rows * self.joint_width())?,
            to_heads: self.new_heads(rows)?,
            scores: rounded(scores)?,
            to_scores: rounded(scores)?,
            hidden: rounded(rows * self.inner)?,
            to_hidden: rounded(rows * self.inner)?,
            low: rounded(rows * self.rank)?,
            to_low: rounded(rows * self.rank)?,
            products: if is_fused { self.row_sums(rows) } else { exact(0) }?,
            logits: rounded(logits)?,
            to_stream: exact(rows * self.width)?,
            to_normalised: rounded(rows * self.width)?,
            losses: exact(rows)?,
            hits: exact(rows)?,
        })
    }
}

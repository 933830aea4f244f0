//! The forward and backward of a transformer, as `model/transformer` has them for the CPU.
//!
//! The residual stream, its gradient and sums over rows are `f32`; what matrices are multiplied in is the kind of the
//! weights given. Backward computes attention's probabilities, norms and SwiGLU again instead of keeping them.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, bail};
use murmur_protocol::manifest::ModelSpec;

use super::{Accelerator, Argument, Kind, Matrix, Memory, Product, STRIP, Span};
use super::{bytes_of, count, launch_for_each, of_kind, size};
use crate::data::TokenBatch;
use crate::engine::options::Precision;
use crate::model::transformer::transformer_layout;
use crate::ops::rotary::RotaryTables;

/// Attention scores that are held at once, unless one head of one sequence has more.
const SCORES: usize = if cfg!(test) { 600 } else { 32 << 20 };

/// Logits that are held at once, unless 128 rows have more.
const LOGITS: usize = if cfg!(test) { 600 } else { 32 << 20 };

/// Rows of logits that are held at once, at least.
const LOGIT_ROWS: usize = if cfg!(test) { 10 } else { 128 };

pub(crate) struct GpuTransformer {
    device: Arc<dyn Accelerator>,
    /// Of what matrices are multiplied in.
    kind: Kind,
    recompute: bool,
    width: usize,
    inner: usize,
    heads: usize,
    key_heads: usize,
    vocabulary: usize,
    context: usize,
    epsilon: f32,
    embedding: Range<usize>,
    last_norm: Range<usize>,
    head: Range<usize>,
    blocks: Vec<Block>,
    /// `[context, half a head's width]`.
    cosines: Memory,
    sines: Memory,
    /// Of the largest batch so far.
    workspace: Option<Workspace>,
}

/// Where a block's tensors lie in flat vectors.
struct Block {
    first_norm: Range<usize>,
    query: Range<usize>,
    key: Range<usize>,
    value: Range<usize>,
    output: Range<usize>,
    second_norm: Range<usize>,
    gate: Range<usize>,
    up: Range<usize>,
    down: Range<usize>,
}

/// A model's parameters in both kinds; the same span where they are one.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub(crate) exact: Span,
    pub(crate) for_products: Span,
}

/// The batch that is being computed.
#[derive(Clone, Copy)]
struct Frame {
    sequences: usize,
    length: usize,
    rows: usize,
}

/// Memory for so many rows; [`activation_values`] counts it.
struct Workspace {
    rows: usize,
    length: usize,
    tokens: Memory,
    targets: Memory,
    /// Before each block and after the last `[rows, width]`.
    streams: Vec<Memory>,
    kept: Vec<Kept>,
    /// `[rows, width]`: after a norm, in rows and in heads, and the gradient of the stream rounded.
    normalised: Memory,
    in_heads: Memory,
    rounded: Memory,
    /// `[rows, query | key | value]`.
    joint: Memory,
    /// The gradient of a block's heads.
    to_heads: Heads,
    scores: Memory,
    to_scores: Memory,
    /// `[rows, inner]`, and its gradient.
    hidden: Memory,
    to_hidden: Memory,
    logits: Memory,
    to_stream: Memory,
    to_normalised: Memory,
    /// `[rows]`.
    factors: Memory,
    losses: Memory,
    hits: Memory,
}

/// What the backward needs of a block's forward.
struct Kept {
    heads: Heads,
    /// `[rows, width]`, of the products' kind.
    attended: Memory,
    /// `[rows, gate | up]`, of the products' kind.
    gate_up: Memory,
    /// The stream between attention and feed-forward `[rows, width]`.
    middle: Memory,
}

/// `[sequences, heads, length, head width]`.
struct Heads {
    query: Memory,
    key: Memory,
    value: Memory,
}

/// Units of one head's scores, or of the heads that share a key, that fit at once.
fn units_at_once(heads: usize, key_heads: usize, sequences: usize, length: usize) -> usize {
    (SCORES / (heads / key_heads * length * length)).clamp(1, sequences * key_heads)
}

fn logit_rows_at_once(vocabulary: usize, rows: usize) -> usize {
    (LOGITS / vocabulary).max(LOGIT_ROWS).min(rows)
}

/// What a batch of so many whole windows takes beside parameters, gradient and moments, in values of four bytes: the sizes of
/// a [`Workspace`].
pub(crate) fn activation_values(spec: &ModelSpec, sequences: usize, precision: Precision, recompute: bool) -> usize {
    let [width, inner, length] = [spec.width, spec.feed_forward, spec.context].map(|size| size as usize);
    let [layers, heads, vocabulary] = [spec.layers, spec.heads, spec.vocabulary].map(|size| size as usize);
    let key_heads = spec.resolved_key_value_heads() as usize;
    let (rows, joint) = (sequences * length, width + 2 * (width / heads * key_heads));
    let kept = if recompute { 1 } else { layers };
    let exact = rows * ((layers + 1 + kept + 2) * width + 5) + length * (width / heads);
    let scores = units_at_once(heads, key_heads, sequences, length) * (heads / key_heads) * length * length;
    let rounded = rows * (kept * (joint + width + 2 * inner) + 3 * width + 2 * joint + 2 * inner);
    let rounded = rounded + 2 * scores + vocabulary * logit_rows_at_once(vocabulary, rows);
    exact + (rounded * precision.kind().size()).div_ceil(Kind::F32.size())
}

impl GpuTransformer {
    pub(crate) fn new(
        device: Arc<dyn Accelerator>,
        spec: &ModelSpec,
        kind: Kind,
        recompute: bool,
    ) -> Result<GpuTransformer> {
        let layout = transformer_layout(spec);
        let place = |name: &str| layout.tensor(name).expect("the layout has every tensor of the model").range();
        let block = |layer: u32| {
            let place = |part: &str| place(&format!("model.layers.{layer}.{part}.weight"));
            Block {
                first_norm: place("input_layernorm"),
                query: place("self_attn.q_proj"),
                key: place("self_attn.k_proj"),
                value: place("self_attn.v_proj"),
                output: place("self_attn.o_proj"),
                second_norm: place("post_attention_layernorm"),
                gate: place("mlp.gate_proj"),
                up: place("mlp.up_proj"),
                down: place("mlp.down_proj"),
            }
        };
        let embedding = place("model.embed_tokens.weight");
        let context = spec.context as usize;
        let tables = RotaryTables::new((spec.width / spec.heads) as usize, context, spec.rope_theta);
        let table = |values: &[f32]| {
            let memory = device.allocate(Kind::F32, values.len())?;
            device.upload(bytes_of(values), memory.span())?;
            Ok::<Memory, candle_core::Error>(memory)
        };
        Ok(GpuTransformer {
            kind,
            recompute,
            width: spec.width as usize,
            inner: spec.feed_forward as usize,
            heads: spec.heads as usize,
            key_heads: spec.resolved_key_value_heads() as usize,
            vocabulary: spec.vocabulary as usize,
            context,
            epsilon: spec.norm_epsilon as f32,
            last_norm: place("model.norm.weight"),
            head: if spec.tied_head { embedding.clone() } else { place("lm_head.weight") },
            embedding,
            blocks: (0..spec.layers).map(block).collect(),
            cosines: table(tables.cosines())?,
            sines: table(tables.sines())?,
            workspace: None,
            device,
        })
    }

    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    fn key_width(&self) -> usize {
        self.head_width() * self.key_heads
    }

    fn joint_width(&self) -> usize {
        self.width + 2 * self.key_width()
    }

    /// (heads of one sequence that share a key, pairs of a sequence and a key that are attended at once).
    fn groups(&self, frame: Frame) -> (usize, usize) {
        let units = units_at_once(self.heads, self.key_heads, frame.sequences, frame.length);
        (self.heads / self.key_heads, units)
    }

    fn new_workspace(&self, frame: Frame) -> Result<Workspace> {
        let Frame { rows, length, .. } = frame;
        let (exact, rounded) = (
            |values: usize| self.device.allocate(Kind::F32, values),
            |values: usize| self.device.allocate(self.kind, values),
        );
        let heads = || {
            let key = || rounded(rows * self.key_width());
            Ok::<Heads, candle_core::Error>(Heads { query: rounded(rows * self.width)?, key: key()?, value: key()? })
        };
        let kept = || {
            Ok::<Kept, candle_core::Error>(Kept {
                heads: heads()?,
                attended: rounded(rows * self.width)?,
                gate_up: rounded(rows * 2 * self.inner)?,
                middle: exact(rows * self.width)?,
            })
        };
        let (sharing, units) = self.groups(frame);
        let scores = units * sharing * length * length;
        let kept_blocks = if self.recompute { 1 } else { self.blocks.len() };
        Ok(Workspace {
            rows,
            length,
            tokens: self.device.allocate(Kind::U32, rows)?,
            targets: self.device.allocate(Kind::U32, rows)?,
            streams: (0..=self.blocks.len()).map(|_| exact(rows * self.width)).collect::<Result<_>>()?,
            kept: (0..kept_blocks).map(|_| kept()).collect::<Result<_>>()?,
            normalised: rounded(rows * self.width)?,
            in_heads: rounded(rows * self.width)?,
            rounded: rounded(rows * self.width)?,
            joint: rounded(rows * self.joint_width())?,
            to_heads: heads()?,
            scores: rounded(scores)?,
            to_scores: rounded(scores)?,
            hidden: rounded(rows * self.inner)?,
            to_hidden: rounded(rows * self.inner)?,
            logits: rounded(logit_rows_at_once(self.vocabulary, rows) * self.vocabulary)?,
            to_stream: exact(rows * self.width)?,
            to_normalised: exact(rows * self.width)?,
            factors: exact(rows)?,
            losses: exact(rows)?,
            hits: exact(rows)?,
        })
    }

    /// Uploads a batch that fits this model.
    fn begin(&mut self, batch: &TokenBatch) -> Result<Frame> {
        let (sequences, length) = (batch.sequences, batch.length());
        if length == 0 || length > self.context {
            bail!("a sequence of {length} tokens for a context of {}", self.context);
        }
        let tokens = batch.inputs.iter().chain(&batch.targets);
        if let Some(token) = tokens.max().filter(|token| **token as usize >= self.vocabulary) {
            bail!("token {token} of a vocabulary of {}", self.vocabulary);
        }
        let frame = Frame { sequences, length, rows: sequences * length };
        let fits = |workspace: &Workspace| workspace.rows >= frame.rows && workspace.length == length;
        if !self.workspace.as_ref().is_some_and(fits) {
            // First the old one goes.
            self.workspace = None;
            self.workspace = Some(self.new_workspace(frame)?);
        }
        let work = self.work();
        self.device.upload(bytes_of(&batch.inputs), work.tokens.span().first(frame.rows))?;
        self.device.upload(bytes_of(&batch.targets), work.targets.span().first(frame.rows))?;
        Ok(frame)
    }

    fn work(&self) -> &Workspace {
        self.workspace.as_ref().expect("a batch has begun")
    }

    /// Adds the gradient of `share` times the sum of losses to the flat `gradient`. The losses are left in
    /// [`GpuTransformer::losses`].
    pub(crate) fn add_gradient(
        &mut self,
        weights: Weights,
        batch: &TokenBatch,
        share: f32,
        gradient: Span,
    ) -> Result<()> {
        let frame = self.begin(batch)?;
        self.forward(frame, weights)?;
        self.predict(frame, weights, Some((share, gradient)))?;
        self.backward(frame, weights, gradient)
    }

    /// Leaves the losses and hits of a batch.
    pub(crate) fn evaluate(&mut self, weights: Weights, batch: &TokenBatch) -> Result<()> {
        let frame = self.begin(batch)?;
        self.forward(frame, weights)?;
        self.predict(frame, weights, None)
    }

    /// Of the last batch, a row each.
    pub(crate) fn losses(&self, rows: usize) -> Span {
        self.work().losses.span().first(rows)
    }

    /// Of the last batch: 1 for each row whose target was the likeliest, else 0.
    pub(crate) fn hits(&self, rows: usize) -> Span {
        self.work().hits.span().first(rows)
    }

    fn forward(&self, frame: Frame, weights: Weights) -> Result<()> {
        let work = self.work();
        let arguments = [
            weights.exact.part(self.embedding.clone()).into(),
            work.tokens.span().into(),
            work.streams[0].span().into(),
        ];
        self.device.launch("embed", frame.rows, &[&arguments[..], &[size(self.width)]].concat())?;
        for layer in 0..self.blocks.len() {
            self.activate(frame, weights, layer)?;
            self.finish(frame, weights, layer)?;
        }
        Ok(())
    }

    fn kept(&self, layer: usize) -> &Kept {
        let kept = &self.work().kept;
        &kept[layer.min(kept.len() - 1)]
    }

    /// All of a block that its backward needs.
    fn activate(&self, frame: Frame, weights: Weights, layer: usize) -> Result<()> {
        let (work, block, kept) = (self.work(), &self.blocks[layer], self.kept(layer));
        let (rows, width) = (frame.rows, self.width);
        let (stream, normalised, joint) = (work.streams[layer].span(), work.normalised.span(), work.joint.span());
        self.normalise(frame, weights, stream, &block.first_norm)?;
        for (place, columns) in self.joint_parts(block) {
            let part = joint.part(columns.start..joint.values);
            let weight = Matrix::new(weights.for_products.part(place), width).transposed();
            let target = Matrix::new(part, self.joint_width());
            self.multiply(Product::new(Matrix::new(normalised, width), weight, target, [rows, columns.len(), width]))?;
        }
        self.turn_heads(frame, &kept.heads, false)?;
        self.attend(frame, kept)?;
        self.move_heads(frame, kept.attended.span(), false)?;
        self.device.copy(stream.first(rows * width), kept.middle.span().first(rows * width))?;
        let weight = Matrix::new(weights.for_products.part(block.output.clone()), width).transposed();
        let (attended, middle) = (kept.attended.span(), kept.middle.span());
        let target = Matrix::new(middle, width);
        self.multiply(Product::new(Matrix::new(attended, width), weight, target, [rows, width, width]).adds())?;
        self.normalise(frame, weights, middle, &block.second_norm)?;
        let gate_up = kept.gate_up.span();
        for (index, place) in [&block.gate, &block.up].into_iter().enumerate() {
            let target = Matrix::new(gate_up.part(index * self.inner..gate_up.values), 2 * self.inner);
            let weight = Matrix::new(weights.for_products.part(place.clone()), width).transposed();
            self.multiply(Product::new(Matrix::new(normalised, width), weight, target, [rows, self.inner, width]))?;
        }
        self.swiglu(frame, kept)
    }

    /// The block's output from what was kept.
    fn finish(&self, frame: Frame, weights: Weights, layer: usize) -> Result<()> {
        let (work, block, kept) = (self.work(), &self.blocks[layer], self.kept(layer));
        let (rows, width, output) = (frame.rows, self.width, work.streams[layer + 1].span());
        self.device.copy(kept.middle.span().first(rows * width), output.first(rows * width))?;
        let weight = Matrix::new(weights.for_products.part(block.down.clone()), self.inner).transposed();
        let hidden = Matrix::new(work.hidden.span(), self.inner);
        self.multiply(Product::new(hidden, weight, Matrix::new(output, width), [rows, width, self.inner]).adds())
    }

    /// A block's projections of attention, with the columns that they fill.
    fn joint_parts(&self, block: &Block) -> [(Range<usize>, Range<usize>); 3] {
        let (width, key_width) = (self.width, self.key_width());
        [
            (block.query.clone(), 0..width),
            (block.key.clone(), width..width + key_width),
            (block.value.clone(), width + key_width..self.joint_width()),
        ]
    }

    fn multiply(&self, product: Product) -> Result<()> {
        self.device.multiply(&product)
    }

    /// Fills `normalised`.
    fn normalise(&self, frame: Frame, weights: Weights, stream: Span, scale: &Range<usize>) -> Result<()> {
        let (scale, output) = (weights.exact.part(scale.clone()), self.work().normalised.span());
        let arguments = [stream.into(), scale.into(), output.into(), size(self.width), self.epsilon.into()];
        self.device.launch(&of_kind("rms_norm", self.kind), frame.rows, &arguments)
    }

    /// Adds to the gradients of the stream and of the scale what reaches `to_normalised`.
    fn normalise_backward(
        &self,
        frame: Frame,
        weights: Weights,
        stream: Span,
        scale: &Range<usize>,
        gradient: Span,
    ) -> Result<()> {
        let (work, rows, width) = (self.work(), frame.rows, self.width);
        let (to_output, to_stream, factors) = (work.to_normalised.span(), work.to_stream.span(), work.factors.span());
        let spans = [stream, weights.exact.part(scale.clone()), to_output, to_stream, factors].map(Argument::from);
        let arguments = [&spans[..], &[size(width), self.epsilon.into()]].concat();
        self.device.launch("rms_norm_backward", rows, &arguments)?;
        let spans = [stream, to_output, factors, gradient.part(scale.clone())].map(Argument::from);
        let arguments = [&spans[..], &[size(rows), size(width), size(STRIP)]].concat();
        self.device.launch("rms_scale_backward", width.div_ceil(32) * rows.div_ceil(STRIP), &arguments)
    }

    /// Between joint rows and turned heads.
    fn turn_heads(&self, frame: Frame, heads: &Heads, backwards: bool) -> Result<()> {
        let tables = [self.cosines.span(), self.sines.span()];
        let spans = [self.work().joint.span(), heads.query.span(), heads.key.span(), heads.value.span()];
        let sizes = [frame.length, self.heads, self.key_heads, self.head_width() / 2, usize::from(backwards)];
        let arguments = [&spans[..], &tables[..]].concat().into_iter().map(Argument::from);
        let arguments: Vec<Argument> = arguments.chain(sizes.map(size)).collect();
        self.device.launch(&of_kind("turn_heads", self.kind), frame.rows, &arguments)
    }

    /// Between rows and `in_heads`.
    fn move_heads(&self, frame: Frame, rows: Span, to_heads: bool) -> Result<()> {
        let sizes = [frame.length, self.heads, self.head_width(), usize::from(to_heads)].map(size);
        let spans = [rows.into(), self.work().in_heads.span().into()];
        self.device.launch(&of_kind("move_heads", self.kind), frame.rows, &[&spans[..], &sizes[..]].concat())
    }

    /// What is attended at once: each time the heads that share one key, of as many keys as fit.
    fn units(&self, frame: Frame) -> impl Iterator<Item = Unit> + use<> {
        let (sharing, at_once) = self.groups(frame);
        let (all, length, head_width) = (frame.sequences * self.key_heads, frame.length, self.head_width());
        (0..all).step_by(at_once).map(move |first| {
            let units = at_once.min(all - first);
            Unit { first, units, queries: sharing * length, length, head_width }
        })
    }

    fn probabilities(&self, unit: &Unit, heads: &Heads) -> Result<()> {
        let scores = self.work().scores.span();
        let (query, key) = (unit.queries(heads.query.span()), unit.keys(heads.key.span()));
        let shape = [unit.queries, unit.length, unit.head_width];
        self.multiply(Product::new(query, key.transposed(), unit.scores(scores), shape).batch(unit.units))?;
        let arguments = [scores.into(), size(unit.length), self.score_scale().into()];
        self.device.launch(&of_kind("causal_softmax", self.kind), unit.units * unit.queries, &arguments)
    }

    fn score_scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }

    /// Fills `in_heads`.
    fn attend(&self, frame: Frame, kept: &Kept) -> Result<()> {
        for unit in self.units(frame) {
            self.probabilities(&unit, &kept.heads)?;
            let (scores, value) = (unit.scores(self.work().scores.span()), unit.keys(kept.heads.value.span()));
            let (target, shape) =
                (unit.queries(self.work().in_heads.span()), [unit.queries, unit.head_width, unit.length]);
            self.multiply(Product::new(scores, value, target, shape).batch(unit.units))?;
        }
        Ok(())
    }

    /// From the gradient in `in_heads` to that in `to_heads`.
    fn attend_backward(&self, frame: Frame, kept: &Kept) -> Result<()> {
        let work = self.work();
        let (scores, to_scores) = (work.scores.span(), work.to_scores.span());
        for unit in self.units(frame) {
            self.probabilities(&unit, &kept.heads)?;
            let Unit { units, queries, length, head_width, .. } = unit;
            let to_output = unit.queries(work.in_heads.span());
            let value = unit.keys(kept.heads.value.span());
            let product = |a, b, c, shape| self.multiply(Product::new(a, b, c, shape).batch(units));
            product(to_output, value.transposed(), unit.scores(to_scores), [queries, length, head_width])?;
            let to_value = unit.keys(work.to_heads.value.span());
            product(unit.scores(scores).transposed(), to_output, to_value, [length, head_width, queries])?;
            let arguments = [scores.into(), to_scores.into(), size(length), self.score_scale().into()];
            self.device.launch(&of_kind("causal_softmax_backward", self.kind), units * queries, &arguments)?;
            let (query, key) = (unit.queries(kept.heads.query.span()), unit.keys(kept.heads.key.span()));
            let to_query = unit.queries(work.to_heads.query.span());
            product(unit.scores(to_scores), key, to_query, [queries, head_width, length])?;
            let to_key = unit.keys(work.to_heads.key.span());
            product(unit.scores(to_scores).transposed(), query, to_key, [length, head_width, queries])?;
        }
        Ok(())
    }

    /// Fills `hidden`.
    fn swiglu(&self, frame: Frame, kept: &Kept) -> Result<()> {
        let values = frame.rows * self.inner;
        let spans = [kept.gate_up.span().into(), self.work().hidden.span().into()];
        let arguments = [&spans[..], &[size(self.inner), count(values)]].concat();
        launch_for_each(&*self.device, &of_kind("swiglu", self.kind), values, &arguments)
    }

    /// Fills losses and hits; with a share and a gradient, adds to it, and fills the gradient of the stream.
    fn predict(&self, frame: Frame, weights: Weights, backward: Option<(f32, Span)>) -> Result<()> {
        let (work, width, vocabulary) = (self.work(), self.width, self.vocabulary);
        let stream = work.streams[self.blocks.len()].span();
        self.normalise(frame, weights, stream, &self.last_norm)?;
        let weight = Matrix::new(weights.for_products.part(self.head.clone()), width);
        let at_once = logit_rows_at_once(self.vocabulary, frame.rows);
        for first in (0..frame.rows).step_by(at_once) {
            let rows = at_once.min(frame.rows - first);
            let normalised = work.normalised.span().part(first * width..(first + rows) * width);
            let (normalised, logits) = (Matrix::new(normalised, width), Matrix::new(work.logits.span(), vocabulary));
            self.multiply(Product::new(normalised, weight.transposed(), logits, [rows, vocabulary, width]))?;
            let of_rows = |memory: &Memory| Argument::from(memory.span().part(first..first + rows));
            let spans = [work.logits.span().into(), of_rows(&work.targets), of_rows(&work.losses), of_rows(&work.hits)];
            let share = backward.map_or(0.0, |(share, _)| share);
            let arguments = [&spans[..], &[size(vocabulary), share.into()]].concat();
            self.device.launch(&of_kind("cross_entropy", self.kind), rows, &arguments)?;
            let Some((_, gradient)) = backward else { continue };
            let to_weight = Matrix::new(gradient.part(self.head.clone()), width);
            let shape = [vocabulary, width, rows];
            self.multiply(Product::new(logits.transposed(), normalised, to_weight, shape).adds())?;
            let to_normalised = work.to_normalised.span().part(first * width..(first + rows) * width);
            let to_normalised = Matrix::new(to_normalised, width);
            self.multiply(Product::new(logits, weight, to_normalised, [rows, width, vocabulary]))?;
        }
        let Some((_, gradient)) = backward else { return Ok(()) };
        self.device.clear(work.to_stream.span().first(frame.rows * width))?;
        self.normalise_backward(frame, weights, stream, &self.last_norm, gradient)
    }

    /// The gradient of the stream as products read it.
    fn rounded_gradient(&self, frame: Frame) -> Result<Span> {
        let (exact, rounded) = (self.work().to_stream.span(), self.work().rounded.span());
        if self.kind == Kind::F32 {
            return Ok(exact);
        }
        let values = frame.rows * self.width;
        launch_for_each(&*self.device, "to_bf16", values, &[exact.into(), rounded.into(), count(values)])?;
        Ok(rounded)
    }

    fn backward(&self, frame: Frame, weights: Weights, gradient: Span) -> Result<()> {
        for layer in (0..self.blocks.len()).rev() {
            if self.recompute {
                self.activate(frame, weights, layer)?;
            }
            self.feed_forward_backward(frame, weights, layer, gradient)?;
            self.attention_backward(frame, weights, layer, gradient)?;
        }
        let work = self.work();
        let spans = [work.to_stream.span(), work.tokens.span(), gradient.part(self.embedding.clone())];
        let arguments = [&spans.map(Argument::from)[..], &[size(self.width)]].concat();
        self.device.launch("embed_backward", frame.rows, &arguments)
    }

    fn feed_forward_backward(&self, frame: Frame, weights: Weights, layer: usize, gradient: Span) -> Result<()> {
        let (work, block, kept) = (self.work(), &self.blocks[layer], self.kept(layer));
        let (rows, width, inner) = (frame.rows, self.width, self.inner);
        let weight = |place: &Range<usize>, row: usize| Matrix::new(weights.for_products.part(place.clone()), row);
        let to_weight = |place: &Range<usize>, row: usize| Matrix::new(gradient.part(place.clone()), row);
        let to_output = Matrix::new(self.rounded_gradient(frame)?, width);
        self.swiglu(frame, kept)?;
        let hidden = Matrix::new(work.hidden.span(), inner);
        let to_down = Product::new(to_output.transposed(), hidden, to_weight(&block.down, inner), [width, inner, rows]);
        self.multiply(to_down.adds())?;
        let to_hidden = Matrix::new(work.to_hidden.span(), inner);
        self.multiply(Product::new(to_output, weight(&block.down, inner), to_hidden, [rows, inner, width]))?;
        let spans = [kept.gate_up.span().into(), work.to_hidden.span().into()];
        let arguments = [&spans[..], &[size(inner), count(rows * inner)]].concat();
        launch_for_each(&*self.device, &of_kind("swiglu_backward", self.kind), rows * inner, &arguments)?;
        self.normalise(frame, weights, kept.middle.span(), &block.second_norm)?;
        let normalised = Matrix::new(work.normalised.span(), width);
        let to_normalised = Matrix::new(work.to_normalised.span(), width);
        let gate_up = kept.gate_up.span();
        for (index, place) in [&block.gate, &block.up].into_iter().enumerate() {
            let part = Matrix::new(gate_up.part(index * inner..gate_up.values), 2 * inner);
            let product = Product::new(part.transposed(), normalised, to_weight(place, width), [inner, width, rows]);
            self.multiply(product.adds())?;
            let product = Product::new(part, weight(place, width), to_normalised, [rows, width, inner]);
            self.multiply(if index == 0 { product } else { product.adds() })?;
        }
        self.normalise_backward(frame, weights, kept.middle.span(), &block.second_norm, gradient)
    }

    fn attention_backward(&self, frame: Frame, weights: Weights, layer: usize, gradient: Span) -> Result<()> {
        let (work, block, kept) = (self.work(), &self.blocks[layer], self.kept(layer));
        let (rows, width) = (frame.rows, self.width);
        let weight = |place: &Range<usize>| Matrix::new(weights.for_products.part(place.clone()), width);
        let to_weight = |place: &Range<usize>| Matrix::new(gradient.part(place.clone()), width);
        let to_output = Matrix::new(self.rounded_gradient(frame)?, width);
        let attended = Matrix::new(kept.attended.span(), width);
        let product = Product::new(to_output.transposed(), attended, to_weight(&block.output), [width, width, rows]);
        self.multiply(product.adds())?;
        // What was normalised is computed again below.
        let to_attended = work.normalised.span();
        let product =
            Product::new(to_output, weight(&block.output), Matrix::new(to_attended, width), [rows, width, width]);
        self.multiply(product)?;
        self.move_heads(frame, to_attended, true)?;
        self.attend_backward(frame, kept)?;
        self.turn_heads(frame, &work.to_heads, true)?;
        let stream = work.streams[layer].span();
        self.normalise(frame, weights, stream, &block.first_norm)?;
        let normalised = Matrix::new(work.normalised.span(), width);
        let to_normalised = Matrix::new(work.to_normalised.span(), width);
        let joint = work.joint.span();
        for (index, (place, columns)) in self.joint_parts(block).into_iter().enumerate() {
            let part = Matrix::new(joint.part(columns.start..joint.values), self.joint_width());
            let shape = [columns.len(), width, rows];
            self.multiply(Product::new(part.transposed(), normalised, to_weight(&place), shape).adds())?;
            let product = Product::new(part, weight(&place), to_normalised, [rows, width, columns.len()]);
            self.multiply(if index == 0 { product } else { product.adds() })?;
        }
        self.normalise_backward(frame, weights, stream, &block.first_norm, gradient)
    }
}

/// Pairs of a sequence and a key, one after the other, with the queries of the heads that share the key.
struct Unit {
    first: usize,
    units: usize,
    /// Of one pair: heads that share the key, times the length.
    queries: usize,
    length: usize,
    head_width: usize,
}

impl Unit {
    fn of(&self, heads: Span, rows: usize) -> Matrix {
        let values = rows * self.head_width;
        let part = heads.part(self.first * values..(self.first + self.units) * values);
        Matrix::new(part, self.head_width).every(values)
    }

    fn queries(&self, heads: Span) -> Matrix {
        self.of(heads, self.queries)
    }

    fn keys(&self, heads: Span) -> Matrix {
        self.of(heads, self.length)
    }

    fn scores(&self, scores: Span) -> Matrix {
        Matrix::new(scores, self.length).every(self.queries * self.length)
    }
}

//! The forward and backward of a transformer, as `model/transformer` has them for the CPU.
//!
//! The residual stream, its gradient and sums over rows are `f32`; what matrices are multiplied in is the kind of the
//! weights given. Backward computes attention's probabilities, norms and SwiGLU again instead of keeping them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, bail};
use murmur_protocol::manifest::ModelSpec;

use super::weights::{Adapter, Gradient, Weights};
use super::{Accelerator, Argument, HEAD_COLUMNS, Kind, Matrix, Memory, Product, Span, THREADS};
use super::{bytes_of, of_kind, size};
use crate::data::TokenBatch;
use crate::model::StageSpec;
use crate::model::transformer::stage_layout;
use crate::ops::rotary::RotaryTables;

mod attention;
mod backward;
mod families;
mod stage;
mod workspace;

pub(crate) use workspace::activation_values;
use workspace::{Kept, Pass, Workspace, fuses_attention, logit_rows_at_once};

pub(crate) struct GpuTransformer {
    device: Arc<dyn Accelerator>,
    /// Of what matrices are multiplied in.
    kind: Kind,
    recompute: bool,
    /// Whether attention is one kernel, not products of scores that are held.
    fuses_attention: bool,
    width: usize,
    inner: usize,
    heads: usize,
    key_heads: usize,
    head_width: usize,
    has_head_norm: bool,
    vocabulary: usize,
    context: usize,
    epsilon: f32,
    /// Of adapters; 0 without.
    rank: usize,
    /// Of a stage that embeds.
    embedding: Option<Range<usize>>,
    /// The last norm and the head, of a stage that predicts.
    end: Option<[Range<usize>; 2]>,
    blocks: Vec<Block>,
    /// Of layers that turn queries and keys.
    angles: Angles,
    /// Of layers that do not, where there are some: no turn.
    no_angles: Option<Angles>,
    /// Of the largest batch so far.
    workspace: Option<Workspace>,
    /// Forwards of a stage whose backward is to come, in order.
    waiting: VecDeque<(Frame, Pass)>,
    /// Memory of passes that are over.
    free: Vec<Pass>,
}

/// Where a block's tensors lie in flat vectors.
struct Block {
    first_norm: Range<usize>,
    /// Of queries, keys and values, which lie side by side.
    joint: Range<usize>,
    output: Range<usize>,
    second_norm: Range<usize>,
    /// Side by side.
    gate_up: Range<usize>,
    down: Range<usize>,
    /// Of queries, keys and values.
    joint_biases: Option<[Range<usize>; 3]>,
    output_bias: Option<Range<usize>>,
    /// The scales of queries' heads and of keys' heads.
    head_norms: Option<[Range<usize>; 2]>,
    has_rope: bool,
}

/// By which queries and keys are turned, each `[context, half a head's width]`.
struct Angles {
    cosines: Memory,
    sines: Memory,
}

impl Angles {
    fn new(device: &dyn Accelerator, cosines: &[f32], sines: &[f32]) -> Result<Angles> {
        let table = |values: &[f32]| {
            let memory = device.allocate(Kind::F32, values.len())?;
            device.upload(bytes_of(values), memory.span())?;
            Ok::<Memory, candle_core::Error>(memory)
        };
        Ok(Angles { cosines: table(cosines)?, sines: table(sines)? })
    }

    fn spans(&self) -> [Span; 2] {
        [self.cosines.span(), self.sines.span()]
    }
}

/// The batch that is being computed.
#[derive(Clone, Copy)]
struct Frame {
    sequences: usize,
    length: usize,
    rows: usize,
}

impl GpuTransformer {
    pub(crate) fn new(
        device: Arc<dyn Accelerator>,
        spec: &ModelSpec,
        stage: &StageSpec,
        (kind, recompute, rank): (Kind, bool, usize),
    ) -> Result<GpuTransformer> {
        let layout = stage_layout(spec, stage);
        let find = |name: &str| layout.tensor(name).map(|tensor| tensor.range());
        let place = |name: &str| find(name).expect("the layout has every tensor of the model");
        let block = |layer: u32| {
            let find = |part: &str| find(&format!("model.layers.{layer}.{part}"));
            let place = |part: &str| place(&format!("model.layers.{layer}.{part}.weight"));
            // All of these have one, or none has.
            let biases = ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"].map(find);
            let norms = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"].map(find);
            Block {
                first_norm: place("input_layernorm"),
                joint: adjacent(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(place)),
                output: place("self_attn.o_proj"),
                second_norm: place("post_attention_layernorm"),
                gate_up: adjacent(["mlp.gate_proj", "mlp.up_proj"].map(place)),
                down: place("mlp.down_proj"),
                joint_biases: all(biases),
                output_bias: find("self_attn.o_proj.bias"),
                head_norms: all(norms),
                has_rope: spec.has_rope(layer),
            }
        };
        let embedding = find("model.embed_tokens.weight");
        let head = || find("lm_head.weight").or_else(|| embedding.clone()).expect("the layout has a head");
        let end = stage.predicts.then(|| [place("model.norm.weight"), head()]);
        let context = spec.context as usize;
        let tables = RotaryTables::of(spec);
        let head_width = spec.resolved_head_width() as usize;
        assert!(head_width <= HEAD_COLUMNS * THREADS, "the ranges of a run's model");
        let values = tables.cosines().len();
        let angles = Angles::new(&*device, tables.cosines(), tables.sines())?;
        let no_angles = (!spec.layers_without_rope.is_empty())
            .then(|| Angles::new(&*device, &vec![1.0; values], &vec![0.0; values]))
            .transpose()?;
        Ok(GpuTransformer {
            kind,
            recompute,
            fuses_attention: fuses_attention(kind, head_width),
            width: spec.width as usize,
            inner: spec.feed_forward as usize,
            heads: spec.heads as usize,
            key_heads: spec.resolved_key_value_heads() as usize,
            head_width,
            has_head_norm: spec.head_norm,
            vocabulary: spec.vocabulary as usize,
            context,
            epsilon: spec.norm_epsilon as f32,
            rank,
            end,
            embedding,
            blocks: stage.layers.clone().map(block).collect(),
            angles,
            no_angles,
            workspace: None,
            waiting: VecDeque::new(),
            free: Vec::new(),
            device,
        })
    }

    fn head_width(&self) -> usize {
        self.head_width
    }

    fn query_width(&self) -> usize {
        self.head_width * self.heads
    }

    fn key_width(&self) -> usize {
        self.head_width() * self.key_heads
    }

    fn joint_width(&self) -> usize {
        self.query_width() + 2 * self.key_width()
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
        if self.work().pass.as_ref().is_none_or(|pass| pass.rows < frame.rows) {
            self.free.retain(|pass| pass.rows >= frame.rows);
            let pass = self.free.pop().map_or_else(|| self.new_pass(frame), Ok)?;
            self.work_mut().pass = Some(pass);
        }
        let pass = self.pass();
        self.device.upload(bytes_of(&batch.inputs), pass.tokens.span().first(frame.rows))?;
        self.device.upload(bytes_of(&batch.targets), pass.targets.span().first(frame.rows))?;
        Ok(frame)
    }

    fn pass(&self) -> &Pass {
        self.work().pass.as_ref().expect("a microbatch is under way")
    }

    fn work_mut(&mut self) -> &mut Workspace {
        self.workspace.as_mut().expect("a batch has begun")
    }

    fn work(&self) -> &Workspace {
        self.workspace.as_ref().expect("a batch has begun")
    }

    /// Adds the gradient of `share` times the sum of losses to `gradient`. The losses are left in
    /// [`GpuTransformer::losses`].
    pub(crate) fn add_gradient(
        &mut self,
        weights: &Weights,
        batch: &TokenBatch,
        share: f32,
        gradient: Gradient,
    ) -> Result<()> {
        let frame = self.begin(batch)?;
        self.forward(frame, weights)?;
        self.predict(frame, weights, Some((share, gradient)))?;
        self.backward(frame, weights, gradient)
    }

    /// Leaves the losses and hits of a batch.
    pub(crate) fn evaluate(&mut self, weights: &Weights, batch: &TokenBatch) -> Result<()> {
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

    fn forward(&self, frame: Frame, weights: &Weights) -> Result<()> {
        if let Some(embedding) = &self.embedding {
            let pass = self.pass();
            let spans = [weights.exact(embedding), pass.tokens.span(), pass.streams[0].span()];
            let arguments = [&spans.map(Argument::from)[..], &[size(self.width)]].concat();
            self.device.launch("embed", frame.rows, &arguments)?;
        }
        let first_norm = |layer: usize| self.blocks.get(layer).map(|block| &block.first_norm);
        if let Some(norm) = first_norm(0) {
            self.normalise(frame, weights, self.pass().streams[0].span(), norm)?;
        }
        for layer in 0..self.blocks.len() {
            self.activate(frame, weights, layer)?;
            self.finish(frame, weights, layer, first_norm(layer + 1))?;
        }
        Ok(())
    }

    fn kept(&self, layer: usize) -> &Kept {
        let kept = &self.pass().kept;
        &kept[layer.min(kept.len() - 1)]
    }

    /// All of a block that its backward needs, from its stream, which has been normalised.
    fn activate(&self, frame: Frame, weights: &Weights, layer: usize) -> Result<()> {
        let (block, kept, added) = (&self.blocks[layer], self.kept(layer), self.work().added.span());
        let stream = self.pass().streams[layer].span();
        self.project(frame, weights, &self.joint(block))?;
        self.add_joint_biases(frame, weights, block)?;
        self.normalise_heads(frame, weights, block, kept)?;
        self.turn_heads(frame, layer, &kept.heads, false)?;
        self.attend(frame, kept)?;
        self.project(frame, weights, &self.output(block, kept, added))?;
        self.add_output_bias(frame, weights, block, added)?;
        self.add_and_normalise(frame, weights, [stream, added, kept.middle.span()], Some(&block.second_norm))?;
        self.project(frame, weights, &self.gate_up(block, kept))?;
        self.swiglu(frame, kept)
    }

    /// The block's output from what was kept; where there is a next norm, also that.
    fn finish(&self, frame: Frame, weights: &Weights, layer: usize, next_norm: Option<&Range<usize>>) -> Result<()> {
        let (block, kept, added) = (&self.blocks[layer], self.kept(layer), self.work().added.span());
        let output = self.pass().streams[layer + 1].span();
        self.project(frame, weights, &self.down(block, added))?;
        self.add_and_normalise(frame, weights, [kept.middle.span(), added, output], next_norm)
    }

    fn joint(&self, block: &Block) -> Projection {
        self.of_normalised(&block.joint, self.work().joint.span(), self.joint_width())
    }

    /// Columns of queries, keys and values in a joint row.
    fn joint_columns(&self) -> [Range<usize>; 3] {
        let (queries, keys) = (self.query_width(), self.query_width() + self.key_width());
        [0..queries, queries..keys, keys..self.joint_width()]
    }

    fn gate_up(&self, block: &Block, kept: &Kept) -> Projection {
        self.of_normalised(&block.gate_up, kept.gate_up.span(), 2 * self.inner)
    }

    fn of_normalised(&self, place: &Range<usize>, results: Span, outputs: usize) -> Projection {
        let (inputs, results) = (Matrix::new(self.work().normalised.span(), self.width), Matrix::new(results, outputs));
        Projection { place: place.clone(), inputs, results, shape: [outputs, self.width] }
    }

    /// From what was attended to `results` in the stream's width.
    fn output(&self, block: &Block, kept: &Kept, results: Span) -> Projection {
        self.onto_stream(&block.output, Matrix::new(kept.attended.span(), self.query_width()), results)
    }

    /// From `hidden` to `results` in the stream's width.
    fn down(&self, block: &Block, results: Span) -> Projection {
        self.onto_stream(&block.down, Matrix::new(self.work().hidden.span(), self.inner), results)
    }

    fn onto_stream(&self, place: &Range<usize>, inputs: Matrix, results: Span) -> Projection {
        let (place, shape) = (place.clone(), [self.width, inputs.columns()]);
        Projection { place, inputs, results: Matrix::new(results, self.width), shape }
    }

    /// Fills the results.
    fn project(&self, frame: Frame, weights: &Weights, projection: &Projection) -> Result<()> {
        let (rows, [outputs, width]) = (frame.rows, projection.shape);
        let weight = weights.matrix(&projection.place, width).transposed();
        self.multiply(Product::new(projection.inputs, weight, projection.results, [rows, outputs, width]))?;
        for adapter in weights.adapters_in(&projection.place) {
            let (low, results) = (self.lowered(frame, projection, &adapter)?, projection.results_of(&adapter));
            let shape = [rows, adapter.places.outputs(), adapter.places.rank()];
            self.multiply(Product::new(low, adapter.up.transposed(), results, shape).scaled(adapter.scale).adds())?;
        }
        Ok(())
    }

    /// The inputs times Aᵀ: `[rows, rank]`.
    fn lowered(&self, frame: Frame, projection: &Projection, adapter: &Adapter) -> Result<Matrix> {
        let (rank, width) = (adapter.places.rank(), adapter.places.inputs());
        let low = Matrix::new(self.work().low.span(), rank);
        let down = adapter.down.transposed();
        self.multiply(Product::new(projection.inputs, down, low, [frame.rows, rank, width]))?;
        Ok(low)
    }

    fn multiply(&self, product: Product) -> Result<()> {
        self.device.multiply(&product)
    }

    /// Fills `normalised`.
    fn normalise(&self, frame: Frame, weights: &Weights, stream: Span, scale: &Range<usize>) -> Result<()> {
        let (scale, output) = (weights.exact(scale), self.work().normalised.span());
        let arguments = [stream.into(), scale.into(), output.into(), size(self.width), self.epsilon.into()];
        self.device.launch(&of_kind("rms_norm", self.kind), frame.rows, &arguments)
    }

    /// The third is the sum of the first two; fills `normalised` where there is a scale.
    fn add_and_normalise(
        &self,
        frame: Frame,
        weights: &Weights,
        [stream, added, sum]: [Span; 3],
        scale: Option<&Range<usize>>,
    ) -> Result<()> {
        let scale = scale.map(|scale| weights.exact(scale)).into();
        let spans = [stream.into(), added.into(), sum.into(), scale, self.work().normalised.span().into()];
        let arguments = [&spans[..], &[size(self.width), self.epsilon.into()]].concat();
        self.device.launch(&of_kind("add_and_norm", self.kind), frame.rows, &arguments)
    }

    /// Fills `hidden`.
    fn swiglu(&self, frame: Frame, kept: &Kept) -> Result<()> {
        let arguments = [kept.gate_up.span().into(), self.work().hidden.span().into(), size(self.inner)];
        self.device.launch(&of_kind("swiglu", self.kind), frame.rows, &arguments)
    }

    /// Fills losses and hits; with a share and a gradient, adds to it, and fills the gradient of the stream.
    fn predict(&self, frame: Frame, weights: &Weights, backward: Option<(f32, Gradient)>) -> Result<()> {
        let (work, width, vocabulary) = (self.work(), self.width, self.vocabulary);
        let [last_norm, head] = self.end.as_ref().expect("only a stage with a head predicts");
        let stream = self.pass().streams[self.blocks.len()].span();
        self.normalise(frame, weights, stream, last_norm)?;
        let weight = weights.matrix(head, width);
        let at_once = logit_rows_at_once(self.vocabulary, frame.rows);
        for first in (0..frame.rows).step_by(at_once) {
            let rows = at_once.min(frame.rows - first);
            let normalised = work.normalised.span().part(first * width..(first + rows) * width);
            let (normalised, logits) = (Matrix::new(normalised, width), Matrix::new(work.logits.span(), vocabulary));
            self.multiply(Product::new(normalised, weight.transposed(), logits, [rows, vocabulary, width]))?;
            let of_rows = |memory: &Memory| Argument::from(memory.span().part(first..first + rows));
            let targets = of_rows(&self.pass().targets);
            let spans = [work.logits.span().into(), targets, of_rows(&work.losses), of_rows(&work.hits)];
            let share = backward.map_or(0.0, |(share, _)| share);
            let arguments = [&spans[..], &[size(vocabulary), share.into()]].concat();
            self.device.launch(&of_kind("cross_entropy", self.kind), rows, &arguments)?;
            let Some((_, gradient)) = backward else { continue };
            if let Some(to_weight) = gradient.of(head) {
                let (to_weight, shape) = (Matrix::new(to_weight, width), [vocabulary, width, rows]);
                self.multiply(Product::new(logits.transposed(), normalised, to_weight, shape).adds())?;
            }
            let to_normalised = work.to_normalised.span().part(first * width..(first + rows) * width);
            let to_normalised = Matrix::new(to_normalised, width);
            self.multiply(Product::new(logits, weight, to_normalised, [rows, width, vocabulary]))?;
        }
        let Some((_, gradient)) = backward else { return Ok(()) };
        self.device.clear(work.to_stream.span().first(frame.rows * width))?;
        self.normalise_backward(frame, weights, stream, last_norm, gradient)
    }
}

/// Every one of them, where there are any.
fn all<const N: usize>(places: [Option<Range<usize>>; N]) -> Option<[Range<usize>; N]> {
    let places: Option<Vec<Range<usize>>> = places.into_iter().collect();
    places.and_then(|places| places.try_into().ok())
}

/// Where tensors lie of which each begins where the one before it ends.
fn adjacent<const N: usize>(places: [Range<usize>; N]) -> Range<usize> {
    assert!(places.windows(2).all(|pair| pair[0].end == pair[1].start), "the layout has {places:?} side by side");
    places[0].start..places[N - 1].end
}

/// `results` `[rows, outputs]` = `inputs` `[rows, width]` · Wᵀ. In backward the results are replaced by their gradient.
struct Projection {
    /// Of W, which may be several matrices one below the other, in the model's layout.
    place: Range<usize>,
    inputs: Matrix,
    results: Matrix,
    /// `[outputs, width]`.
    shape: [usize; 2],
}

impl Projection {
    /// The columns of the matrix that an adapter is beside.
    fn results_of(&self, adapter: &Adapter) -> Matrix {
        self.results.columns_from(adapter.places.first_output(&self.place))
    }
}

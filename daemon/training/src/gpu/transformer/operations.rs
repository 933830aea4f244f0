//! A transformer's operations as kernels and products.

use std::ops::Range;

use candle_core::Result;

use super::Gpu;
use super::linear::Linear;
use super::memory::{GpuBuffer, GpuCache, GpuHeads, GpuMemory, GpuTokens, logit_rows_at_once};
use crate::gpu::rows::add_rows;
use crate::gpu::{
    Argument, Kind, Matrix, Memory, Span, bytes_of, bytes_of_mut, count, launch_for_each, norm_strip, of_kind, size,
    sizes,
};
use crate::model::transformer::operations::{HeadWeights, Operations, Projection};
use crate::ops::attention::Attention;
use crate::ops::rotary::Turn;
use crate::replica::Transfer;

impl Gpu<'_> {
    fn width(&self) -> usize {
        self.model.width()
    }

    fn allocate(&self, kind: Kind, values: usize) -> Result<GpuBuffer> {
        Ok(GpuBuffer { values: self.model.device.allocate(kind, values)?, rounded: None })
    }

    /// The values of a stream that the batch has.
    fn stream(&self, buffer: &GpuBuffer) -> Span {
        buffer.span().first(self.rows() * self.width())
    }

    /// Fills a stream or its gradient from elsewhere on the device.
    pub(super) fn copy_stream(&self, from: Span, stream: &GpuBuffer) -> Result<()> {
        self.model.device.copy(from, self.stream(stream))?;
        self.round_stream(stream)
    }

    /// Begins to bring a stream or its gradient to the machine's memory.
    pub(super) fn begin_download(&self, stream: &GpuBuffer) -> Result<Transfer<Vec<f32>>> {
        self.model.device.begin_download(self.stream(stream))
    }

    /// As products read it, where these do not read `f32`.
    fn round_stream(&self, stream: &GpuBuffer) -> Result<()> {
        let (exact, Some(rounded)) = (self.stream(stream), &stream.rounded) else { return Ok(()) };
        let arguments = [exact.into(), rounded.span().into(), count(exact.values)];
        launch_for_each(&*self.model.device, "to_bf16", exact.values, &arguments)
    }

    fn linear_of<'p>(&self, projection: &'p Projection, input: Span, output: Span) -> Linear<'p> {
        let (inputs, results) = (Matrix::new(input, projection.inputs), Matrix::new(output, projection.outputs));
        Linear { place: &projection.weight, rows: self.rows(), inputs, results }
    }

    /// Of some rows of the inputs, to the first of the results.
    fn linear_of_rows<'p>(&self, head: &'p Projection, rows: Range<usize>, inputs: Span, results: Span) -> Linear<'p> {
        let inputs = inputs.part(rows.start * head.inputs..rows.end * head.inputs);
        Linear { rows: rows.len(), ..self.linear_of(head, inputs, results) }
    }

    /// Of what was normalised to joint rows.
    fn joint<'p>(&self, place: &'p Range<usize>, input: &GpuBuffer) -> Linear<'p> {
        let inputs = Matrix::new(input.span(), self.width());
        let results = Matrix::new(self.scratch.joint.span(), self.attention.joint_width());
        Linear { place, rows: self.rows(), inputs, results }
    }

    /// The columns of queries, keys and values in the joint rows, with the bias of each, where there are some.
    fn joint_biases<'w>(
        &self,
        weights: &'w HeadWeights,
    ) -> impl Iterator<Item = (&'w Range<usize>, Columns)> + use<'w> {
        let (values, row_width) = (self.scratch.joint.span(), self.attention.joint_width());
        let with_bias = weights.projections.iter().zip(self.attention.columns());
        with_bias.filter_map(move |(projection, columns)| {
            projection.bias.as_ref().map(|bias| (bias, Columns { values, row_width, columns }))
        })
    }

    fn whole_rows(&self, values: Span) -> Columns {
        Columns { values, row_width: self.width(), columns: 0..self.width() }
    }

    fn add_bias(&self, place: &Columns, bias: &Range<usize>) -> Result<()> {
        let sizes = [place.row_width, place.columns.start, place.columns.len()].map(size);
        let arguments = [&[place.values.into(), self.weights.exact(bias).into()][..], &sizes[..]].concat();
        self.launch("add_bias", self.rows(), &arguments)
    }

    /// Adds the gradient of a bias from that of the columns to which it was added.
    fn bias_backward(&self, place: &Columns, bias: &Range<usize>) -> Result<()> {
        let (Some(to_bias), width) = (self.gradient().of(bias), place.columns.len()) else { return Ok(()) };
        let strip = sizes().strip;
        let sizes = [self.rows(), place.row_width, place.columns.start, width, strip].map(size);
        let arguments = [&[place.values.into(), to_bias.into()][..], &sizes[..]].concat();
        let blocks = width.div_ceil(32) * self.rows().div_ceil(strip);
        self.model.device.launch(&of_kind("bias_backward", place.values.kind), blocks, &arguments)
    }
}

/// All of a block's queries, keys and values.
fn joint_place(weights: &HeadWeights) -> Range<usize> {
    let [query, _, value] = &weights.projections;
    query.weight.start..value.weight.end
}

/// Some columns of rows of a width.
struct Columns {
    values: Span,
    row_width: usize,
    columns: Range<usize>,
}

impl Operations for Gpu<'_> {
    type Memory = GpuMemory;

    fn rows(&self) -> usize {
        self.attention.rows()
    }

    fn fits(&self, rows: usize) -> bool {
        rows >= self.rows()
    }

    fn new_stream(&self, _is_given: bool) -> Result<GpuBuffer> {
        self.allocate(Kind::F32, self.rows() * self.width())
    }

    fn new_stream_gradient(&self, is_given: bool) -> Result<GpuBuffer> {
        let rounds = self.model.kind != Kind::F32;
        let rounded = || self.model.device.allocate(self.model.kind, self.rows() * self.width());
        Ok(GpuBuffer { rounded: rounds.then(rounded).transpose()?, ..self.new_stream(is_given)? })
    }

    fn new_buffer(&self, values: usize) -> Result<GpuBuffer> {
        self.allocate(self.model.kind, values)
    }

    fn new_heads(&self, is_kept: bool) -> Result<GpuHeads> {
        GpuHeads::new(self.model, &self.attention, is_kept)
    }

    fn new_cache(&self) -> Result<GpuCache> {
        let rows = || {
            self.model.device.allocate(self.model.kind, self.model.spec.context as usize * self.attention.key_width())
        };
        Ok(GpuCache { key: rows()?, value: rows()? })
    }

    fn new_tokens(&self) -> Result<GpuTokens> {
        let tokens = || self.model.device.allocate(Kind::U32, self.rows());
        Ok(GpuTokens { inputs: tokens()?, targets: tokens()? })
    }

    fn predicted_at_once(&self, vocabulary: usize) -> usize {
        logit_rows_at_once(vocabulary, self.rows())
    }

    fn load_batch(&self, tokens: &mut GpuTokens) -> Result<()> {
        self.model.device.upload(bytes_of(&self.batch.inputs), tokens.inputs.span().first(self.rows()))?;
        self.model.device.upload(bytes_of(&self.batch.targets), tokens.targets.span().first(self.rows()))
    }

    fn take_over(&self, values: Vec<f32>, stream: &mut GpuBuffer) -> Result<()> {
        self.model.device.upload(bytes_of(&values), self.stream(stream))?;
        self.round_stream(stream)
    }

    fn give_away(&self, stream: &mut GpuBuffer) -> Result<Vec<f32>> {
        let mut values = vec![0.0_f32; self.rows() * self.width()];
        self.model.device.download(self.stream(stream), bytes_of_mut(&mut values))?;
        Ok(values)
    }

    /// Nothing has gone but a copy.
    fn replace(&self, _given: &mut GpuBuffer, _spare: &mut GpuBuffer) {}

    fn embed(&self, table: &Range<usize>, tokens: &GpuTokens, stream: &mut GpuBuffer) -> Result<()> {
        if let Some(coded) = self.weights.coded() {
            let (tokens, stream) = ((tokens.inputs.span(), self.rows()), (stream.span(), self.width()));
            return coded.embed(&*self.model.device, table, tokens, stream);
        }
        let spans = [self.weights.exact(table), tokens.inputs.span(), stream.span()].map(Argument::from);
        self.model.device.launch("embed", self.rows(), &[&spans[..], &[size(self.width())]].concat())
    }

    fn embed_backward(
        &mut self,
        table: &Range<usize>,
        is_tied: bool,
        tokens: &GpuTokens,
        to_stream: &GpuBuffer,
    ) -> Result<()> {
        let Some(to_table) = self.gradient().of(table) else { return Ok(()) };
        let (device, width) = (&*self.model.device, self.width());
        if !is_tied {
            return add_rows(device, to_stream.span(), (tokens.inputs.span(), self.rows()), to_table, width);
        }
        let vocabulary = self.model.spec.vocabulary as usize;
        self.embedded.add(device, to_stream.span(), &self.batch.inputs, (vocabulary, width))?;
        if self.gradient().is_last { self.embedded.add_to(device, to_table, width) } else { Ok(()) }
    }

    fn normalise(&self, scale: &Range<usize>, stream: &GpuBuffer, normalised: &mut GpuBuffer) -> Result<()> {
        let spans = [stream.span(), self.weights.exact(scale), normalised.span()].map(Argument::from);
        self.launch("rms_norm", self.rows(), &[&spans[..], &[size(self.width()), self.epsilon()]].concat())
    }

    fn normalise_backward(
        &mut self,
        scale: &Range<usize>,
        stream: &GpuBuffer,
        to_normalised: &GpuBuffer,
        to_stream: &mut GpuBuffer,
    ) -> Result<()> {
        let (to_exact, to_rounded) = (to_stream.span(), to_stream.for_products());
        let spans = [stream.span(), self.weights.exact(scale), to_normalised.span(), to_exact, to_rounded];
        let (spans, to_scale) = (spans.map(Argument::from), self.gradient().of(scale).into());
        let sizes = [self.rows(), self.width()].map(size);
        let arguments = [&spans[..], &[to_scale], &sizes[..], &[self.epsilon()]].concat();
        self.launch("rms_norm_backward", self.rows().div_ceil(norm_strip()), &arguments)
    }

    fn project(&self, projection: &Projection, input: &GpuBuffer, output: &mut GpuBuffer) -> Result<()> {
        self.linear(self.linear_of(projection, input.span(), output.span()))
    }

    fn project_backward(
        &mut self,
        projection: &Projection,
        input: &GpuBuffer,
        to_output: &GpuBuffer,
        to_input: &mut GpuBuffer,
    ) -> Result<()> {
        let linear = self.linear_of(projection, input.span(), to_output.for_products());
        self.add_weights(linear)?;
        if let Some(bias) = &projection.bias {
            self.bias_backward(&self.whole_rows(to_output.span()), bias)?;
        }
        self.linear_to_inputs(linear, Matrix::new(to_input.span(), projection.inputs))
    }

    fn add_projection(
        &self,
        projection: &Projection,
        input: &GpuBuffer,
        stream: &GpuBuffer,
        sum: &mut GpuBuffer,
        norm: Option<&Range<usize>>,
        normalised: &mut GpuBuffer,
    ) -> Result<()> {
        let added = self.scratch.added.span();
        self.linear(self.linear_of(projection, input.span(), added))?;
        if let Some(bias) = &projection.bias {
            self.add_bias(&self.whole_rows(added), bias)?;
        }
        let scale = norm.map(|scale| self.weights.exact(scale)).into();
        let spans = [stream.span().into(), added.into(), sum.span().into(), scale, normalised.span().into()];
        self.launch("add_and_norm", self.rows(), &[&spans[..], &[size(self.width()), self.epsilon()]].concat())
    }

    fn project_heads(&self, weights: &HeadWeights, input: &GpuBuffer, _heads: &mut GpuHeads) -> Result<()> {
        self.linear(self.joint(&joint_place(weights), input))?;
        self.joint_biases(weights).try_for_each(|(bias, columns)| self.add_bias(&columns, bias))
    }

    fn project_heads_backward(
        &mut self,
        weights: &HeadWeights,
        input: &GpuBuffer,
        _to_heads: &GpuHeads,
        to_input: &mut GpuBuffer,
    ) -> Result<()> {
        self.joint_biases(weights).try_for_each(|(bias, columns)| self.bias_backward(&columns, bias))?;
        let to_input = Matrix::new(to_input.span(), self.width());
        self.linear_backward(self.joint(&joint_place(weights), input), to_input)
    }

    fn normalise_heads(&self, weights: &HeadWeights, heads: &mut GpuHeads) -> Result<()> {
        let (Some(norms), Some(raw)) = (&weights.norms, &heads.raw) else { return Ok(()) };
        let [query, key] = norms.each_ref().map(|place| self.weights.exact(place));
        let Attention { heads, key_heads, head_width, .. } = self.attention;
        let sizes = [heads, key_heads, head_width].map(size);
        let spans = [self.scratch.joint.span(), raw.span(), query, key].map(Argument::from);
        let arguments = [&spans[..], &sizes[..], &[self.epsilon()]].concat();
        self.launch("head_norm", self.rows() * (heads + key_heads), &arguments)
    }

    fn normalise_heads_backward(
        &mut self,
        weights: &HeadWeights,
        heads: &GpuHeads,
        _to_heads: &mut GpuHeads,
    ) -> Result<()> {
        let (Some(norms), Some(raw)) = (&weights.norms, &heads.raw) else { return Ok(()) };
        let [query, key] = norms.each_ref().map(|place| self.weights.exact(place));
        let to_scales = norms.each_ref().map(|place| Argument::from(self.gradient().of(place)));
        let (rows, Attention { heads, key_heads, head_width, .. }) = (self.rows(), self.attention);
        let strip = sizes().strip;
        let sizes = [rows, heads, key_heads, head_width, strip].map(size);
        let spans = [self.scratch.joint.span(), raw.span(), query, key].map(Argument::from);
        let arguments = [&spans[..], &to_scales[..], &sizes[..], &[self.epsilon()]].concat();
        self.launch("head_norm_backward", rows.div_ceil(strip) * (heads + key_heads), &arguments)
    }

    fn turn_heads(&self, weights: &HeadWeights, heads: &mut GpuHeads, turn: Turn) -> Result<()> {
        self.move_turned(heads, weights.has_rope, turn == Turn::Backwards)
    }

    fn attend(&self, heads: &mut GpuHeads, cache: Option<&mut GpuCache>, attended: &mut GpuBuffer) -> Result<()> {
        match cache {
            None => self.attend_to(heads, attended.span()),
            Some(cache) => self.attend_after(heads, cache, attended.span()),
        }
    }

    fn attend_backward(
        &self,
        heads: &GpuHeads,
        attended: &GpuBuffer,
        to_attended: &GpuBuffer,
        to_heads: &mut GpuHeads,
    ) -> Result<()> {
        self.attend_back(heads, attended.span(), to_attended.span(), to_heads)
    }

    fn swiglu(&self, gate_up: &GpuBuffer, hidden: &mut GpuBuffer) -> Result<()> {
        let inner = size(self.model.spec.feed_forward as usize);
        self.launch("swiglu", self.rows(), &[gate_up.span().into(), hidden.span().into(), inner])
    }

    fn project_swiglu_backward(
        &mut self,
        projection: &Projection,
        gate_up: &mut GpuBuffer,
        hidden: &mut GpuBuffer,
        to_output: &GpuBuffer,
    ) -> Result<()> {
        let (hidden, inner) = (hidden.span(), projection.inputs);
        let linear = self.linear_of(projection, hidden, to_output.for_products());
        self.linear_to_inputs(linear, Matrix::new(hidden, inner))?;
        // Their gradient gives way to the hidden values.
        self.launch(
            "swiglu_backward",
            self.rows(),
            &[gate_up.span().into(), hidden.into(), hidden.into(), size(inner)],
        )?;
        self.add_weights(linear)
    }

    fn predict(
        &self,
        head: &Projection,
        rows: Range<usize>,
        normalised: &GpuBuffer,
        logits: &mut GpuBuffer,
    ) -> Result<()> {
        self.linear(self.linear_of_rows(head, rows, normalised.span(), logits.span()))
    }

    fn read_logits(&self, logits: &GpuBuffer) -> Result<Vec<f32>> {
        let mut values = vec![0.0_f32; self.model.spec.vocabulary as usize];
        self.model.device.download(logits.span(), bytes_of_mut(&mut values))?;
        Ok(values)
    }

    fn cross_entropy(
        &mut self,
        rows: Range<usize>,
        tokens: &GpuTokens,
        logits: &mut GpuBuffer,
        share: Option<f32>,
    ) -> Result<()> {
        let of_rows = |memory: &Memory| Argument::from(memory.span().part(rows.clone()));
        let spans = [&tokens.targets, &self.scratch.losses, &self.scratch.hits].map(of_rows);
        let sizes = [size(self.model.spec.vocabulary as usize), share.unwrap_or(0.0).into()];
        self.launch("cross_entropy", rows.len(), &[&[logits.span().into()][..], &spans[..], &sizes[..]].concat())
    }

    fn predict_backward(
        &mut self,
        head: &Projection,
        rows: Range<usize>,
        normalised: &GpuBuffer,
        to_logits: &GpuBuffer,
        to_normalised: &mut GpuBuffer,
    ) -> Result<()> {
        let to_rows = to_normalised.span().part(rows.start * head.inputs..rows.end * head.inputs);
        let linear = self.linear_of_rows(head, rows, normalised.span(), to_logits.span());
        self.linear_backward(linear, Matrix::new(to_rows, head.inputs))
    }

    fn clear(&self, to_stream: &mut GpuBuffer) -> Result<()> {
        self.model.device.clear(self.stream(to_stream))
    }
}

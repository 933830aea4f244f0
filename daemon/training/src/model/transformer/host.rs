//! A transformer's operations on the processor: over vectors of `f32`, by the functions of [`crate::ops`]. They never fail.

use std::ops::Range;

use candle_core::Result;
use murmur_protocol::manifest::TransformerModel;

use super::operations::{HeadWeights, Operations, Projection, Storage, attention_of};
use super::weights::{Gradient, Weights};
use crate::data::TokenBatch;
use crate::engine::options::Precision;
use crate::model::lora::LowRank;
use crate::model::{Evaluation, Task, Write};
use crate::ops::attention::Attention;
use crate::ops::embedding::RowSums;
use crate::ops::head_norm::HeadNorm;
use crate::ops::product::{Matrix, MatrixMut, Products};
use crate::ops::rotary::{RotaryTables, Turn};
use crate::ops::{bias, cross_entropy, embedding, rms_norm, swiglu};

/// Logits computed at a time, at most: 32 MiB.
const LOGITS_MAX: usize = 8 << 20;

/// At least so many rows at a time: the head's gradient is read and written once for each.
const ROWS_MIN: usize = 128;

/// What all batches of a model have in common.
pub(super) struct HostModel {
    pub(super) spec: TransformerModel,
    pub(super) rotary: RotaryTables,
    /// What matrices are multiplied in.
    pub(super) precision: Precision,
}

impl HostModel {
    /// The operations for a batch that fits this model, with products shared out among so many threads.
    pub(super) fn on<'a>(&'a self, weights: Weights<'a>, batch: &'a TokenBatch, threads: usize) -> Result<Host<'a>> {
        let products = Products { threads, rounding: self.precision.rounding() };
        let attention = attention_of(&self.spec, batch)?;
        let evaluation = Evaluation::default();
        let (gradient, embedded, past) = (None, None, 0);
        Ok(Host { model: self, attention, weights, batch, past, products, gradient, embedded, evaluation })
    }
}

/// One batch with its weights.
pub(super) struct Host<'a> {
    model: &'a HostModel,
    attention: Attention,
    weights: Weights<'a>,
    batch: &'a TokenBatch,
    /// Tokens of its text that caches hold.
    past: usize,
    products: Products,
    gradient: Option<Gradient<'a>>,
    /// The embedding's part of the gradient of a tied table, of the microbatches so far, and whether this one is the last.
    embedded: Option<(&'a mut RowSums, bool)>,
    /// Of what was predicted so far; of a gradient the losses alone.
    pub(super) evaluation: Evaluation,
}

/// Vectors of as many rows as a batch has.
pub(crate) struct HostMemory;

impl Storage for HostMemory {
    type Buffer = Vec<f32>;
    type Heads = HostHeads;
    /// Keys and values side by side: `[context, 2 · key width]`.
    type Cache = Vec<f32>;
    /// Nothing is held.
    type Tokens = ();
}

pub(crate) struct HostHeads {
    /// Queries, keys and values side by side: `[rows, joint width]`.
    joint: Vec<f32>,
    /// Queries and keys before the norm of heads, where there is one: `[rows, query width + key width]`.
    raw: Vec<f32>,
}

/// Rows that are predicted at a time.
pub(crate) fn predicted_at_once(vocabulary: usize, rows: usize) -> usize {
    (LOGITS_MAX / vocabulary).max(ROWS_MIN).min(rows)
}

impl<'a> Host<'a> {
    /// The same, which writes or adds its gradient; what the embedding adds to a tied table's is in `embedded` until the task's last
    /// microbatch.
    pub(super) fn with_gradient(self, values: &'a mut [f32], task: &Task, embedded: &'a mut RowSums) -> Host<'a> {
        let gradient = Some(self.weights.gradient(values, task.write, self.products));
        Host { gradient, embedded: Some((embedded, task.is_last)), ..self }
    }

    /// The same for the next tokens of a text of which caches hold so many.
    pub(super) fn after(self, past: usize) -> Host<'a> {
        Host { past, ..self }
    }

    /// Where the gradient of what is trained goes.
    fn gradient(&mut self) -> &mut Gradient<'a> {
        self.gradient.as_mut().expect("a backward has a place for its gradient")
    }

    fn width(&self) -> usize {
        self.model.spec.width as usize
    }

    fn epsilon(&self) -> f32 {
        self.model.spec.norm_epsilon as f32
    }

    fn dense<'v>(&self, values: &'v [f32], width: usize) -> Matrix<'v> {
        Matrix::dense(values, self.rows(), width)
    }

    fn dense_mut<'v>(&self, values: &'v mut [f32], width: usize) -> MatrixMut<'v> {
        MatrixMut::dense(values, self.rows(), width)
    }

    /// The projection, written or added to `output`, and its bias.
    fn project_onto(&self, projection: &Projection, input: &[f32], output: &mut [f32], write: Write) {
        let (input, place) = (self.dense(input, projection.inputs), self.dense_mut(output, projection.outputs));
        self.weights.forward(self.products, &projection.weight, place, write, input);
        if let Some(bias) = &projection.bias {
            bias::forward(output, projection.outputs, 0, self.weights.vector(bias));
        }
    }

    /// Writes the gradient of a projection's input.
    fn to_input(&self, projection: &Projection, to_input: &mut [f32], to_output: &[f32]) -> LowRank {
        let place = self.dense_mut(to_input, projection.inputs);
        let to_output = self.dense(to_output, projection.outputs);
        self.weights.to_input(self.products, &projection.weight, place, Write::Replace, to_output)
    }

    /// The gradient of a projection's weights.
    fn weights_backward(&mut self, projection: &Projection, input: &[f32], to_output: &[f32], low_rank: LowRank) {
        let (input, to_rows) = (self.dense(input, projection.inputs), self.dense(to_output, projection.outputs));
        self.gradient().of_weight(&projection.weight, to_rows, input, low_rank);
        if let Some(bias) = &projection.bias {
            self.gradient().of_bias(bias, to_output, projection.outputs, 0);
        }
    }

    /// The projections of queries, keys and values, with the columns that each makes of the joint matrix.
    fn joint<'w>(&self, weights: &'w HeadWeights) -> impl Iterator<Item = (&'w Projection, Range<usize>)> + use<'w> {
        weights.projections.iter().zip(self.attention.columns())
    }

    /// The norm of heads, where there is one.
    fn head_norm(&self, weights: &HeadWeights) -> Option<HeadNorm<'a>> {
        let [query, key] = weights.norms.as_ref()?.each_ref().map(|place| self.weights.vector(place));
        Some(HeadNorm { query, key, epsilon: self.epsilon() })
    }
}

impl Operations for Host<'_> {
    type Memory = HostMemory;

    fn rows(&self) -> usize {
        self.attention.rows()
    }

    fn fits(&self, rows: usize) -> bool {
        rows == self.rows()
    }

    fn new_stream(&self, is_given: bool) -> Result<Vec<f32>> {
        self.new_buffer(if is_given { 0 } else { self.rows() * self.width() })
    }

    fn new_stream_gradient(&self, is_given: bool) -> Result<Vec<f32>> {
        self.new_stream(is_given)
    }

    fn new_buffer(&self, values: usize) -> Result<Vec<f32>> {
        Ok(vec![0.0; values])
    }

    fn new_heads(&self, is_kept: bool) -> Result<HostHeads> {
        let normalised = self.attention.query_width() + self.attention.key_width();
        let raw = if is_kept && self.model.spec.head_norm { normalised } else { 0 };
        let buffer = |width: usize| vec![0.0; self.rows() * width];
        Ok(HostHeads { joint: buffer(self.attention.joint_width()), raw: buffer(raw) })
    }

    fn new_cache(&self) -> Result<Vec<f32>> {
        self.new_buffer(self.model.spec.context as usize * 2 * self.attention.key_width())
    }

    fn new_tokens(&self) -> Result<()> {
        Ok(())
    }

    fn predicted_at_once(&self, vocabulary: usize) -> usize {
        predicted_at_once(vocabulary, self.rows())
    }

    fn load_batch(&self, (): &mut ()) -> Result<()> {
        Ok(())
    }

    fn take_over(&self, values: Vec<f32>, stream: &mut Vec<f32>) -> Result<()> {
        assert_eq!(values.len(), self.rows() * self.width(), "a stream is of the batch's size");
        *stream = values;
        Ok(())
    }

    fn give_away(&self, stream: &mut Vec<f32>) -> Result<Vec<f32>> {
        Ok(std::mem::take(stream))
    }

    fn replace(&self, given: &mut Vec<f32>, spare: &mut Vec<f32>) {
        std::mem::swap(given, spare);
    }

    fn embed(&self, table: &Range<usize>, (): &(), stream: &mut Vec<f32>) -> Result<()> {
        stream.resize(self.rows() * self.width(), 0.0);
        self.weights.embed(table, &self.batch.inputs, stream);
        Ok(())
    }

    fn embed_backward(&mut self, table: &Range<usize>, is_tied: bool, (): &(), to_stream: &Vec<f32>) -> Result<()> {
        let inputs = &self.batch.inputs;
        let place = self.gradient.as_mut().and_then(|gradient| gradient.place(table));
        match (place, self.embedded.as_mut().filter(|_| is_tied)) {
            (None, _) => {}
            (Some((to_table, write)), None) => {
                if write == Write::Replace {
                    to_table.fill(0.0);
                }
                embedding::backward(to_table, to_stream, inputs);
            }
            (Some((to_table, write)), Some((sums, is_last))) => {
                if write == Write::Replace {
                    // Of a batch that was given up.
                    sums.clear();
                }
                sums.add(to_stream, inputs);
                if *is_last {
                    sums.add_to(to_table);
                }
            }
        }
        Ok(())
    }

    fn normalise(&self, scale: &Range<usize>, stream: &Vec<f32>, normalised: &mut Vec<f32>) -> Result<()> {
        rms_norm::forward(normalised, stream, self.weights.vector(scale), self.epsilon());
        Ok(())
    }

    fn normalise_backward(
        &mut self,
        scale: &Range<usize>,
        stream: &Vec<f32>,
        to_normalised: &Vec<f32>,
        to_stream: &mut Vec<f32>,
    ) -> Result<()> {
        let (values, epsilon) = (self.weights.vector(scale), self.epsilon());
        rms_norm::backward(to_stream, self.gradient().place(scale), stream, to_normalised, values, epsilon);
        Ok(())
    }

    fn project(&self, projection: &Projection, input: &Vec<f32>, output: &mut Vec<f32>) -> Result<()> {
        self.project_onto(projection, input, output, Write::Replace);
        Ok(())
    }

    fn project_backward(
        &mut self,
        projection: &Projection,
        input: &Vec<f32>,
        to_output: &Vec<f32>,
        to_input: &mut Vec<f32>,
    ) -> Result<()> {
        let low_rank = self.to_input(projection, to_input, to_output);
        self.weights_backward(projection, input, to_output, low_rank);
        Ok(())
    }

    fn add_projection(
        &self,
        projection: &Projection,
        input: &Vec<f32>,
        stream: &Vec<f32>,
        sum: &mut Vec<f32>,
        norm: Option<&Range<usize>>,
        normalised: &mut Vec<f32>,
    ) -> Result<()> {
        sum.clone_from(stream);
        self.project_onto(projection, input, sum, Write::Add);
        norm.map_or(Ok(()), |norm| self.normalise(norm, sum, normalised))
    }

    fn project_heads(&self, weights: &HeadWeights, input: &Vec<f32>, heads: &mut HostHeads) -> Result<()> {
        let (input, joint_width) = (self.dense(input, self.width()), self.attention.joint_width());
        for (Projection { weight, bias, .. }, columns) in self.joint(weights) {
            let place = self.dense_mut(&mut heads.joint, joint_width).columns(columns.start, columns.len());
            self.weights.forward(self.products, weight, place, Write::Replace, input);
            if let Some(bias) = bias {
                bias::forward(&mut heads.joint, joint_width, columns.start, self.weights.vector(bias));
            }
        }
        Ok(())
    }

    fn project_heads_backward(
        &mut self,
        weights: &HeadWeights,
        input: &Vec<f32>,
        to_heads: &HostHeads,
        to_input: &mut Vec<f32>,
    ) -> Result<()> {
        let (input, joint_width) = (self.dense(input, self.width()), self.attention.joint_width());
        let mut write = Write::Replace;
        for (Projection { weight, bias, inputs, .. }, columns) in self.joint(weights) {
            let to_columns = self.dense(&to_heads.joint, joint_width).columns(columns.start, columns.len());
            let place = self.dense_mut(to_input, *inputs);
            let low_rank = self.weights.to_input(self.products, weight, place, write, to_columns);
            self.gradient().of_weight(weight, to_columns, input, low_rank);
            if let Some(bias) = bias {
                self.gradient().of_bias(bias, &to_heads.joint, joint_width, columns.start);
            }
            write = Write::Add;
        }
        Ok(())
    }

    fn normalise_heads(&self, weights: &HeadWeights, heads: &mut HostHeads) -> Result<()> {
        if let Some(norm) = self.head_norm(weights) {
            norm.forward(&self.attention, &mut heads.joint, &mut heads.raw);
        }
        Ok(())
    }

    fn normalise_heads_backward(
        &mut self,
        weights: &HeadWeights,
        heads: &HostHeads,
        to_heads: &mut HostHeads,
    ) -> Result<()> {
        let attention = self.attention;
        if let (Some(norm), Some([query, key])) = (self.head_norm(weights), &weights.norms) {
            let gradient = self.gradient();
            let write = gradient.write;
            let to_scales = gradient.places([query, key]).map(|[query, key]| (query, key, write));
            norm.backward(&attention, &mut to_heads.joint, &heads.raw, to_scales);
        }
        Ok(())
    }

    fn turn_heads(&self, weights: &HeadWeights, heads: &mut HostHeads, turn: Turn) -> Result<()> {
        if weights.has_rope {
            let positions = self.past..self.past + self.attention.length;
            let turned = self.attention.query_width() + self.attention.key_width();
            self.model.rotary.turn(&mut heads.joint, self.attention.joint_width(), turned, positions, turn);
        }
        Ok(())
    }

    fn attend(&self, heads: &mut HostHeads, cache: Option<&mut Vec<f32>>, attended: &mut Vec<f32>) -> Result<()> {
        match cache {
            None => self.attention.forward(self.products.of_uneven(), attended, &heads.joint),
            Some(cache) => self.attention.forward_after(self.past, attended, &heads.joint, cache),
        }
        Ok(())
    }

    fn attend_backward(
        &self,
        heads: &HostHeads,
        _: &Vec<f32>,
        to_attended: &Vec<f32>,
        to_heads: &mut HostHeads,
    ) -> Result<()> {
        self.attention.backward(self.products.of_uneven(), &mut to_heads.joint, &heads.joint, to_attended);
        Ok(())
    }

    fn swiglu(&self, gate_up: &Vec<f32>, hidden: &mut Vec<f32>) -> Result<()> {
        swiglu::forward(hidden, gate_up, self.model.spec.feed_forward as usize);
        Ok(())
    }

    fn project_swiglu_backward(
        &mut self,
        projection: &Projection,
        gate_up: &mut Vec<f32>,
        hidden: &mut Vec<f32>,
        to_output: &Vec<f32>,
    ) -> Result<()> {
        let low_rank = self.to_input(projection, hidden, to_output);
        // From here on `hidden` holds the hidden values and `gate_up` its gradient.
        swiglu::backward(hidden, gate_up, projection.inputs);
        self.weights_backward(projection, hidden, to_output, low_rank);
        Ok(())
    }

    fn predict(
        &self,
        head: &Projection,
        rows: Range<usize>,
        normalised: &Vec<f32>,
        logits: &mut Vec<f32>,
    ) -> Result<()> {
        let normalised = self.dense(normalised, head.inputs).rows(rows.start, rows.len());
        let place = MatrixMut::dense(logits, rows.len(), head.outputs);
        self.weights.forward(self.products, &head.weight, place, Write::Replace, normalised);
        Ok(())
    }

    fn read_logits(&self, logits: &Vec<f32>) -> Result<Vec<f32>> {
        Ok(logits.clone())
    }

    fn cross_entropy(&mut self, rows: Range<usize>, (): &(), logits: &mut Vec<f32>, share: Option<f32>) -> Result<()> {
        let (targets, predictions) = (&self.batch.targets[rows.clone()], rows.len());
        let logits = &mut logits[..predictions * self.model.spec.vocabulary as usize];
        let (loss_sum, correct) = match share {
            Some(share) => (cross_entropy::loss_and_gradient(logits, targets, share), 0),
            None => cross_entropy::loss_and_hits(logits, targets),
        };
        self.evaluation = self.evaluation.with(Evaluation { loss_sum, predictions, correct });
        Ok(())
    }

    fn predict_backward(
        &mut self,
        head: &Projection,
        rows: Range<usize>,
        normalised: &Vec<f32>,
        to_logits: &Vec<f32>,
        to_normalised: &mut Vec<f32>,
    ) -> Result<()> {
        let normalised = self.dense(normalised, head.inputs).rows(rows.start, rows.len());
        let to_logits = Matrix::dense(to_logits, rows.len(), head.outputs);
        let place = self.dense_mut(to_normalised, head.inputs).rows(rows.start, rows.len());
        // The gradient of logits: one value near -1 a row, all others probabilities.
        let products = self.products.of_uneven();
        let low_rank = self.weights.to_input(products, &head.weight, place, Write::Replace, to_logits);
        let mut gradient = self.gradient().of_uneven();
        if rows.start > 0 {
            gradient.write = Write::Add;
        }
        gradient.of_weight(&head.weight, to_logits, normalised, low_rank);
        Ok(())
    }

    fn clear(&self, to_stream: &mut Vec<f32>) -> Result<()> {
        to_stream.clear();
        to_stream.resize(self.rows() * self.width(), 0.0);
        Ok(())
    }
}

//! The end of the model: last norm, head and loss, some rows at a time, so that the logits of all rows never exist at
//! once (a batch of 4,096 tokens and 256k different ones would take 4 GiB).

use std::ops::Range;

use murmur_protocol::ModelLayout;

use super::frame::Frame;
use super::weights::{Gradient, Weights};
use super::workspace::Scratch;
use crate::model::Evaluation;
use crate::ops::product::{Matrix, MatrixMut, Write};
use crate::ops::{cross_entropy, rms_norm};

/// Logits computed at a time, at most: 32 MiB.
const LOGITS_MAX: usize = 8 << 20;

/// At least so many rows at a time: the head's gradient is read and written once for each.
const ROWS_MIN: usize = 128;

/// Where the last norm and the head lie in the flat vector.
pub(super) struct Head {
    norm: Range<usize>,
    /// `[vocabulary, width]`; the embedding's table where the head is tied.
    weight: Range<usize>,
    vocabulary: usize,
}

impl Head {
    pub(super) fn new(layout: &ModelLayout) -> Head {
        let named = |name: &str| layout.tensor(name);
        let norm = named("model.norm.weight").expect("the layout has every tensor of the model").range();
        let weight = named("lm_head.weight").or_else(|| named("model.embed_tokens.weight"));
        let weight = weight.expect("the layout has every tensor of the model");
        Head { norm, weight: weight.range(), vocabulary: weight.shape[0] }
    }

    /// How many rows are predicted at a time.
    fn rows_at_once(&self, rows: usize) -> usize {
        (LOGITS_MAX / self.vocabulary).max(ROWS_MIN).min(rows)
    }

    /// The length of the buffer for logits.
    pub(super) fn logits(&self, rows: usize) -> usize {
        self.rows_at_once(rows) * self.vocabulary
    }

    /// Writes the logits `[rows, vocabulary]` of so many rows of the last stream.
    pub(super) fn predict(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        stream: &[f32],
        logits: &mut [f32],
        normalised: &mut [f32],
    ) {
        let rows = stream.len() / frame.width;
        rms_norm::forward(normalised, stream, weights.vector(&self.norm), frame.epsilon);
        let normalised = Matrix::dense(normalised, rows, frame.width);
        let place = MatrixMut::dense(logits, rows, self.vocabulary);
        weights.forward(frame.products, &self.weight, place, Write::Replace, normalised);
    }

    /// Returns the sum of the losses; writes the gradient of `share` times that sum to `to_stream` `[rows, width]` and to
    /// the weights.
    pub(super) fn loss_and_backward(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        gradient: &mut Gradient<'_>,
        (stream, to_stream): (&[f32], &mut [f32]),
        (targets, share): (&[u32], f32),
        (logits, scratch): (&mut [f32], &mut Scratch),
    ) -> f64 {
        let (width, at_once) = (frame.width, self.rows_at_once(targets.len()));
        let mut loss = 0.0;
        // The gradient of logits: one value near -1 a row, all others probabilities.
        let (products, mut to_weight) = (frame.products.of_uneven(), gradient.of_uneven());
        for (chunk, targets) in targets.chunks(at_once).enumerate() {
            let rows = targets.len();
            let values = chunk * at_once * width..(chunk * at_once + rows) * width;
            let logits = &mut logits[..rows * self.vocabulary];
            let normalised = &mut scratch.normalised[values.clone()];
            self.predict(frame, weights, &stream[values.clone()], logits, normalised);
            loss += cross_entropy::loss_and_gradient(logits, targets, share);
            let to_logits = Matrix::dense(logits, rows, self.vocabulary);
            let to_normalised = MatrixMut::dense(&mut scratch.to_normalised[values], rows, width);
            let low_rank = weights.to_input(products, &self.weight, to_normalised, Write::Replace, to_logits);
            to_weight.of_weight(&self.weight, to_logits, Matrix::dense(normalised, rows, width), low_rank);
            to_weight.write = Write::Add;
        }
        to_stream.fill(0.0);
        let (to_scale, scale) = (gradient.place(&self.norm), weights.vector(&self.norm));
        rms_norm::backward(to_stream, to_scale, stream, &scratch.to_normalised, scale, frame.epsilon);
        loss
    }

    /// Losses and hits.
    pub(super) fn evaluate(
        &self,
        frame: &Frame<'_>,
        weights: Weights<'_>,
        (stream, targets): (&[f32], &[u32]),
        (logits, scratch): (&mut [f32], &mut Scratch),
    ) -> Evaluation {
        let at_once = self.rows_at_once(targets.len());
        let mut evaluation = Evaluation::default();
        for (stream, targets) in stream.chunks(at_once * frame.width).zip(targets.chunks(at_once)) {
            let logits = &mut logits[..targets.len() * self.vocabulary];
            self.predict(frame, weights, stream, logits, &mut scratch.normalised[..stream.len()]);
            let (loss_sum, correct) = cross_entropy::loss_and_hits(logits, targets);
            evaluation = evaluation.with(Evaluation { loss_sum, predictions: targets.len(), correct });
        }
        evaluation
    }
}

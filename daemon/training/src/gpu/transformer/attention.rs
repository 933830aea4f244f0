//! Attention: as one kernel where there is one for the heads' width and kind, else by products of some queries of a head of as
//! many sequences at once as fit.

use std::ops::Range;

use candle_core::Result;

use super::workspace::{Heads, Kept, QUERIES_AT_ONCE, units_at_once};
use super::{Frame, GpuTransformer};
use crate::gpu::{Argument, Matrix, Product, Span, THREADS, of_kind, size};

/// Rows of one block of attention's kernels: 16 of each warp.
const ATTENTION_ROWS: usize = THREADS / 2;

impl GpuTransformer {
    /// Between joint rows and turned heads of a layer.
    pub(super) fn turn_heads(&self, frame: Frame, layer: usize, heads: &Heads, backwards: bool) -> Result<()> {
        let without = self.no_angles.as_ref().filter(|_| !self.blocks[layer].has_rope);
        let tables = without.unwrap_or(&self.angles).spans();
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

    /// What is attended at once, in an order in which the first of those that share keys have all of them.
    fn units(&self, frame: Frame) -> impl Iterator<Item = Unit> + use<> {
        let (all, length, head_width) = (frame.sequences * self.key_heads, frame.length, self.head_width());
        let (sharing, at_once) = (self.heads / self.key_heads, units_at_once(self.key_heads, frame.sequences, length));
        (0..all).step_by(at_once).flat_map(move |first| {
            let units = at_once.min(all - first);
            let unit = move |head, begin| {
                let queries = begin..length.min(begin + QUERIES_AT_ONCE);
                Unit { first, units, head, sharing, queries, length, head_width }
            };
            (0..sharing)
                .flat_map(move |head| (0..length).step_by(QUERIES_AT_ONCE).rev().map(move |begin| unit(head, begin)))
        })
    }

    fn probabilities(&self, unit: &Unit, heads: &Heads) -> Result<()> {
        let scores = self.work().scores.span();
        let (query, key) = (unit.queries(heads.query.span()), unit.keys(heads.key.span()));
        self.multiply(Product::new(query, key.transposed(), unit.scores(scores), unit.shape()).batch(unit.units))?;
        self.launch_softmax("causal_softmax", unit, &[scores])
    }

    fn launch_softmax(&self, name: &str, unit: &Unit, spans: &[Span]) -> Result<()> {
        let (count, Range { start, end }) = (unit.queries.len(), unit.queries.clone());
        let spans = spans.iter().map(|span| Argument::from(*span));
        let sizes = [unit.length, count, start, end].map(size);
        let arguments: Vec<Argument> = spans.chain(sizes).chain([self.score_scale().into()]).collect();
        self.device.launch(&of_kind(name, self.kind), unit.units * count, &arguments)
    }

    fn score_scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }

    /// Fills `attended`, and what backward needs of it.
    pub(super) fn attend(&self, frame: Frame, kept: &Kept) -> Result<()> {
        if let Some(log_sums) = &kept.log_sums {
            let [query, key, value] = kept.heads.spans();
            let spans = [query, key, value, kept.attended.span(), log_sums.span()];
            return self.launch_attention("attend", frame, self.heads, &spans);
        }
        for unit in self.units(frame) {
            self.probabilities(&unit, &kept.heads)?;
            let (scores, value) = (unit.scores(self.work().scores.span()), unit.keys(kept.heads.value.span()));
            let (target, [queries, keys, width]) = (unit.queries(self.work().in_heads.span()), unit.shape());
            self.multiply(Product::new(scores, value, target, [queries, width, keys]).batch(unit.units))?;
        }
        self.move_heads(frame, kept.attended.span(), false)
    }

    /// With `heads` for each sequence, whose rows are shared out to blocks.
    fn launch_attention(&self, name: &str, frame: Frame, heads: usize, spans: &[Span]) -> Result<()> {
        let units = frame.sequences * heads;
        let sizes = [frame.length, self.heads, self.key_heads, units].map(size);
        let spans = spans.iter().map(|span| Argument::from(*span));
        let arguments: Vec<Argument> = spans.chain(sizes).chain([self.score_scale().into()]).collect();
        let kernel = format!("{name}_{}", self.head_width());
        self.device.launch(&kernel, units * frame.length.div_ceil(ATTENTION_ROWS), &arguments)
    }

    /// From the gradient of `attended` to that in `to_heads`.
    pub(super) fn attend_backward(&self, frame: Frame, kept: &Kept, to_attended: Span) -> Result<()> {
        let work = self.work();
        if let Some(log_sums) = &kept.log_sums {
            let ([query, key, value], [to_query, to_key, to_value]) = (kept.heads.spans(), work.to_heads.spans());
            let (log_sums, products) = (log_sums.span(), work.products.span());
            let spans = [query, key, value, kept.attended.span(), to_attended, log_sums, products, to_query];
            self.launch_attention("attend_backward_queries", frame, self.heads, &spans)?;
            let spans = [query, key, value, to_attended, log_sums, products, to_key, to_value];
            return self.launch_attention("attend_backward_keys", frame, self.key_heads, &spans);
        }
        self.move_heads(frame, to_attended, true)?;
        let (scores, to_scores) = (work.scores.span(), work.to_scores.span());
        for unit in self.units(frame) {
            self.probabilities(&unit, &kept.heads)?;
            let [queries, keys, width] = unit.shape();
            let product = |a, b, c, shape| Product::new(a, b, c, shape).batch(unit.units);
            // Of what shares keys the first has all of them.
            let onto_keys = |product: Product| self.multiply(if unit.is_first() { product } else { product.adds() });
            let to_output = unit.queries(work.in_heads.span());
            let value = unit.keys(kept.heads.value.span());
            self.multiply(product(to_output, value.transposed(), unit.scores(to_scores), unit.shape()))?;
            let to_value = unit.keys(work.to_heads.value.span());
            onto_keys(product(unit.scores(scores).transposed(), to_output, to_value, [keys, width, queries]))?;
            self.launch_softmax("causal_softmax_backward", &unit, &[scores, to_scores])?;
            let (query, key) = (unit.queries(kept.heads.query.span()), unit.keys(kept.heads.key.span()));
            let to_query = unit.queries(work.to_heads.query.span());
            self.multiply(product(unit.scores(to_scores), key, to_query, [queries, width, keys]))?;
            let to_key = unit.keys(work.to_heads.key.span());
            onto_keys(product(unit.scores(to_scores).transposed(), query, to_key, [keys, width, queries]))?;
        }
        Ok(())
    }
}

/// Some queries of a head of each of several pairs of a sequence and a key, which lie one after the other.
struct Unit {
    first: usize,
    units: usize,
    /// Of those that share the key.
    head: usize,
    sharing: usize,
    /// They see no key behind them.
    queries: Range<usize>,
    length: usize,
    head_width: usize,
}

impl Unit {
    /// Queries, keys that they see, and the width of both.
    fn shape(&self) -> [usize; 3] {
        [self.queries.len(), self.queries.end, self.head_width]
    }

    /// Whether nothing with the same keys comes before it.
    fn is_first(&self) -> bool {
        self.head == 0 && self.queries.end == self.length
    }

    fn queries(&self, heads: Span) -> Matrix {
        let row = (self.first * self.sharing + self.head) * self.length + self.queries.start;
        self.rows(heads, row, self.sharing * self.length)
    }

    fn keys(&self, heads: Span) -> Matrix {
        self.rows(heads, self.first * self.length, self.length)
    }

    fn rows(&self, heads: Span, first: usize, every: usize) -> Matrix {
        let part = heads.part(first * self.head_width..heads.values);
        Matrix::new(part, self.head_width).every(every * self.head_width)
    }

    fn scores(&self, scores: Span) -> Matrix {
        Matrix::new(scores, self.length).every(self.queries.len() * self.length)
    }
}

//! Attention: as one kernel where there is one for the heads' width and kind, else by products of the heads that share a key,
//! as many keys of as many sequences at once as fit.

use candle_core::Result;

use super::workspace::{Heads, Kept};
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
            let (target, shape) =
                (unit.queries(self.work().in_heads.span()), [unit.queries, unit.head_width, unit.length]);
            self.multiply(Product::new(scores, value, target, shape).batch(unit.units))?;
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

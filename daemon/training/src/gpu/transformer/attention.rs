//! Attention: as one kernel where there is one for the heads' width and kind, else by products of some queries of a head of as
//! many sequences at once as fit.

use std::ops::Range;

use candle_core::Result;

use super::Gpu;
use super::memory::{GpuCache, GpuHeads, Scratch, units_at_once};
use crate::gpu::{Argument, Kind, Matrix, Memory, Product, Span, count, launch_for_each, size};
use crate::model::transformer::operations::Operations as _;
use crate::ops::attention::Attention;

impl Gpu<'_> {
    /// Between joint rows and turned heads; where these are not turned, they only move. Positions count from the first of the text.
    pub(super) fn move_turned(&self, heads: &GpuHeads, has_rope: bool, backwards: bool) -> Result<()> {
        let without = self.model.no_angles.as_ref().filter(|_| !has_rope);
        let first = self.past * self.attention.head_width / 2;
        let tables = without.unwrap_or(&self.model.angles).spans().map(|table| table.part(first..table.values));
        let [query, key, value] = heads.spans();
        let sizes = [self.attention.length, self.attention.heads, self.attention.key_heads];
        let sizes = [&sizes[..], &[self.attention.head_width / 2, usize::from(backwards)]].concat();
        let arguments = [self.scratch.joint.span(), query, key, value, tables[0], tables[1]].map(Argument::from);
        let arguments: Vec<Argument> = arguments.into_iter().chain(sizes.into_iter().map(size)).collect();
        self.launch("turn_heads", self.rows(), &arguments)
    }

    /// Between rows and so many heads.
    fn move_heads(&self, rows: Span, (in_heads, heads): (Span, usize), to_heads: bool) -> Result<()> {
        let Attention { length, head_width, .. } = self.attention;
        let sizes = [length, heads, head_width, usize::from(to_heads)].map(size);
        self.launch("move_heads", self.rows(), &[&[rows.into(), in_heads.into()][..], &sizes[..]].concat())
    }

    /// What attention gives, or its gradient.
    fn in_heads(&self) -> (Span, usize) {
        (self.scratch.in_heads.span(), self.attention.heads)
    }

    /// What is attended at once, in an order in which the first of those that share keys have all of them.
    fn units(&self) -> impl Iterator<Item = Unit> + use<> {
        let Attention { sequences, length, heads, key_heads, head_width } = self.attention;
        let (all, sharing, at_once) =
            (sequences * key_heads, heads / key_heads, units_at_once(key_heads, sequences, length));
        let queries_at_once = crate::gpu::sizes().queries_at_once;
        (0..all).step_by(at_once).flat_map(move |first| {
            let units = at_once.min(all - first);
            let unit = move |head, begin| {
                let queries = begin..length.min(begin + queries_at_once);
                Unit { first, units, head, sharing, queries, length, head_width }
            };
            (0..sharing)
                .flat_map(move |head| (0..length).step_by(queries_at_once).rev().map(move |begin| unit(head, begin)))
        })
    }

    fn probabilities(&self, unit: &Unit, heads: &GpuHeads) -> Result<()> {
        let scores = self.scratch.scores.span();
        let (query, key) = (unit.queries(heads.query.span()), unit.keys(heads.key.span()));
        self.multiply(Product::new(query, key.transposed(), unit.scores(scores), unit.shape()).batch(unit.units))?;
        self.launch_softmax("causal_softmax", unit, &[scores])
    }

    fn launch_softmax(&self, name: &str, unit: &Unit, spans: &[Span]) -> Result<()> {
        let (count, Range { start, end }) = (unit.queries.len(), unit.queries.clone());
        let spans = spans.iter().map(|span| Argument::from(*span));
        let sizes = [unit.length, count, start, end].map(size);
        let arguments: Vec<Argument> = spans.chain(sizes).chain([self.attention.scale().into()]).collect();
        self.launch(name, unit.units * count, &arguments)
    }

    /// Fills `attended`, and what backward needs of it.
    pub(super) fn attend_to(&self, heads: &GpuHeads, attended: Span) -> Result<()> {
        if let Some(log_sums) = &heads.log_sums {
            let [query, key, value] = heads.spans();
            let spans = [query, key, value, attended, log_sums.span()];
            return self.launch_attention("attend", self.attention.heads, &spans);
        }
        for unit in self.units() {
            self.probabilities(&unit, heads)?;
            let (scores, value) = (unit.scores(self.scratch.scores.span()), unit.keys(heads.value.span()));
            let (target, [queries, keys, width]) = (unit.queries(self.scratch.in_heads.span()), unit.shape());
            self.multiply(Product::new(scores, value, target, [queries, width, keys]).batch(unit.units))?;
        }
        self.move_heads(attended, self.in_heads(), false)
    }

    /// The same of the next tokens of a text: keys and values go to the cache, and all that it holds are seen. The heads that share
    /// keys are attended at once.
    pub(super) fn attend_after(&self, heads: &GpuHeads, cache: &GpuCache, attended: Span) -> Result<()> {
        let Attention { length, key_heads, head_width, .. } = self.attention;
        let (seen, key_width, context) =
            (self.past + length, self.attention.key_width(), self.model.spec.context as usize);
        for (rows, in_heads) in [(&cache.key, &heads.key), (&cache.value, &heads.value)] {
            let rows = rows.span().part(self.past * key_width..seen * key_width);
            self.move_heads(rows, (in_heads.span(), key_heads), false)?;
        }
        let rows = self.attention.heads / key_heads * length;
        let cached = |memory: &Memory| Matrix::new(memory.span(), key_width).every(head_width);
        let queries = |span: Span| Matrix::new(span, head_width).every(rows * head_width);
        let scores = Matrix::new(self.scratch.scores.span(), context).every(rows * context);
        let (query, key, shape) = (queries(heads.query.span()), cached(&cache.key), [rows, seen, head_width]);
        self.multiply(Product::new(query, key.transposed(), scores, shape).batch(key_heads))?;
        let sizes = [context, length, self.past, seen].map(size);
        let arguments = [&[self.scratch.scores.span().into()][..], &sizes, &[self.attention.scale().into()]].concat();
        self.launch("causal_softmax", key_heads * rows, &arguments)?;
        let (value, output, shape) = (cached(&cache.value), queries(self.in_heads().0), [rows, head_width, seen]);
        self.multiply(Product::new(scores, value, output, shape).batch(key_heads))?;
        self.move_heads(attended, self.in_heads(), false)
    }

    /// Where the gradients of what a unit's queries see are summed: keys' and values'. In 32 bits, since many products add to them.
    fn sums_of(&self, unit: &Unit, to_heads: &GpuHeads) -> [Matrix; 2] {
        if self.model.kind == Kind::F32 {
            return [&to_heads.key, &to_heads.value].map(|memory| unit.keys(memory.span()));
        }
        let every = unit.length * unit.head_width;
        [&self.scratch.to_keys, &self.scratch.to_values]
            .map(|memory| Matrix::new(memory.span(), unit.head_width).every(every))
    }

    /// Once all is added to them.
    fn round_sums(&self, unit: &Unit, to_heads: &GpuHeads) -> Result<()> {
        if self.model.kind == Kind::F32 {
            return Ok(());
        }
        let Scratch { to_keys, to_values, .. } = self.scratch;
        let every = unit.length * unit.head_width;
        let (first, values) = (unit.first * every, unit.units * every);
        [(to_keys, &to_heads.key), (to_values, &to_heads.value)].into_iter().try_for_each(|(sums, rounded)| {
            let rounded = rounded.span().part(first..first + values);
            let arguments = [sums.span().first(values).into(), rounded.into(), count(values)];
            launch_for_each(&*self.model.device, "to_bf16", values, &arguments)
        })
    }

    /// With `heads` for each sequence, whose rows are shared out to blocks.
    fn launch_attention(&self, name: &str, heads: usize, spans: &[Span]) -> Result<()> {
        let (sizes, units) = (&self.attention, self.attention.sequences * heads);
        // 16 rows of each warp.
        let blocks = units * sizes.length.div_ceil(crate::gpu::sizes().threads / 2);
        let sizes = [sizes.length, sizes.heads, sizes.key_heads, units].map(size);
        let spans = spans.iter().map(|span| Argument::from(*span));
        let arguments: Vec<Argument> = spans.chain(sizes).chain([self.attention.scale().into()]).collect();
        let kernel = format!("{name}_{}", self.attention.head_width);
        self.model.device.launch(&kernel, blocks, &arguments)
    }

    /// From the gradient of `attended` to that in `to_heads`.
    pub(super) fn attend_back(
        &self,
        heads: &GpuHeads,
        attended: Span,
        to_attended: Span,
        to_heads: &GpuHeads,
    ) -> Result<()> {
        if let Some(log_sums) = &heads.log_sums {
            let ([query, key, value], [to_query, to_key, to_value]) = (heads.spans(), to_heads.spans());
            let (log_sums, products) = (log_sums.span(), self.scratch.products.span());
            let spans = [query, key, value, attended, to_attended, log_sums, products, to_query];
            self.launch_attention("attend_backward_queries", self.attention.heads, &spans)?;
            let spans = [query, key, value, to_attended, log_sums, products, to_key, to_value];
            return self.launch_attention("attend_backward_keys", self.attention.key_heads, &spans);
        }
        self.move_heads(to_attended, self.in_heads(), true)?;
        let (scores, to_scores) = (self.scratch.scores.span(), self.scratch.to_scores.span());
        for unit in self.units() {
            self.probabilities(&unit, heads)?;
            let [queries, keys, width] = unit.shape();
            let product = |a, b, c, shape| Product::new(a, b, c, shape).batch(unit.units);
            // Of what shares keys the first has all of them.
            let onto_keys = |product: Product| self.multiply(if unit.is_first() { product } else { product.adds() });
            let to_output = unit.queries(self.scratch.in_heads.span());
            let value = unit.keys(heads.value.span());
            self.multiply(product(to_output, value.transposed(), unit.scores(to_scores), unit.shape()))?;
            let [to_key, to_value] = self.sums_of(&unit, to_heads);
            onto_keys(product(unit.scores(scores).transposed(), to_output, to_value, [keys, width, queries]))?;
            self.launch_softmax("causal_softmax_backward", &unit, &[scores, to_scores])?;
            let (query, key) = (unit.queries(heads.query.span()), unit.keys(heads.key.span()));
            let to_query = unit.queries(to_heads.query.span());
            self.multiply(product(unit.scores(to_scores), key, to_query, [queries, width, keys]))?;
            onto_keys(product(unit.scores(to_scores).transposed(), query, to_key, [keys, width, queries]))?;
            if unit.is_last() {
                self.round_sums(&unit, to_heads)?;
            }
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

    /// Whether nothing with the same keys comes after it.
    fn is_last(&self) -> bool {
        self.head + 1 == self.sharing && self.queries.start == 0
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

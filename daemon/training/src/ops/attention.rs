//! Causal softmax attention with grouped queries, with the probabilities computed again in the backward instead of kept.
//!
//! Kept probabilities would take `batch · heads · length²` values a layer; computing them again costs a quarter of the
//! attention's backward and halves the peak of memory (the idea of FlashAttention, Dao et al., arXiv 2205.14135,
//! without its tiling over columns). Each sequence's group of heads that share keys and values is one task.

use candle_core::{D, DType, Result, Tensor};
use rayon::prelude::*;

use super::exponential::{LANES, dot, exponentials_in_place};
use super::product::{Matrix, MatrixMut, Products, Write};
use super::vector::vectorised;

/// Rows of the score matrix computed at a time: fewer waste less above the diagonal, more make larger products. A step
/// of the built-in model is 7 % faster with 64 than with 32.
const BLOCK_ROWS: usize = 64;

/// `softmax(query · keyᵀ / √head width) · value` over the positions up to one's own, composed of candle's operations:
/// `query` `[batch, length, heads · head width]`, `key` and `value` `[batch, length, key heads · head width]`. Products in
/// the precision of `query`, the softmax in `f32`.
pub(crate) fn composed(query: &Tensor, key: &Tensor, value: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, length, width) = query.dims3()?;
    let head_width = width / heads;
    let split = |tensor: &Tensor| tensor.reshape((batch, length, (), head_width))?.transpose(1, 2)?.contiguous();
    let (query, key, value) = (split(query)?, split(key)?, split(value)?);
    let key_heads = key.dim(1)?;
    let repeated = |tensor: &Tensor| {
        let shape = (batch, key_heads, heads / key_heads, length, head_width);
        tensor.unsqueeze(2)?.broadcast_as(shape)?.reshape((batch, heads, length, head_width))
    };
    let (key, value) = (repeated(&key)?, repeated(&value)?);
    let scores = (query.matmul(&key.t()?)?.to_dtype(DType::F32)? * (1.0 / (head_width as f64).sqrt()))?;
    let hidden =
        (0..length * length).map(|index| if index % length > index / length { f32::NEG_INFINITY } else { 0.0 });
    let mask = Tensor::from_iter(hidden, query.device())?.reshape((1, 1, length, length))?;
    let scores = scores.broadcast_add(&mask)?;
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
    let probabilities = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.to_dtype(query.dtype())?;
    probabilities.matmul(&value)?.transpose(1, 2)?.reshape((batch, length, width))
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    pub(crate) sequences: usize,
    /// Positions of each sequence.
    pub(crate) length: usize,
    /// Of queries.
    pub(crate) heads: usize,
    /// Of keys and values; divides `heads`.
    pub(crate) key_heads: usize,
    pub(crate) head_width: usize,
}

impl Attention {
    /// Columns of queries and outputs.
    pub(crate) fn query_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Columns of keys, and of values.
    pub(crate) fn key_width(&self) -> usize {
        self.key_heads * self.head_width
    }

    /// Columns of queries, keys and values side by side: how the operations below take and give them.
    pub(crate) fn joint_width(&self) -> usize {
        self.query_width() + 2 * self.key_width()
    }

    /// Which of these columns are queries, keys and values.
    pub(crate) fn columns(&self) -> [std::ops::Range<usize>; 3] {
        let (queries, keys) = (self.query_width(), self.query_width() + self.key_width());
        [0..queries, queries..keys, keys..self.joint_width()]
    }

    pub(crate) fn rows(&self) -> usize {
        self.sequences * self.length
    }

    fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Of scores before the softmax.
    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.head_width as f32).sqrt()
    }

    /// (first row, end) of each block of rows of a sequence, the last one first.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let length = self.length;
        (0..length).step_by(BLOCK_ROWS).rev().map(move |first| (first, (first + BLOCK_ROWS).min(length)))
    }

    /// Writes `output` `[rows, query width]` from queries, keys and values side by side `[rows, joint width]`, with such products.
    pub(crate) fn forward(&self, products: Products, output: &mut [f32], joint: &[f32]) {
        self.forward_groups(products, output, self.length, |task| self.group_of(joint, task));
    }

    /// The same in `f32` for the next positions of one sequence, after `past` others. `cache` holds the keys and values of all,
    /// side by side `[positions, 2 · key width]`; those of these positions are written to it.
    pub(crate) fn forward_after(&self, past: usize, output: &mut [f32], joint: &[f32], cache: &mut [f32]) {
        let (seen, width) = (past + self.length, 2 * self.key_width());
        let places = cache[past * width..].chunks_exact_mut(width).zip(joint.chunks_exact(self.joint_width()));
        places.for_each(|(place, row)| place.copy_from_slice(&row[self.query_width()..]));
        let (keys, values) = (Matrix::dense(cache, seen, width), self.key_width());
        self.forward_groups(Products::exact(1), output, seen, |task| {
            let columns = |first: usize| keys.columns(first + task * self.head_width, self.head_width);
            Group { key: columns(0), value: columns(values), ..self.group_of(joint, task) }
        });
    }

    /// Of all tasks, whose last position sees so many.
    fn forward_groups<'a>(
        &self,
        products: Products,
        output: &mut [f32],
        seen: usize,
        group_of: impl Fn(usize) -> Group<'a> + Sync,
    ) {
        let output = MatrixMut::dense(output, self.rows(), self.query_width());
        let group_width = self.group() * self.head_width;
        let tasks: Vec<MatrixMut<'_>> =
            output.split_rows(self.length).flat_map(|sequence| sequence.split_columns(group_width)).collect();
        tasks.into_par_iter().enumerate().for_each_init(
            || vec![0.0; BLOCK_ROWS.min(self.length) * seen],
            |scratch, (task, output)| self.forward_group(products, output, &group_of(task), scratch),
        );
    }

    /// Writes the gradient of `joint` to `to_joint`, both `[rows, joint width]`; `gradient` is the output's.
    pub(crate) fn backward(&self, products: Products, to_joint: &mut [f32], joint: &[f32], gradient: &[f32]) {
        let gradient = Matrix::dense(gradient, self.rows(), self.query_width());
        let (query_width, key_width, group_width) =
            (self.query_width(), self.key_width(), self.group() * self.head_width);
        let to_joint = MatrixMut::dense(to_joint, self.rows(), self.joint_width());
        let tasks: Vec<GroupGradients<'_>> = to_joint
            .split_rows(self.length)
            .flat_map(|sequence| {
                let (query, rest) = sequence.part_columns(query_width);
                let (key, value) = rest.part_columns(key_width);
                let keys = key.split_columns(self.head_width).zip(value.split_columns(self.head_width));
                let groups = query.split_columns(group_width).zip(keys);
                groups.map(|(query, (key, value))| GroupGradients { query, key, value })
            })
            .collect();
        tasks.into_par_iter().enumerate().for_each_init(
            || vec![0.0; 2 * BLOCK_ROWS * self.length],
            |scratch, (task, gradients)| {
                let (sequence, group) = (task / self.key_heads, task % self.key_heads);
                let gradient = gradient.rows(sequence * self.length, self.length);
                let gradient = gradient.columns(group * group_width, group_width);
                self.backward_group(products, gradients, (&self.group_of(joint, task), gradient), scratch);
            },
        );
    }

    /// The queries, the key and the value of a task.
    fn group_of<'a>(&self, joint: &'a [f32], task: usize) -> Group<'a> {
        let (sequence, group) = (task / self.key_heads, task % self.key_heads);
        let joint = Matrix::dense(joint, self.rows(), self.joint_width()).rows(sequence * self.length, self.length);
        let group_width = self.group() * self.head_width;
        let key = self.query_width() + group * self.head_width;
        Group {
            query: joint.columns(group * group_width, group_width),
            key: joint.columns(key, self.head_width),
            value: joint.columns(key + self.key_width(), self.head_width),
        }
    }

    /// Writes the probabilities of rows `first..last` over the positions that the last of them sees into `place`, zeros above the
    /// diagonal.
    fn probabilities(
        &self,
        products: Products,
        place: &mut [f32],
        (group, head): (&Group<'_>, usize),
        (first, last): (usize, usize),
    ) {
        let (rows, past) = (last - first, group.past());
        let queries = group.query.rows(first, rows).columns(head * self.head_width, self.head_width);
        let keys = group.key.rows(0, past + last).transposed();
        let scores = MatrixMut::dense(place, rows, past + last);
        products.multiply(scores, Write::Replace, self.scale(), queries, keys);
        softmax_rows(place, past + first, past + last);
    }

    fn forward_group(&self, products: Products, mut output: MatrixMut<'_>, group: &Group<'_>, scratch: &mut [f32]) {
        for head in 0..self.group() {
            for (first, last) in self.blocks() {
                let (rows, seen) = (last - first, group.past() + last);
                let probabilities = &mut scratch[..rows * seen];
                self.probabilities(products, probabilities, (group, head), (first, last));
                let place = output.again().rows(first, rows).columns(head * self.head_width, self.head_width);
                let probabilities = Matrix::dense(probabilities, rows, seen);
                products.multiply(place, Write::Replace, 1.0, probabilities, group.value.rows(0, seen));
            }
        }
    }

    /// With P the probabilities, S the scores, g the output's gradient: `dV = Pᵀg`, `dP = gVᵀ`, `dS = P ∘ (dP − rowsum(P
    /// ∘ dP))`, `dQ = dS·K/√d`, `dK = dSᵀ·Q/√d`.
    fn backward_group(
        &self,
        products: Products,
        mut gradients: GroupGradients<'_>,
        (group, gradient): (&Group<'_>, Matrix<'_>),
        scratch: &mut [f32],
    ) {
        let (probabilities, to_scores) = scratch.split_at_mut(BLOCK_ROWS * self.length);
        // The first block of the first head covers all keys and values, so it writes where the others add.
        let mut write = Write::Replace;
        for head in 0..self.group() {
            let column = head * self.head_width;
            for (first, last) in self.blocks() {
                let rows = last - first;
                let gradient = gradient.rows(first, rows).columns(column, self.head_width);
                let (probabilities, to_scores) = (&mut probabilities[..rows * last], &mut to_scores[..rows * last]);
                self.probabilities(products, probabilities, (group, head), (first, last));
                let seen = Matrix::dense(probabilities, rows, last);
                products.multiply(gradients.value.again().rows(0, last), write, 1.0, seen.transposed(), gradient);
                let values = group.value.rows(0, last).transposed();
                products.multiply(MatrixMut::dense(to_scores, rows, last), Write::Replace, 1.0, gradient, values);
                backward_softmax(to_scores, probabilities, last);
                let to_scores = Matrix::dense(to_scores, rows, last);
                let to_queries = gradients.query.again().rows(first, rows).columns(column, self.head_width);
                products.multiply(to_queries, Write::Replace, self.scale(), to_scores, group.key.rows(0, last));
                let queries = group.query.rows(first, rows).columns(column, self.head_width);
                let to_keys = gradients.key.again().rows(0, last);
                products.multiply(to_keys, write, self.scale(), to_scores.transposed(), queries);
                write = Write::Add;
            }
        }
    }
}

/// What one task reads: the queries of a sequence's heads that share a key, that key and its value.
struct Group<'a> {
    /// `[length, group · head width]`.
    query: Matrix<'a>,
    /// `[past + length, head width]`.
    key: Matrix<'a>,
    /// `[past + length, head width]`.
    value: Matrix<'a>,
}

impl Group<'_> {
    /// Positions before the first query.
    fn past(&self) -> usize {
        self.key.height() - self.query.height()
    }
}

/// What one task writes, of the same shapes.
struct GroupGradients<'a> {
    query: MatrixMut<'a>,
    key: MatrixMut<'a>,
    value: MatrixMut<'a>,
}

vectorised! {
    /// Causal softmax of the rows from `first` on, `columns` wide: zeros after the diagonal.
    fn softmax_rows(scores: &mut [f32], first: usize, columns: usize) {
        for (row, scores) in scores.chunks_exact_mut(columns).enumerate() {
            let seen = first + row + 1;
            // Whole lanes; what is hidden among them counts e⁻⁸⁷ at most.
            let whole = seen.next_multiple_of(LANES).min(columns);
            scores[seen..whole].fill(f32::NEG_INFINITY);
            let (sum, _) = exponentials_in_place(&mut scores[..whole]);
            let (seen, hidden) = scores.split_at_mut(seen);
            hidden.fill(0.0);
            let factor = 1.0 / sum;
            seen.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

vectorised! {
    /// Turns the probabilities' gradient into the scores', row by row.
    fn backward_softmax(gradients: &mut [f32], probabilities: &[f32], columns: usize) {
        for (seen, gradients) in probabilities.chunks_exact(columns).zip(gradients.chunks_exact_mut(columns)) {
            let mean = dot(seen, gradients);
            gradients.iter_mut().zip(seen).for_each(|(gradient, seen)| *gradient = seen * (*gradient - mean));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_values, values};

    fn attention(sequences: usize, length: usize, heads: usize, key_heads: usize, head_width: usize) -> Attention {
        Attention { sequences, length, heads, key_heads, head_width }
    }

    #[test]
    fn attention_agrees_with_autograd() {
        for sizes in [
            attention(1, 1, 1, 1, 2),
            attention(2, 7, 3, 3, 4),
            attention(3, 70, 2, 2, 16),
            attention(2, 130, 4, 2, 6),
            attention(2, 20, 6, 1, 8),
        ] {
            let (rows, width, key_width) = (sizes.rows(), sizes.query_width(), sizes.key_width());
            let joint = random(&[sizes.sequences, sizes.length, sizes.joint_width()], 1);
            let gradient = random_values(rows * width, 2);
            let expected = by_autograd(std::slice::from_ref(&joint), &gradient, |tensors| {
                let query = tensors[0].narrow(2, 0, width)?;
                let (key, value) =
                    (tensors[0].narrow(2, width, key_width)?, tensors[0].narrow(2, width + key_width, key_width)?);
                composed(&query, &key, &value, sizes.heads)
            });
            let (joint, mut output) = (values(&joint), vec![f32::NAN; rows * width]);
            sizes.forward(Products::exact(1), &mut output, &joint);
            assert_close("output", &output, &expected[0]);
            let mut to_joint = vec![f32::NAN; joint.len()];
            sizes.backward(Products::exact(1), &mut to_joint, &joint, &gradient);
            assert_close("input", &to_joint, &expected[1]);
        }
    }

    #[test]
    fn no_position_sees_a_later_one() {
        let (whole, part) = (attention(1, 40, 2, 2, 4), attention(1, 33, 2, 2, 4));
        let joint = random_values(40 * whole.joint_width(), 1);
        let (mut of_whole, mut of_part) = (vec![0.0; 40 * 8], vec![0.0; 33 * 8]);
        whole.forward(Products::exact(1), &mut of_whole, &joint);
        part.forward(Products::exact(1), &mut of_part, &joint[..33 * whole.joint_width()]);
        assert_close("the start", &of_part, &of_whole[..33 * 8]);
    }

    #[test]
    fn parts_of_a_sequence_see_what_was_cached_before_them() {
        let whole = attention(1, 150, 6, 2, 4);
        let (row, width, joint) =
            (whole.joint_width(), whole.query_width(), random_values(150 * whole.joint_width(), 1));
        let (mut expected, mut output) = (vec![0.0; 150 * width], vec![f32::NAN; 150 * width]);
        whole.forward(Products::exact(1), &mut expected, &joint);
        let mut cache = vec![f32::NAN; 150 * 2 * whole.key_width()];
        // More than a block of rows, one row, and what is left.
        for (first, end) in [(0, 70), (70, 71), (71, 150)] {
            let part = Attention { length: end - first, ..whole };
            let output = &mut output[first * width..end * width];
            part.forward_after(first, output, &joint[first * row..end * row], &mut cache);
        }
        assert_close("in parts", &output, &expected);
    }
}

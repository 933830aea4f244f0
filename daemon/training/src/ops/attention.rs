//! Causal softmax attention, with the probabilities computed again in the backward instead of kept.
//!
//! Kept probabilities would take `batch · heads · length²` values a layer; computing them again costs a quarter of the
//! attention's backward and halves the peak of memory (the idea of FlashAttention, Dao et al., arXiv 2205.14135,
//! without its tiling over columns). Sequences are independent, so each is one task.

use candle_core::{CpuStorage, CustomOp3, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::Kernels;
use super::exponential::{dot, exponentials_in_place};
use super::product::{Matrix, MatrixMut, Write, multiply};
use super::storage::{Reading, floats, shaped_like};
use super::vector::vectorised;

/// Rows of the score matrix computed at a time: fewer waste less above the diagonal, more make larger products. A step
/// of the built-in model is 7 % faster with 64 than with 32.
const BLOCK_ROWS: usize = 64;

/// `softmax(query · keyᵀ / √head width) · value` over the positions up to one's own; all `[batch, length, heads · head
/// width]`.
pub(crate) fn attention(
    kernels: Kernels,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    heads: usize,
) -> Result<Tensor> {
    let (_, length, width) = query.dims3()?;
    match kernels {
        Kernels::Fused => {
            let operation = Attention { length, width, heads };
            query.contiguous()?.apply_op3(&key.contiguous()?, &value.contiguous()?, operation)
        }
        Kernels::Composed => composed(query, key, value, heads),
    }
}

fn composed(query: &Tensor, key: &Tensor, value: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, length, width) = query.dims3()?;
    let split = |tensor: &Tensor| tensor.reshape((batch, length, heads, width / heads))?.transpose(1, 2)?.contiguous();
    let (query, key, value) = (split(query)?, split(key)?, split(value)?);
    let scale = 1.0 / ((width / heads) as f64).sqrt();
    let scores = (query.matmul(&key.t()?)? * scale)?;
    let hidden =
        (0..length * length).map(|index| if index % length > index / length { f32::NEG_INFINITY } else { 0.0 });
    let mask = Tensor::from_iter(hidden, query.device())?.reshape((1, 1, length, length))?;
    let scores = scores.broadcast_add(&mask)?;
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
    let probabilities = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    probabilities.matmul(&value)?.transpose(1, 2)?.reshape((batch, length, width))
}

struct Attention {
    length: usize,
    width: usize,
    heads: usize,
}

impl Attention {
    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }

    /// Rows `first..last` of one head inside a sequence `[length, width]`, as a strided view.
    fn rows<'a>(&self, sequence: &'a [f32], head: usize, first: usize, last: usize) -> Matrix<'a> {
        let start = first * self.width + head * self.head_width();
        Matrix::strided(&sequence[start..], last - first, self.head_width(), self.width)
    }

    fn rows_mut<'a>(&self, sequence: &'a mut [f32], head: usize, first: usize, last: usize) -> MatrixMut<'a> {
        let start = first * self.width + head * self.head_width();
        MatrixMut::strided(&mut sequence[start..], last - first, self.head_width(), self.width)
    }

    /// Writes the probabilities of rows `first..last` over columns `0..last` into `place`, zeros above the diagonal.
    fn probabilities(&self, place: &mut [f32], query: &[f32], key: &[f32], head: usize, first: usize, last: usize) {
        let (queries, keys) = (self.rows(query, head, first, last), self.rows(key, head, 0, last));
        let scores = MatrixMut::dense(place, last - first, last);
        multiply(scores, Write::Replace, self.scale(), queries, keys.transposed());
        softmax_rows(&mut place[..(last - first) * last], first, last);
    }

    /// (first row, end) of each block of rows.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let length = self.length;
        (0..length).step_by(BLOCK_ROWS).map(move |first| (first, (first + BLOCK_ROWS).min(length)))
    }

    fn forward_sequence(&self, output: &mut [f32], query: &[f32], key: &[f32], value: &[f32], scratch: &mut [f32]) {
        for head in 0..self.heads {
            for (first, last) in self.blocks() {
                let scores = &mut scratch[..(last - first) * last];
                self.probabilities(scores, query, key, head, first, last);
                let place = self.rows_mut(output, head, first, last);
                let scores = Matrix::dense(scores, last - first, last);
                multiply(place, Write::Replace, 1.0, scores, self.rows(value, head, 0, last));
            }
        }
    }

    /// With P the probabilities, S the scores, g the output's gradient: `dV = Pᵀg`, `dP = gVᵀ`, `dS = P ∘ (dP − rowsum(P
    /// ∘ dP))`, `dQ = dS·K/√d`, `dK = dSᵀ·Q/√d`.
    fn backward_sequence(
        &self,
        gradients: &mut SequenceGradients<'_>,
        inputs: &SequenceInputs<'_>,
        scratch: &mut [f32],
    ) {
        let &SequenceInputs { query, key, value, gradient } = inputs;
        let (probabilities, to_scores) = scratch.split_at_mut(BLOCK_ROWS * self.length);
        for head in 0..self.heads {
            for (first, last) in self.blocks() {
                let rows = last - first;
                let (probabilities, to_scores) = (&mut probabilities[..rows * last], &mut to_scores[..rows * last]);
                self.probabilities(probabilities, query, key, head, first, last);
                let (seen, gradient) =
                    (Matrix::dense(probabilities, rows, last), self.rows(gradient, head, first, last));
                let to_values = self.rows_mut(gradients.value, head, 0, last);
                multiply(to_values, Write::Add, 1.0, seen.transposed(), gradient);
                let values = self.rows(value, head, 0, last).transposed();
                let place = MatrixMut::dense(to_scores, rows, last);
                multiply(place, Write::Replace, 1.0, gradient, values);
                backward_softmax(to_scores, probabilities, last);
                let to_scores = Matrix::dense(to_scores, rows, last);
                let to_queries = self.rows_mut(gradients.query, head, first, last);
                let keys = self.rows(key, head, 0, last);
                multiply(to_queries, Write::Replace, self.scale(), to_scores, keys);
                let to_keys = self.rows_mut(gradients.key, head, 0, last);
                let queries = self.rows(query, head, first, last);
                multiply(to_keys, Write::Add, self.scale(), to_scores.transposed(), queries);
            }
        }
    }
}

vectorised! {
    /// Causal softmax of the rows from `first` on, `columns` wide: zeros after the diagonal.
    fn softmax_rows(scores: &mut [f32], first: usize, columns: usize) {
        for (row, scores) in scores.chunks_exact_mut(columns).enumerate() {
            let (seen, hidden) = scores.split_at_mut(first + row + 1);
            hidden.fill(0.0);
            let (sum, _) = exponentials_in_place(seen);
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

/// One sequence's inputs, each `[length, width]`.
struct SequenceInputs<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    gradient: &'a [f32],
}

/// One sequence's gradients, each `[length, width]`, zeros at first.
struct SequenceGradients<'a> {
    query: &'a mut [f32],
    key: &'a mut [f32],
    value: &'a mut [f32],
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Layout,
        key: &CpuStorage,
        key_layout: &Layout,
        value: &CpuStorage,
        value_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (query, key, value) =
            (floats(query, query_layout)?, floats(key, key_layout)?, floats(value, value_layout)?);
        if key.len() != query.len() || value.len() != query.len() {
            candle_core::bail!("attention: queries, keys and values differ in shape");
        }
        let sequence = self.length * self.width;
        let mut output = vec![0.0; query.len()];
        let inputs = query.par_chunks(sequence).zip(key.par_chunks(sequence)).zip(value.par_chunks(sequence));
        output.par_chunks_mut(sequence).zip(inputs).for_each_init(
            || vec![0.0; BLOCK_ROWS * self.length],
            |scratch, (output, ((query, key), value))| self.forward_sequence(output, query, key, value, scratch),
        );
        Ok((CpuStorage::F32(output), query_layout.shape().clone()))
    }

    fn bwd(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        _output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let (queries, keys, values) = (Reading::of(query)?, Reading::of(key)?, Reading::of(value)?);
        let gradient = Reading::of(&gradient)?;
        let sequence = self.length * self.width;
        let count = queries.len();
        let (mut to_query, mut to_key, mut to_value) = (vec![0.0; count], vec![0.0; count], vec![0.0; count]);
        let inputs = queries.par_chunks(sequence).zip(keys.par_chunks(sequence));
        let inputs = inputs.zip(values.par_chunks(sequence).zip(gradient.par_chunks(sequence)));
        let outputs = to_query.par_chunks_mut(sequence).zip(to_key.par_chunks_mut(sequence));
        let outputs = outputs.zip(to_value.par_chunks_mut(sequence));
        outputs.zip(inputs).for_each_init(
            || vec![0.0; 2 * BLOCK_ROWS * self.length],
            |scratch, (((to_query, to_key), to_value), ((query, key), (value, gradient)))| {
                let mut gradients = SequenceGradients { query: to_query, key: to_key, value: to_value };
                self.backward_sequence(&mut gradients, &SequenceInputs { query, key, value, gradient }, scratch);
            },
        );
        let to_value = shaped_like(to_value, value)?;
        Ok((Some(shaped_like(to_query, query)?), Some(shaped_like(to_key, key)?), Some(to_value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{check_gradients, random};

    #[test]
    fn attention_agrees_with_autograd() {
        for (batch, length, heads, head_width) in [(1, 1, 1, 2), (2, 7, 3, 4), (3, 70, 2, 16)] {
            let shape = [batch, length, heads * head_width];
            let arguments = [random(&shape, 1), random(&shape, 2), random(&shape, 3)];
            check_gradients(&arguments, |kernels, tensors| {
                attention(kernels, &tensors[0], &tensors[1], &tensors[2], heads)
            });
        }
    }

    #[test]
    fn no_position_sees_a_later_one() -> Result<()> {
        let (query, key, value) = (random(&[1, 40, 8], 1), random(&[1, 40, 8], 2), random(&[1, 40, 8], 3));
        let whole = attention(Kernels::Fused, &query, &key, &value, 2)?;
        let start = |tensor: &Tensor| tensor.narrow(1, 0, 33);
        let part = attention(Kernels::Fused, &start(&query)?, &start(&key)?, &start(&value)?, 2)?;
        let difference = (start(&whole)? - part)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(difference < 1e-6, "{difference}");
        Ok(())
    }
}

//! RMSNorm of each head's query and key by itself, with one learned scale for all queries and one for all keys (Qwen3, arXiv
//! 2505.09388; the idea: Henry et al., arXiv 2010.04245).

use candle_core::{DType, Result, Tensor};
use rayon::prelude::*;

use super::TASK_ROWS;
use super::attention::Attention;
use super::exponential::dot;
use super::product::Write;
use super::rms_norm;
use super::vector::vectorised;

/// Heads side by side, `input` `[…, heads · head width]`, each normalised and multiplied by `scale` `[head width]`, composed
/// of candle's operations: in `f32`, and given back in the precision of `input`.
pub(crate) fn composed(input: &Tensor, scale: &Tensor, epsilon: f64) -> Result<Tensor> {
    let heads = input.reshape(((), scale.dim(0)?))?.to_dtype(DType::F32)?;
    rms_norm::composed(&heads, scale, epsilon)?.to_dtype(input.dtype())?.reshape(input.shape())
}

/// The scales, each `[head width]`, and what is added to the mean square.
pub(crate) struct HeadNorm<'a> {
    pub(crate) query: &'a [f32],
    pub(crate) key: &'a [f32],
    pub(crate) epsilon: f32,
}

impl HeadNorm<'_> {
    /// Normalises queries and keys of `joint` `[rows, joint width]` in place, and keeps them as they were in `raw` `[rows,
    /// query width + key width]`.
    pub(crate) fn forward(&self, attention: &Attention, joint: &mut [f32], raw: &mut [f32]) {
        let (row_width, queries, both) = widths(attention);
        let tasks = joint.par_chunks_mut(row_width * TASK_ROWS).zip(raw.par_chunks_mut(both * TASK_ROWS));
        tasks.for_each(|(joint, raw)| {
            for (joint, raw) in joint.chunks_exact_mut(row_width).zip(raw.chunks_exact_mut(both)) {
                raw.copy_from_slice(&joint[..both]);
                let (query, key) = joint[..both].split_at_mut(queries);
                normalise_heads(query, self.query, self.epsilon);
                normalise_heads(key, self.key, self.epsilon);
            }
        });
    }

    /// Turns the gradient of what was normalised, in `to_joint`, into that of `raw`, and writes the scales'.
    pub(crate) fn backward(
        &self,
        attention: &Attention,
        to_joint: &mut [f32],
        raw: &[f32],
        to_scales: Option<(&mut [f32], &mut [f32], Write)>,
    ) {
        let (row_width, queries, both) = widths(attention);
        let width = attention.head_width;
        // Each task sums its rows; the tasks' sums are added in their order below.
        let tasks = to_joint.par_chunks_mut(row_width * TASK_ROWS).zip(raw.par_chunks(both * TASK_ROWS));
        let sums = tasks.map(|(to_joint, raw)| {
            let (mut to_query, mut to_key) = (vec![0.0; width], vec![0.0; width]);
            for (to_joint, raw) in to_joint.chunks_exact_mut(row_width).zip(raw.chunks_exact(both)) {
                let (query, key) = to_joint[..both].split_at_mut(queries);
                backward_heads(query, &raw[..queries], self.query, &mut to_query, self.epsilon);
                backward_heads(key, &raw[queries..], self.key, &mut to_key, self.epsilon);
            }
            (to_query, to_key)
        });
        let sums: Vec<(Vec<f32>, Vec<f32>)> = sums.collect();
        let Some((to_query, to_key, write)) = to_scales else { return };
        if write == Write::Replace {
            to_query.fill(0.0);
            to_key.fill(0.0);
        }
        for (of_query, of_key) in sums {
            to_query.iter_mut().zip(of_query).for_each(|(sum, value)| *sum += value);
            to_key.iter_mut().zip(of_key).for_each(|(sum, value)| *sum += value);
        }
    }
}

/// Columns of a joint row, of its queries, and of its queries and keys.
fn widths(attention: &Attention) -> (usize, usize, usize) {
    let queries = attention.query_width();
    (attention.joint_width(), queries, queries + attention.key_width())
}

#[inline(always)]
fn inverse_root(head: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(head, head) / head.len() as f32 + epsilon).sqrt()
}

vectorised! {
    fn normalise_heads(heads: &mut [f32], scale: &[f32], epsilon: f32) {
        for head in heads.chunks_exact_mut(scale.len()) {
            let inverse = inverse_root(head, epsilon);
            head.iter_mut().zip(scale).for_each(|(value, scale)| *value = *value * inverse * scale);
        }
    }
}

vectorised! {
    /// In place, as the backward of [`rms_norm`]; adds to the scale's gradient.
    fn backward_heads(gradients: &mut [f32], raw: &[f32], scale: &[f32], to_scale: &mut [f32], epsilon: f32) {
        let width = scale.len();
        for (gradient, raw) in gradients.chunks_exact_mut(width).zip(raw.chunks_exact(width)) {
            let inverse = inverse_root(raw, epsilon);
            let values = gradient.iter_mut().zip(&mut *to_scale);
            for ((gradient, to_scale), (scale, raw)) in values.zip(scale.iter().zip(raw)) {
                *to_scale += *gradient * raw * inverse;
                *gradient *= scale;
            }
            let pull = dot(gradient, raw) * inverse * inverse * inverse / width as f32;
            gradient.iter_mut().zip(raw).for_each(|(gradient, raw)| *gradient = *gradient * inverse - raw * pull);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_values, values};

    #[test]
    fn norms_of_heads_agree_with_autograd_and_leave_values_alone() {
        for (length, heads, key_heads, head_width, epsilon) in
            [(1, 1, 1, 2, 1e-5), (150, 4, 2, 6, 1e-6), (70, 3, 1, 20, 1e-2)]
        {
            let attention = Attention { sequences: 1, length, heads, key_heads, head_width };
            let (row, queries, both) = widths(&attention);
            let (joint, query, key) = (random(&[length, row], 1), random(&[head_width], 2), random(&[head_width], 3));
            let gradient = random_values(length * row, 4);
            let arguments = [joint.clone(), query.clone(), key.clone()];
            let expected = by_autograd(&arguments, &gradient, |tensors| {
                let part = |first, width, scale: &Tensor| {
                    composed(&tensors[0].narrow(1, first, width)?.contiguous()?, scale, epsilon)
                };
                let (query, key) = (part(0, queries, &tensors[1])?, part(queries, both - queries, &tensors[2])?);
                Tensor::cat(&[query, key, tensors[0].narrow(1, both, row - both)?], 1)
            });
            let (query, key) = (values(&query), values(&key));
            let norm = HeadNorm { query: &query, key: &key, epsilon: epsilon as f32 };
            let (mut output, mut raw) = (values(&joint), vec![f32::NAN; length * both]);
            norm.forward(&attention, &mut output, &mut raw);
            assert_close("output", &output, &expected[0]);
            let (mut to_joint, mut to_query, mut to_key) =
                (gradient, vec![f32::NAN; head_width], vec![f32::NAN; head_width]);
            norm.backward(&attention, &mut to_joint, &raw, Some((&mut to_query, &mut to_key, Write::Replace)));
            assert_close("input", &to_joint, &expected[1]);
            assert_close("scale of queries", &to_query, &expected[2]);
            assert_close("scale of keys", &to_key, &expected[3]);
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let attention = Attention { sequences: 1, length: 3, heads: 2, key_heads: 1, head_width: 4 };
        let (query, key) = (random_values(4, 2), random_values(4, 3));
        let norm = HeadNorm { query: &query, key: &key, epsilon: 1e-5 };
        let (joint, weights) = (random_values(3 * 16, 1), random_values(3 * 16, 4));
        // In 64 bits, or rounding would hide the differences.
        let loss = |joint: &[f64]| {
            let rows = joint.chunks_exact(16).zip(weights.chunks_exact(16));
            let of_row = |(row, weights): (&[f64], &[f32])| {
                let heads = row.chunks_exact(4).zip(weights.chunks_exact(4)).enumerate();
                let of_head = |(index, (head, weights)): (usize, (&[f64], &[f32]))| {
                    let square = head.iter().map(|value| value * value).sum::<f64>() / 4.0 + 1e-5;
                    let scale = if index < 2 { &query } else { &key };
                    let value = |column: usize| match index {
                        3 => head[column],
                        _ => head[column] / square.sqrt() * f64::from(scale[column]),
                    };
                    (0..4).map(|column| value(column) * f64::from(weights[column])).sum::<f64>()
                };
                heads.map(of_head).sum::<f64>()
            };
            rows.map(of_row).sum::<f64>()
        };
        let (mut output, mut raw) = (joint.clone(), vec![0.0; 3 * 12]);
        norm.forward(&attention, &mut output, &mut raw);
        let mut to_joint = weights.clone();
        norm.backward(&attention, &mut to_joint, &raw, Some((&mut [0.0; 4], &mut [0.0; 4], Write::Replace)));
        let exact: Vec<f64> = joint.iter().map(|value| f64::from(*value)).collect();
        let differences: Vec<f32> = (0..joint.len())
            .map(|index| {
                let moved = |by: f64| {
                    let mut moved = exact.clone();
                    moved[index] += by;
                    loss(&moved)
                };
                ((moved(1e-5) - moved(-1e-5)) / 2e-5) as f32
            })
            .collect();
        assert_close("input", &to_joint, &differences);
    }
}

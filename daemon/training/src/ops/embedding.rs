//! Token embedding: rows of a table picked by token.

use candle_core::{Result, Tensor};

/// The rows of `table` `[vocabulary, width]` that `tokens` `[batch, length]` (`u32`) name: `[batch, length, width]`,
/// composed of candle's operations.
pub(crate) fn composed(table: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    let (batch, length) = tokens.dims2()?;
    table.index_select(&tokens.flatten_all()?, 0)?.reshape((batch, length, ()))
}

/// The same into `output` `[tokens, width]`.
///
/// # Panics
/// When a token is outside of the table.
pub(crate) fn forward(output: &mut [f32], table: &[f32], tokens: &[u32]) {
    let width = output.len() / tokens.len();
    for (output, &token) in output.chunks_exact_mut(width).zip(tokens) {
        output.copy_from_slice(&table[token as usize * width..][..width]);
    }
}

/// Adds `gradient` `[tokens, width]` to the rows of `to_table`. On one thread in the tokens' order: rows collide, and
/// this is a thousandth of a step.
pub(crate) fn backward(to_table: &mut [f32], gradient: &[f32], tokens: &[u32]) {
    let width = gradient.len() / tokens.len();
    for (gradient, &token) in gradient.chunks_exact(width).zip(tokens) {
        let row = &mut to_table[token as usize * width..][..width];
        row.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_tokens, random_values, values};

    #[test]
    fn embedding_agrees_with_autograd() {
        let (table, tokens) = (random(&[10, 6], 1), random_tokens(120, 10, 3));
        let gradient = random_values(120 * 6, 2);
        let expected = by_autograd(std::slice::from_ref(&table), &gradient, |tensors| {
            composed(&tensors[0], &Tensor::from_slice(&tokens, (3, 40), tensors[0].device())?)
        });
        let (mut output, mut to_table) = (vec![0.0; 120 * 6], vec![0.0; 60]);
        forward(&mut output, &values(&table), &tokens);
        assert_close("output", &output, &expected[0]);
        backward(&mut to_table, &gradient, &tokens);
        assert_close("table", &to_table, &expected[1]);
    }
}

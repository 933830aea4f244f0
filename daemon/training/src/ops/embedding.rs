//! Token embedding: rows of a table picked by token.

use std::collections::BTreeMap;

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

/// Gradients of a table's rows that several microbatches add up, of those rows alone that their tokens name: where the table is the
/// head's as well, the head's sum and this one are added once both are whole. So bits do not depend on which of the two is
/// computed when.
#[derive(Debug, Default)]
pub(crate) struct RowSums {
    /// Of each token the number of its row in `values`.
    places: BTreeMap<u32, usize>,
    /// `[rows, width]`.
    values: Vec<f32>,
}

impl RowSums {
    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.values.clear();
    }

    /// Adds `gradient` `[tokens, width]` to the rows of the tokens.
    pub(crate) fn add(&mut self, gradient: &[f32], tokens: &[u32]) {
        let width = gradient.len() / tokens.len();
        for (gradient, &token) in gradient.chunks_exact(width).zip(tokens) {
            let next = self.places.len();
            let place = *self.places.entry(token).or_insert(next);
            if place == next {
                self.values.extend_from_slice(gradient);
                continue;
            }
            let row = &mut self.values[place * width..][..width];
            row.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        }
    }

    /// Adds all to the gradient of the table, and forgets it.
    pub(crate) fn add_to(&mut self, to_table: &mut [f32]) {
        let width = self.values.len() / self.places.len().max(1);
        for (&token, &place) in &self.places {
            let row = &mut to_table[token as usize * width..][..width];
            row.iter_mut().zip(&self.values[place * width..]).for_each(|(sum, value)| *sum += value);
        }
        self.clear();
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
        let (mut sums, mut to_table) = (RowSums::default(), vec![0.0; 60]);
        // In three parts, and twice: nothing of the first time is left.
        for _ in 0..2 {
            gradient.chunks(40 * 6).zip(tokens.chunks(40)).for_each(|(gradient, tokens)| sums.add(gradient, tokens));
            sums.add_to(&mut to_table);
        }
        to_table.iter_mut().for_each(|value| *value /= 2.0);
        assert_close("table in parts", &to_table, &expected[1]);
    }
}

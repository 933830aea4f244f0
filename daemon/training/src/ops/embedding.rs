//! Token embedding: rows of a table picked by byte.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::Kernels;
use super::storage::{Reading, floats, indices, read_indices, shaped_like};

/// The rows of `table` `[vocabulary, width]` that `tokens` `[batch, length]` (`u32`) name: `[batch, length, width]`.
pub(crate) fn embedding(kernels: Kernels, table: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    match kernels {
        Kernels::Fused => table.contiguous()?.apply_op2(&tokens.contiguous()?, Embedding),
        Kernels::Composed => {
            let (batch, length) = tokens.dims2()?;
            table.index_select(&tokens.flatten_all()?, 0)?.reshape((batch, length, ()))
        }
    }
}

struct Embedding;

impl CustomOp2 for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(
        &self,
        table: &CpuStorage,
        table_layout: &Layout,
        tokens: &CpuStorage,
        tokens_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (table, tokens) = (floats(table, table_layout)?, indices(tokens, tokens_layout)?);
        let (vocabulary, width) = table_layout.shape().dims2()?;
        let mut output = Vec::with_capacity(tokens.len() * width);
        for &token in tokens {
            let row = token as usize;
            if row >= vocabulary {
                candle_core::bail!("embedding: token {token} of a vocabulary of {vocabulary}");
            }
            output.extend_from_slice(&table[row * width..(row + 1) * width]);
        }
        let mut shape = tokens_layout.dims().to_vec();
        shape.push(width);
        Ok((CpuStorage::F32(output), Shape::from(shape)))
    }

    fn bwd(
        &self,
        table: &Tensor,
        tokens: &Tensor,
        _output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let gradient = Reading::of(&gradient)?;
        let (_, width) = table.dims2()?;
        let mut to_table = vec![0.0; table.elem_count()];
        // One thread and the tokens' order: rows collide, and this is a thousandth of a step.
        for (token, gradient) in read_indices(tokens)?.into_iter().zip(gradient.chunks_exact(width)) {
            let row = &mut to_table[token as usize * width..][..width];
            row.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        }
        Ok((Some(shaped_like(to_table, table)?), None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{check_gradients, random, random_tokens};

    #[test]
    fn embedding_agrees_with_autograd() {
        let tokens = random_tokens(&[3, 40], 10, 3);
        check_gradients(&[random(&[10, 6], 1)], |kernels, tensors| embedding(kernels, &tensors[0], &tokens));
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_an_error() {
        let tokens = random_tokens(&[1, 40], 11, 3);
        assert!(embedding(Kernels::Fused, random(&[3, 6], 1).as_tensor(), &tokens).is_err());
    }
}

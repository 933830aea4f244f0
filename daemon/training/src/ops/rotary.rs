//! Rotary positions: pairs of a head's values turned by an angle that grows with the position (RoPE, Su et al., arXiv
//! 2104.09864), in Llama's half-split form: value `i` of a head pairs with value `i + half`.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, D, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::Kernels;
use super::storage::{Reading, floats, shaped_like};

/// Cosines and sines of all positions up to a context's length.
#[derive(Clone)]
pub(crate) struct RotaryTables {
    /// `[context, half]`, row-major; shared with the graph.
    cosines: Arc<[f32]>,
    /// `[context, half]`, row-major.
    sines: Arc<[f32]>,
    /// Half a head's width.
    half: usize,
}

impl RotaryTables {
    /// Tables for heads of `head_width` (even) and positions below `context`; `theta` is the base of the angles' geometric
    /// series.
    pub(crate) fn new(head_width: usize, context: usize, theta: f64) -> RotaryTables {
        let half = head_width / 2;
        let angle = |index: usize| {
            let (position, pair) = (index / half, index % half);
            position as f64 * theta.powf(-(pair as f64) / half as f64)
        };
        RotaryTables {
            cosines: (0..context * half).map(|index| angle(index).cos() as f32).collect(),
            sines: (0..context * half).map(|index| angle(index).sin() as f32).collect(),
            half,
        }
    }

    fn tensors(&self, length: usize, device: &Device) -> Result<(Tensor, Tensor)> {
        let tensor = |values: &[f32]| {
            Tensor::from_slice(&values[..length * self.half], (1, length, 1, self.half), &Device::Cpu)?
                .to_device(device)
        };
        Ok((tensor(&self.cosines)?, tensor(&self.sines)?))
    }
}

/// Turns `input` `[batch, length, heads · head width]` by its positions `0..length`, at most the tables' context.
pub(crate) fn rotary(kernels: Kernels, input: &Tensor, tables: &RotaryTables) -> Result<Tensor> {
    let (batch, length, width) = input.dims3()?;
    if length * tables.half > tables.cosines.len() {
        candle_core::bail!("rotary: {length} positions are more than the context");
    }
    match kernels {
        Kernels::Fused => {
            let rotation = Rotary { tables: tables.clone(), length, width, backwards: false };
            input.contiguous()?.apply_op1(rotation)
        }
        Kernels::Composed => {
            let half = tables.half;
            let (cosines, sines) = tables.tensors(length, input.device())?;
            let heads = input.reshape((batch, length, width / (2 * half), 2 * half))?;
            let (first, second) = (heads.narrow(D::Minus1, 0, half)?, heads.narrow(D::Minus1, half, half)?);
            let turned_first = (first.broadcast_mul(&cosines)? - second.broadcast_mul(&sines)?)?;
            let turned_second = (second.broadcast_mul(&cosines)? + first.broadcast_mul(&sines)?)?;
            Tensor::cat(&[turned_first, turned_second], D::Minus1)?.reshape((batch, length, width))
        }
    }
}

struct Rotary {
    tables: RotaryTables,
    length: usize,
    width: usize,
    /// The backward of a rotation is the rotation back.
    backwards: bool,
}

impl Rotary {
    fn turn(&self, input: &[f32]) -> Vec<f32> {
        let sequence = self.length * self.width;
        let mut output = vec![0.0; input.len()];
        output.par_chunks_mut(sequence).zip(input.par_chunks(sequence)).for_each(|(output, input)| {
            self.turn_sequence(output, input);
        });
        output
    }

    fn turn_sequence(&self, output: &mut [f32], input: &[f32]) {
        let half = self.tables.half;
        let sign = if self.backwards { -1.0 } else { 1.0 };
        let tables = self.tables.cosines.chunks_exact(half).zip(self.tables.sines.chunks_exact(half));
        let positions = output.chunks_exact_mut(self.width).zip(input.chunks_exact(self.width));
        for ((output, input), (cosines, sines)) in positions.zip(tables) {
            for (output, input) in output.chunks_exact_mut(2 * half).zip(input.chunks_exact(2 * half)) {
                let (first, second) = input.split_at(half);
                let (turned_first, turned_second) = output.split_at_mut(half);
                for pair in 0..half {
                    let (cosine, sine) = (cosines[pair], sign * sines[pair]);
                    turned_first[pair] = first[pair] * cosine - second[pair] * sine;
                    turned_second[pair] = second[pair] * cosine + first[pair] * sine;
                }
            }
        }
    }
}

impl CustomOp1 for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn cpu_fwd(&self, input: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.turn(floats(input, layout)?)), layout.shape().clone()))
    }

    fn bwd(&self, input: &Tensor, _output: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let back = Rotary { tables: self.tables.clone(), backwards: !self.backwards, ..*self };
        Ok(Some(shaped_like(back.turn(&Reading::of(&gradient)?), input)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{check_gradients, random};

    #[test]
    fn rotary_agrees_with_autograd() {
        for (batch, length, heads, head_width) in [(1, 1, 1, 2), (2, 9, 3, 4), (3, 16, 2, 16)] {
            let tables = RotaryTables::new(head_width, 16, 1e4);
            let input = [random(&[batch, length, heads * head_width], 1)];
            check_gradients(&input, |kernels, tensors| rotary(kernels, &tensors[0], &tables));
        }
    }

    #[test]
    fn more_positions_than_the_context_are_an_error() {
        assert!(rotary(Kernels::Fused, random(&[1, 9, 4], 1).as_tensor(), &RotaryTables::new(4, 8, 1e4)).is_err());
    }
}

//! Rotary positions: pairs of a head's values turned by an angle that grows with the position (RoPE, Su et al., arXiv
//! 2104.09864), in Hugging Face's Llama convention: value `i` of a head pairs with value `i + half`.

use std::f64::consts::TAU;
use std::ops::Range;

use candle_core::{D, Device, Result, Tensor};
use murmur_protocol::manifest::{RopeScaling, TransformerModel};
use rayon::prelude::*;

use super::TASK_ROWS;
use super::vector::vectorised;

/// Cosines and sines of all positions up to a context's length.
#[derive(Clone)]
pub(crate) struct RotaryTables {
    /// `[context, half]`, row-major.
    cosines: Vec<f32>,
    /// `[context, half]`, row-major.
    sines: Vec<f32>,
    /// Half a head's width.
    half: usize,
}

/// Which way to turn; the backward of a rotation is the rotation back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Forwards,
    Backwards,
}

impl RotaryTables {
    /// Tables for the heads of a model and all positions of its context.
    pub(crate) fn of(spec: &TransformerModel) -> RotaryTables {
        let frequencies = frequencies(spec);
        let (half, context) = (frequencies.len(), spec.context as usize);
        let angle = |index: usize| (index / half) as f64 * frequencies[index % half];
        RotaryTables {
            cosines: (0..context * half).map(|index| angle(index).cos() as f32).collect(),
            sines: (0..context * half).map(|index| angle(index).sin() as f32).collect(),
            half,
        }
    }

    /// `[context, half]`, row-major.
    pub(crate) fn cosines(&self) -> &[f32] {
        &self.cosines
    }

    /// `[context, half]`, row-major.
    pub(crate) fn sines(&self) -> &[f32] {
        &self.sines
    }

    /// `input` `[batch, length, heads · head width]` turned by its positions `0..length`, composed of candle's operations.
    ///
    /// # Errors
    /// When the length is above the context.
    pub(crate) fn composed(&self, input: &Tensor) -> Result<Tensor> {
        let ((batch, length, width), half) = (input.dims3()?, self.half);
        if length * half > self.cosines.len() {
            candle_core::bail!("{length} positions are more than the context");
        }
        let table = |values: &[f32]| {
            let table = Tensor::from_slice(&values[..length * half], (1, length, 1, half), &Device::Cpu)?;
            table.to_device(input.device())?.to_dtype(input.dtype())
        };
        let (cosines, sines) = (table(&self.cosines)?, table(&self.sines)?);
        let heads = input.reshape((batch, length, width / (2 * half), 2 * half))?;
        let (first, second) = (heads.narrow(D::Minus1, 0, half)?, heads.narrow(D::Minus1, half, half)?);
        let turned_first = (first.broadcast_mul(&cosines)? - second.broadcast_mul(&sines)?)?;
        let turned_second = (second.broadcast_mul(&cosines)? + first.broadcast_mul(&sines)?)?;
        Tensor::cat(&[turned_first, turned_second], D::Minus1)?.reshape((batch, length, width))
    }

    /// Turns the first `turned` columns (whole heads) of `values` in place: sequences with a row for each of the `positions`,
    /// `row_width` wide.
    pub(crate) fn turn(
        &self,
        values: &mut [f32],
        row_width: usize,
        turned: usize,
        positions: Range<usize>,
        turn: Turn,
    ) {
        let sign = if turn == Turn::Forwards { 1.0 } else { -1.0 };
        values.par_chunks_mut(row_width * TASK_ROWS).enumerate().for_each(|(task, rows)| {
            for (index, row) in rows.chunks_exact_mut(row_width).enumerate() {
                let first = (positions.start + (task * TASK_ROWS + index) % positions.len()) * self.half;
                let table = first..first + self.half;
                turn_heads(&mut row[..turned], &self.cosines[table.clone()], &self.sines[table], sign);
            }
        });
    }
}

/// The angle from one position to the next, for each pair of a head's values: a geometric series, and what the model's
/// scaling makes of it.
fn frequencies(spec: &TransformerModel) -> Vec<f64> {
    let half = (spec.resolved_head_width() / 2) as usize;
    let unscaled = (0..half).map(|pair| spec.rope_theta.powf(-(pair as f64) / half as f64));
    let (low, high) = (spec.rope_low_factor, spec.rope_high_factor);
    let scaled = |frequency: f64| match spec.rope_scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear => frequency / spec.rope_factor,
        RopeScaling::Llama3 => {
            let turns = f64::from(spec.rope_original_context) * frequency / TAU;
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / spec.rope_factor)
        }
    };
    unscaled.map(scaled).collect()
}

vectorised! {
    fn turn_heads(heads: &mut [f32], cosines: &[f32], sines: &[f32], sign: f32) {
        let half = cosines.len();
        for head in heads.chunks_exact_mut(2 * half) {
            let (first, second) = head.split_at_mut(half);
            for ((first, second), (cosine, sine)) in first.iter_mut().zip(second).zip(cosines.iter().zip(sines)) {
                let (x, y, sine) = (*first, *second, sign * sine);
                *first = x * cosine - y * sine;
                *second = y * cosine + x * sine;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::{assert_close, by_autograd, random, random_values, values};

    fn spec(head_width: usize, context: u32) -> TransformerModel {
        TransformerModel { head_width: head_width as u32, context, rope_theta: 500.0, ..Default::default() }
    }

    #[test]
    fn scalings_stretch_what_they_say() {
        let plain = spec(16, 64);
        let unscaled = frequencies(&plain);
        assert_eq!((unscaled[0], unscaled.len()), (1.0, 8));
        let linear = TransformerModel { rope_scaling: RopeScaling::Linear, rope_factor: 4.0, ..plain.clone() };
        assert!(frequencies(&linear).iter().zip(&unscaled).all(|(found, unscaled)| *found == unscaled / 4.0));
        let llama = TransformerModel { rope_scaling: RopeScaling::Llama3, rope_factor: 4.0, ..plain };
        let llama =
            TransformerModel { rope_low_factor: 1.0, rope_high_factor: 3.0, rope_original_context: 64, ..llama };
        for (found, unscaled) in frequencies(&llama).into_iter().zip(unscaled) {
            let wavelength = TAU / unscaled;
            // The three cases as Llama 3.1's authors write them.
            let expected = if wavelength < 64.0 / 3.0 {
                unscaled
            } else if wavelength > 64.0 {
                unscaled / 4.0
            } else {
                let smooth = (64.0 / wavelength - 1.0) / (3.0 - 1.0);
                (1.0 - smooth) * unscaled / 4.0 + smooth * unscaled
            };
            assert!((found / expected - 1.0).abs() < 1e-12, "{wavelength}: {found}, not {expected}");
        }
    }

    #[test]
    fn rotary_agrees_with_autograd_and_leaves_other_columns_alone() {
        for (batch, length, heads, head_width) in [(1, 1, 1, 2), (2, 9, 3, 4), (7, 16, 2, 16)] {
            let tables = RotaryTables::of(&spec(head_width, 16));
            let (rows, turned) = (batch * length, heads * head_width);
            let input = random(&[batch, length, turned + 3], 1);
            let gradient = random_values(rows * (turned + 3), 2);
            let expected = by_autograd(std::slice::from_ref(&input), &gradient, |tensors| {
                let turned_part = tables.composed(&tensors[0].narrow(2, 0, turned)?.contiguous()?)?;
                Tensor::cat(&[turned_part, tensors[0].narrow(2, turned, 3)?], 2)
            });
            let (mut output, mut to_input) = (values(&input), gradient.clone());
            tables.turn(&mut output, turned + 3, turned, 0..length, Turn::Forwards);
            assert_close("output", &output, &expected[0]);
            tables.turn(&mut to_input, turned + 3, turned, 0..length, Turn::Backwards);
            assert_close("input", &to_input, &expected[1]);
        }
    }

    #[test]
    fn more_positions_than_the_context_are_an_error() {
        assert!(RotaryTables::of(&spec(4, 8)).composed(random(&[1, 9, 4], 1).as_tensor()).is_err());
    }
}

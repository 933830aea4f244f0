//! Steps over moments in [codes](super::codes): a block is decoded into arrays that stay in the processor's nearest cache, moved as
//! ever, and encoded anew.

use murmur_protocol::manifest::OptimizerSpec;
use rayon::prelude::*;

use super::codes::{self, BLOCK, CodedMut, Dither};
use super::{StepFactors, TASK_VALUES, take};
use crate::ops::vector::vectorised;

/// The slices of one tensor, or of a part of it that begins with a block: as [`super::adamw::Slices`] has them.
pub(super) struct Slices<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) first: CodedMut<'a>,
    pub(super) second: CodedMut<'a>,
    /// Where the second moment is matched to the batch.
    pub(super) average: Option<CodedMut<'a>>,
}

/// AdamW's step of one tensor.
pub(super) fn step(spec: &OptimizerSpec, factors: &StepFactors, dither: Dither, mut tensor: Slices<'_>) {
    let mut tasks = Vec::with_capacity(tensor.values.len().div_ceil(TASK_VALUES));
    while !tensor.values.is_empty() {
        let count = tensor.values.len().min(TASK_VALUES);
        let (gradient, rest) = tensor.gradient.split_at(count);
        tensor.gradient = rest;
        tasks.push(Slices {
            values: take(&mut tensor.values, count),
            gradient,
            first: tensor.first.take(count),
            second: tensor.second.take(count),
            average: tensor.average.as_mut().map(|average| average.take(count)),
        });
    }
    tasks.into_par_iter().enumerate().for_each(|(task, slices)| {
        step_blocks(spec, factors, dither, task * TASK_VALUES, slices);
    });
}

vectorised! {
    /// As `step_values` and `step_matched` of [`super::adamw`]; `begin` is the first value's place in its tensor.
    fn step_blocks(spec: &OptimizerSpec, factors: &StepFactors, dither: Dither, begin: usize, slices: Slices<'_>) {
        let (beta1, beta2, epsilon) = (spec.beta1 as f32, spec.beta2 as f32, spec.epsilon as f32);
        let (new1, new2) = ((1.0 - spec.beta1) as f32, (1.0 - spec.beta2) as f32);
        let (clip, rate, keep) = (factors.clip as f32, factors.rate as f32, factors.keep as f32);
        let (unbias_root, unbias_average) = (factors.unbias_second.sqrt() as f32, factors.unbias_average);
        let (decay, new) = (factors.average_decay, 1.0 - factors.average_decay);
        let Slices { values, gradient, first, second, mut average } = slices;
        let moments = first.codes.chunks_mut(BLOCK).zip(first.scales).zip(second.codes.chunks_mut(BLOCK).zip(second.scales));
        let blocks = values.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK)).zip(moments);
        for (block, ((values, gradient), ((first, first_scale), (second, second_scale)))) in blocks.enumerate() {
            let (count, place) = (values.len(), begin + block * BLOCK);
            let mut draws = [0_u32; BLOCK];
            let draws = &mut draws[..count];
            draws.iter_mut().enumerate().for_each(|(offset, draw)| *draw = dither.draw((place + offset) as u32));
            let (mut seen, mut means, mut roots, mut fractions) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
            let (seen, means, roots, fractions) =
                (&mut seen[..count], &mut means[..count], &mut roots[..count], &mut fractions[..count]);
            seen.iter_mut().zip(gradient).for_each(|(seen, gradient)| *seen = gradient * clip);
            if let Some(average) = &mut average {
                let (codes, scale) = (&mut average.codes[block * BLOCK..][..count], &mut average.scales[block]);
                for ((mean, seen), code) in means.iter_mut().zip(seen.iter_mut()).zip(codes.iter()) {
                    *mean = decay * codes::signed(*code, *scale) + new * *seen;
                    *seen = *mean * unbias_average;
                }
                fractions.iter_mut().zip(draws.iter()).for_each(|(fraction, draw)| *fraction = codes::third(*draw));
                *scale = codes::encode_signed(means, fractions, codes);
            }
            let moments = first.iter().zip(second.iter()).zip(means.iter_mut().zip(roots.iter_mut()));
            let tensor = values.iter_mut().zip(gradient).zip(seen.iter()).zip(moments);
            for (((value, gradient), seen), ((first, second), (mean, root))) in tensor {
                *mean = beta1 * codes::signed(*first, *first_scale) + new1 * (gradient * clip);
                let before = codes::root(*second, *second_scale);
                *root = (beta2 * (before * before) + new2 * seen * seen).sqrt();
                *value = *value * keep - rate * *mean / (*root * unbias_root + epsilon);
            }
            fractions.iter_mut().zip(draws.iter()).for_each(|(fraction, draw)| *fraction = codes::upper(*draw));
            *first_scale = codes::encode_signed(means, fractions, first);
            fractions.iter_mut().zip(draws.iter()).for_each(|(fraction, draw)| *fraction = codes::lower(*draw));
            *second_scale = codes::encode_roots(roots, fractions, second);
        }
    }
}

/// As `look_ahead` of [`super::muon`] of a whole matrix.
pub(super) fn look_ahead(
    momentum: f32,
    clip: f32,
    dither: Dither,
    gradient: &[f32],
    mean: CodedMut<'_>,
    update: &mut [f32],
) {
    move_blocks(momentum, clip, dither, gradient, mean, update);
}

vectorised! {
    fn move_blocks(momentum: f32, clip: f32, dither: Dither, gradient: &[f32], mean: CodedMut<'_>, update: &mut [f32]) {
        let new = (1.0 - momentum) * clip;
        let blocks = update.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK));
        let blocks = blocks.zip(mean.codes.chunks_mut(BLOCK).zip(mean.scales));
        for (block, ((update, gradient), (codes, scale))) in blocks.enumerate() {
            let (count, place) = (update.len(), block * BLOCK);
            let (mut means, mut fractions) = ([0.0; BLOCK], [0.0; BLOCK]);
            let (means, fractions) = (&mut means[..count], &mut fractions[..count]);
            for ((mean, update), (gradient, code)) in means.iter_mut().zip(update).zip(gradient.iter().zip(codes.iter())) {
                let gradient = new * gradient;
                *mean = momentum * codes::signed(*code, *scale) + gradient;
                *update = momentum * *mean + gradient;
            }
            let draws = fractions.iter_mut().enumerate();
            draws.for_each(|(offset, fraction)| *fraction = codes::upper(dither.draw((place + offset) as u32)));
            *scale = codes::encode_signed(means, fractions, codes);
        }
    }
}

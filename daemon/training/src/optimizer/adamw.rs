//! AdamW (Loshchilov and Hutter, arXiv 1711.05101): its arithmetic over flat values.
//!
//! The second moment of a small batch is mostly its noise, of which the mean of N members' gradients has an Nth, so that steps
//! are shorter where noise is large than those of one machine with all the batches. *Matched to the batch*, the second moment
//! is that of a short average of gradients `h ← β_h·h + (1−β_h)·g` with β_h = (N−1)/(N+1), which has as little noise as the
//! mean of N: `v ← β₂v + (1−β₂)(h/(1−β_h^t))²`. Alone, β_h is 0 and h is g.
//!
//! One pass in place over parameters and moments; candle-nn's makes about fourteen temporaries a tensor and keeps its
//! state private.

use murmur_protocol::manifest::OptimizerSpec;
use rayon::prelude::*;

use super::{StepFactors, TASK_VALUES};
use crate::ops::vector::vectorised;

/// The slices of one tensor, all of one length: parameters, gradient, and AdamW's running means of the gradient and of its
/// square.
pub(super) struct Slices<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) first: &'a mut [f32],
    pub(super) second: &'a mut [f32],
    /// Where the second moment is matched to the batch.
    pub(super) average: Option<&'a mut [f32]>,
}

/// A step of one tensor.
pub(super) fn step(spec: &OptimizerSpec, factors: &StepFactors, tensor: Slices<'_>) {
    let Slices { values, gradient, first, second, average } = tensor;
    let moments = first.par_chunks_mut(TASK_VALUES).zip(second.par_chunks_mut(TASK_VALUES));
    let values = values.par_chunks_mut(TASK_VALUES).zip(gradient.par_chunks(TASK_VALUES)).zip(moments);
    match average {
        None => values.for_each(|((values, gradient), (first, second))| {
            step_values(spec, factors, values, gradient, first, second);
        }),
        Some(average) => values.zip(average.par_chunks_mut(TASK_VALUES)).for_each(|(tensor, average)| {
            let ((values, gradient), (first, second)) = tensor;
            step_matched(spec, factors, values, gradient, first, second, average);
        }),
    }
}

vectorised! {
    /// `m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`, `θ ← keep·θ − rate·m / (√(v·unbias) + ε)`, with g clipped.
    fn step_values(
        spec: &OptimizerSpec,
        factors: &StepFactors,
        values: &mut [f32],
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
    ) {
        let (beta1, beta2, epsilon) = (spec.beta1 as f32, spec.beta2 as f32, spec.epsilon as f32);
        let (new1, new2) = ((1.0 - spec.beta1) as f32, (1.0 - spec.beta2) as f32);
        let (clip, rate, keep) = (factors.clip as f32, factors.rate as f32, factors.keep as f32);
        let unbias_second = factors.unbias_second as f32;
        let moments = first.iter_mut().zip(second);
        for ((value, gradient), (first, second)) in values.iter_mut().zip(gradient).zip(moments) {
            let gradient = gradient * clip;
            *first = beta1 * *first + new1 * gradient;
            *second = beta2 * *second + new2 * gradient * gradient;
            *value = *value * keep - rate * *first / ((*second * unbias_second).sqrt() + epsilon);
        }
    }
}

vectorised! {
    /// As [`step_values`] with `h ← β_h·h + (1−β_h)·g`, and h without its bias in place of g in the second moment.
    fn step_matched(
        spec: &OptimizerSpec,
        factors: &StepFactors,
        values: &mut [f32],
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        average: &mut [f32],
    ) {
        let (beta1, beta2, epsilon) = (spec.beta1 as f32, spec.beta2 as f32, spec.epsilon as f32);
        let (new1, new2) = ((1.0 - spec.beta1) as f32, (1.0 - spec.beta2) as f32);
        let (clip, rate, keep) = (factors.clip as f32, factors.rate as f32, factors.keep as f32);
        let (unbias_second, unbias_average) = (factors.unbias_second as f32, factors.unbias_average);
        let (decay, new) = (factors.average_decay, 1.0 - factors.average_decay);
        let moments = first.iter_mut().zip(second).zip(average);
        for ((value, gradient), ((first, second), average)) in values.iter_mut().zip(gradient).zip(moments) {
            let gradient = gradient * clip;
            *average = decay * *average + new * gradient;
            let seen = *average * unbias_average;
            *first = beta1 * *first + new1 * gradient;
            *second = beta2 * *second + new2 * seen * seen;
            *value = *value * keep - rate * *first / ((*second * unbias_second).sqrt() + epsilon);
        }
    }
}

//! AdamW (Loshchilov and Hutter, arXiv 1711.05101) with clipping of the gradient's norm: its arithmetic over flat values.
//!
//! One pass in place over parameters and moments; candle-nn's makes about fourteen temporaries a tensor and keeps its
//! state private. Matrices decay, the embedding and the head among them; the scales of norms do not.

use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::OptimizerSpec;
use rayon::prelude::*;

use crate::ops::vector::vectorised;

/// Values that one task handles, and the unit in which squares are summed: a constant, so that a sum does not depend
/// on the number of threads.
pub(crate) const TASK_VALUES: usize = 16 * 1024;

/// The numbers of one step that are equal for all parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepFactors {
    /// Scales the gradient to its largest norm allowed.
    pub(crate) clip: f64,
    /// Learning rate over the first moment's bias correction.
    pub(crate) rate: f64,
    /// Multiplies a matrix: 1 − learning rate · weight decay.
    pub(crate) keep: f64,
    /// One over the second moment's bias correction.
    pub(crate) unbias_second: f64,
}

impl StepFactors {
    /// Of the step that makes it `steps` since the moments were zero; `gradient_norm` is finite.
    pub(crate) fn new(spec: &OptimizerSpec, steps: u64, gradient_norm: f64, learning_rate: f64) -> StepFactors {
        let steps = steps as f64;
        StepFactors {
            clip: (spec.gradient_norm_max / gradient_norm.max(f64::MIN_POSITIVE)).min(1.0),
            rate: learning_rate / (1.0 - spec.beta1.powf(steps)),
            keep: 1.0 - learning_rate * spec.weight_decay,
            unbias_second: 1.0 / (1.0 - spec.beta2.powf(steps)),
        }
    }

    /// The same for a tensor of this shape: only matrices decay.
    pub(crate) fn for_shape(self, shape: &[usize]) -> StepFactors {
        StepFactors { keep: if shape.len() > 1 { self.keep } else { 1.0 }, ..self }
    }
}

/// Running means of the gradient and of its square, flat in the order of the layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moments {
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
}

impl Moments {
    /// Zeros.
    pub(crate) fn new(parameters: usize) -> Moments {
        Moments { first: vec![0.0; parameters], second: vec![0.0; parameters] }
    }
}

/// One step over flat `values` with their flat `gradient`, both in the order of `layout`.
pub(crate) fn step(
    spec: &OptimizerSpec,
    factors: StepFactors,
    layout: &ModelLayout,
    values: &mut [f32],
    gradient: &[f32],
    moments: &mut Moments,
) {
    for tensor in layout.tensors() {
        let factors = factors.for_shape(&tensor.shape);
        let chunks = |range: std::ops::Range<usize>| gradient[range].par_chunks(TASK_VALUES);
        let (first, second) = (&mut moments.first[tensor.range()], &mut moments.second[tensor.range()]);
        let moments = first.par_chunks_mut(TASK_VALUES).zip(second.par_chunks_mut(TASK_VALUES));
        let values = values[tensor.range()].par_chunks_mut(TASK_VALUES).zip(chunks(tensor.range()));
        values.zip(moments).for_each(|((values, gradient), (first, second))| {
            step_values(spec, &factors, values, gradient, first, second);
        });
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

/// The Euclidean norm of a gradient, summed in `f64` in a fixed order. Not finite exactly when some value is not.
pub(crate) fn gradient_norm(gradient: &[f32]) -> f64 {
    let partial_sums: Vec<f64> = gradient.par_chunks(TASK_VALUES).map(sum_of_squares).collect();
    partial_sums.iter().sum::<f64>().sqrt()
}

/// Lanes of a sum in `f64`: the order of summation does not depend on the machine's vector width.
const LANES: usize = 8;

vectorised! {
    fn sum_of_squares(values: &[f32]) -> f64 {
        let mut lanes = [0.0_f64; LANES];
        let chunks = values.chunks_exact(LANES);
        let tail: f64 = chunks.remainder().iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        for chunk in chunks {
            for lane in 0..LANES {
                lanes[lane] += f64::from(chunk[lane]) * f64::from(chunk[lane]);
            }
        }
        lanes.iter().sum::<f64>() + tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::random_values;

    /// AdamW as in the paper, in f64, value by value.
    fn by_the_book(spec: &OptimizerSpec, value: f64, gradients: &[f64], decays: bool, rate: f64) -> f64 {
        let (mut value, mut first, mut second) = (value, 0.0, 0.0);
        for (step, gradient) in (1..).zip(gradients) {
            first = spec.beta1 * first + (1.0 - spec.beta1) * gradient;
            second = spec.beta2 * second + (1.0 - spec.beta2) * gradient * gradient;
            let unbiased = (first / (1.0 - spec.beta1.powi(step)), second / (1.0 - spec.beta2.powi(step)));
            let decay = if decays { spec.weight_decay * value } else { 0.0 };
            value -= rate * (unbiased.0 / (unbiased.1.sqrt() + spec.epsilon) + decay);
        }
        value
    }

    #[test]
    fn steps_follow_the_book_with_clipping_and_without_decay_of_norms() {
        let spec = OptimizerSpec { gradient_norm_max: 0.7, ..OptimizerSpec::default() };
        let layout = ModelLayout::new([("a".to_owned(), vec![3, 5]), ("b".to_owned(), vec![7])]);
        let (before, gradient) = (random_values(22, 1), random_values(22, 2));
        let norm = gradient_norm(&gradient);
        let expected_norm = gradient.iter().map(|value| f64::from(value * value)).sum::<f64>().sqrt();
        assert!((norm - expected_norm).abs() < 1e-6 && norm > 0.7, "{norm}, {expected_norm}");
        let (mut after, mut moments) = (before.clone(), Moments::new(22));
        for steps in 1..=3 {
            let factors = StepFactors::new(&spec, steps, norm, 0.01);
            step(&spec, factors, &layout, &mut after, &gradient, &mut moments);
        }
        for index in 0..22 {
            let clipped = f64::from(gradient[index]) * 0.7 / norm;
            let expected = by_the_book(&spec, f64::from(before[index]), &[clipped; 3], index < 15, 0.01);
            assert!((f64::from(after[index]) - expected).abs() < 1e-6, "{index}: {} {expected}", after[index]);
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_shows_in_the_norm() {
        assert!(!gradient_norm(&[1.0, f32::NAN]).is_finite());
        assert!(!gradient_norm(&[f32::INFINITY; 100]).is_finite());
    }
}

//! AdamW (Loshchilov and Hutter, arXiv 1711.05101) over all parameters, with clipping of the gradient's norm.
//!
//! On the CPU one pass in place over flat moments; candle-nn's makes about fourteen temporaries a tensor and keeps its
//! state private. On other devices the same arithmetic is composed of candle operations. Matrices decay, the embedding
//! and the head among them; the scales of norms do not.

use candle_core::{Result, Tensor, Var};
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::OptimizerSpec;
use rayon::prelude::*;

use crate::model::transformer::gather;
use crate::ops::storage::{Reading, edit_in_place};
use crate::ops::vector::vectorised;

/// Values that one task handles, and the unit in which squares are summed: a constant, so that a sum does not depend
/// on the number of threads.
const TASK_VALUES: usize = 16 * 1024;

/// The optimizer's settings and moments.
pub struct AdamW {
    spec: OptimizerSpec,
    moments: Moments,
    /// Steps since the moments were zero; corrects their bias.
    steps: u64,
}

/// Running means of the gradient and of its square.
enum Moments {
    /// Flat, in the order of the layout.
    Flat { first: Vec<f32>, second: Vec<f32> },
    /// On the model's device, one pair per variable.
    OnDevice(Vec<(Tensor, Tensor)>),
}

/// The numbers of one step that are equal for all parameters.
struct StepFactors {
    /// Scales the gradient to its largest norm allowed.
    clip: f64,
    /// Learning rate over the first moment's bias correction.
    rate: f64,
    /// Multiplies a matrix: 1 − learning rate · weight decay.
    keep: f64,
    /// One over the second moment's bias correction.
    unbias_second: f64,
}

impl AdamW {
    /// An optimizer with zero moments for `variables`.
    ///
    /// # Errors
    /// When the device has no memory for the moments.
    pub fn new(spec: OptimizerSpec, variables: &[Var], layout: &ModelLayout) -> Result<AdamW> {
        let on_cpu = variables.iter().all(|variable| variable.device().is_cpu());
        let moments = if on_cpu {
            // Two times zeroed memory, and not a copy: the system hands it out when it is first written to.
            let zeros = || vec![0.0; layout.parameters()];
            Moments::Flat { first: zeros(), second: zeros() }
        } else {
            let pair = |variable: &Var| Ok((variable.zeros_like()?, variable.zeros_like()?));
            Moments::OnDevice(variables.iter().map(pair).collect::<Result<_>>()?)
        };
        Ok(AdamW { spec, moments, steps: 0 })
    }

    /// Steps since the moments were zero.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Forgets everything: the moments of another model's path would mislead.
    ///
    /// # Errors
    /// When the device fails.
    pub fn reset(&mut self) -> Result<()> {
        if self.steps == 0 {
            return Ok(()); // they are zero
        }
        self.steps = 0;
        match &mut self.moments {
            Moments::Flat { first, second } => {
                first.fill(0.0);
                second.fill(0.0);
            }
            Moments::OnDevice(pairs) => {
                for (first, second) in pairs {
                    (*first, *second) = (first.zeros_like()?, second.zeros_like()?);
                }
            }
        }
        Ok(())
    }

    /// Both moments, flat in the order of the layout.
    ///
    /// # Errors
    /// When the device fails.
    pub fn moments(&self, layout: &ModelLayout) -> Result<(Vec<f32>, Vec<f32>)> {
        match &self.moments {
            Moments::Flat { first, second } => Ok((first.clone(), second.clone())),
            Moments::OnDevice(pairs) => Ok((
                gather(pairs.iter().map(|(first, _)| first), layout.parameters())?,
                gather(pairs.iter().map(|(_, second)| second), layout.parameters())?,
            )),
        }
    }

    /// Continues from saved moments.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When a moment has another length than the layout.
    pub fn restore(&mut self, layout: &ModelLayout, steps: u64, first: Vec<f32>, second: Vec<f32>) -> Result<()> {
        assert!([first.len(), second.len()] == [layout.parameters(); 2], "one moment per parameter");
        self.steps = steps;
        match &mut self.moments {
            Moments::Flat { first: place, second: second_place } => (*place, *second_place) = (first, second),
            Moments::OnDevice(pairs) => {
                for ((first_place, second_place), tensor) in pairs.iter_mut().zip(layout.tensors()) {
                    let (shape, device) = (tensor.shape.as_slice(), first_place.device().clone());
                    *first_place = Tensor::from_slice(&first[tensor.range()], shape, &device)?;
                    *second_place = Tensor::from_slice(&second[tensor.range()], shape, &device)?;
                }
            }
        }
        Ok(())
    }

    /// One step: `gradients` and `variables` in the order of `layout`, `gradient_norm` from [`gradient_norm`], finite.
    ///
    /// # Errors
    /// When the device fails.
    pub fn step(
        &mut self,
        layout: &ModelLayout,
        variables: &[Var],
        gradients: &[Tensor],
        gradient_norm: f64,
        learning_rate: f64,
    ) -> Result<()> {
        self.steps += 1;
        let steps = self.steps as f64;
        let factors = StepFactors {
            clip: (self.spec.gradient_norm_max / gradient_norm.max(f64::MIN_POSITIVE)).min(1.0),
            rate: learning_rate / (1.0 - self.spec.beta1.powf(steps)),
            keep: 1.0 - learning_rate * self.spec.weight_decay,
            unbias_second: 1.0 / (1.0 - self.spec.beta2.powf(steps)),
        };
        for (index, ((variable, gradient), tensor)) in variables.iter().zip(gradients).zip(layout.tensors()).enumerate()
        {
            let keep = if tensor.shape.len() > 1 { factors.keep } else { 1.0 };
            let factors = StepFactors { keep, ..factors };
            match &mut self.moments {
                Moments::Flat { first, second } => {
                    let (first, second) = (&mut first[tensor.range()], &mut second[tensor.range()]);
                    let gradient = Reading::of(gradient)?;
                    edit_in_place(variable, |values| {
                        step_in_place(&self.spec, &factors, values, &gradient, first, second);
                    })?;
                }
                Moments::OnDevice(pairs) => {
                    step_on_device(&self.spec, &factors, variable, gradient, &mut pairs[index])?
                }
            }
        }
        Ok(())
    }
}

fn step_in_place(
    spec: &OptimizerSpec,
    factors: &StepFactors,
    values: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let moments = first.par_chunks_mut(TASK_VALUES).zip(second.par_chunks_mut(TASK_VALUES));
    let values = values.par_chunks_mut(TASK_VALUES).zip(gradient.par_chunks(TASK_VALUES));
    values.zip(moments).for_each(|((values, gradient), (first, second))| {
        step_values(spec, factors, values, gradient, first, second);
    });
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

fn step_on_device(
    spec: &OptimizerSpec,
    factors: &StepFactors,
    variable: &Var,
    gradient: &Tensor,
    (first, second): &mut (Tensor, Tensor),
) -> Result<()> {
    let gradient = (gradient * factors.clip)?;
    *first = ((&*first * spec.beta1)? + (&gradient * (1.0 - spec.beta1))?)?;
    *second = ((&*second * spec.beta2)? + (gradient.sqr()? * (1.0 - spec.beta2))?)?;
    let denominator = ((&*second * factors.unbias_second)?.sqrt()? + spec.epsilon)?;
    let move_by = ((&*first * factors.rate)? / denominator)?;
    variable.set(&((variable.as_detached_tensor() * factors.keep)? - move_by)?)
}

/// The Euclidean norm of all gradients together, summed in `f64` in a fixed order. Not finite exactly when some
/// gradient is not.
///
/// # Errors
/// When the device fails.
pub fn gradient_norm(gradients: &[Tensor]) -> Result<f64> {
    let mut sum = 0.0;
    let mut sum_on_device: Option<Tensor> = None;
    for gradient in gradients {
        if gradient.device().is_cpu() {
            let values = Reading::of(gradient)?;
            let square = |chunk: &[f32]| chunk.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>();
            let partial_sums: Vec<f64> = values.par_chunks(TASK_VALUES).map(square).collect();
            sum += partial_sums.iter().sum::<f64>();
        } else {
            // Read once at the end: every read waits for the device.
            let squares = gradient.sqr()?.sum_all()?;
            sum_on_device = Some(match sum_on_device {
                Some(sum) => (sum + squares)?,
                None => squares,
            });
        }
    }
    if let Some(on_device) = sum_on_device {
        sum += f64::from(on_device.to_scalar::<f32>()?);
    }
    Ok(sum.sqrt())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::ops::gradient_check::random;

    fn setting() -> (OptimizerSpec, ModelLayout, Vec<Var>, Vec<Tensor>) {
        let shapes = [("a".to_owned(), vec![3, 5]), ("b".to_owned(), vec![7])];
        let variables = vec![random(&[3, 5], 1), random(&[7], 2)];
        let gradients = vec![random(&[3, 5], 3).as_detached_tensor(), random(&[7], 4).as_detached_tensor()];
        (OptimizerSpec { gradient_norm_max: 0.7, ..Default::default() }, ModelLayout::new(shapes), variables, gradients)
    }

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
    fn steps_follow_the_book_with_clipping_and_without_decay_of_norms() -> Result<()> {
        let (spec, layout, variables, gradients) = setting();
        let before = gather(variables.iter().map(Var::as_tensor), 22)?;
        let flat_gradients = gather(gradients.iter(), 22)?;
        let norm = gradient_norm(&gradients)?;
        let expected_norm = flat_gradients.iter().map(|value| f64::from(value * value)).sum::<f64>().sqrt();
        assert!((norm - expected_norm).abs() < 1e-6 && norm > 0.7, "{norm}, {expected_norm}");
        let mut optimizer = AdamW::new(spec.clone(), &variables, &layout)?;
        for _ in 0..3 {
            optimizer.step(&layout, &variables, &gradients, norm, 0.01)?;
        }
        let after = gather(variables.iter().map(Var::as_tensor), 22)?;
        for index in 0..22 {
            let clipped = f64::from(flat_gradients[index]) * 0.7 / norm;
            let expected = by_the_book(&spec, f64::from(before[index]), &[clipped; 3], index < 15, 0.01);
            assert!((f64::from(after[index]) - expected).abs() < 1e-6, "{index}: {} {expected}", after[index]);
        }
        Ok(())
    }

    #[test]
    fn the_composed_step_agrees_with_the_fused_one() -> Result<()> {
        let (spec, layout, fused, gradients) = setting();
        let (_, _, composed, _) = setting();
        let norm = gradient_norm(&gradients)?;
        let mut flat = AdamW::new(spec.clone(), &fused, &layout)?;
        let mut on_device = AdamW::new(spec, &composed, &layout)?;
        let pair = |variable: &Var| Ok((variable.zeros_like()?, variable.zeros_like()?));
        on_device.moments = Moments::OnDevice(composed.iter().map(pair).collect::<Result<_>>()?);
        for _ in 0..3 {
            flat.step(&layout, &fused, &gradients, norm, 0.01)?;
            on_device.step(&layout, &composed, &gradients, norm, 0.01)?;
        }
        let (left, right) =
            (gather(fused.iter().map(Var::as_tensor), 22)?, gather(composed.iter().map(Var::as_tensor), 22)?);
        assert!(left.iter().zip(&right).all(|(left, right)| (left - right).abs() < 1e-6));
        let (left, right) = (flat.moments(&layout)?, on_device.moments(&layout)?);
        assert!(left.0.iter().zip(&right.0).all(|(left, right)| (left - right).abs() < 1e-6));
        Ok(())
    }

    #[test]
    fn a_gradient_that_is_not_finite_shows_in_the_norm() -> Result<()> {
        let gradient = Tensor::new(&[1.0_f32, f32::NAN], &Device::Cpu)?;
        assert!(!gradient_norm(&[gradient])?.is_finite());
        Ok(())
    }
}

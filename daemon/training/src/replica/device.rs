//! A replica of tensors on a device, trained by candle's autograd: GPUs, and the reference for the flat one.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor, Var};
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::OptimizerSpec;

use super::Replica;
use crate::data::Batch;
use crate::model::{Evaluation, Model, evaluate_composed, gradients_by_autograd};
use crate::optimizer::muon::{self, NORM_MIN, POLYNOMIALS};
use crate::optimizer::{CodedMoments, Moments, Optimizer, Rule};

pub(crate) struct DeviceReplica {
    model: Box<dyn Model>,
    device: Device,
    /// All in the order of the layout.
    variables: Vec<Var>,
    gradients: Vec<Tensor>,
    first_moments: Vec<Tensor>,
    /// Of the tensors that AdamW steps.
    second_moments: Vec<Option<Tensor>>,
    /// Of the same, where they are matched to the batch.
    averages: Vec<Option<Tensor>>,
    average_weight: f32,
    /// Since the moments were zero.
    steps: u64,
    optimizer: Optimizer,
    /// Examples computed at once, at most.
    micro_batch: usize,
}

impl DeviceReplica {
    pub(crate) fn new(
        model: Box<dyn Model>,
        parameters: &[f32],
        device: Device,
        optimizer: OptimizerSpec,
        micro_batch: usize,
    ) -> Result<DeviceReplica> {
        let optimizer = Optimizer::new(&optimizer, model.layout());
        let tensors = upload(model.layout(), parameters, &device)?;
        let zeros = tensors.iter().map(Tensor::zeros_like).collect::<Result<Vec<_>>>()?;
        let second_moments: Vec<_> = (optimizer.tensors.iter().zip(&zeros))
            .map(|(stepped, zeros)| matches!(stepped.rule, Rule::AdamW { .. }).then(|| zeros.clone()))
            .collect();
        Ok(DeviceReplica {
            variables: tensors.iter().map(Var::from_tensor).collect::<Result<_>>()?,
            gradients: zeros.clone(),
            averages: second_moments.iter().map(|zeros| zeros.clone().filter(|_| optimizer.spec.match_batch)).collect(),
            average_weight: 0.0,
            second_moments,
            first_moments: zeros,
            steps: 0,
            model,
            device,
            optimizer,
            micro_batch,
        })
    }
}

fn upload(layout: &ModelLayout, values: &[f32], device: &Device) -> Result<Vec<Tensor>> {
    let tensor = |tensor: &murmur_protocol::TensorSpec| {
        Tensor::from_slice(&values[tensor.range()], tensor.shape.as_slice(), device)
    };
    layout.tensors().iter().map(tensor).collect()
}

fn download<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    for tensor in tensors {
        values.extend(tensor.flatten_all()?.to_vec1::<f32>()?);
    }
    Ok(values)
}

/// As [`muon::orthogonalise`].
fn orthogonalised(matrix: &Tensor) -> Result<Tensor> {
    let norm = f64::from(matrix.sqr()?.sum_all()?.to_scalar::<f32>()?).sqrt();
    let is_tall = matrix.dim(0)? > matrix.dim(1)?;
    let mut wide = (if is_tall { matrix.t()? } else { matrix.clone() } / (norm + f64::from(NORM_MIN)))?;
    for [a, b, c] in POLYNOMIALS {
        let gram = wide.matmul(&wide.t()?)?;
        let factor = ((&gram * f64::from(b))? + (gram.matmul(&gram)? * f64::from(c))?)?;
        wide = ((&wide * f64::from(a))? + factor.matmul(&wide)?)?;
    }
    if is_tall { wide.t()?.contiguous() } else { Ok(wide) }
}

impl Replica for DeviceReplica {
    fn layout(&self) -> &Arc<ModelLayout> {
        self.model.layout()
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(download(self.variables.iter().map(Var::as_tensor))?))
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        let tensors = upload(self.model.layout(), values, &self.device)?;
        self.variables.iter().zip(&tensors).try_for_each(|(variable, tensor)| variable.set(tensor))
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        let mut mean: Option<Tensor> = None;
        for part in batch.parts(self.micro_batch) {
            let share = part.predictions() as f64 / batch.predictions() as f64;
            let (loss, gradients) = gradients_by_autograd(&*self.model, &self.variables, &part)?;
            let loss = (loss * share)?;
            let scaled = gradients.iter().map(|gradient| gradient * share).collect::<Result<Vec<_>>>()?;
            (mean, self.gradients) = match mean {
                None => (Some(loss), scaled),
                Some(sum) => {
                    let pairs = self.gradients.iter().zip(&scaled);
                    (Some((sum + loss)?), pairs.map(|(sum, gradient)| sum + gradient).collect::<Result<_>>()?)
                }
            };
        }
        // Read once at the end: every read waits for the device.
        mean.map_or(Ok(0.0), |mean| Ok(f64::from(mean.to_scalar::<f32>()?)))
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(download(self.gradients.iter())?))
    }

    fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        self.gradients = upload(self.model.layout(), values, &self.device)?;
        Ok(())
    }

    fn squares(&self) -> Result<Vec<f64>> {
        let squares = self.gradients.iter().map(|gradient| gradient.sqr()?.sum_all()).collect::<Result<Vec<_>>>()?;
        // Read at once: every read waits for the device.
        Ok(Tensor::stack(&squares, 0)?.to_vec1::<f32>()?.into_iter().map(f64::from).collect())
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        self.steps += 1;
        let spec = &self.optimizer.spec;
        let factors = self.optimizer.factors(self.steps, gradient_norm, learning_rate, &mut self.average_weight);
        let moments = self.first_moments.iter_mut().zip(&mut self.second_moments).zip(&mut self.averages);
        let tensors = self.variables.iter().zip(&self.gradients).zip(moments);
        for (((variable, gradient), ((first, second), average)), stepped) in tensors.zip(&self.optimizer.tensors) {
            let gradient = (gradient * factors.clip)?;
            let blend = |mean: &Tensor, newest: &Tensor, decay: f64| (mean * decay)? + (newest * (1.0 - decay))?;
            let (keep, move_by) = match (&stepped.rule, second) {
                (Rule::AdamW { decays, .. }, Some(second)) => {
                    *first = blend(first, &gradient, spec.beta1)?;
                    let seen = match average {
                        Some(average) => {
                            *average = blend(average, &gradient, f64::from(factors.average_decay))?;
                            (&*average * f64::from(factors.unbias_average))?
                        }
                        None => gradient,
                    };
                    *second = blend(second, &seen.sqr()?, spec.beta2)?;
                    let denominator = ((&*second * factors.unbias_second)?.sqrt()? + spec.epsilon)?;
                    (factors.decaying(*decays).keep, ((&*first * factors.rate)? / denominator)?)
                }
                (Rule::Muon(shape), _) => {
                    *first = blend(first, &gradient, spec.muon_momentum)?;
                    let update = orthogonalised(&blend(&gradient, first, 1.0 - spec.muon_momentum)?)?;
                    (factors.muon_keep, (update * (factors.muon_rate * muon::rate_scale(*shape)))?)
                }
                (Rule::AdamW { .. }, None) => unreachable!("AdamW has second moments"),
            };
            variable.set(&((variable.as_detached_tensor() * keep)? - move_by)?)?;
        }
        Ok(())
    }

    fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    fn set_members(&mut self, members: f64) {
        self.optimizer.set_members(members);
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        let parameters: Vec<Tensor> = self.variables.iter().map(Var::as_detached_tensor).collect();
        let mut parts = batch.parts(self.micro_batch);
        parts.try_fold(Evaluation::default(), |sum, part| {
            Ok(sum.with(evaluate_composed(&*self.model, &parameters, &part)?))
        })
    }

    fn wait(&self) -> Result<()> {
        self.device.synchronize()
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        let moments = Moments {
            first: download(self.first_moments.iter())?,
            second: download(self.second_moments.iter().flatten())?,
            average: download(self.averages.iter().flatten())?,
            average_weight: self.average_weight,
            coded: CodedMoments::default(),
        };
        Ok((moments, self.steps))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        self.first_moments = upload(self.model.layout(), &moments.first, &self.device)?;
        for (values, tensors) in [(&moments.second, &mut self.second_moments), (&moments.average, &mut self.averages)] {
            for (tensor, stepped) in tensors.iter_mut().zip(&self.optimizer.tensors) {
                if let (Some(tensor), Rule::AdamW { second, .. }) = (tensor, &stepped.rule) {
                    *tensor = Tensor::from_slice(&values[second.clone()], tensor.shape(), &self.device)?;
                }
            }
        }
        self.average_weight = moments.average_weight;
        self.steps = steps;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{ModelSpec, OptimizerKind, TransformerModel};

    use super::*;
    use crate::engine::options::Precision;
    use crate::model::build;
    use crate::replica::HostReplica;

    /// Steps far below what 16 bits tell apart must add up.
    #[test]
    fn sixteen_bits_of_precision_lose_no_small_steps() -> Result<()> {
        let model =
            TransformerModel { layers: 1, width: 8, heads: 2, feed_forward: 8, context: 8, ..Default::default() };
        let spec = ModelSpec::from(model);
        let parameters = build(&spec).initial_parameters(1);
        let batch = Batch::of(&[(0..9).collect(), (7..16).collect()]);
        let trained = |precision| -> Result<(Vec<f32>, f64)> {
            let mut model = build(&spec);
            model.set_precision(precision);
            let mut replica = DeviceReplica::new(model, &parameters, Device::Cpu, OptimizerSpec::default(), 2)?;
            for _ in 0..50 {
                replica.compute_gradient(&batch)?;
                let norm = replica.gradient_norm()?;
                replica.step(norm, 1e-5)?;
            }
            Ok((replica.parameters()?.into_owned(), replica.compute_gradient(&batch)?))
        };
        let ((exact, exact_loss), (rounded, loss)) = (trained(Precision::F32)?, trained(Precision::Bf16)?);
        assert!((loss - exact_loss).abs() < 5e-3 && loss != exact_loss, "{loss} {exact_loss}");
        let distance = |left: &[f32], right: &[f32]| -> f32 {
            left.iter().zip(right).map(|(left, right)| (left - right).powi(2)).sum::<f32>().sqrt()
        };
        let (moved, apart) = (distance(&exact, &parameters), distance(&rounded, &exact));
        assert!(moved > 0.0 && apart < 0.1 * moved, "{apart} apart after moving {moved}");
        Ok(())
    }

    #[test]
    fn tensors_and_flat_vectors_train_alike() -> Result<()> {
        train_alike(OptimizerSpec::default())?;
        train_alike(OptimizerSpec { kind: OptimizerKind::Muon, match_batch: true, ..OptimizerSpec::default() })
    }

    fn train_alike(optimizer: OptimizerSpec) -> Result<()> {
        let model =
            TransformerModel { layers: 1, width: 8, heads: 2, feed_forward: 8, context: 8, ..Default::default() };
        let spec = ModelSpec::from(model);
        let parameters = build(&spec).initial_parameters(1);
        let optimizer = OptimizerSpec { gradient_norm_max: 0.1, ..optimizer };
        let mut host = HostReplica::new(build(&spec), parameters.clone(), optimizer.clone(), 4);
        let mut device = DeviceReplica::new(build(&spec), &parameters, Device::Cpu, optimizer, 2)?;
        host.set_members(5.0);
        device.set_members(5.0);
        let windows: Vec<Vec<u32>> = (0..4).map(|first| (first..first + 9).map(|byte| byte * 7).collect()).collect();
        let batch = Batch::of(&windows);
        let close = |left: &[f32], right: &[f32]| left.iter().zip(right).all(|(l, r)| (l - r).abs() < 1e-5);
        for _ in 0..3 {
            let losses = (host.compute_gradient(&batch)?, device.compute_gradient(&batch)?);
            assert!((losses.0 - losses.1).abs() < 1e-5, "{losses:?}");
            let norms = (host.gradient_norm()?, device.gradient_norm()?);
            assert!((norms.0 - norms.1).abs() < 1e-5, "{norms:?}");
            let gradients = (host.gradient()?, device.gradient()?);
            assert!(close(&gradients.0, &gradients.1));
            // A gradient of nothing but rounding may differ in sign, and Adam's first step then goes the other way.
            device.set_gradient(&host.gradient()?)?;
            host.step(norms.0, 0.01)?;
            device.step(norms.0, 0.01)?;
            assert!(close(&host.parameters()?, &device.parameters()?));
            let (moments, steps) = host.moments()?;
            let theirs = device.moments()?.0;
            assert!(close(&moments.second, &theirs.second) && close(&moments.average, &theirs.average));
            assert_eq!((moments.second.len(), moments.average.len()), (theirs.second.len(), theirs.average.len()));
            device.set_moments(moments, steps)?;
            device.set_parameters(&host.parameters()?)?;
            assert_eq!(device.parameters()?, host.parameters()?);
        }
        Ok(())
    }
}

//! The models that a swarm can train, and what each has to offer.
//!
//! A [`Model`] is an architecture: it owns no parameters. On the CPU they are one flat `[f32]` in the order of its
//! layout, and so is the gradient; on other devices they are tensors, one per tensor of the layout. To add a model, write
//! a file here with [`Model`]'s first three methods (the others have defaults, by candle's autograd) and a line in
//! [`build`].

pub mod cnn;
pub(crate) mod hidden;
pub mod initial;
pub mod lora;
pub mod mlp;
pub mod scores;
pub(crate) mod stage;
pub mod transformer;

use std::sync::Arc;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use murmur_protocol::manifest::ModelSpec;
use murmur_protocol::{ModelLayout, RunManifest};

use crate::data::Batch;
use crate::engine::options::{Precision, TrainingOptions};
use crate::ops::Kernels;
use crate::ops::base_weights::BaseWeights;
use crate::ops::cross_entropy;
use crate::ops::loss::Expected;

pub use crate::ops::product::Write;
pub use cnn::Cnn;
pub use mlp::Mlp;
pub use scores::Scores;
pub use stage::StageSpec;
pub(crate) use stage::transformer_of;
pub use transformer::Transformer;

/// How a gradient is computed.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The gradient is that of so much of the losses' sum.
    pub share: f32,
    /// What happens to the values already there.
    pub write: Write,
    /// Whether nothing is added to the gradient after this: of a tied table the parts of head and embedding come together then.
    pub is_last: bool,
    /// Threads that matrix products are shared out among. Bits do not depend on it.
    pub threads: usize,
}

impl Task {
    /// On all of rayon's threads.
    pub fn alone(share: f32, write: Write) -> Task {
        Task { share, write, is_last: true, threads: rayon::current_num_threads() }
    }
}

/// An architecture that classifies next tokens, images or rows, or predicts a number.
pub trait Model: Send + Sync {
    /// Which tensors it has, and where each lies in a flat vector.
    fn layout(&self) -> &Arc<ModelLayout>;

    /// How many values lie behind those of the layout in its flat vectors: a copy of what another stage has.
    fn copied(&self) -> usize {
        0
    }

    /// The parameters to begin with: the same bits on every machine.
    fn initial_parameters(&self, seed: u64) -> Vec<f32>;

    /// Logits `[predictions, classes]` for the targets of `batch`, composed of candle's differentiable operations on the
    /// device of `parameters`, which are in the order of the layout.
    ///
    /// # Errors
    /// When the batch holds the wrong kind or size of examples, or memory runs out.
    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor>;

    /// Writes or adds the gradient of the losses of `batch` to `gradient`, and returns their sum (without the task's share),
    /// in nats. With [`Write::Replace`] every value of `gradient` is written. `parameters` and `gradient` are flat, in the
    /// order of the layout.
    ///
    /// # Errors
    /// When the batch holds the wrong kind or size of examples, or memory runs out.
    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        gradient_by_autograd(self, parameters, batch, task, gradient)
    }

    /// Another of the same architecture, to compute a part of each batch beside this one. `None` for a model that keeps
    /// all threads busy by itself.
    fn another(&self) -> Option<Box<dyn Model>> {
        None
    }

    /// The same model as one stage of several; `None` for one that is not cut.
    fn staged(&mut self) -> Option<&mut Transformer> {
        None
    }

    /// Gives the memory for activations back; the next gradient takes it again. Nothing that a backward waits for is lost.
    fn release(&mut self) {}

    /// Whether to compute activations again in the backward instead of keeping them. Ignored by models that cannot.
    fn set_recompute(&mut self, _recompute: bool) {}

    /// What the model multiplies matrices in. Ignored by models that know no other than `f32`.
    fn set_precision(&mut self, _precision: Precision) {}

    /// How well flat `parameters` predict the targets of `batch`, on the CPU.
    ///
    /// # Errors
    /// When the batch holds the wrong kind or size of examples, or memory runs out.
    fn evaluate(&self, parameters: &[f32], batch: &Batch) -> Result<Evaluation> {
        evaluate_composed(self, &tensors_of(self.layout(), parameters)?, batch)
    }
}

/// How the model of `spec` is computed.
pub fn build(spec: &ModelSpec) -> Box<dyn Model> {
    match spec {
        ModelSpec::Transformer(spec) => Box::new(Transformer::new(spec)),
        ModelSpec::Mlp(spec) => Box::new(Mlp::new(spec)),
        ModelSpec::Cnn(spec) => Box::new(Cnn::new(spec)),
    }
}

/// Which tensors a model of this kind and size has, and where they lie in its flat vector.
pub fn layout(spec: &ModelSpec) -> ModelLayout {
    ModelLayout::clone(build(spec).layout())
}

/// Which tensors a run trains, exchanges and keeps in checkpoints: the adapters where it has some, else all of the model.
pub fn trained_layout(manifest: &RunManifest) -> ModelLayout {
    let model = layout(&manifest.model);
    if manifest.lora.is_on() { lora::lora_layout(&model, &manifest.lora) } else { model }
}

/// What a run trains, with the parameters to begin with, where `base` has the weights that it begins from: zeros when
/// `weightless`. `None` for adapters without a base, or on another base than
/// a transformer.
///
/// # Panics
/// When the base is of another model.
pub(crate) fn begin(
    manifest: &RunManifest,
    base: Option<BaseWeights>,
    weightless: bool,
) -> Option<(Box<dyn Model>, Vec<f32>)> {
    let (model, base): (Box<dyn Model>, _) = match (manifest.lora.is_on(), &manifest.model) {
        (true, ModelSpec::Transformer(spec)) => {
            (Box::new(Transformer::new(spec).with_adapters(base?, &manifest.lora)), None)
        }
        (true, _) => return None,
        (false, spec) => (build(spec), base),
    };
    let count = model.layout().parameters();
    let drawn = || model.initial_parameters(manifest.run.seed);
    let parameters = if weightless { vec![0.0; count] } else { base.map_or_else(drawn, BaseWeights::into_exact) };
    assert_eq!(parameters.len(), count, "one value per parameter");
    Some((model, parameters))
}

/// A base of drawn weights in the bits in which the run holds one, to measure what training on it takes: made tensor by tensor,
/// so that it is never held in 32 bits where the run has fewer.
pub fn drawn_base(manifest: &RunManifest) -> BaseWeights {
    let layout = layout(&manifest.model);
    // Only a transformer has adapters.
    let layers = manifest.model.transformer().map_or(1, |model| model.layers);
    let mut weights = BaseWeights::with_room(&layout, manifest.lora.base_bits);
    for tensor in layout.tensors() {
        let one = ModelLayout::in_order([(tensor.name.clone(), tensor.shape.clone())]);
        weights.push(tensor.shape.len() > 1, &initial::initial_parameters(&one, layers, manifest.run.seed));
    }
    weights
}

/// The adapters that a run trains, to begin with: zeros when `weightless`.
pub(crate) fn begin_adapters(manifest: &RunManifest, weightless: bool) -> (ModelLayout, Vec<f32>) {
    let layout = trained_layout(manifest);
    let drawn = || lora::initial_adapters(&layout, manifest.run.seed);
    let parameters = if weightless { vec![0.0; layout.parameters()] } else { drawn() };
    (layout, parameters)
}

/// Number of parameters of such a model.
pub fn parameter_count(spec: &ModelSpec) -> usize {
    build(spec).layout().parameters()
}

/// How well a model predicts: sums, so that batches add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// In nats.
    pub loss_sum: f64,
    /// Tokens, images or rows that were predicted.
    pub predictions: usize,
    /// Of these, how many were the likeliest in the model's opinion.
    pub correct: usize,
}

impl Evaluation {
    /// Of predictions that are given: `logits` `[predictions, classes]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn of(logits: &Tensor, targets: &[u32]) -> Result<Evaluation> {
        let expected = Tensor::from_slice(targets, targets.len(), logits.device())?;
        let loss = cross_entropy::composed(logits, &expected)?.to_scalar::<f32>()?;
        let hits = logits.argmax(D::Minus1)?.eq(&expected)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
        let predictions = targets.len();
        Ok(Evaluation { loss_sum: f64::from(loss) * predictions as f64, predictions, correct: hits as usize })
    }

    /// Of both together.
    pub fn with(self, other: Evaluation) -> Evaluation {
        Evaluation {
            loss_sum: self.loss_sum + other.loss_sum,
            predictions: self.predictions + other.predictions,
            correct: self.correct + other.correct,
        }
    }

    /// Mean loss in nats; not a number without predictions.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.predictions as f64
    }

    /// Share of correct predictions, 0 to 1; not a number without predictions.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.predictions as f64
    }
}

/// How well flat `parameters` of the model of `spec` predict the targets of `batches`, on the CPU.
///
/// # Errors
/// When a batch holds the wrong kind or size of examples, or memory runs out.
///
/// # Panics
/// When the number of parameters is not the model's: check with [`parameter_count`] what comes from outside.
pub fn evaluate(spec: &ModelSpec, parameters: &[f32], mut batches: impl Iterator<Item = Batch>) -> Result<Evaluation> {
    let model = build(spec);
    assert_eq!(parameters.len(), model.layout().parameters(), "one value per parameter");
    let at_once = TrainingOptions::default().examples_at_once(spec, Kernels::Fused);
    let add = |sum: Evaluation, batch| Ok(sum.with(evaluate_in_parts(&*model, parameters, &batch, at_once)?));
    batches.try_fold(Evaluation::default(), add)
}

/// As [`Model::evaluate`], so many examples at once at most.
///
/// # Errors
/// As [`Model::evaluate`].
pub(crate) fn evaluate_in_parts(
    model: &(impl Model + ?Sized),
    parameters: &[f32],
    batch: &Batch,
    examples_max: usize,
) -> Result<Evaluation> {
    let add = |sum: Evaluation, part: Batch| Ok(sum.with(model.evaluate(parameters, &part)?));
    batch.parts(examples_max).try_fold(Evaluation::default(), add)
}

/// The tensors of flat parameters on the CPU, in the order of the layout.
pub(crate) fn tensors_of(layout: &ModelLayout, parameters: &[f32]) -> Result<Vec<Tensor>> {
    let tensor = |tensor: &murmur_protocol::TensorSpec| {
        Tensor::from_slice(&parameters[tensor.range()], tensor.shape.as_slice(), &Device::Cpu)
    };
    layout.tensors().iter().map(tensor).collect()
}

/// [`Evaluation`] of a composed model on any device.
pub(crate) fn evaluate_composed<M: Model + ?Sized>(
    model: &M,
    parameters: &[Tensor],
    batch: &Batch,
) -> Result<Evaluation> {
    let outputs = model.logits(parameters, batch)?;
    match Expected::of(batch) {
        expected @ Expected::Numbers(numbers) => {
            let loss = f64::from(expected.composed(&outputs)?.to_scalar::<f32>()?);
            Ok(Evaluation { loss_sum: loss * numbers.len() as f64, predictions: numbers.len(), correct: 0 })
        }
        _ => Evaluation::of(&outputs, batch.targets()),
    }
}

/// (mean loss as a scalar tensor, its gradients in the order of the layout) of a composed model on any device.
pub(crate) fn gradients_by_autograd<M: Model + ?Sized>(
    model: &M,
    variables: &[Var],
    batch: &Batch,
) -> Result<(Tensor, Vec<Tensor>)> {
    let parameters: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let logits = model.logits(&parameters, batch)?;
    let loss = Expected::of(batch).composed(&logits)?;
    let mut gradients = loss.backward()?;
    let taken = variables.iter().map(|variable| match gradients.remove(variable) {
        Some(gradient) => gradient.contiguous(),
        None => variable.zeros_like(),
    });
    Ok((loss, taken.collect::<Result<_>>()?))
}

fn gradient_by_autograd<M: Model + ?Sized>(
    model: &M,
    parameters: &[f32],
    batch: &Batch,
    task: &Task,
    gradient: &mut [f32],
) -> Result<f64> {
    let tensors = tensors_of(model.layout(), parameters)?;
    let variables = tensors.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let (loss, gradients) = gradients_by_autograd(model, &variables, batch)?;
    let predictions = batch.predictions() as f32;
    for (tensor, spec) in gradients.iter().zip(model.layout().tensors()) {
        let place = gradient[spec.range()].iter_mut();
        for (place, value) in place.zip(tensor.flatten_all()?.to_vec1::<f32>()?) {
            let kept = if task.write == Write::Add { *place } else { 0.0 };
            *place = kept + task.share * predictions * value;
        }
    }
    Ok(f64::from(loss.to_scalar::<f32>()?) * f64::from(predictions))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::data::{ImageBatch, ImageShape};
    use crate::ops::gradient_check::{random_tokens, random_values};

    /// Random images with random labels.
    pub(crate) fn images(spec: impl Into<ModelSpec>, count: usize) -> Batch {
        let spec = spec.into();
        let shape = ImageShape::of(&spec);
        let pixels = random_values(count * shape.values(), 1);
        let labels = random_tokens(count, spec.classes(), 2);
        Batch::Images(ImageBatch { pixels, shape: [shape.channels, shape.height, shape.width], labels })
    }

    /// Compares a classifier's own gradient and evaluation with those of its composed operations, as a whole and in parts.
    pub(crate) fn check_against_autograd(model: &mut dyn Model, batch: &Batch) -> Result<()> {
        let parameters = model.initial_parameters(1);
        let (examples, mut gradient) = (batch.examples(), vec![f32::NAN; parameters.len()]);
        let share = 1.0 / examples as f32;
        let loss = model.gradient(&parameters, batch, &Task::alone(share, Write::Replace), &mut gradient)?;
        let tensors = tensors_of(model.layout(), &parameters)?;
        let variables = tensors.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
        let (expected_loss, expected) = gradients_by_autograd(model, &variables, batch)?;
        assert!((loss / examples as f64 - f64::from(expected_loss.to_scalar::<f32>()?)).abs() < 1e-5);
        for (tensor, expected) in model.layout().tensors().iter().zip(expected) {
            let (actual, expected) = (&gradient[tensor.range()], expected.flatten_all()?.to_vec1::<f32>()?);
            let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            assert!(largest > 0.0, "{} receives a gradient", tensor.name);
            let pairs = actual.iter().zip(&expected);
            let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
            assert!(error < 1e-4 * largest, "{}: {error} of {largest}", tensor.name);
        }
        let mut parts = vec![f32::NAN; parameters.len()];
        model.gradient(&parameters, &batch.part(0..3), &Task::alone(share, Write::Replace), &mut parts)?;
        model.gradient(&parameters, &batch.part(3..examples), &Task::alone(share, Write::Add), &mut parts)?;
        let error = gradient.iter().zip(&parts).fold(0.0_f32, |error, (left, right)| error.max((left - right).abs()));
        assert!(error < 1e-5, "{error}");
        let (own, composed) = (model.evaluate(&parameters, batch)?, evaluate_composed(model, &tensors, batch)?);
        assert!((own.loss_sum - composed.loss_sum).abs() < 1e-3, "{own:?} {composed:?}");
        assert_eq!((own.predictions, own.correct), (composed.predictions, composed.correct));
        Ok(())
    }
}

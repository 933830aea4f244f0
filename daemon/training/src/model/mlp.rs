//! A classifier of images with fully connected layers and ReLU between them.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::ModelSpec;

use super::initial::initial_classifier;
use super::{Evaluation, Model, Task};
use crate::data::{Batch, ImageBatch, ImageShape};
use crate::ops::dense::{DenseLayers, GradientPlace, dense_tensors};

/// A multilayer perceptron.
pub struct Mlp {
    layout: Arc<ModelLayout>,
    layers: DenseLayers,
    shape: ImageShape,
    classes: u32,
}

impl Mlp {
    /// The model of a valid `spec`: of its images' size, hidden layers and classes.
    pub fn new(spec: &ModelSpec) -> Mlp {
        let shape = ImageShape::of(spec);
        let layout = Arc::new(ModelLayout::new(dense_tensors(shape.values(), &spec.hidden, spec.classes)));
        Mlp { layers: DenseLayers::of(&layout), layout, shape, classes: spec.classes }
    }
}

/// The images of a batch for a model that reads `shape` and knows `classes`.
pub(super) fn images_of(batch: &Batch, shape: ImageShape, classes: u32) -> Result<&ImageBatch> {
    let images = batch.images()?;
    if images.shape != [shape.channels, shape.height, shape.width] {
        bail!("images of {:?} for a model of {shape}", images.shape);
    }
    match images.labels.iter().find(|label| **label >= classes) {
        Some(label) => bail!("label {label} for a model of {classes} classes"),
        None => Ok(images),
    }
}

/// Logits `[examples, classes]` of features `[examples, inputs]`, by candle's operations; `parameters` are those of
/// `layout`.
pub(super) fn composed_dense(layout: &ModelLayout, parameters: &[Tensor], features: Tensor) -> Result<Tensor> {
    let named = |name: &str| layout.tensors().iter().position(|tensor| tensor.name == name).map(|at| &parameters[at]);
    let mut features = features;
    for number in 0.. {
        let weight = named(&format!("dense.{number}.weight"));
        let (Some(weight), Some(bias)) = (weight, named(&format!("dense.{number}.bias"))) else { break };
        if number > 0 {
            features = features.relu()?;
        }
        features = features.matmul(&weight.t()?)?.broadcast_add(bias)?;
    }
    Ok(features)
}

impl Model for Mlp {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        initial_classifier(&self.layout, seed)
    }

    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let images = images_of(batch, self.shape, self.classes)?;
        let features = images.to_tensor(parameters[0].device())?.flatten_from(1)?;
        composed_dense(&self.layout, parameters, features)
    }

    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        let ImageBatch { pixels, labels, .. } = images_of(batch, self.shape, self.classes)?;
        let outputs = self.layers.forward(parameters, pixels);
        let Task { share, write, .. } = *task;
        let mut place = GradientPlace { gradient, write, share };
        Ok(self.layers.backward(parameters, pixels, outputs, labels, &mut place, false).0)
    }

    fn evaluate(&self, parameters: &[f32], batch: &Batch) -> Result<Evaluation> {
        let ImageBatch { pixels, labels, .. } = images_of(batch, self.shape, self.classes)?;
        Ok(self.layers.evaluation(&self.layers.forward(parameters, pixels), labels))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_against_autograd, images};
    use super::*;

    fn spec(hidden: &[u32]) -> ModelSpec {
        let (image_height, image_width, image_channels) = (5, 4, 3);
        let hidden = hidden.to_vec();
        ModelSpec { image_height, image_width, image_channels, classes: 7, hidden, ..ModelSpec::default() }
    }

    #[test]
    fn gradients_and_evaluations_agree_with_autograd() -> Result<()> {
        for hidden in [&[][..], &[130], &[33, 9]] {
            let spec = spec(hidden);
            check_against_autograd(&mut Mlp::new(&spec), &images(&spec, 70))?;
        }
        Ok(())
    }

    #[test]
    fn foreign_batches_are_refused() {
        let model = Mlp::new(&spec(&[8]));
        let parameters = model.initial_parameters(1);
        let other = ModelSpec { image_height: 4, image_width: 5, ..spec(&[8]) };
        assert!(model.evaluate(&parameters, &images(&other, 2)).is_err());
        let more = ModelSpec { classes: 1000, ..spec(&[8]) };
        assert!(model.evaluate(&parameters, &images(&more, 20)).is_err());
    }
}

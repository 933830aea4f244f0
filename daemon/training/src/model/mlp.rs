//! Fully connected layers with ReLU between them: classifies images, or predicts classes or a number from rows of tables.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::MlpModel;

use super::initial::{initial_classifier, initial_row_model};
use super::{Evaluation, Model, Task};
use crate::data::{Batch, ImageBatch, ImageShape, RowBatch, RowTargets};
use crate::ops::dense::{DenseLayers, GradientPlace, dense_tensors};
use crate::ops::loss::Expected;

/// A multilayer perceptron.
pub struct Mlp {
    layout: Arc<ModelLayout>,
    layers: DenseLayers,
    shape: ImageShape,
    /// Inputs of a row; 0 where images are read.
    inputs: usize,
    /// 1 for a number.
    classes: u32,
}

impl Mlp {
    /// The model of a valid `spec`: of its images' size or its rows' inputs, hidden layers and classes.
    pub fn new(spec: &MlpModel) -> Mlp {
        let (shape, inputs) =
            (ImageShape::new(spec.image_channels, spec.image_height, spec.image_width), spec.inputs as usize);
        let values = if inputs > 0 { inputs } else { shape.values() };
        let layout = Arc::new(ModelLayout::new(dense_tensors(values, &spec.hidden, spec.classes)));
        Mlp { layers: DenseLayers::of(&layout), layout, shape, inputs, classes: spec.classes }
    }

    /// What it gives for rows, `[rows, classes]`.
    ///
    /// # Errors
    /// When the rows have another width.
    pub(super) fn outputs(&self, parameters: &[f32], rows: &RowBatch) -> Result<Vec<f32>> {
        self.check(rows)?;
        Ok(self.layers.forward(parameters, &rows.inputs).pop().unwrap_or_default())
    }

    /// The inputs of a batch `[examples, inputs]`, and what is expected for each.
    fn examples<'a>(&self, batch: &'a Batch) -> Result<(&'a [f32], Expected<'a>)> {
        match batch {
            Batch::Rows(rows) if self.inputs > 0 => {
                self.check(rows)?;
                Ok((&rows.inputs, Expected::of_rows(rows)))
            }
            _ if self.inputs > 0 => bail!("this model reads rows of a table, but the batch holds something else"),
            _ => {
                let ImageBatch { pixels, labels, .. } = images_of(batch, self.shape, self.classes)?;
                Ok((pixels, Expected::Classes(labels)))
            }
        }
    }

    fn check(&self, rows: &RowBatch) -> Result<()> {
        if rows.width != self.inputs {
            bail!("rows of {} inputs for a model of {}", rows.width, self.inputs);
        }
        match &rows.targets {
            RowTargets::Classes { labels, .. } if self.classes > 1 => {
                match labels.iter().find(|label| **label >= self.classes) {
                    Some(label) => bail!("class {label} for a model of {} classes", self.classes),
                    None => Ok(()),
                }
            }
            RowTargets::Numbers(_) if self.classes == 1 => Ok(()),
            _ => bail!("classes for a model of numbers, or the other way round"),
        }
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
        match self.inputs {
            0 => initial_classifier(&self.layout, seed),
            _ => initial_row_model(&self.layout, seed),
        }
    }

    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let (inputs, expected) = self.examples(batch)?;
        let examples = expected.len();
        let features = Tensor::from_slice(inputs, (examples, inputs.len() / examples), parameters[0].device())?;
        composed_dense(&self.layout, parameters, features)
    }

    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        let (inputs, expected) = self.examples(batch)?;
        let outputs = self.layers.forward(parameters, inputs);
        let Task { share, write, .. } = *task;
        let mut place = GradientPlace { gradient, write, share };
        Ok(self.layers.backward(parameters, inputs, outputs, expected, &mut place, false).0)
    }

    fn evaluate(&self, parameters: &[f32], batch: &Batch) -> Result<Evaluation> {
        let (inputs, expected) = self.examples(batch)?;
        Ok(self.layers.evaluation(&self.layers.forward(parameters, inputs), expected))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_against_autograd, images};
    use super::*;
    use crate::ops::gradient_check::{random_tokens, random_values};

    fn spec(hidden: &[u32]) -> MlpModel {
        let (image_height, image_width, image_channels) = (5, 4, 3);
        let hidden = hidden.to_vec();
        MlpModel { image_height, image_width, image_channels, classes: 7, hidden, ..MlpModel::default() }
    }

    #[test]
    fn gradients_and_evaluations_agree_with_autograd() -> Result<()> {
        for hidden in [&[][..], &[130], &[33, 9]] {
            let spec = spec(hidden);
            check_against_autograd(&mut Mlp::new(&spec), &images(spec, 70))?;
        }
        Ok(())
    }

    fn rows(width: usize, targets: RowTargets) -> Batch {
        Batch::Rows(RowBatch { inputs: random_values(70 * width, 1), width, targets })
    }

    /// Rows whose classes weigh unlike, and rows with numbers.
    #[test]
    fn gradients_of_rows_agree_with_autograd() -> Result<()> {
        let labels = random_tokens(70, 3, 2);
        let weights = labels.iter().map(|label| [0.5, 1.0, 4.0][*label as usize]).collect();
        let classes = MlpModel { inputs: 11, classes: 3, ..spec(&[20]) };
        check_against_autograd(&mut Mlp::new(&classes), &rows(11, RowTargets::Classes { labels, weights }))?;
        let number = MlpModel { inputs: 11, classes: 1, ..spec(&[20, 5]) };
        check_against_autograd(&mut Mlp::new(&number), &rows(11, RowTargets::Numbers(random_values(70, 3))))
    }

    #[test]
    fn a_model_of_rows_begins_near_the_mean_and_one_of_images_does_not() -> Result<()> {
        let spec = MlpModel { inputs: 11, classes: 1, ..spec(&[100]) };
        let Batch::Rows(rows) = rows(11, RowTargets::Numbers(vec![0.0; 70])) else { unreachable!("rows") };
        let of = |parameters: &[f32]| -> Result<f64> {
            let outputs = Mlp::new(&spec).outputs(parameters, &rows)?;
            Ok((outputs.iter().map(|output| f64::from(*output).powi(2)).sum::<f64>() / 70.0).sqrt())
        };
        let layout = Mlp::new(&spec).layout().clone();
        let (near, far) = (of(&Mlp::new(&spec).initial_parameters(1))?, of(&initial_classifier(&layout, 1))?);
        // A layer of 100 inputs: one over the square root of 200.
        assert!((far / near - 200_f64.sqrt()).abs() < 1e-3 && near < 0.15, "{near} {far}");
        Ok(())
    }

    #[test]
    fn foreign_batches_are_refused() {
        let table = MlpModel { inputs: 4, classes: 1, ..spec(&[8]) };
        let (model, numbers) = (Mlp::new(&table), || RowTargets::Numbers(vec![0.0; 70]));
        let parameters = model.initial_parameters(1);
        assert!(model.evaluate(&parameters, &rows(4, numbers())).is_ok());
        assert!(model.evaluate(&parameters, &rows(5, numbers())).is_err());
        assert!(model.evaluate(&parameters, &images(spec(&[8]), 2)).is_err());
        let classes = RowTargets::Classes { labels: vec![0; 70], weights: vec![1.0; 70] };
        assert!(model.evaluate(&parameters, &rows(4, classes)).is_err());
        let model = Mlp::new(&spec(&[8]));
        let parameters = model.initial_parameters(1);
        let other = MlpModel { image_height: 4, image_width: 5, ..spec(&[8]) };
        assert!(model.evaluate(&parameters, &images(other, 2)).is_err());
        let more = MlpModel { classes: 1000, ..spec(&[8]) };
        assert!(model.evaluate(&parameters, &images(more, 20)).is_err());
    }
}

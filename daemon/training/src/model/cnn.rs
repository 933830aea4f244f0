//! A small convolutional classifier of images: 3 × 3 convolutions, each with ReLU and 2 × 2 max pooling, then fully
//! connected layers. In the manner of LeNet (LeCun et al. 1998).

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor};
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::CnnModel;
use rayon::prelude::*;

use super::initial::initial_classifier;
use super::mlp::{composed_dense, images_of};
use super::{Evaluation, Model, Task, Write};
use crate::data::{Batch, ImageBatch, ImageShape};
use crate::ops::convolution::{Convolution, Scratch, composed};
use crate::ops::dense::{DenseLayers, GradientPlace, dense_tensors};
use crate::ops::loss::Expected;

/// Images that one task takes through the convolutions: a constant, because gradients are summed task by task.
const TASK_IMAGES: usize = 4;

/// A convolutional network.
pub struct Cnn {
    layout: Arc<ModelLayout>,
    stages: Vec<Stage>,
    dense: DenseLayers,
    shape: ImageShape,
    classes: u32,
}

/// A convolution with the place of its parameters.
struct Stage {
    convolution: Convolution,
    weights: Range<usize>,
    biases: Range<usize>,
}

/// What an image's backward needs of its forward, for each stage.
struct Trace {
    /// The padded image that the stage read.
    padded: Vec<Vec<f32>>,
    /// Which pixels pooling chose.
    chosen: Vec<Vec<u8>>,
}

impl Cnn {
    /// The model of a valid `spec`: of its images' size, convolutions, hidden layers and classes.
    pub fn new(spec: &CnnModel) -> Cnn {
        let shape = ImageShape::new(spec.image_channels, spec.image_height, spec.image_width);
        let convolutions = convolutions(spec);
        let features = convolutions.last().map_or(shape.values(), Convolution::pooled);
        let mut tensors = dense_tensors(features, &spec.hidden, spec.classes);
        for (number, convolution) in convolutions.iter().enumerate() {
            let Convolution { inputs, outputs, .. } = *convolution;
            tensors.push((format!("convolution.{number}.weight"), vec![outputs, inputs, 3, 3]));
            tensors.push((format!("convolution.{number}.bias"), vec![outputs]));
        }
        let layout = ModelLayout::new(tensors);
        let place = |number: usize, part: &str| {
            let tensor = layout.tensor(&format!("convolution.{number}.{part}"));
            tensor.expect("the layout has every tensor of the model").range()
        };
        let stages = convolutions.into_iter().enumerate().map(|(number, convolution)| Stage {
            convolution,
            weights: place(number, "weight"),
            biases: place(number, "bias"),
        });
        let stages = stages.collect();
        Cnn { stages, dense: DenseLayers::of(&layout), layout: Arc::new(layout), shape, classes: spec.classes }
    }

    /// Parameters of the convolutions: they come first, by name.
    fn convolved(&self) -> usize {
        self.stages.iter().map(|stage| stage.weights.end).max().unwrap_or(0)
    }

    /// Values that an image's last convolution makes.
    fn features(&self) -> usize {
        self.stages.last().map_or(self.shape.values(), |stage| stage.convolution.pooled())
    }

    fn scratch(&self) -> Vec<Scratch> {
        self.stages.iter().map(|stage| stage.convolution.scratch()).collect()
    }

    /// The features `[images, features]`, and for each image what its backward needs.
    fn convolve(&self, parameters: &[f32], pixels: &[f32]) -> (Vec<f32>, Vec<Trace>) {
        let (size, features) = (self.shape.values(), self.features());
        let mut results = vec![0.0; pixels.len() / size * features];
        let tasks = results.par_chunks_mut(TASK_IMAGES * features).zip(pixels.par_chunks(TASK_IMAGES * size));
        let traces: Vec<Vec<Trace>> = tasks
            .map(|(results, pixels)| {
                let mut scratch = self.scratch();
                let images = results.chunks_exact_mut(features).zip(pixels.chunks_exact(size));
                images.map(|(result, image)| self.convolve_one(parameters, image, &mut scratch, result)).collect()
            })
            .collect();
        (results, traces.into_iter().flatten().collect())
    }

    fn convolve_one(&self, parameters: &[f32], image: &[f32], scratch: &mut [Scratch], result: &mut [f32]) -> Trace {
        let mut trace = Trace { padded: Vec::new(), chosen: Vec::new() };
        let mut image = image.to_vec();
        for (stage, scratch) in self.stages.iter().zip(scratch) {
            let (weights, biases) = (&parameters[stage.weights.clone()], &parameters[stage.biases.clone()]);
            let padded = stage.convolution.pad(&image);
            image = vec![0.0; stage.convolution.pooled()];
            let mut chosen = vec![0; image.len()];
            stage.convolution.forward(weights, biases, &padded, scratch, &mut image, &mut chosen);
            trace.padded.push(padded);
            trace.chosen.push(chosen);
        }
        result.copy_from_slice(&image);
        trace
    }

    /// The gradient of all convolutions' parameters, from that of the features.
    fn convolve_back(&self, parameters: &[f32], traces: &[Trace], to_features: &[f32]) -> Vec<f32> {
        let features = self.features();
        let tasks = traces.par_chunks(TASK_IMAGES).zip(to_features.par_chunks(TASK_IMAGES * features));
        let gradients: Vec<Vec<f32>> = tasks
            .map(|(traces, to_features)| {
                let (mut scratch, mut gradient) = (self.scratch(), vec![0.0; self.convolved()]);
                for (trace, to_features) in traces.iter().zip(to_features.chunks_exact(features)) {
                    self.convolve_one_back(parameters, trace, to_features, &mut scratch, &mut gradient);
                }
                gradient
            })
            .collect();
        let mut sum = vec![0.0; self.convolved()];
        for gradient in gradients {
            sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        }
        sum
    }

    fn convolve_one_back(
        &self,
        parameters: &[f32],
        trace: &Trace,
        to_features: &[f32],
        scratch: &mut [Scratch],
        gradient: &mut [f32],
    ) {
        let mut to_pooled = to_features.to_vec();
        for number in (0..self.stages.len()).rev() {
            let Stage { convolution, weights, biases } = &self.stages[number];
            let mut to_biases = gradient[biases.clone()].to_vec();
            let to_image = convolution.backward(
                &parameters[weights.clone()],
                &trace.padded[number],
                &trace.chosen[number],
                &to_pooled,
                &mut scratch[number],
                &mut gradient[weights.clone()],
                &mut to_biases,
                number > 0,
            );
            gradient[biases.clone()].copy_from_slice(&to_biases);
            to_pooled = to_image.unwrap_or_default();
        }
    }
}

fn convolutions(spec: &CnnModel) -> Vec<Convolution> {
    let (mut inputs, mut height, mut width) =
        (spec.image_channels as usize, spec.image_height as usize, spec.image_width as usize);
    let convolution = |outputs: &u32| {
        let convolution = Convolution { inputs, outputs: *outputs as usize, height, width };
        (inputs, height, width) = (convolution.outputs, height / 2, width / 2);
        convolution
    };
    spec.convolutions.iter().map(convolution).collect()
}

impl Model for Cnn {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        initial_classifier(&self.layout, seed)
    }

    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let images = images_of(batch, self.shape, self.classes)?;
        let named =
            |name: String| &parameters[self.layout.position(&name).expect("the layout has every tensor of the model")];
        let mut stream = images.to_tensor(parameters[0].device())?;
        for number in 0..self.stages.len() {
            let weights = named(format!("convolution.{number}.weight"));
            stream = composed(&stream, weights, named(format!("convolution.{number}.bias")))?;
        }
        composed_dense(&self.layout, parameters, stream.flatten_from(1)?)
    }

    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        let ImageBatch { pixels, labels, .. } = images_of(batch, self.shape, self.classes)?;
        let (features, traces) = self.convolve(parameters, pixels);
        let outputs = self.dense.forward(parameters, &features);
        let Task { share, write, .. } = *task;
        let mut place = GradientPlace { gradient, write, share };
        let (loss, to_features) =
            self.dense.backward(parameters, &features, outputs, Expected::Classes(labels), &mut place, true);
        let to_convolutions = self.convolve_back(parameters, &traces, &to_features);
        for (place, value) in gradient.iter_mut().zip(to_convolutions) {
            *place = value + if write == Write::Add { *place } else { 0.0 };
        }
        Ok(loss)
    }

    fn evaluate(&self, parameters: &[f32], batch: &Batch) -> Result<Evaluation> {
        let ImageBatch { pixels, labels, .. } = images_of(batch, self.shape, self.classes)?;
        let (features, _) = self.convolve(parameters, pixels);
        Ok(self.dense.evaluation(&self.dense.forward(parameters, &features), Expected::Classes(labels)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_against_autograd, images};
    use super::*;

    #[test]
    fn gradients_and_evaluations_agree_with_autograd() -> Result<()> {
        for (channels, convolutions, hidden) in [(1, &[4][..], &[][..]), (3, &[5, 7], &[16]), (1, &[2, 3], &[9, 8])] {
            let spec = CnnModel {
                image_height: 14,
                image_width: 9,
                image_channels: channels,
                classes: 5,
                convolutions: convolutions.to_vec(),
                hidden: hidden.to_vec(),
            };
            check_against_autograd(&mut Cnn::new(&spec), &images(spec, 10))?;
        }
        Ok(())
    }
}

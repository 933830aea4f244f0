//! Fully connected layers with ReLU between them, and a softmax or a number on top: forward, loss and backward over plain slices.

use std::ops::Range;

use murmur_protocol::ModelLayout;

use super::loss::Expected;
use super::product::{Matrix, MatrixMut, Products, Write, multiply_in_parallel};
use super::vector::vectorised;
use crate::model::Evaluation;

/// Where a gradient goes, and how: see [`crate::model::Model::gradient`].
pub(crate) struct GradientPlace<'a> {
    /// One value per parameter of the whole model.
    pub(crate) gradient: &'a mut [f32],
    /// What happens to the values already there.
    pub(crate) write: Write,
    /// Scales the sum of the losses.
    pub(crate) share: f32,
}

/// Where a layer's parameters lie.
struct Layer {
    /// `[outputs, inputs]`.
    weight: Range<usize>,
    /// `[outputs]`.
    bias: Range<usize>,
    inputs: usize,
    outputs: usize,
}

/// The layers of a classifier.
pub(crate) struct DenseLayers {
    layers: Vec<Layer>,
}

/// The tensors of such layers, by name: `dense.0.weight` `[outputs, inputs]`, `dense.0.bias` `[outputs]`, and so on.
pub(crate) fn dense_tensors(inputs: usize, hidden: &[u32], classes: u32) -> Vec<(String, Vec<usize>)> {
    let mut inputs = inputs;
    let mut tensors = Vec::new();
    for (number, outputs) in hidden.iter().chain([&classes]).enumerate() {
        let outputs = *outputs as usize;
        tensors.push((format!("dense.{number}.weight"), vec![outputs, inputs]));
        tensors.push((format!("dense.{number}.bias"), vec![outputs]));
        inputs = outputs;
    }
    tensors
}

impl DenseLayers {
    /// Those of [`dense_tensors`] in `layout`.
    ///
    /// # Panics
    /// When the layout has none.
    pub(crate) fn of(layout: &ModelLayout) -> DenseLayers {
        let layers = (0..).map_while(|number| {
            let weight = layout.tensor(&format!("dense.{number}.weight"))?;
            let bias = layout.tensor(&format!("dense.{number}.bias"))?;
            let (outputs, inputs) = (weight.shape[0], weight.shape[1]);
            Some(Layer { weight: weight.range(), bias: bias.range(), inputs, outputs })
        });
        let layers: Vec<Layer> = layers.collect();
        assert!(!layers.is_empty(), "a classifier has at least one layer");
        DenseLayers { layers }
    }

    /// The output `[examples, outputs]` of each layer, the logits last; `input` is `[examples, inputs]`.
    pub(crate) fn forward(&self, parameters: &[f32], input: &[f32]) -> Vec<Vec<f32>> {
        let examples = input.len() / self.layers[0].inputs;
        let mut outputs: Vec<Vec<f32>> = Vec::with_capacity(self.layers.len());
        for (number, layer) in self.layers.iter().enumerate() {
            let input = Matrix::dense(outputs.last().map_or(input, Vec::as_slice), examples, layer.inputs);
            let mut output = vec![0.0; examples * layer.outputs];
            let place = MatrixMut::dense(&mut output, examples, layer.outputs);
            multiply_in_parallel(
                Products::exact(rayon::current_num_threads()),
                place,
                Write::Replace,
                1.0,
                input,
                layer.weight(parameters).transposed(),
            );
            let is_last = number + 1 == self.layers.len();
            add_bias(&mut output, &parameters[layer.bias.clone()], if is_last { f32::NEG_INFINITY } else { 0.0 });
            outputs.push(output);
        }
        outputs
    }

    /// The gradient of `share` times the sum of the losses: written or added to each parameter's place in `gradient`.
    /// Returns that sum without `share`, in nats, and where wanted the gradient of the input `[examples, inputs]`.
    /// `outputs` is what [`DenseLayers::forward`] gave for `input`.
    pub(crate) fn backward(
        &self,
        parameters: &[f32],
        input: &[f32],
        mut outputs: Vec<Vec<f32>>,
        expected: Expected<'_>,
        into: &mut GradientPlace<'_>,
        of_input: bool,
    ) -> (f64, Vec<f32>) {
        let examples = expected.len();
        let mut to_output = outputs.pop().expect("a classifier has at least one layer");
        let loss = expected.loss_and_gradient(&mut to_output, into.share);
        for layer in self.layers.iter().rev() {
            let previous = outputs.pop();
            let input = Matrix::dense(previous.as_deref().unwrap_or(input), examples, layer.inputs);
            let incoming = Matrix::dense(&to_output, examples, layer.outputs);
            add_columns(&mut into.gradient[layer.bias.clone()], into.write, &to_output);
            let place = MatrixMut::dense(&mut into.gradient[layer.weight.clone()], layer.outputs, layer.inputs);
            multiply_in_parallel(
                Products::exact(rayon::current_num_threads()),
                place,
                into.write,
                1.0,
                incoming.transposed(),
                input,
            );
            if previous.is_none() && !of_input {
                return (loss, Vec::new());
            }
            let mut to_input = vec![0.0; examples * layer.inputs];
            let place = MatrixMut::dense(&mut to_input, examples, layer.inputs);
            multiply_in_parallel(
                Products::exact(rayon::current_num_threads()),
                place,
                Write::Replace,
                1.0,
                incoming,
                layer.weight(parameters),
            );
            if let Some(previous) = previous {
                cut(&mut to_input, &previous);
            }
            to_output = to_input;
        }
        (loss, to_output)
    }

    /// How well the outputs that [`DenseLayers::forward`] gave predict what was expected.
    pub(crate) fn evaluation(&self, outputs: &[Vec<f32>], expected: Expected<'_>) -> Evaluation {
        let outputs = outputs.last().expect("a classifier has at least one layer");
        let (loss_sum, correct) = expected.loss_and_hits(outputs);
        Evaluation { loss_sum, predictions: expected.len(), correct }
    }
}

impl Layer {
    fn weight<'a>(&self, parameters: &'a [f32]) -> Matrix<'a> {
        Matrix::dense(&parameters[self.weight.clone()], self.outputs, self.inputs)
    }
}

vectorised! {
    /// Adds `bias` to each row, and raises what is lower than `lowest`: 0 makes it ReLU.
    fn add_bias(output: &mut [f32], bias: &[f32], lowest: f32) {
        for row in output.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(value, bias)| *value = (*value + bias).max(lowest));
        }
    }
}

vectorised! {
    /// The sum of each column of `values`.
    fn add_columns(sums: &mut [f32], write: Write, values: &[f32]) {
        if write == Write::Replace {
            sums.fill(0.0);
        }
        for row in values.chunks_exact(sums.len()) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    }
}

vectorised! {
    /// ReLU passes a gradient on where it passed a value on.
    fn cut(gradient: &mut [f32], output: &[f32]) {
        gradient.iter_mut().zip(output).for_each(|(value, output)| *value = if *output > 0.0 { *value } else { 0.0 });
    }
}

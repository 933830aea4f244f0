//! Fully connected layers with ReLU between them and a softmax on top: forward, loss and backward over plain slices.
//!
//! Activations are kept feature by feature, `[features, examples]`: then each product has many rows, which tasks share.

use std::ops::Range;

use murmur_protocol::ModelLayout;

use super::exponential::exponentials_in_place;
use super::product::{Matrix, Write, multiply_rows};
use crate::model::Evaluation;

/// Rows of a product that one task computes: two tasks for a layer of 128. A constant, though no sum is split along it.
const TASK_ROWS: usize = 64;

/// Examples of the gradient of the input that one task computes. Each packs the whole first layer anew.
const TASK_EXAMPLES: usize = 32;

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

    /// The output `[features, examples]` of each layer, the logits last; `input` is `[examples, inputs]`.
    pub(crate) fn forward(&self, parameters: &[f32], input: &[f32]) -> Vec<Vec<f32>> {
        let examples = input.len() / self.layers[0].inputs;
        let mut outputs: Vec<Vec<f32>> = Vec::with_capacity(self.layers.len());
        for (number, layer) in self.layers.iter().enumerate() {
            let input = match outputs.last() {
                Some(previous) => Matrix::dense(previous, layer.inputs, examples),
                None => Matrix::dense(input, examples, layer.inputs).transposed(),
            };
            let weight = Matrix::dense(&parameters[layer.weight.clone()], layer.outputs, layer.inputs);
            let mut output = vec![0.0; layer.outputs * examples];
            multiply_rows(&mut output, Write::Replace, weight, input, TASK_ROWS);
            let bias = &parameters[layer.bias.clone()];
            let is_last = number + 1 == self.layers.len();
            for (row, bias) in output.chunks_exact_mut(examples).zip(bias) {
                let lowest = if is_last { f32::NEG_INFINITY } else { 0.0 };
                row.iter_mut().for_each(|value| *value = (*value + bias).max(lowest));
            }
            outputs.push(output);
        }
        outputs
    }

    /// The gradient of `share` times the sum of the losses: written or added to each parameter's place in `gradient`.
    /// Returns that sum without `share`, in nats, and where wanted the gradient of the input `[examples, inputs]`.
    /// `outputs` is what [`DenseLayers::forward`] gave.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn backward(
        &self,
        parameters: &[f32],
        input: &[f32],
        outputs: &[Vec<f32>],
        targets: &[u32],
        share: f32,
        write: Write,
        gradient: &mut [f32],
        of_input: bool,
    ) -> (f64, Option<Vec<f32>>) {
        let examples = targets.len();
        let (loss, mut to_output) = loss_and_gradient(self.logits(outputs), targets, share);
        for number in (0..self.layers.len()).rev() {
            let layer = &self.layers[number];
            let weight = Matrix::dense(&parameters[layer.weight.clone()], layer.outputs, layer.inputs);
            let incoming = Matrix::dense(&to_output, layer.outputs, examples);
            add_bias_gradient(&mut gradient[layer.bias.clone()], write, &to_output, examples);
            let place = &mut gradient[layer.weight.clone()];
            let Some(previous) = number.checked_sub(1).map(|previous| &outputs[previous]) else {
                multiply_rows(place, write, incoming, Matrix::dense(input, examples, layer.inputs), TASK_ROWS);
                let to_input = of_input.then(|| {
                    let mut to_input = vec![0.0; input.len()];
                    multiply_rows(&mut to_input, Write::Replace, incoming.transposed(), weight, TASK_EXAMPLES);
                    to_input
                });
                return (loss, to_input);
            };
            let activations = Matrix::dense(previous, layer.inputs, examples).transposed();
            multiply_rows(place, write, incoming, activations, TASK_ROWS);
            let mut to_previous = vec![0.0; previous.len()];
            multiply_rows(&mut to_previous, Write::Replace, weight.transposed(), incoming, TASK_ROWS);
            // ReLU passes a gradient on where it passed a value on.
            let passed = to_previous.iter_mut().zip(previous);
            passed.for_each(|(value, output)| *value = if *output > 0.0 { *value } else { 0.0 });
            to_output = to_previous;
        }
        unreachable!("the first layer returns")
    }

    /// How well the logits that [`DenseLayers::forward`] gave predict `targets`.
    pub(crate) fn evaluation(&self, outputs: &[Vec<f32>], targets: &[u32]) -> Evaluation {
        let logits = self.logits(outputs);
        let (classes, examples) = (logits.len() / targets.len(), targets.len());
        let likeliest = |example: usize| {
            let logit = |class: usize| logits[class * examples + example];
            (0..classes).fold(0, |best, class| if logit(class) > logit(best) { class } else { best })
        };
        let correct = targets.iter().enumerate().filter(|(example, target)| likeliest(*example) == **target as usize);
        let correct = correct.count();
        Evaluation { loss_sum: loss_and_gradient(logits, targets, 1.0).0, predictions: examples, correct }
    }

    fn logits<'a>(&self, outputs: &'a [Vec<f32>]) -> &'a [f32] {
        outputs.last().expect("a classifier has at least one layer")
    }
}

fn add_bias_gradient(place: &mut [f32], write: Write, to_output: &[f32], examples: usize) {
    for (place, row) in place.iter_mut().zip(to_output.chunks_exact(examples)) {
        let kept = if write == Write::Add { *place } else { 0.0 };
        *place = kept + row.iter().sum::<f32>();
    }
}

/// (sum of −ln softmax(logits)[target] in nats, its gradient times `share`), both of `logits` `[classes, examples]`.
fn loss_and_gradient(logits: &[f32], targets: &[u32], share: f32) -> (f64, Vec<f32>) {
    let examples = targets.len();
    let (mut loss, mut gradient) = (0.0, vec![0.0; logits.len()]);
    let mut row = vec![0.0; logits.len() / examples];
    for (example, target) in targets.iter().enumerate() {
        for (value, column) in row.iter_mut().zip(logits.chunks_exact(examples)) {
            *value = column[example];
        }
        let of_target = f64::from(row[*target as usize]);
        let (sum, maximum) = exponentials_in_place(&mut row);
        loss += f64::from(sum).ln() + f64::from(maximum) - of_target;
        for (class, value) in row.iter().enumerate() {
            let expected = if class == *target as usize { 1.0 } else { 0.0 };
            gradient[class * examples + example] = share * (value / sum - expected);
        }
    }
    (loss, gradient)
}

//! A model of whole numbers in which every mistake shows: each value is a hash of all that it was computed from, in its order.
//!
//! It has the shape of a transformer: an embedding, layers, a head with a loss. A stream is one number a microbatch, a gradient
//! one number a layer. Two ways to compute agree on a number only if they agree on every parameter, microbatch and order before it.

use murmur_protocol::random::spread;

/// What training changes of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) parameters: u64,
    pub(crate) moments: u64,
}

/// A number that depends on both, and on which is which.
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    spread(one.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other.wrapping_add(0xd1b5_4a32_d192_ed03))
}

impl Layer {
    /// Of the model's beginning.
    pub(crate) fn initial(number: usize) -> Layer {
        Layer { parameters: mix(7, number as u64), moments: 0 }
    }

    fn forward(&self, input: u64) -> u64 {
        mix(input, self.parameters)
    }

    /// The gradient of the input.
    fn backward(&self, input: u64, to_output: u64) -> u64 {
        mix(mix(to_output, self.parameters), input)
    }

    /// After a step with a gradient and what all stages share.
    pub(crate) fn stepped(&self, gradient: u64, factors: u64) -> Layer {
        let moments = mix(self.moments, gradient);
        Layer { parameters: mix(mix(self.parameters, moments), factors), moments }
    }

    /// After a correction.
    pub(crate) fn corrected(&self, correction: u64) -> Layer {
        Layer { parameters: mix(self.parameters, correction), ..*self }
    }
}

/// The data of a microbatch, and what is to be predicted.
pub(crate) fn example(data: u64, microbatch: u32) -> (u64, u64) {
    let example = mix(mix(data, 11), u64::from(microbatch));
    (example, mix(example, 13))
}

/// Of the loss, from what the head gives and what was to be predicted.
fn loss(output: u64, target: u64) -> u64 {
    mix(output, target)
}

/// Through consecutive layers.
pub(crate) fn forward(layers: &[Layer], input: u64) -> u64 {
    layers.iter().fold(input, |stream, layer| layer.forward(stream))
}

/// Back through consecutive layers: the gradient of the input, and what each layer adds to its gradient.
pub(crate) fn backward(layers: &[Layer], input: u64, to_output: u64) -> (u64, Vec<u64>) {
    let mut inputs = vec![input];
    layers.iter().for_each(|layer| inputs.push(layer.forward(inputs[inputs.len() - 1])));
    let (mut gradient, mut added) = (to_output, Vec::new());
    for (layer, input) in layers.iter().zip(inputs).rev() {
        added.push(mix(gradient, input));
        gradient = layer.backward(input, gradient);
    }
    added.reverse();
    (gradient, added)
}

/// The gradient of the loss, from what the last layer gives.
pub(crate) fn of_loss(output: u64, target: u64) -> u64 {
    mix(loss(output, target), 17)
}

/// The gradients of one batch, for each layer in two lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gradient {
    lanes: Vec<[u64; 2]>,
}

impl Gradient {
    pub(crate) fn add(&mut self, added: &[u64], lane: u8, is_first: bool) {
        self.lanes.resize(added.len(), [0; 2]);
        for (sums, added) in self.lanes.iter_mut().zip(added) {
            let sum = &mut sums[usize::from(lane)];
            *sum = mix(if is_first { 0 } else { *sum }, *added);
        }
    }

    /// Of each layer.
    pub(crate) fn sums(&self) -> Vec<u64> {
        self.lanes.iter().map(|sums| mix(sums[0], sums[1])).collect()
    }

    /// After the lanes were added up: a second lane that the next batch does not have counts no more.
    pub(crate) fn forget_second_lane(&mut self) {
        self.lanes.iter_mut().for_each(|sums| sums[1] = 0);
    }
}

/// What stands for the sum of a layer's squares.
pub(crate) fn square(gradient: u64) -> f64 {
    ((gradient >> 44) + 1) as f64
}

/// What stands for the norm of a gradient: it depends on the order of the squares, as a rounded sum does.
pub(crate) fn norm(squares: impl Iterator<Item = f64>) -> f64 {
    squares.fold(0.0, |sum, square| 0.75 * sum + square)
}

/// What stands for the factors of a step, told bit by bit.
pub(crate) fn factors(norm: f64, learning_rate: f64, members: f64) -> u64 {
    mix(mix(norm.to_bits(), learning_rate.to_bits()), members.to_bits())
}

/// All that a batch computes, by one learner that has the whole model.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    /// For each microbatch: the stream before each layer, and that behind the last.
    pub(crate) streams: Vec<Vec<u64>>,
    /// For each microbatch: the gradient of the stream before each layer, and of that behind the last.
    pub(crate) gradients: Vec<Vec<u64>>,
    /// Of each layer.
    pub(crate) sums: Vec<u64>,
}

impl Whole {
    /// Of microbatches, each with its lane and whether it is the first there.
    pub(crate) fn compute(layers: &[Layer], data: u64, lanes: &[(u8, bool)]) -> Whole {
        let (mut streams, mut gradients, mut gradient) = (Vec::new(), Vec::new(), Gradient::default());
        for (microbatch, (lane, is_first)) in lanes.iter().enumerate() {
            let (input, target) = example(data, microbatch as u32);
            let before: Vec<u64> = (0..=layers.len()).map(|end| forward(&layers[..end], input)).collect();
            let to_output = of_loss(before[layers.len()], target);
            let back = |first: usize| backward(&layers[first..], before[first], to_output);
            let to_inputs: Vec<u64> = (0..=layers.len()).map(|first| back(first).0).collect();
            gradient.add(&back(0).1, *lane, *is_first);
            streams.push(before);
            gradients.push(to_inputs);
        }
        Whole { streams, gradients, sums: gradient.sums() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_in_pieces_computes_as_the_whole_and_every_change_shows() {
        let layers: Vec<Layer> = (0..5).map(Layer::initial).collect();
        let lanes = [(0, true), (0, false), (1, true)];
        let whole = Whole::compute(&layers, 3, &lanes);
        let mut pieces = [Gradient::default(), Gradient::default()];
        for (microbatch, (lane, is_first)) in lanes.iter().enumerate() {
            let (input, target) = example(3, microbatch as u32);
            let between = forward(&layers[..2], input);
            assert_eq!(between, whole.streams[microbatch][2]);
            let to_output = of_loss(forward(&layers[2..], between), target);
            let (to_input, added) = backward(&layers[2..], between, to_output);
            assert_eq!(to_input, whole.gradients[microbatch][2]);
            pieces[1].add(&added, *lane, *is_first);
            pieces[0].add(&backward(&layers[..2], input, to_input).1, *lane, *is_first);
        }
        assert_eq!([pieces[0].sums(), pieces[1].sums()].concat(), whole.sums);
        let swapped = Whole::compute(&layers, 3, &[(0, true), (1, true), (0, false)]);
        let mut other = layers.clone();
        other[4].parameters ^= 1;
        for changed in [swapped, Whole::compute(&other, 3, &lanes), Whole::compute(&layers, 4, &lanes)] {
            assert!(changed.sums.iter().zip(&whole.sums).all(|(one, other)| one != other));
        }
    }
}

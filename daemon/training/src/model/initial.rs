//! Initial weights: the same bits on every node, from the run's seed.
//!
//! Nodes that begin alone must be able to average with each other at once, so they have to begin as equals. Candle's
//! CPU generator cannot be seeded, and libraries differ in `ln` and `cos`; so a normal draw is approximated by a sum of
//! uniform integers (Irwin–Hall), which takes only additions and one multiplication.

use murmur_protocol::layout::{ModelLayout, TensorSpec};
use murmur_protocol::random::{Rng, stream};

/// Uniform draws that make one weight: their sum has the variance of a normal draw, within ±4.9 deviations, and an
/// excess kurtosis of -0.15.
const DRAWS: u32 = 8;

/// A weight's standard deviation is this over the square root of its layer's inputs: 0.02 (GPT-2's value) for 625.
const GAIN: f64 = 0.5;

/// The standard deviation of embeddings. A guess that suits small widths: the first RMSNorm rescales it anyway.
const EMBEDDING_DEVIATION: f64 = 0.1;

/// All parameters, flat in the order of `layout`. Norms are ones, biases zeros; projections back into the residual stream
/// are scaled down by `√(2 · layers)`, so that its variance does not grow with depth (GPT-2).
pub fn initial_parameters(layout: &ModelLayout, layers: u32, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; layout.parameters()];
    for tensor in layout.tensors() {
        let place = &mut values[tensor.range()];
        match deviation(tensor, layers) {
            Some(0.0) => {}
            Some(deviation) => fill_normal(place, deviation, seed, &tensor.name),
            None => place.fill(1.0),
        }
    }
    values
}

/// All parameters of a classifier of images, flat in the order of `layout`: biases zero, weights as He et al.
/// (arXiv 1502.01852) draw them for ReLU, with variance two over the layer's inputs.
pub fn initial_classifier(layout: &ModelLayout, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; layout.parameters()];
    for tensor in layout.tensors().iter().filter(|tensor| tensor.shape.len() > 1) {
        let inputs: usize = tensor.shape[1..].iter().product();
        fill_normal(&mut values[tensor.range()], (2.0 / inputs as f64).sqrt(), seed, &tensor.name);
    }
    values
}

/// As [`initial_classifier`] for a model of rows: the last layer's weights have a deviation of one over its inputs (Yang and
/// Hu, arXiv 2011.14522), so that first predictions are near the mean of all targets. With He's they would be as large as the
/// targets themselves, and so few rows as tables often have do not take that out again.
pub fn initial_row_model(layout: &ModelLayout, seed: u64) -> Vec<f32> {
    let mut values = initial_classifier(layout, seed);
    if let Some(last) = layout.tensors().iter().rev().find(|tensor| tensor.shape.len() > 1) {
        let inputs: usize = last.shape[1..].iter().product();
        let smaller = 1.0 / (2.0 * inputs as f32).sqrt();
        values[last.range()].iter_mut().for_each(|value| *value *= smaller);
    }
    values
}

/// `None` for the scales of norms.
fn deviation(tensor: &TensorSpec, layers: u32) -> Option<f64> {
    if tensor.name.ends_with(".bias") {
        return Some(0.0);
    }
    let &[_, inputs] = tensor.shape.as_slice() else { return None };
    if tensor.name.ends_with("embed_tokens.weight") {
        return Some(EMBEDDING_DEVIATION);
    }
    if tensor.name.ends_with("lora_B.weight") {
        return Some(0.0); // so that adapters begin by adding nothing
    }
    let into_residual = tensor.name.ends_with("o_proj.weight") || tensor.name.ends_with("down_proj.weight");
    let depth = if into_residual { f64::from(2 * layers) } else { 1.0 };
    Some(GAIN / (inputs as f64 * depth).sqrt())
}

/// Fills a tensor of this name with draws of mean 0 and this standard deviation.
pub(crate) fn fill_normal(place: &mut [f32], deviation: f64, seed: u64, name: &str) {
    let mut generator = stream(seed, "initial weights", &[name.as_bytes()]);
    // Each 16-bit draw is uniform on 0..2^16: mean (2^16 − 1)/2, variance (2^32 − 1)/12.
    let mean = f64::from(DRAWS) * 65_535.0 / 2.0;
    let factor = deviation / (f64::from(DRAWS) * 4_294_967_295.0 / 12.0).sqrt();
    for value in place {
        let sum: u64 = (0..DRAWS / 4).map(|_| sum_of_sixteen_bit_parts(generator.next_u64())).sum();
        *value = ((sum as f64 - mean) * factor) as f32;
    }
}

fn sum_of_sixteen_bit_parts(word: u64) -> u64 {
    (word & 0xffff) + ((word >> 16) & 0xffff) + ((word >> 32) & 0xffff) + (word >> 48)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> ModelLayout {
        let shapes = [("a.o_proj.weight", vec![40, 100]), ("a.q_proj.weight", vec![40, 100]), ("norm.weight", vec![9])];
        ModelLayout::new(shapes.map(|(name, shape)| (name.to_owned(), shape)))
    }

    #[test]
    fn weights_have_their_deviation_and_norms_are_ones() {
        let (layout, values) = (layout(), initial_parameters(&layout(), 2, 1));
        for (tensor, expected) in layout.tensors().iter().zip([0.025, 0.05]) {
            let values = &values[tensor.range()];
            let mean_square = values.iter().map(|value| f64::from(value * value)).sum::<f64>() / values.len() as f64;
            assert!((mean_square.sqrt() / expected - 1.0).abs() < 0.05, "{}: {}", tensor.name, mean_square.sqrt());
        }
        assert!(values[8000..].iter().all(|value| *value == 1.0));
    }

    #[test]
    fn weights_have_not_changed_under_recorded_seeds() {
        let values = initial_parameters(&layout(), 2, 1);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(blake3::hash(&bytes).to_hex()[..16], *GOLDEN);
        assert_ne!(initial_parameters(&layout(), 2, 2), values);
    }

    /// Printed once by this very test: a change would part new nodes from running swarms.
    const GOLDEN: &str = "a5a13e850e127604";
}

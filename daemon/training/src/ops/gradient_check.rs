//! Checks a fused operation against candle's autograd on the composed one: the result and every gradient.

use candle_core::{Device, Result, Tensor, Var};
use murmur_protocol::random::{RngExt, stream};

use super::Kernels;

/// Largest difference allowed, relative to the largest value of the tensor: sums of a few hundred `f32` products in
/// another order differ by some units in the sixth digit.
const TOLERANCE: f32 = 2e-5;

/// Uniform values in [-1, 1).
pub(crate) fn random_values(count: usize, seed: u64) -> Vec<f32> {
    let mut generator = stream(seed, "gradient check", &[]);
    (0..count).map(|_| generator.random_range(-1.0..1.0)).collect()
}

/// [`random_values`] in the given shape.
pub(crate) fn random(shape: &[usize], seed: u64) -> Var {
    Var::from_vec(random_values(shape.iter().product(), seed), shape, &Device::Cpu).expect("the values fill the shape")
}

/// Token ids below `vocabulary`.
pub(crate) fn random_tokens(shape: &[usize], vocabulary: u32, seed: u64) -> Tensor {
    let mut generator = stream(seed, "gradient check tokens", &[]);
    let values: Vec<u32> = (0..shape.iter().product()).map(|_| generator.random_range(0..vocabulary)).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).expect("the values fill the shape")
}

/// Runs `operation` both ways, weighs its result with random numbers so that every output matters differently, and
/// compares outputs and gradients.
///
/// # Panics
/// When they differ, or when running the fused operation twice gives other bits.
pub(crate) fn check_gradients(arguments: &[Var], operation: impl Fn(Kernels, &[Var]) -> Result<Tensor>) {
    let evaluate = |kernels| -> Result<Vec<Vec<f32>>> {
        let output = operation(kernels, arguments)?;
        let weights = random(output.dims(), 99);
        let gradients = (&output * weights.as_tensor())?.sum_all()?.backward()?;
        let mut results = vec![output.flatten_all()?.to_vec1()?];
        for argument in arguments {
            let gradient = gradients.get(argument).expect("every argument has a gradient");
            results.push(gradient.flatten_all()?.to_vec1()?);
        }
        Ok(results)
    };
    let fused = evaluate(Kernels::Fused).expect("the fused operation runs");
    let composed = evaluate(Kernels::Composed).expect("the composed operation runs");
    for (index, (fused, composed)) in fused.iter().zip(&composed).enumerate() {
        let scale = composed.iter().fold(1e-3_f32, |largest, value| largest.max(value.abs()));
        let pairs = fused.iter().zip(composed);
        let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
        assert_eq!(fused.len(), composed.len());
        assert!(error <= TOLERANCE * scale, "result {index} (0: output, then gradients): {error} of {scale}");
    }
    assert_eq!(evaluate(Kernels::Fused).expect("the fused operation runs"), fused, "same inputs, same bits");
}

//! Random values, and candle's autograd as the oracle for hand-written operations.

use candle_core::{Device, Result, Tensor, Var};
use murmur_protocol::random::{RngExt, stream};

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
pub(crate) fn random_tokens(count: usize, vocabulary: u32, seed: u64) -> Vec<u32> {
    let mut generator = stream(seed, "gradient check tokens", &[]);
    (0..count).map(|_| generator.random_range(0..vocabulary)).collect()
}

/// All values of a tensor.
pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32 values")
}

/// The output of a composed operation, then the gradient of each argument, when the output's gradient is `gradient`.
pub(crate) fn by_autograd(
    arguments: &[Var],
    gradient: &[f32],
    operation: impl Fn(&[Var]) -> Result<Tensor>,
) -> Vec<Vec<f32>> {
    let results = || -> Result<Vec<Vec<f32>>> {
        let output = operation(arguments)?;
        let weights = Tensor::from_slice(gradient, output.dims(), &Device::Cpu)?;
        let gradients = (&output * weights)?.sum_all()?.backward()?;
        let of = |argument| gradients.get(argument).expect("every argument has a gradient");
        Ok([&output].into_iter().chain(arguments.iter().map(|argument| of(argument))).map(values).collect())
    };
    results().expect("the composed operation runs")
}

/// # Panics
/// When the two differ by more than rounding.
pub(crate) fn assert_close(what: &str, actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-3_f32, |largest, value| largest.max(value.abs()));
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let error = (actual - expected).abs();
        assert!(error <= TOLERANCE * scale, "{what}[{index}]: {actual}, not {expected}; the largest is {scale}");
    }
}

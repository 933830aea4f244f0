//! What a model's step takes in arithmetic, and how fast this machine multiplies matrices: a bound for training.

use std::time::{Duration, Instant};

use candle_core::{Device, Result, Tensor};
use murmur_protocol::manifest::TransformerModel;

use crate::engine::Precision;
use crate::model::StageSpec;
use crate::ops::product::{Matrix, MatrixMut, Products, Write, multiply_in_parallel};

/// Floating-point operations that training on one token takes: two for each weight of a product forward and four
/// backward, and the products of causal attention, of which half lies above the diagonal and need not be computed.
/// Computing activations again does not count.
pub fn operations_per_token(spec: &TransformerModel) -> f64 {
    operations_of_stage(spec, &StageSpec::whole(spec), false)
}

/// The same for one stage of a model; where it does, computing activations of blocks again counts.
pub(crate) fn operations_of_stage(spec: &TransformerModel, stage: &StageSpec, recompute: bool) -> f64 {
    let (width, context) = (f64::from(spec.width), f64::from(spec.context));
    let layers = stage.layers.len() as f64;
    let (query_width, key_width) = (f64::from(spec.query_width()), f64::from(spec.key_width()));
    let block = 2.0 * width * query_width + 2.0 * width * key_width + 3.0 * width * f64::from(spec.feed_forward);
    let head = if stage.predicts { width * f64::from(spec.vocabulary) } else { 0.0 };
    let blocks = 6.0 * layers * block + 6.0 * layers * context * query_width;
    6.0 * head + if recompute { blocks * 4.0 / 3.0 } else { blocks }
}

/// Seconds and operations of products of matrices as in the feed-forward part of `spec`, `rows` tokens at once: the rate
/// that a step could reach if it were nothing else. In this precision, on all of rayon's threads or
/// on another device.
///
/// # Errors
/// When the device fails.
pub fn timed_product(
    spec: &TransformerModel,
    rows: usize,
    device: &Device,
    precision: Precision,
) -> Result<(Duration, f64)> {
    let (width, inner) = (spec.width as usize, 2 * spec.feed_forward as usize);
    if device.is_cpu() {
        Ok(on_threads(rows, width, inner, precision))
    } else {
        on_device(rows, width, inner, device, precision)
    }
}

fn on_device(
    rows: usize,
    width: usize,
    inner: usize,
    device: &Device,
    precision: Precision,
) -> Result<(Duration, f64)> {
    let matrix = |rows, columns| Tensor::full(0.5_f32, (rows, columns), device)?.to_dtype(precision.dtype());
    let (input, weight) = (matrix(rows, width)?, matrix(inner, width)?.t()?);
    let operations = 2.0 * (rows * width * inner) as f64;
    // The first one loads the library.
    input.matmul(&weight)?;
    device.synchronize()?;
    let (begin, mut repetitions) = (Instant::now(), 0.0);
    while begin.elapsed() < PRODUCT_DURATION {
        for _ in 0..PRODUCTS_IN_FLIGHT {
            input.matmul(&weight)?;
        }
        device.synchronize()?;
        repetitions += f64::from(PRODUCTS_IN_FLIGHT);
    }
    Ok((begin.elapsed(), repetitions * operations))
}

fn on_threads(rows: usize, width: usize, inner: usize, precision: Precision) -> (Duration, f64) {
    let (input, weight, mut output) = (vec![0.5; rows * width], vec![0.5; inner * width], vec![0.0; rows * inner]);
    let (input, weight) = (Matrix::dense(&input, rows, width), Matrix::dense(&weight, inner, width));
    let operations = 2.0 * (rows * width * inner) as f64;
    let repetitions = (PRODUCT_OPERATIONS / operations).ceil();
    let products = Products { threads: rayon::current_num_threads(), rounding: precision.rounding() };
    let mut multiply = || {
        let place = MatrixMut::dense(&mut output, rows, inner);
        multiply_in_parallel(products, place, Write::Replace, 1.0, input, weight.transposed());
    };
    // The first one meets memory that was never touched.
    multiply();
    let begin = Instant::now();
    for _ in 0..repetitions as usize {
        multiply();
    }
    (begin.elapsed(), repetitions * operations)
}

/// Long enough to be timed: a tenth of a second on a fast core.
const PRODUCT_OPERATIONS: f64 = 2e10;

/// As long on a device of whatever speed.
const PRODUCT_DURATION: Duration = Duration::from_millis(100);

/// Products that a device is given before it is waited for.
const PRODUCTS_IN_FLIGHT: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_as_by_hand() {
        let spec =
            TransformerModel { layers: 2, width: 4, heads: 2, feed_forward: 8, context: 16, ..Default::default() };
        // Weights: 2 · (4 · 16 + 3 · 32) + 4 · 256; attention: 6 · 2 · 16 · 4.
        assert_eq!(operations_per_token(&spec), 6.0 * (320.0 + 1024.0) + 768.0);
        // Twice as wide heads: twice the projections and twice the attention.
        let wide = TransformerModel { head_width: 4, ..spec };
        assert_eq!(operations_per_token(&wide), 6.0 * (2.0 * (2.0 * 4.0 * 16.0 + 96.0) + 1024.0) + 2.0 * 768.0);
    }

    #[test]
    fn threads_and_devices_are_timed() -> Result<()> {
        for (duration, operations) in
            [on_threads(8, 64, 64, Precision::F32), on_device(8, 64, 64, &Device::Cpu, Precision::F32)?]
        {
            assert!(duration >= Duration::from_millis(1) && operations >= 10.0 * 2.0 * 8.0 * 64.0 * 64.0);
        }
        Ok(())
    }
}

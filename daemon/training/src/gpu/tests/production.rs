//! Work cut as outside of tests, where tensors have more parts than one all the same.

use super::*;
use crate::gpu::sizes::in_production;

/// More rows than a block sums, more queries than are attended at once, and rows wider than a block has threads.
fn large() -> TransformerModel {
    TransformerModel {
        layers: 1,
        width: 260,
        heads: 2,
        key_value_heads: 1,
        attention_bias: AttentionBias::All,
        head_norm: true,
        feed_forward: 40,
        context: 140,
        vocabulary: 300,
        ..TransformerModel::default()
    }
}

#[test]
fn gradients_are_those_of_the_cpu_as_work_is_cut_outside_of_tests() -> Result<()> {
    // Attention as one kernel, whose blocks have 128 rows.
    let fused = TransformerModel { width: 32, heads: 2, head_width: 32, ..large() };
    let cases = [(large(), Precision::F32, 1e-4), (large(), Precision::Bf16, 0.05), (fused, Precision::Bf16, 0.05)];
    for (device, (spec, precision, tolerance)) in on_all_devices(cases) {
        in_production(|| {
            let options = TrainingOptions { precision, ..TrainingOptions::default() };
            let (mut host, mut gpu) = pair(&spec, device, &options)?;
            let batch = batch(&spec, 2, 1);
            let losses = (host.compute_gradient(&batch)?, gpu.compute_gradient(&batch)?);
            assert!((losses.0 - losses.1).abs() < f64::from(tolerance), "{losses:?}");
            check_tensors(host.layout(), &gpu.gradient()?, &host.gradient()?, tolerance);
            Ok::<(), candle_core::Error>(())
        })?;
    }
    Ok(())
}

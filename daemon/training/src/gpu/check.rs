//! Whether a device computes what the CPU does: asked once before it trains, because a driver, a library or a GPU of a kind
//! that nobody has tried may not.

use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::Correction;
use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_protocol::manifest::{ModelSpec, OptimizerSpec};

use super::{Accelerator, GpuReplica, Trained};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::{Precision, TrainingOptions};
use crate::model::build;
use crate::replica::{HostReplica, Replica};

/// Differences of gradients, as a share of a tensor's largest value, that rounding explains.
const TOLERANCE: f32 = 1e-3;
const TOLERANCE_BF16: f32 = 0.1;

/// A small transformer that takes every path; smaller still in tests, where a block has fewer threads.
fn spec() -> ModelSpec {
    // Wider than a block has threads.
    let heads = if cfg!(test) { (4, 2) } else { (4, 80) };
    ModelSpec {
        layers: 2,
        width: heads.0 * heads.1,
        heads: heads.0,
        key_value_heads: 2,
        feed_forward: if cfg!(test) { 66 } else { 520 },
        context: if cfg!(test) { 10 } else { 40 },
        vocabulary: if cfg!(test) { 70 } else { 300 },
        ..ModelSpec::default()
    }
}

/// What a device has computed.
struct Outcome {
    loss: f64,
    gradient: Vec<f32>,
    /// AdamW's, after a step.
    second_moment: Vec<f32>,
}

/// Takes a step of a small transformer on both, and adds a correction on the device.
///
/// # Errors
/// With what differs.
pub(crate) fn check(device: &Arc<dyn Accelerator>) -> std::result::Result<(), String> {
    let check = |precision, tolerance| {
        let (spec, optimizer) = (spec(), OptimizerSpec { gradient_norm_max: 0.1, ..OptimizerSpec::default() });
        let model = build(&spec);
        let (layout, parameters) = (model.layout().clone(), model.initial_parameters(1));
        let options = TrainingOptions { precision, ..TrainingOptions::default() };
        let (examples, device) = (3, device.clone());
        let mut on_device =
            GpuReplica::new(device, &spec, Trained::all(&layout), &parameters, optimizer.clone(), examples, &options)?;
        let mut on_host = HostReplica::new(model, parameters, optimizer, examples);
        let (actual, expected) = (step(&mut on_device, &spec)?, step(&mut on_host, &spec)?);
        // Not a number is no agreement.
        let agrees = |left: f64, right: f64, of: f64| (left - right).abs() <= f64::from(tolerance) * of;
        let mut differences = Vec::new();
        if !agrees(actual.loss, expected.loss, 1.0) {
            differences.push("the loss".to_owned());
        }
        for tensor in layout.tensors() {
            let vectors = [(&actual.gradient, &expected.gradient), (&actual.second_moment, &expected.second_moment)];
            let all_agree = vectors.into_iter().all(|(actual, expected)| {
                let (actual, expected) = (&actual[tensor.range()], &expected[tensor.range()]);
                let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                let mut pairs = actual.iter().zip(expected);
                pairs.all(|(left, right)| agrees(f64::from(*left), f64::from(*right), f64::from(largest)))
            });
            if !all_agree {
                differences.push(tensor.name.clone());
            }
        }
        if !adds(&mut on_device)? {
            differences.push("a correction".to_owned());
        }
        Ok::<_, candle_core::Error>(differences)
    };
    for (precision, tolerance) in [(Precision::F32, TOLERANCE), (Precision::Bf16, TOLERANCE_BF16)] {
        let differences = check(precision, tolerance).map_err(|error| error.to_string())?;
        if let Some(first) = differences.first() {
            let number = differences.len();
            return Err(format!("{number} results of a step in {precision:?} are not those of the CPU, first {first}"));
        }
    }
    Ok(())
}

fn step(replica: &mut dyn Replica, spec: &ModelSpec) -> Result<Outcome> {
    let tokens = |factor: u32| (0..3 * spec.context).map(|index| index * factor % spec.vocabulary).collect();
    let batch = Batch::Tokens(TokenBatch { inputs: tokens(37), targets: tokens(91), sequences: 3 });
    let loss = replica.compute_gradient(&batch)?;
    let (gradient, norm) = (replica.gradient()?.into_owned(), replica.gradient_norm()?);
    replica.step(norm, 0.01)?;
    Ok(Outcome { loss, gradient, second_moment: replica.moments()?.0.second })
}

/// Whether a correction moves every parameter by its value.
fn adds(replica: &mut GpuReplica) -> Result<bool> {
    let before = replica.parameters()?.into_owned();
    let codes = Codes::Narrow((0..before.len()).map(|index| (index % 100) as i8).collect());
    let correction = Correction::new(codes, vec![0.25; before.len().div_ceil(BLOCK)]);
    let Some(upload) = replica.begin_addition(0..before.len(), &correction)? else { return Ok(false) };
    let added = replica.finish_addition(upload)?;
    Ok(replica.parameters()?.iter().zip(&before).zip(&added).all(|((after, before), added)| *after == before + added))
}

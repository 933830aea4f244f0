//! Whether a device computes what the CPU does: asked once before it trains, because a driver, a library or a GPU of a kind
//! that nobody has tried may not.

use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::Correction;
use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_protocol::layout::TensorSpec;
use murmur_protocol::manifest::{AttentionBias, LoraSpec, OptimizerKind, OptimizerSpec, TransformerModel};

use super::{ATTENTION_WIDTHS, Accelerator, Base, Frozen, GpuReplica, Trained};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::{Precision, TrainingOptions};
use crate::model::{Model as _, StageSpec, Transformer, build};
use crate::ops::base_weights::BaseWeights;
use crate::optimizer::Moments;
use crate::replica::{HostReplica, Replica};

/// Differences of gradients, as a share of a tensor's largest value, that rounding explains.
const TOLERANCE: f32 = 1e-3;
const TOLERANCE_BF16: f32 = 0.1;

/// Small transformers that take every path, the first all but fused attention; smaller still in tests, where a block has
/// fewer threads.
fn specs(precision: Precision) -> Vec<TransformerModel> {
    let fused =
        ATTENTION_WIDTHS.into_iter().filter(|_| precision == Precision::Bf16).map(|head_width| TransformerModel {
            layers: 1,
            width: if cfg!(test) { 16 } else { 128 },
            heads: 2,
            key_value_heads: 1,
            head_width: head_width as u32,
            feed_forward: 24,
            context: if cfg!(test) { 40 } else { 300 },
            vocabulary: 60,
            ..TransformerModel::default()
        });
    [with_all()].into_iter().chain(fused).collect()
}

fn with_all() -> TransformerModel {
    // Wider than a block has threads.
    let heads = if cfg!(test) { (4, 2) } else { (4, 80) };
    TransformerModel {
        layers: 2,
        width: heads.0 * heads.1,
        heads: heads.0,
        key_value_heads: 2,
        attention_bias: AttentionBias::All,
        head_norm: true,
        feed_forward: if cfg!(test) { 66 } else { 520 },
        context: if cfg!(test) { 10 } else { 40 },
        vocabulary: if cfg!(test) { 70 } else { 300 },
        ..TransformerModel::default()
    }
}

/// Differences of what a step with one and the same gradient did, as a share of the largest value: Muon's polynomials amplify
/// rounding errors up to 500 times.
const STEP_TOLERANCE: f32 = 5e-3;

/// Takes a step of a small transformer on both, and adds a correction on the device.
///
/// # Errors
/// With what differs.
pub(crate) fn check(device: &Arc<dyn Accelerator>) -> std::result::Result<(), String> {
    let check = |spec: TransformerModel, precision, tolerance| {
        // With AdamW for what Muon leaves.
        let (kind, match_batch) = (OptimizerKind::Muon, true);
        let optimizer = OptimizerSpec { kind, match_batch, gradient_norm_max: 0.1, ..OptimizerSpec::default() };
        let model = build(&spec.clone().into());
        let (layout, mut parameters) = (model.layout().clone(), model.initial_parameters(1));
        // Biases of zero and scales of one would hide what is not computed.
        for tensor in layout.tensors().iter().filter(|tensor| tensor.shape.len() == 1) {
            let values = parameters[tensor.range()].iter_mut().enumerate();
            values.for_each(|(index, value)| *value += ((index % 7) as f32 - 3.0) / 50.0);
        }
        let options = TrainingOptions { precision, ..TrainingOptions::default() };
        let (examples, device) = (3, device.clone());
        let mut on_device = GpuReplica::new(
            device,
            &spec,
            Trained::all(&spec, &layout),
            &parameters,
            optimizer.clone(),
            examples,
            &options,
        )?;
        let mut on_host = HostReplica::new(model, parameters.clone(), optimizer, examples);
        let (loss, expected_loss) = (gradient(&mut on_device, &spec)?, gradient(&mut on_host, &spec)?);
        let mut differences = Vec::new();
        // Not a number is no agreement.
        let losses_agree = (loss - expected_loss).abs() <= f64::from(tolerance);
        if !losses_agree {
            differences.push("the loss".to_owned());
        }
        let gradients = (on_device.gradient()?.into_owned(), on_host.gradient()?.into_owned());
        on_device.set_gradient(&gradients.1)?;
        let (after, expected_after) = (step(&mut on_device, &parameters)?, step(&mut on_host, &parameters)?);
        for tensor in layout.tensors() {
            let within = |vector: &[f32]| vector[tensor.range()].to_vec();
            let agree =
                |(actual, expected): (&[f32], &[f32]), tolerance| agree(&within(actual), &within(expected), tolerance);
            let moved = (&after.moved[..], &expected_after.moved[..]);
            if !(agree((&gradients.0, &gradients.1), tolerance) && agree(moved, STEP_TOLERANCE)) {
                differences.push(tensor.name.clone());
            }
        }
        let (moments, expected) = (after.moments, expected_after.moments);
        let vectors = [
            (&moments.first, &expected.first),
            (&moments.second, &expected.second),
            (&moments.average, &expected.average),
        ];
        if !vectors.into_iter().all(|(actual, expected)| agree(actual, expected, STEP_TOLERANCE)) {
            differences.push("the optimizer's moments".to_owned());
        }
        if !adds(&mut on_device)? {
            differences.push("a correction".to_owned());
        }
        Ok::<_, candle_core::Error>(differences)
    };
    for (precision, tolerance) in [(Precision::F32, TOLERANCE), (Precision::Bf16, TOLERANCE_BF16)] {
        for spec in specs(precision) {
            let differences = check(spec, precision, tolerance).map_err(|error| error.to_string())?;
            if let Some(first) = differences.first() {
                let number = differences.len();
                return Err(format!("{number} results of a step in {precision:?} are not the CPU's, first {first}"));
            }
        }
        if !agrees_beside_8_bits(device, precision, tolerance).map_err(|error| error.to_string())? {
            return Err(format!(
                "adapters beside a base in 8 bits in {precision:?} have another gradient than on the CPU"
            ));
        }
    }
    Ok(())
}

/// Whether adapters beside a frozen base in 8 bits have the CPU's loss and gradient.
fn agrees_beside_8_bits(device: &Arc<dyn Accelerator>, precision: Precision, tolerance: f32) -> Result<bool> {
    let (spec, lora) = (with_all(), LoraSpec { rank: 2, base_bits: 8, ..LoraSpec::default() });
    let (base, optimizer) = (Transformer::new(&spec), OptimizerSpec::default());
    let weights = BaseWeights::from(base.initial_parameters(1)).in_bits(base.layout(), lora.base_bits);
    let frozen = Frozen::new(&**device, base.layout(), &weights, &lora, precision.into())?;
    let model = base.with_adapters(weights, &lora);
    let layout = model.layout().clone();
    // Where B is zero, A has no gradient.
    let parameters: Vec<f32> = (0..layout.parameters()).map(|index| ((index % 7) as f32 - 3.0) / 50.0).collect();
    let trained = Trained { stage: StageSpec::whole(&spec), layout: layout.clone(), base: Base::Held(frozen) };
    let options = TrainingOptions { precision, ..TrainingOptions::default() };
    let mut on_device = GpuReplica::new(device.clone(), &spec, trained, &parameters, optimizer.clone(), 3, &options)?;
    let mut on_host = HostReplica::new(Box::new(model), parameters, optimizer, 3);
    let (loss, expected) = (gradient(&mut on_device, &spec)?, gradient(&mut on_host, &spec)?);
    let (of_device, of_host) = (on_device.gradient()?, on_host.gradient()?);
    let agrees = |tensor: &TensorSpec| agree(&of_device[tensor.range()], &of_host[tensor.range()], tolerance);
    Ok((loss - expected).abs() <= f64::from(tolerance) && layout.tensors().iter().all(agrees))
}

/// Whether all values differ by at most so much of the largest.
fn agree(actual: &[f32], expected: &[f32], tolerance: f32) -> bool {
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // Not a number is no agreement.
    let close = |(left, right): (&f32, &f32)| (left - right).abs() <= tolerance * largest;
    actual.len() == expected.len() && actual.iter().zip(expected).all(close)
}

/// Computes the gradient of a batch and returns the loss.
fn gradient(replica: &mut dyn Replica, spec: &TransformerModel) -> Result<f64> {
    let tokens = |factor: u32| (0..3 * spec.context).map(|index| index * factor % spec.vocabulary).collect();
    let batch = Batch::Tokens(TokenBatch { inputs: tokens(37), targets: tokens(91), sequences: 3 });
    replica.compute_gradient(&batch)
}

/// What two steps with the gradient that a replica has have come to.
struct Stepped {
    /// The way of each parameter.
    moved: Vec<f32>,
    moments: Moments,
}

/// Takes two steps from `before`, as a member of five.
fn step(replica: &mut dyn Replica, before: &[f32]) -> Result<Stepped> {
    replica.set_members(5.0);
    for _ in 0..2 {
        let norm = replica.gradient_norm()?;
        replica.step(norm, 0.01)?;
    }
    let moved = replica.parameters()?.iter().zip(before).map(|(after, before)| after - before).collect();
    Ok(Stepped { moved, moments: replica.moments()?.0 })
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

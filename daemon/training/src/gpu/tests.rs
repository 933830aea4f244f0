//! The GPU's transformer against the CPU's: on an emulated GPU, and on a real one in a build for them where there is one.

pub(crate) mod order;
mod production;
mod reading;
mod ties;

use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_protocol::manifest::{
    AttentionBias, LORA_TARGETS, LoraSpec, OptimizerKind, OptimizerSpec, RopeScaling, TransformerModel,
};
use murmur_protocol::{Correction, ModelLayout};

use super::check::check;
use super::emulated::Emulated;
use super::{
    Accelerator, Base, Frozen, GpuReplica, GpuStage, Kind, SUM_BLOCKS, Trained, activation_values, frozen_bytes,
    kernel_names,
};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::{Precision, TrainingOptions};
use crate::model::{Evaluation, Model as _, StageSpec, Transformer, build};
use crate::ops::base_weights::BaseWeights;
use crate::ops::gradient_check::{random_tokens, random_values};
use crate::optimizer::Optimizer;
use crate::replica::host::HostStage;
use crate::replica::stage::Microbatch;
use crate::replica::{HostReplica, InParts, Pipeline, Replica, Stage};

/// An emulated GPU, and in a build for GPUs a real one where there is one.
pub(crate) fn devices() -> Vec<Arc<dyn Accelerator>> {
    let emulated = Emulated::open().map(|device| device as Arc<dyn Accelerator>);
    emulated.into_iter().chain(real()).collect()
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn real() -> Option<Arc<dyn Accelerator>> {
    None
}

#[cfg(feature = "cuda")]
pub(crate) fn real() -> Option<Arc<dyn Accelerator>> {
    match crate::DeviceChoice::Cuda(0).open() {
        Ok((device, _)) => Some(super::accelerator(&device).expect("a GPU computes what the CPU does")),
        Err(error) => {
            println!("skipped on a GPU: {error}");
            None
        }
    }
}

/// The built-in kind, one with everything else of Llama's, one wider than a block has threads, and two of other families.
pub(crate) fn specs() -> [TransformerModel; 5] {
    let plain =
        TransformerModel { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..Default::default() };
    let other = TransformerModel { tied_head: true, vocabulary: 300, rope_theta: 500.0, ..plain.clone() };
    let other = TransformerModel { heads: 4, key_value_heads: 2, norm_epsilon: 1e-3, ..other };
    let wide = TransformerModel {
        layers: 1,
        width: 132,
        heads: 3,
        feed_forward: 40,
        context: 40,
        vocabulary: 50,
        ..plain.clone()
    };
    // Heads wider than a block has threads; queries wider than the stream, and narrower.
    let qwen = TransformerModel { head_width: 70, heads: 2, key_value_heads: 1, head_norm: true, ..plain.clone() };
    let qwen = TransformerModel { attention_bias: AttentionBias::All, ..qwen };
    let smol = TransformerModel { head_width: 6, layers_without_rope: vec![1], ..plain.clone() };
    let smol = TransformerModel { rope_scaling: RopeScaling::Linear, rope_factor: 2.0, ..smol };
    [plain, other, wide, qwen, smol]
}

/// One for each kernel of attention, which has more rows than a block, and keys of more than a tile.
fn attended_at_once() -> [TransformerModel; 3] {
    let wide = |head_width: u32, heads, key_value_heads| TransformerModel {
        layers: 1,
        width: 16,
        heads,
        key_value_heads,
        head_width,
        feed_forward: 24,
        context: 70,
        vocabulary: 40,
        ..TransformerModel::default()
    };
    [wide(32, 4, 2), wide(64, 2, 1), wide(128, 1, 1)]
}

/// Weights in the bits of a base.
fn in_bits(weights: &[f32], layout: &ModelLayout, lora: &LoraSpec) -> BaseWeights {
    BaseWeights::from(weights.to_vec()).in_bits(layout, lora.base_bits)
}

pub(crate) fn batch(spec: &TransformerModel, sequences: usize, seed: u64) -> Batch {
    let tokens = |seed| random_tokens(sequences * spec.context as usize, spec.vocabulary, seed);
    Batch::Tokens(TokenBatch { inputs: tokens(seed), targets: tokens(seed + 1), sequences })
}

fn pair(
    spec: &TransformerModel,
    device: Arc<dyn Accelerator>,
    options: &TrainingOptions,
) -> Result<(HostReplica, GpuReplica)> {
    pair_with(spec, device, options, OptimizerSpec::default())
}

fn pair_with(
    spec: &TransformerModel,
    device: Arc<dyn Accelerator>,
    options: &TrainingOptions,
    optimizer: OptimizerSpec,
) -> Result<(HostReplica, GpuReplica)> {
    let (model, optimizer) = (build(&spec.clone().into()), OptimizerSpec { gradient_norm_max: 0.1, ..optimizer });
    // Scales that are all one would hide a mistake.
    let mut parameters = model.initial_parameters(1);
    for tensor in model.layout().tensors().iter().filter(|tensor| tensor.shape.len() == 1) {
        for (value, noise) in parameters[tensor.range()].iter_mut().zip(random_values(tensor.range().len(), 5)) {
            *value += 0.1 * noise;
        }
    }
    let micro_batch = options.micro_batch.unwrap_or(usize::MAX);
    let gpu = GpuReplica::new(
        device,
        spec,
        Trained::all(spec, model.layout()),
        &parameters,
        optimizer.clone(),
        micro_batch,
        options,
    )?;
    Ok((HostReplica::new(model, parameters, optimizer, usize::MAX), gpu))
}

/// Each tensor's largest difference as a share of its largest value.
fn check_tensors(layout: &ModelLayout, actual: &[f32], expected: &[f32], tolerance: f32) {
    for tensor in layout.tensors() {
        let (actual, expected) = (&actual[tensor.range()], &expected[tensor.range()]);
        let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let pairs = actual.iter().zip(expected);
        let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
        assert!(error <= tolerance * largest && largest > 0.0, "{}: {error} of {largest}", tensor.name);
    }
}

fn on_all_devices<C: Clone>(cases: impl IntoIterator<Item = C>) -> Vec<(Arc<dyn Accelerator>, C)> {
    let devices = devices();
    cases.into_iter().flat_map(|case| devices.iter().map(move |device| (device.clone(), case.clone()))).collect()
}

#[test]
fn gradients_and_losses_are_those_of_the_cpu() -> Result<()> {
    for (index, spec) in specs().iter().enumerate() {
        for (device, (recompute, micro_batch)) in on_all_devices([(false, None), (true, Some(2))]) {
            let options = TrainingOptions { recompute, micro_batch, ..TrainingOptions::default() };
            let (mut host, mut gpu) = pair(spec, device, &options)?;
            let sequences = if index == 2 { 1 } else { 3 };
            let batch = batch(spec, sequences, 1);
            let losses = (host.compute_gradient(&batch)?, gpu.compute_gradient(&batch)?);
            assert!((losses.0 - losses.1).abs() < 1e-5, "{losses:?}");
            check_tensors(host.layout(), &gpu.gradient()?, &host.gradient()?, 1e-4);
            let norms = (host.gradient_norm()?, gpu.gradient_norm()?);
            assert!((norms.0 / norms.1 - 1.0).abs() < 1e-5, "{norms:?}");
            let evaluations = (host.evaluate(&batch)?, gpu.evaluate(&batch)?);
            assert!((evaluations.0.loss() - evaluations.1.loss()).abs() < 1e-5, "{evaluations:?}");
            assert_eq!(evaluations.0.correct, evaluations.1.correct);
        }
    }
    Ok(())
}

#[test]
fn sixteen_bits_give_nearly_the_gradient_of_thirty_two() -> Result<()> {
    let ([plain, other, _, qwen, smol], [narrow, middle, wide]) = (&specs(), &attended_at_once());
    for (device, spec) in on_all_devices([plain, other, qwen, smol, narrow, middle, wide]) {
        let options = TrainingOptions { precision: Precision::Bf16, ..TrainingOptions::default() };
        let (mut host, mut gpu) = pair(spec, device, &options)?;
        let batch = batch(spec, 3, 1);
        let losses = (host.compute_gradient(&batch)?, gpu.compute_gradient(&batch)?);
        assert!((losses.0 - losses.1).abs() < 5e-3 && losses.0 != losses.1, "{losses:?}");
        check_tensors(host.layout(), &gpu.gradient()?, &host.gradient()?, 0.05);
    }
    Ok(())
}

#[test]
fn steps_and_states_are_those_of_the_cpu() -> Result<()> {
    let by_muon = OptimizerSpec { kind: OptimizerKind::Muon, match_batch: true, ..OptimizerSpec::default() };
    let cases = on_all_devices([OptimizerSpec::default(), by_muon]);
    cases.into_iter().try_for_each(|(device, optimizer)| compare_steps(device, optimizer))
}

fn compare_steps(device: Arc<dyn Accelerator>, optimizer: OptimizerSpec) -> Result<()> {
    let spec = &specs()[1];
    let (mut host, mut gpu) = pair_with(spec, device, &TrainingOptions::default(), optimizer)?;
    host.set_members(5.0);
    gpu.set_members(5.0);
    let close = |left: &[f32], right: &[f32]| left.iter().zip(right).all(|(l, r)| (l - r).abs() < 1e-6);
    for step in 0..3 {
        let batch = batch(spec, 2 + step, 10 + step as u64);
        host.compute_gradient(&batch)?;
        // A gradient of nothing but rounding may differ in sign, and Adam's first step then goes the other way.
        gpu.set_gradient(&host.gradient()?)?;
        let norm = host.gradient_norm()?;
        host.step(norm, 0.01)?;
        gpu.step(norm, 0.01)?;
        assert!(close(&host.parameters()?, &gpu.parameters()?));
    }
    let (moments, steps) = gpu.moments()?;
    let (expected, expected_steps) = host.moments()?;
    assert!(close(&moments.first, &expected.first) && close(&moments.second, &expected.second));
    assert!(close(&moments.average, &expected.average) && moments.average_weight == expected.average_weight);
    assert_eq!((steps, moments.second.len()), (expected_steps, expected.second.len()));
    gpu.set_moments(expected, 7)?;
    assert_eq!(gpu.moments()?, (host.moments()?.0, 7));
    Ok(())
}

/// Products read parameters of their own where these are of 16 bits; what is added must reach them.
#[test]
fn copies_and_corrections_travel_while_steps_go_on() -> Result<()> {
    devices().into_iter().try_for_each(transfer_beside_a_step)
}

fn transfer_beside_a_step(device: Arc<dyn Accelerator>) -> Result<()> {
    let spec = &specs()[0];
    let options = TrainingOptions { precision: Precision::Bf16, ..TrainingOptions::default() };
    let (_, mut gpu) = pair(spec, device, &options)?;
    let (before, batch) = (gpu.parameters()?.into_owned(), batch(spec, 2, 1));
    let copy = gpu.begin_copy()?.expect("a GPU copies beside");
    let length = before.len() - 512;
    let codes = (0..length).map(|index| (index % 255) as i8).collect();
    let correction = Correction::new(Codes::Narrow(codes), vec![1e-3; length.div_ceil(BLOCK)]);
    let exact = correction.to_values();
    let upload = gpu.begin_addition(512..before.len(), &correction)?.expect("a GPU copies beside");
    gpu.compute_gradient(&batch)?;
    let norm = gpu.gradient_norm()?;
    gpu.step(norm, 0.01)?;
    assert_eq!(copy.wait()?, before, "a copy is of the moment when it began");
    let (stepped, loss) = (gpu.parameters()?.into_owned(), gpu.compute_gradient(&batch)?);
    assert_eq!(gpu.finish_addition(upload)?, exact);
    let after = gpu.parameters()?.into_owned();
    assert_eq!(after[..512], stepped[..512]);
    assert!((512..after.len()).all(|index| after[index] == stepped[index] + exact[index - 512]));
    assert!((gpu.compute_gradient(&batch)? - loss).abs() > 0.01);
    Ok(())
}

#[test]
fn the_estimate_is_what_is_allocated() -> Result<()> {
    for (recompute, precision) in [(false, Precision::F32), (true, Precision::Bf16)] {
        for (spec, passes) in
            specs().into_iter().chain(attended_at_once()).flat_map(|spec| [(spec.clone(), 1), (spec, 3)])
        {
            let Some(device) = Emulated::open() else { return Ok(()) };
            let options = TrainingOptions { recompute, precision, ..TrainingOptions::default() };
            let (_, gpu) = pair(&spec, device.clone(), &options)?;
            let sets = if spec.layers_without_rope.is_empty() { 1 } else { 2 };
            let (before, tables) = (device.allocated(), sets * spec.context * spec.resolved_head_width());
            let microbatch = Microbatch { batch: batch(&spec, 2, 1), lane: 0, is_first: true, is_last: true };
            let mut stage = GpuStage::new(gpu);
            (0..passes).try_for_each(|_| stage.forward(&microbatch, None).map(drop))?;
            (0..passes).try_for_each(|_| stage.backward(&microbatch, None, 0.1).map(drop))?;
            let allocated = device.allocated() - before + 4 * tables as usize;
            let part = (&StageSpec::whole(&spec), passes);
            // The rows of a tied table that tokens name, and their numbers.
            let rows = if spec.tied_head { 2 * spec.context as usize * (spec.width as usize + 1) } else { 0 };
            let expected = activation_values(&spec, part, 2, precision, (recompute, 0)) + rows;
            assert_eq!(expected, allocated.div_ceil(4));
        }
    }
    Ok(())
}

/// The base is held once, as products read it; what else there is depends on the adapters alone.
#[test]
fn a_frozen_base_and_adapters_take_what_is_estimated() -> Result<()> {
    let ways = [(Precision::F32, 32), (Precision::Bf16, 16), (Precision::F32, 8), (Precision::Bf16, 8)];
    for (precision, base_bits) in ways {
        let Some(device) = Emulated::open() else { return Ok(()) };
        let (spec, lora) = (&specs()[0], LoraSpec { rank: 3, base_bits, ..LoraSpec::default() });
        let (base, optimizer) = (Transformer::new(spec), OptimizerSpec::default());
        let weights = base.initial_parameters(1);
        let before = device.allocated();
        let weights = in_bits(&weights, base.layout(), &lora);
        let frozen = Frozen::new(&*device, base.layout(), &weights, &lora, precision.into())?;
        let bytes = frozen_bytes(base.layout(), precision.into(), &lora);
        assert_eq!(device.allocated() - before, bytes);
        let layout = Arc::new(crate::model::lora::lora_layout(base.layout(), &lora));
        let parameters = crate::model::lora::initial_adapters(&layout, 1);
        let trained = Trained { stage: StageSpec::whole(spec), layout: layout.clone(), base: Base::Held(frozen) };
        let options = TrainingOptions { precision, ..TrainingOptions::default() };
        let mut gpu = GpuReplica::new(device.clone(), spec, trained, &parameters, optimizer, 2, &options)?;
        let (before, tables) = (device.allocated(), spec.context * spec.resolved_head_width());
        gpu.compute_gradient(&batch(spec, 2, 1))?;
        let allocated = device.allocated() - before + 4 * tables as usize;
        let part = (&StageSpec::whole(spec), 1);
        assert_eq!(activation_values(spec, part, 2, precision, (false, 3)), allocated.div_ceil(4));
    }
    Ok(())
}

#[test]
fn a_device_whose_kernels_compute_something_else_is_found_out() {
    let Some(device) = Emulated::open() else { return };
    let device: Arc<dyn Accelerator> = device;
    assert_eq!(check(&device), Ok(()));
    for kernel in kernel_names() {
        let device: Arc<dyn Accelerator> = Emulated::without(kernel.clone().leak()).expect("there is a compiler");
        assert!(check(&device).is_err(), "without {kernel}");
    }
}

#[test]
fn adapters_train_as_on_the_cpu() -> Result<()> {
    let targets = LORA_TARGETS.map(str::to_owned).to_vec();
    let (f32, bf16) = ((Precision::F32, 1e-4), (Precision::Bf16, 0.05));
    let cases = [(f32, 1, 32), (bf16, 1, 32), (f32, 3, 32), (f32, 1, 8), (f32, 2, 8), (bf16, 3, 8)];
    for (device, ((precision, tolerance), index, base_bits)) in on_all_devices(cases) {
        let lora = LoraSpec { rank: 3, targets: targets.clone(), base_bits, ..LoraSpec::default() };
        let (spec, options) = (&specs()[index], TrainingOptions { precision, ..TrainingOptions::default() });
        let (base, optimizer) = (Transformer::new(spec), OptimizerSpec::default());
        let weights = base.initial_parameters(1);
        let of_gpu = in_bits(&weights, base.layout(), &lora);
        let frozen = Frozen::new(&*device, base.layout(), &of_gpu, &lora, precision.into())?;
        let model = base.with_adapters(weights, &lora);
        // Where B is zero, A has no gradient.
        let mut parameters = random_values(model.layout().parameters(), 4);
        parameters.iter_mut().for_each(|value| *value *= 0.2);
        let trained =
            Trained { stage: StageSpec::whole(spec), layout: model.layout().clone(), base: Base::Held(frozen) };
        let mut gpu = GpuReplica::new(device, spec, trained, &parameters, optimizer.clone(), 2, &options)?;
        let mut host = HostReplica::new(Box::new(model), parameters, optimizer, usize::MAX);
        for seed in [1, 7] {
            let batch = batch(spec, 3, seed);
            let losses = (host.compute_gradient(&batch)?, gpu.compute_gradient(&batch)?);
            assert!((losses.0 - losses.1).abs() < f64::from(tolerance), "{losses:?}");
            check_tensors(host.layout(), &gpu.gradient()?, &host.gradient()?, tolerance);
            let evaluations = (host.evaluate(&batch)?, gpu.evaluate(&batch)?);
            assert!((evaluations.0.loss() - evaluations.1.loss()).abs() < f64::from(tolerance), "{evaluations:?}");
            let norm = host.gradient_norm()?;
            gpu.set_gradient(&host.gradient()?)?;
            host.step(norm, 0.01)?;
            gpu.step(norm, 0.01)?;
        }
    }
    Ok(())
}

#[test]
fn the_copy_of_a_tied_table_has_parameters_and_a_gradient_and_no_moments() -> Result<()> {
    for precision in [Precision::F32, Precision::Bf16] {
        let allocated = |tied_head| -> Result<usize> {
            let Some(device) = Emulated::open() else { return Ok(0) };
            let spec = TransformerModel { tied_head, ..specs()[0].clone() };
            let last = StageSpec::cut(&spec, &[1]).remove(1);
            let model = Transformer::of_stage(&spec, last.clone());
            let trained = Trained { stage: last, layout: model.layout().clone(), base: Base::None };
            let (options, parameters) =
                (TrainingOptions { precision, ..TrainingOptions::default() }, model.initial_parameters(1));
            GpuReplica::new(device.clone(), &spec, trained, &parameters, OptimizerSpec::default(), 1, &options)?;
            Ok(device.allocated())
        };
        let (untied, tied) = (allocated(false)?, allocated(true)?);
        let table = (specs()[0].vocabulary * specs()[0].width) as usize * Kind::F32.size();
        // And a place for the sums of one tensor more.
        let sums = SUM_BLOCKS * Kind::F64.size();
        assert!(untied == 0 || untied - tied == 2 * table + sums, "{untied} {tied} {table}");
    }
    Ok(())
}

/// A GPU's stages, and what one GPU with all of the model does.
#[test]
fn stages_on_gpus_train_with_the_bits_of_one_gpu() -> Result<()> {
    // What several blocks add to one place is added in any order: one block has all rows, and few tokens are alike.
    let spec = TransformerModel { layers: 3, context: 8, vocabulary: 4096, ..specs()[0].clone() };
    let tied = TransformerModel { tied_head: true, ..spec.clone() };
    [spec, tied].iter().try_for_each(train_over_stages)
}

/// A tied table and its gradient go between unlike devices.
#[test]
fn a_tied_table_of_cpu_and_gpu_trains_as_on_the_cpu() -> Result<()> {
    let spec = TransformerModel { tied_head: true, ..specs()[0].clone() };
    let optimizer = OptimizerSpec { gradient_norm_max: 0.1, ..OptimizerSpec::default() };
    let on_host = |stage: StageSpec| {
        let model = Transformer::of_stage(&spec, stage);
        let parameters = model.initial_parameters(1);
        HostReplica::new(Box::new(model), parameters, optimizer.clone(), 1)
    };
    for (device, gpu) in on_all_devices([0, 1]) {
        let stages = StageSpec::cut(&spec, &[1]).into_iter().enumerate().map(|(number, stage)| {
            let host = on_host(stage.clone());
            if number != gpu {
                return Ok(Box::new(HostStage::new(host, 1)?) as Box<dyn Stage>);
            }
            let trained = Trained { stage, layout: host.layout().clone(), base: Base::None };
            let (options, parameters) = (TrainingOptions::default(), host.parameters()?);
            let replica = GpuReplica::new(device.clone(), &spec, trained, &parameters, optimizer.clone(), 1, &options)?;
            Ok(Box::new(GpuStage::new(replica)) as Box<dyn Stage>)
        });
        let mut whole = on_host(StageSpec::whole(&spec));
        let parts = InParts { micro_batch: 1, has_lanes: false };
        let of_whole = Optimizer::new(&optimizer, whole.layout());
        let mut pipeline = Pipeline::new(stages.collect::<Result<Vec<_>>>()?, whole.layout().clone(), of_whole, parts)?;
        for step in 0..3 {
            let batch = batch(&spec, 3, step);
            let losses = (pipeline.compute_gradient(&batch)?, whole.compute_gradient(&batch)?);
            assert!((losses.0 - losses.1).abs() < 1e-5, "{losses:?}");
            check_tensors(whole.layout(), &pipeline.gradient()?, &whole.gradient()?, 1e-4);
            // As above: another sign of a gradient of nothing but rounding.
            pipeline.set_gradient(&whole.gradient()?)?;
            let norm = whole.gradient_norm()?;
            pipeline.step(norm, 0.05)?;
            whole.step(norm, 0.05)?;
        }
    }
    Ok(())
}

fn train_over_stages(spec: &TransformerModel) -> Result<()> {
    let optimizer = OptimizerSpec { gradient_norm_max: 0.1, ..OptimizerSpec::default() };
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    let cases = [(false, None, f32), (true, None, bf16), (false, Some(32), f32), (false, Some(8), f32)];
    // Where blocks come in any order as well.
    let devices: Vec<_> = order::devices_and_order().into_iter().map(|(device, _)| device).collect();
    let cases = devices.iter().flat_map(|device| cases.map(|case| (device.clone(), case)));
    for (device, (recompute, base_bits, precision)) in cases {
        let options = TrainingOptions { recompute, precision, micro_batch: Some(1), ..TrainingOptions::default() };
        let replica = |stage: StageSpec| -> Result<GpuReplica> {
            let model = Transformer::of_stage(spec, stage.clone());
            let (base, mut weights) = (model.layout().clone(), model.initial_parameters(1));
            let (trained, parameters) = if let Some(base_bits) = base_bits {
                let adapters = LoraSpec { rank: 2, base_bits, ..LoraSpec::default() };
                weights.extend(&Transformer::new(spec).initial_parameters(1)[..model.copied()]);
                let weights = in_bits(&weights, model.held_layout(), &adapters);
                let frozen = Frozen::new(&*device, model.held_layout(), &weights, &adapters, precision.into())?;
                let layout = Arc::new(crate::model::lora::lora_layout(&base, &adapters));
                let parameters = crate::model::lora::initial_adapters(&layout, 1);
                (Trained { stage, layout, base: Base::Held(frozen) }, parameters)
            } else {
                (Trained { stage, layout: base, base: Base::None }, weights)
            };
            GpuReplica::new(device.clone(), spec, trained, &parameters, optimizer.clone(), 1, &options)
        };
        let mut whole = replica(StageSpec::whole(spec))?;
        let stages = StageSpec::cut(spec, &[1, 2]).into_iter();
        let stages = stages.map(|stage| Ok(Box::new(GpuStage::new(replica(stage)?)) as Box<dyn Stage>));
        let mut stages = stages.collect::<Result<Vec<_>>>()?;
        // A batch that is given up leaves nothing.
        let given_up = Microbatch { batch: batch(spec, 1, 9), lane: 0, is_first: true, is_last: false };
        let stream = stages[0].forward(&given_up, None)?;
        stages[0].backward(&given_up, stream, 0.1)?;
        let parts = InParts { micro_batch: 1, has_lanes: false };
        let of_whole = Optimizer::new(&optimizer, whole.layout());
        let mut pipeline = Pipeline::new(stages, whole.layout().clone(), of_whole, parts)?;
        for step in 0..3 {
            let batch = batch(spec, 4, step);
            assert_eq!(pipeline.compute_gradient(&batch)?, whole.compute_gradient(&batch)?, "{precision:?}");
            assert_eq!(pipeline.gradient()?, whole.gradient()?);
            let norm = whole.gradient_norm()?;
            assert_eq!(pipeline.gradient_norm()?, norm);
            assert!(norm > 0.1, "it is clipped: {norm}");
            whole.step(norm, 0.01)?;
            pipeline.step(norm, 0.01)?;
        }
        assert_eq!(pipeline.parameters()?, whole.parameters()?);
        assert_eq!(pipeline.evaluate(&batch(spec, 3, 9))?, whole.evaluate(&batch(spec, 3, 9))?);
        let copy = pipeline.begin_copy()?.expect("GPUs copy while they compute").wait()?;
        assert_eq!(copy, *whole.parameters()?);
    }
    Ok(())
}

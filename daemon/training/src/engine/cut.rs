//! An engine whose model lies on several devices, a stage each.

use std::sync::Arc;

use candle_core::Device;
use murmur_protocol::{ModelLayout, RunManifest};

use super::{Engine, TrainingError, TrainingOptions, check_length};
use crate::data::Corpus;
use crate::gpu::{self, Accelerator, Base, Frozen, GpuReplica, GpuStage, Trained};
use crate::model::lora::{initial_adapters, lora_layout};
use crate::model::{self, Model, StageSpec, Transformer, transformer_of};
use crate::ops::Kernels;
use crate::ops::base_weights::BaseWeights;
use crate::optimizer::Optimizer;
use crate::replica::host::HostStage;
use crate::replica::{HostReplica, InParts, Pipeline, Stage};

/// A device, and the stage of the model that it holds.
#[derive(Clone, Debug)]
pub struct StageOnDevice {
    /// Several stages may be on the CPU: each has its share of rayon's threads.
    pub device: Device,
    /// Which part of the model.
    pub stage: StageSpec,
}

/// A device that computes stages: a GPU, or the machine's own processor.
#[derive(Clone)]
pub struct StageDevice(Option<Arc<dyn Accelerator>>);

impl StageDevice {
    /// The machine's own processor.
    pub const CPU: StageDevice = StageDevice(None);

    /// Opens a device; a GPU is compared with the CPU before.
    ///
    /// # Errors
    /// When it has no kernels for stages.
    pub fn open(device: &Device) -> Result<StageDevice, TrainingError> {
        if device.is_cpu() {
            return Ok(StageDevice::CPU);
        }
        gpu::accelerator(device).map(StageDevice::of_gpu).map_err(TrainingError::NotCut)
    }

    pub(crate) fn of_gpu(accelerator: Arc<dyn Accelerator>) -> StageDevice {
        StageDevice(Some(accelerator))
    }

    /// Whether it is the machine's own processor.
    pub fn is_cpu(&self) -> bool {
        self.0.is_none()
    }

    /// What computes a transformer there.
    pub fn kernels(&self) -> Kernels {
        if self.is_cpu() { Kernels::Fused } else { Kernels::Cuda }
    }
}

/// Why the model of a run is not cut into stages; `None` where it may be.
pub fn why_not_cut(manifest: &RunManifest) -> Option<&'static str> {
    manifest.model.transformer().is_none().then_some("only transformers are cut at their layers")
}

impl Engine {
    /// As [`Engine::on_base`] with the model cut into these stages, in order: a pipeline that takes one batch of the run's size
    /// a step. It trains with the bits of one device that holds all and computes the same microbatches: see
    /// [`TrainingOptions::in_microbatches`].
    ///
    /// # Errors
    /// As [`Engine::on_base`]; also when the model cannot be cut, or a device has no kernels for stages.
    ///
    /// # Panics
    /// When the stages are not all of the model, in order; also when the corpus was opened for another run.
    pub fn over_stages(
        manifest: &RunManifest,
        base: Option<BaseWeights>,
        corpus: Corpus,
        node: [u8; 32],
        stages: &[StageOnDevice],
        options: TrainingOptions,
    ) -> Result<Engine, TrainingError> {
        if let Some(reason) = why_not_cut(manifest) {
            return Err(TrainingError::NotCut(reason.to_owned()));
        }
        if let Some(base) = &base {
            check_length("the base", base.len(), model::parameter_count(&manifest.model))?;
        }
        let on_cpu = stages.iter().filter(|stage| stage.device.is_cpu()).count();
        let options = options.in_microbatches(manifest, stages.len(), on_cpu == stages.len());
        let moments_in_8_bits = options.keeps_8_bits(manifest, on_cpu == stages.len());
        let options = TrainingOptions { moments_in_8_bits, ..options };
        let threads = (rayon::current_num_threads() / on_cpu.max(1)).max(1);
        let (mut built, mut first) = (Vec::new(), 0);
        for StageOnDevice { stage, device } in stages {
            let model = Transformer::of_stage(transformer_of(manifest), stage.clone());
            let end = first + model.layout().parameters();
            let weights = base.as_ref().map(|base| {
                let own = base.part(first..end);
                // Where a copied table is trained, the pipeline brings it.
                if manifest.lora.is_on() { own.followed_by(base.part(0..model.copied())) } else { own }
            });
            first = end;
            let device = StageDevice::open(device)?;
            built.push(stage_on_device(manifest, model, weights, (&device, threads), &options)?);
        }
        let layout = model::trained_layout(manifest);
        let parts = InParts::of(manifest, &options, on_cpu == stages.len());
        let optimizer = Optimizer::new(&manifest.optimizer, &layout).with_moments(moments_in_8_bits);
        let pipeline = Pipeline::new(built, layout.into(), optimizer, parts)?;
        Engine::around(manifest, corpus, node, Box::new(pipeline), 1)
    }
}

/// A stage on a device, from its own weights of the base where there is one: on so many threads where that is the CPU.
///
/// # Errors
/// When the device has no memory or no kernels for it, or there is no base for adapters.
pub(crate) fn stage_on_device(
    manifest: &RunManifest,
    model: Transformer,
    base: Option<BaseWeights>,
    (device, threads): (&StageDevice, usize),
    options: &TrainingOptions,
) -> Result<Box<dyn Stage>, TrainingError> {
    match &device.0 {
        None => on_host(manifest, model, base, threads, options),
        Some(accelerator) => {
            let replica = on_gpu(manifest, &model, base, accelerator.clone(), options)?;
            Ok(Box::new(GpuStage::new(replica)))
        }
    }
}

/// A stage on the CPU, from its own weights of the base where there is one.
fn on_host(
    manifest: &RunManifest,
    model: Transformer,
    base: Option<BaseWeights>,
    threads: usize,
    options: &TrainingOptions,
) -> Result<Box<dyn Stage>, TrainingError> {
    let (mut model, base) = if manifest.lora.is_on() {
        (model.with_adapters(base.ok_or(TrainingError::BaseMissing)?, &manifest.lora), None)
    } else {
        (model, base)
    };
    model.set_recompute(options.recompute);
    model.set_precision(options.precision);
    let drawn = || drawn(options, model.layout(), || model.initial_parameters(manifest.run.seed));
    let parameters = base.map_or_else(drawn, BaseWeights::into_exact);
    let micro_batch = options.examples_at_once(&manifest.model, Kernels::Fused);
    let optimizer = Optimizer::new(&manifest.optimizer, model.layout()).with_moments(options.moments_in_8_bits);
    let moments = optimizer.moments();
    let replica = HostReplica::with_moments(Box::new(model), parameters, optimizer, micro_batch, moments);
    Ok(Box::new(HostStage::new(replica, threads)?))
}

/// The same in the memory of a GPU; also of a whole model.
pub(super) fn on_gpu(
    manifest: &RunManifest,
    model: &Transformer,
    base: Option<BaseWeights>,
    device: Arc<dyn Accelerator>,
    options: &TrainingOptions,
) -> Result<GpuReplica, TrainingError> {
    let seed = manifest.run.seed;
    let (base, layout, parameters) = if manifest.lora.is_on() {
        let base = base.ok_or(TrainingError::BaseMissing)?;
        let weights = base.in_bits(model.held_layout(), manifest.lora.base_bits);
        let base = Frozen::new(&*device, model.held_layout(), &weights, &manifest.lora, options.precision.into())?;
        let layout = Arc::new(lora_layout(model.layout(), &manifest.lora));
        let parameters = drawn(options, &layout, || initial_adapters(&layout, seed));
        (Base::Held(base), layout, parameters)
    } else {
        let drawn = || drawn(options, model.layout(), || model.initial_parameters(seed));
        (Base::None, model.layout().clone(), base.map_or_else(drawn, BaseWeights::into_exact))
    };
    let trained = Trained { stage: model.stage().clone(), layout, base };
    let at_once = options.examples_at_once(&manifest.model, Kernels::Cuda);
    let optimizer = manifest.optimizer.clone();
    Ok(GpuReplica::new(device, transformer_of(manifest), trained, &parameters, optimizer, at_once, options)?)
}

/// What is trained to begin with: zeros where the options say so.
fn drawn(options: &TrainingOptions, layout: &ModelLayout, drawn: impl Fn() -> Vec<f32>) -> Vec<f32> {
    if options.weightless { vec![0.0; layout.parameters()] } else { drawn() }
}

//! An engine whose model lies in the machine's memory while a GPU trains it, layer by layer.

use std::sync::Arc;

use candle_core::Device;
use murmur_protocol::RunManifest;

use super::{Engine, TrainingError, TrainingOptions, check_length};
use crate::data::Corpus;
use crate::gpu::{self, Accelerator, Base, BaseInTurns, GpuReplica, Offloaded, Trained};
use crate::model::{self, StageSpec, transformer_of};
use crate::ops::Kernels;
use crate::ops::base_weights::BaseWeights;
use crate::replica::Replica;

/// Why the model of a run cannot lie in the machine's memory while a GPU trains it; `None` where it can.
pub fn why_not_offloaded(manifest: &RunManifest) -> Option<&'static str> {
    manifest.model.transformer().is_none().then_some("only transformers have layers that take turns on a GPU")
}

impl Engine {
    /// As [`Engine::on_base`] with the model in the machine's memory: the GPU holds the weights of two layers at a time. It trains
    /// with the bits of a GPU that holds all and computes the same microbatches: see [`TrainingOptions::offloaded`].
    ///
    /// # Errors
    /// As [`Engine::on_base`]; also when the model cannot be offloaded, or the device is no GPU with kernels for it.
    ///
    /// # Panics
    /// When the corpus was opened for another run.
    pub fn offloaded(
        manifest: &RunManifest,
        base: Option<BaseWeights>,
        corpus: Corpus,
        node: [u8; 32],
        device: &Device,
        options: TrainingOptions,
    ) -> Result<Engine, TrainingError> {
        let accelerator = gpu::accelerator(device).map_err(TrainingError::NotOffloaded)?;
        Engine::offloaded_from(manifest, base, corpus, node, accelerator, options)
    }

    pub(crate) fn offloaded_from(
        manifest: &RunManifest,
        base: Option<BaseWeights>,
        corpus: Corpus,
        node: [u8; 32],
        device: Arc<dyn Accelerator>,
        options: TrainingOptions,
    ) -> Result<Engine, TrainingError> {
        if let Some(reason) = why_not_offloaded(manifest) {
            return Err(TrainingError::NotOffloaded(reason.to_owned()));
        }
        if let Some(base) = &base {
            check_length("the base", base.len(), model::parameter_count(&manifest.model))?;
        }
        let options = options.offloaded(manifest);
        let at_once = options.examples_at_once(&manifest.model, Kernels::Cuda);
        let (spec, optimizer, kind) = (transformer_of(manifest), manifest.optimizer.clone(), options.precision.into());
        let replica: Box<dyn Replica> = if manifest.lora.is_on() {
            let weights = base.ok_or(TrainingError::BaseMissing)?;
            let weights = weights.in_bits(&model::layout(&manifest.model), manifest.lora.base_bits);
            let base = BaseInTurns::new(&device, spec, weights, &manifest.lora, (at_once, kind))?;
            let (layout, parameters) = model::begin_adapters(manifest, options.weightless);
            let (stage, base) = (StageSpec::whole(spec), Base::InTurns(Box::new(base)));
            let trained = Trained { stage, layout: Arc::new(layout), base };
            Box::new(GpuReplica::new(device, spec, trained, &parameters, optimizer, at_once, &options)?)
        } else {
            let begun = model::begin(manifest, base, options.weightless);
            let (model, parameters) = begun.ok_or(TrainingError::BaseMissing)?;
            Box::new(Offloaded::new(device, spec, model.layout().clone(), &parameters, optimizer, (at_once, kind))?)
        };
        Engine::around(manifest, corpus, node, replica, 1)
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::bulk::{BLOCK, Codes};
    use murmur_protocol::manifest::{LoraSpec, MlpModel, TransformerModel};
    use murmur_protocol::{Correction, Part, Selection};

    use super::*;
    use crate::engine::cut::on_gpu;
    use crate::gpu::emulated::Emulated;
    use crate::model::Transformer;

    fn manifest(model: TransformerModel) -> RunManifest {
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.optimizer.batch_sequences = 3;
        manifest.data.validation_sequences = 2;
        manifest
    }

    fn small() -> TransformerModel {
        TransformerModel { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..Default::default() }
    }

    const OPTIONS: TrainingOptions = TrainingOptions {
        kernels: None,
        micro_batch: Some(2),
        recompute: false,
        precision: crate::engine::Precision::F32,
        moments_in_8_bits: false,
        weightless: false,
    };

    fn offloaded(manifest: &RunManifest, device: Arc<dyn Accelerator>) -> Result<Engine, TrainingError> {
        Engine::offloaded_from(manifest, base(manifest), Corpus::grammar(), [1; 32], device, OPTIONS)
    }

    /// What adapters are trained beside.
    fn base(manifest: &RunManifest) -> Option<BaseWeights> {
        let model = RunManifest { lora: LoraSpec::default(), ..manifest.clone() };
        let (_, parameters) = model::begin(&model, None, false).expect("a model without a base");
        manifest.lora.is_on().then(|| parameters.into())
    }

    /// Copies, corrections and checkpoints included: a node does not see where its model lies.
    #[test]
    fn an_offloaded_engine_trains_with_the_bits_of_one_whose_model_is_on_the_gpu() -> Result<(), TrainingError> {
        let all = manifest(small());
        let lora = LoraSpec { rank: 2, base_bits: 8, ..LoraSpec::default() };
        let adapters = RunManifest { lora, ..manifest(TransformerModel { tied_head: true, ..small() }) };
        for manifest in [all, adapters] {
            let Some(device) = Emulated::open() else { return Ok(()) };
            let device: Arc<dyn Accelerator> = device;
            let spec = transformer_of(&manifest);
            let replica = on_gpu(&manifest, &Transformer::new(spec), base(&manifest), device.clone(), &OPTIONS)?;
            let mut resident = Engine::around(&manifest, Corpus::grammar(), [1; 32], Box::new(replica), 1)?;
            let mut engine = offloaded(&manifest, device.clone())?;
            assert_eq!(engine.layout().digest(), resident.layout().digest());
            let count = engine.layout().parameters();
            let correction = Correction::new(Codes::Narrow(vec![1; count]), vec![1e-3; count.div_ceil(BLOCK)]);
            for progress in [100.0, 101.0, 102.0] {
                let copies = (engine.begin_snapshot(Selection::State)?, resident.begin_snapshot(Selection::State)?);
                let coming = (
                    engine.begin_correction(Part::MODEL, &correction)?,
                    resident.begin_correction(Part::MODEL, &correction)?,
                );
                assert_eq!(engine.step(progress)?, resident.step(progress)?);
                let copies = (engine.finish_snapshot(copies.0)?, resident.finish_snapshot(copies.1)?);
                assert_eq!(copies.0.values.values(), copies.1.values.values(), "of where they began");
                engine.finish_correction(coming.0)?;
                resident.finish_correction(coming.1)?;
            }
            let saved = engine.save()?;
            assert_eq!(saved, resident.save()?);
            let mut other = offloaded(&manifest, device)?;
            other.restore(saved)?;
            assert_eq!(other.step(103.0)?, resident.step(103.0)?);
            assert_eq!((other.evaluate()?, other.save()?), (resident.evaluate()?, resident.save()?));
        }
        Ok(())
    }

    #[test]
    fn what_cannot_be_offloaded_is_refused_in_words() {
        let refused = |manifest: &RunManifest| {
            let why = why_not_offloaded(manifest).expect("a reason");
            if let Some(device) = Emulated::open() {
                let error = offloaded(manifest, device).err().expect("it is refused").to_string();
                assert_eq!(error, format!("this model is not offloaded: {why}"));
            }
            why
        };
        let other = RunManifest { model: MlpModel::default().into(), ..manifest(small()) };
        assert!(refused(&other).contains("only transformers"));
        let on_cpu = Engine::offloaded(&manifest(small()), None, Corpus::grammar(), [1; 32], &Device::Cpu, OPTIONS);
        assert!(matches!(on_cpu, Err(TrainingError::NotOffloaded(_))));
    }
}

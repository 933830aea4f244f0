//! What is trained, and how: sizes of models, and ways to train one.

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{CnnModel, DataSource, MlpModel, ModelSpec, OptimizerKind, TransformerModel};
use murmur_training::ops::Kernels;
use murmur_training::privacy::{PrivateSteps, SecretKey};
use murmur_training::split::{Place, cut};
use murmur_training::{BaseWeights, Corpus, Device, Engine, Precision, StageOnDevice, TrainingOptions, model};

use crate::Failure;

/// A run of this size: gpt-s and gpt-m are those of `configs/bench`.
pub(crate) fn sized(size: &str) -> Result<RunManifest, Failure> {
    let (name, batch) = size.split_once(':').map_or((size, None), |(name, batch)| (name, Some(batch)));
    let transformer = |[layers, width, heads, feed_forward, context]: [u32; 5]| {
        TransformerModel { layers, width, heads, feed_forward, context, ..TransformerModel::default() }.into()
    };
    let (mut model, mut sequences): (ModelSpec, u32) = match name {
        "gpt-s" => (transformer([4, 128, 4, 320, 128]), 16),
        "gpt-m" => (transformer([6, 384, 6, 1024, 256]), 8),
        "35M" => (transformer([11, 512, 8, 1408, 128]), 4),
        "100M" => (transformer([14, 768, 12, 2048, 128]), 4),
        "1B" => (transformer([20, 2048, 16, 5632, 128]), 2),
        "mlp" => (MlpModel { hidden: vec![256], ..MlpModel::default() }.into(), 64),
        "cnn" => (CnnModel { hidden: vec![128], ..CnnModel::default() }.into(), 64),
        _ => return Err(format!("{name} is no size").into()),
    };
    if let Some(batch) = batch {
        let (count, context) = batch.split_once('x').map_or((batch, None), |(count, context)| (count, Some(context)));
        sequences = count.parse()?;
        if let (Some(context), ModelSpec::Transformer(model)) = (context, &mut model) {
            model.context = context.parse()?;
        }
    }
    let mut manifest = RunManifest { model, ..RunManifest::default() };
    manifest.optimizer.batch_sequences = sequences;
    manifest.data.source = if manifest.model.reads_text() { DataSource::Files } else { DataSource::Idx };
    Ok(manifest)
}

/// Made-up data; of text as many examples as a batch takes, so that a private step is of as many as an open one.
pub(crate) fn corpus(manifest: &RunManifest) -> Result<Corpus, Failure> {
    if !manifest.model.reads_text() {
        return Ok(Corpus::made_up(manifest));
    }
    let training = manifest.optimizer.batch_sequences * (manifest.model.context() + 1);
    let length = (f64::from(training) / (1.0 - manifest.data.validation_fraction)).ceil() as usize;
    let bytes = (0..length).map(|index| (index * index % 251) as u8).collect();
    Ok(Corpus::from_bytes(bytes, &manifest.data, manifest.model.context() as usize)?)
}

/// A way to train.
pub(crate) struct Way {
    /// As it was asked for.
    pub(crate) name: String,
    pub(crate) manifest: RunManifest,
    pub(crate) options: TrainingOptions,
    is_cut: bool,
    is_private: bool,
}

impl Way {
    /// Of words joined by `+`, for a run of some size.
    pub(crate) fn of(words: &str, run: &RunManifest) -> Result<Way, Failure> {
        let (mut manifest, mut options) = (run.clone(), TrainingOptions::default());
        let (mut is_cut, mut is_private) = (false, false);
        for word in words.split('+') {
            match word {
                "plain" => {}
                "muon" => manifest.optimizer.kind = OptimizerKind::Muon,
                "matched" => manifest.optimizer.match_batch = true,
                "moments-8" => options.moments_in_8_bits = true,
                "bf16" => options.precision = Precision::Bf16,
                "recompute" => options.recompute = true,
                "adapters" => manifest.lora.rank = 8,
                "base-16" => manifest.lora.base_bits = 16,
                "base-8" => manifest.lora.base_bits = 8,
                "pipeline" => is_cut = true,
                "private" => is_private = true,
                _ => return Err(format!("{word} is no word of a way").into()),
            }
        }
        Ok(Way { name: words.to_owned(), manifest, options, is_cut, is_private })
    }

    /// Adapters are on this base, or on one of drawn weights.
    pub(crate) fn engine(&self, corpus: Corpus, base: Option<&[f32]>) -> Result<Engine, Failure> {
        let (manifest, options, node) = (&self.manifest, self.options, [1; 32]);
        let given_or_drawn =
            || base.map_or_else(|| model::drawn_base(manifest), |base| BaseWeights::from(base.to_vec()));
        let base = manifest.lora.is_on().then(given_or_drawn);
        let mut engine = if self.is_cut {
            let place = Place { kernels: Kernels::Fused, threads: 1, speed: 1.0, free: None };
            let cut = cut(manifest, &options, &[place; 2])?;
            println!("layers {:?}, {:.0} % busy expected", cut.stages[0].stage.layers, 100.0 * cut.busy);
            let stages =
                cut.stages.into_iter().map(|placed| StageOnDevice { device: Device::Cpu, stage: placed.stage });
            Engine::over_stages(manifest, base, corpus, node, &stages.collect::<Vec<_>>(), options)?
        } else {
            Engine::on_base(manifest, base, corpus, node, &[Device::Cpu], options)?
        };
        if manifest.optimizer.match_batch {
            engine.set_members(8.0);
        }
        if self.is_private {
            engine.train_privately(PrivateSteps { clip: 1.0, noise: 1.0 }, SecretKey::new([1; 32]))?;
            engine.permit(u64::MAX);
        }
        Ok(engine)
    }
}

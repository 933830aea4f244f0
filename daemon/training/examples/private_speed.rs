//! What private steps cost: seconds of a step of private and of open training on as many examples, in turns, on two threads.

use std::time::Instant;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, LoraSpec, MlpModel, TransformerModel};
use murmur_training::privacy::{PrivateSteps, SecretKey};
use murmur_training::{Corpus, Device, Engine, TrainingOptions, median};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Turns of both.
const TURNS: usize = 9;

/// Examples of a batch.
const BATCH: u32 = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    let mut mlp = RunManifest { model: MlpModel::default().into(), ..RunManifest::default() };
    mlp.data.source = DataSource::Idx;
    let model =
        TransformerModel { layers: 4, width: 128, heads: 4, feed_forward: 320, context: 128, ..Default::default() };
    let mut text = RunManifest { model: model.into(), ..RunManifest::default() };
    text.data.source = DataSource::Files;
    let mut adapters = text.clone();
    adapters.lora = LoraSpec {
        rank: 8,
        alpha: 16.0,
        targets: ["q_proj", "v_proj"].map(str::to_owned).to_vec(),
        ..LoraSpec::default()
    };
    for (name, mut manifest) in [("mlp 784-256-10", mlp), ("gpt-s", text), ("gpt-s, adapters of rank 8", adapters)] {
        manifest.optimizer.batch_sequences = BATCH;
        let (mut open, mut private) = (engine(&manifest)?, engine(&manifest)?);
        let mechanism = private.train_privately(PrivateSteps { clip: 1.0, noise: 1.0 }, SecretKey::new([1; 32]))?;
        assert_eq!(mechanism.probability(), 1.0, "as many examples a step");
        private.permit(TURNS as u64);
        let seconds = |engine: &mut Engine| -> Result<f64, Box<dyn std::error::Error>> {
            let begin = Instant::now();
            engine.step(10.0)?;
            Ok(begin.elapsed().as_secs_f64())
        };
        let turn =
            |_| -> Result<(f64, f64), Box<dyn std::error::Error>> { Ok((seconds(&mut open)?, seconds(&mut private)?)) };
        let (of_open, of_private): (Vec<f64>, Vec<f64>) =
            (0..TURNS).map(turn).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let (open, private) = (median(of_open).expect("some"), median(of_private).expect("some"));
        println!(
            "{name}: open {:.1} ms, private {:.1} ms, {:.2} times as long",
            1e3 * open,
            1e3 * private,
            private / open
        );
    }
    Ok(())
}

/// Of as many examples as a batch takes.
fn engine(manifest: &RunManifest) -> Result<Engine, Box<dyn std::error::Error>> {
    let corpus = if manifest.model.reads_text() {
        let training = (BATCH * (manifest.model.context() + 1)) as usize;
        let length = (training as f64 / (1.0 - manifest.data.validation_fraction)).ceil() as usize;
        let bytes = (0..length).map(|index| (index * index % 251) as u8).collect();
        Corpus::from_bytes(bytes, &manifest.data, manifest.model.context() as usize)?
    } else {
        Corpus::made_up(manifest)
    };
    let base = manifest.lora.is_on().then(|| murmur_training::model::build(&manifest.model).initial_parameters(1));
    Ok(Engine::on_base(manifest, base.map(Into::into), corpus, [1; 32], &[Device::Cpu], TrainingOptions::default())?)
}

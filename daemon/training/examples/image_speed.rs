//! Images a second of whole training steps (data, forward, backward, AdamW) of the small image models, batch 64, on two
//! threads: what `scripts/bench_pytorch_images.py` compares with PyTorch.

use std::time::{Duration, Instant};

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{CnnModel, DataSource, MlpModel};
use murmur_training::{Corpus, Device, Engine, median};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long each model is measured.
const MEASURING: Duration = Duration::from_secs(2);

/// Images of a batch.
const BATCH: u32 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    // 784-256-10, and 16 and 32 channels with a hidden layer of 128.
    let mlp = MlpModel { hidden: vec![256], ..MlpModel::default() };
    let cnn = CnnModel { hidden: vec![128], ..CnnModel::default() };
    for (name, model) in [("mlp", mlp.into()), ("cnn", cnn.into())] {
        let mut manifest = RunManifest { model, ..RunManifest::default() };
        (manifest.data.source, manifest.optimizer.batch_sequences) = (DataSource::Idx, BATCH);
        println!("{name} {:.0}", images_per_second(&manifest)?);
    }
    Ok(())
}

/// By the median step.
fn images_per_second(manifest: &RunManifest) -> Result<f64, Box<dyn std::error::Error>> {
    let mut engine = Engine::new(manifest, Corpus::made_up(manifest), [1; 32], Device::Cpu)?;
    let (mut seconds, begin) = (Vec::new(), Instant::now());
    while begin.elapsed() < MEASURING {
        let step = Instant::now();
        engine.step(10.0)?;
        seconds.push(step.elapsed().as_secs_f64());
    }
    Ok(f64::from(BATCH) / median(seconds).expect("a step was taken"))
}

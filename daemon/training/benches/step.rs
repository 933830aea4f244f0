//! Tokens a second of one training step: the fused operations against candle's own, in one run.
//!
//! `gpt-s` has 0.82M parameters (4 layers, width 128, context 128, batch 16), `built-in` is the default run's model.

use candle_core::Device;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use murmur_protocol::RunManifest;
use murmur_protocol::manifest::TransformerModel;
use murmur_training::ops::Kernels;
use murmur_training::{Corpus, Engine, TrainingOptions};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn gpt_s() -> RunManifest {
    let model =
        TransformerModel { layers: 4, width: 128, heads: 4, feed_forward: 320, context: 128, ..Default::default() };
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    manifest.optimizer.batch_sequences = 16;
    manifest
}

fn training_step(criterion: &mut Criterion) {
    for (name, manifest) in [("gpt-s", gpt_s()), ("built-in", RunManifest::default())] {
        let mut group = criterion.benchmark_group(name);
        let tokens = u64::from(manifest.optimizer.batch_sequences * manifest.model.context());
        group.throughput(Throughput::Elements(tokens)).sample_size(10);
        for kernels in [Kernels::Fused, Kernels::Composed] {
            let options = TrainingOptions { kernels: Some(kernels), ..TrainingOptions::default() };
            let engine = Engine::with_options(&manifest, Corpus::grammar(), [1; 32], Device::Cpu, options);
            let mut engine = engine.expect("an engine");
            group.bench_function(format!("{kernels:?}"), |bencher| {
                bencher.iter(|| engine.step(10.0).expect("a step"));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, training_step);
criterion_main!(benches);

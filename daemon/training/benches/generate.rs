//! Seconds for one more token after a long text: from kept keys and values, and by reading the whole text anew.

use candle_core::Device;
use criterion::{Criterion, criterion_group, criterion_main};
use murmur_protocol::manifest::TransformerModel;
use murmur_training::LanguageModel;
use murmur_training::generate::Sampling;
use murmur_training::model::{Model, Transformer};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn next_token(criterion: &mut Criterion) {
    let small =
        TransformerModel { layers: 4, width: 128, heads: 4, feed_forward: 320, context: 128, ..Default::default() };
    let medium =
        TransformerModel { layers: 6, width: 384, heads: 6, feed_forward: 1024, context: 256, ..small.clone() };
    for (name, spec) in [("gpt-s", small), ("gpt-m", medium)] {
        let parameters = Transformer::new(&spec).initial_parameters(1);
        let model = LanguageModel::from_parameters(&spec, &parameters, &Device::Cpu).expect("a model");
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, seed: 1 };
        // When the context is full, its newer half stays: on average a long text is three quarters of it.
        let text: Vec<u32> = (0..spec.context * 3 / 4).map(|place| place * 31 % 256).collect();
        let mut group = criterion.benchmark_group(name);
        group.sample_size(20);
        group.bench_function("kept", |bencher| {
            let mut continuation = model.generate(&text[..1], &sampling).expect("a continuation");
            bencher.iter(|| continuation.next().expect("it has no end").expect("a token"));
        });
        group.bench_function("anew", |bencher| bencher.iter(|| model.logits_after(&text).expect("logits")));
        group.finish();
    }
}

criterion_group!(benches, next_token);
criterion_main!(benches);

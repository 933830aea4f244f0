//! Encode and merge of a model of 10M parameters, beside a plain copy of the same parameters in the same run.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use murmur_protocol::numerics::{Buffers, CodeWidth, EncodeJob, MergeJob, MergeRole, encode, merge};
use murmur_protocol::random::{RngExt, stream};
use murmur_protocol::{Correction, Snapshot};

const PARAMETERS: usize = 10_000_000;

fn numerics(criterion: &mut Criterion) {
    let mut generator = stream(1, "benchmark", &[]);
    let one: Vec<f32> = (0..PARAMETERS).map(|_| generator.random_range(-0.1..0.1)).collect();
    let other: Vec<f32> = one.iter().map(|value| value + generator.random_range(-1e-3f32..1e-3)).collect();
    let (one, other) = (Snapshot::from(one), Snapshot::from(other));

    let buffers = Buffers::new();
    // A first exchange gives both sides their steps.
    let first = EncodeJob { nonce: 1, width: CodeWidth::Sixteen, steps: None };
    let calibrated = respond(&other, &first, encode(&one, &first, &buffers), &buffers);
    let job = EncodeJob { nonce: 2, width: CodeWidth::Eight, steps: Some(calibrated.steps) };
    let proposal = encode(&one, &job, &buffers);
    let correction: Correction = respond(&other, &job, proposal.clone(), &buffers).correction;

    let mut group = criterion.benchmark_group("10M parameters");
    group.throughput(Throughput::Bytes(4 * PARAMETERS as u64)).sample_size(10);
    let mut target = vec![0f32; PARAMETERS];
    group.bench_function("copy", |bencher| bencher.iter(|| target.copy_from_slice(one.values())));
    group.bench_function("encode", |bencher| bencher.iter(|| encode(&one, &job, &buffers)));
    group.bench_function("merge", |bencher| bencher.iter(|| respond(&other, &job, proposal.clone(), &buffers)));
    group.bench_function("add correction", |bencher| bencher.iter(|| correction.add_to(&mut target)));
    group.finish();
}

fn respond(
    snapshot: &Snapshot,
    job: &EncodeJob,
    received: murmur_protocol::Payload,
    buffers: &Buffers,
) -> murmur_protocol::numerics::Merged {
    let job = MergeJob {
        role: MergeRole::Responder,
        received,
        width: job.width,
        nonce: job.nonce,
        gamma: 0.5,
        starter_share: 0.5,
        clip: f64::MAX,
        step_fraction: 0.2,
        steps: job.steps.clone(),
    };
    merge(snapshot, &job, buffers).expect("our own bytes")
}

criterion_group!(benches, numerics);
criterion_main!(benches);

//! Encode, merge and addition for a model of 10M parameters, beside a plain copy of the same parameters in the same
//! run. `cargo bench -p murmur-protocol --bench numerics`.
//!
//! After criterion's own report comes a table of gigabytes a second over the bytes that each must touch, and how that
//! compares with the copy; rounds of all of them are interleaved there, so that a busy machine slows all alike.

#![expect(clippy::disallowed_types, reason = "a benchmark measures time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use murmur_protocol::numerics::{
    Buffers, CodeWidth, EncodeJob, EncodeRole, Encoded, MergeJob, MergeRole, Merged, Scales, encode, merge,
};
use murmur_protocol::random::{RngExt, stream};
use murmur_protocol::{Correction, Payload, Snapshot};

const PARAMETERS: usize = 10_000_000;

/// Rounds of the table: enough for a steady median within a few seconds.
const ROUNDS: usize = 41;

/// Two models near each other and their exchange at one width.
struct Exchange {
    models: [Snapshot; 2],
    encodes: [EncodeJob; 2],
    merge: MergeJob,
    correction: Correction,
    buffers: Buffers,
}

impl Exchange {
    fn new(models: &[Snapshot; 2], width: CodeWidth, scales: Option<Scales>, step_fraction: f64) -> Exchange {
        let buffers = Buffers::new();
        let job = |role| EncodeJob { role, nonce: 2, width };
        let starter = job(EncodeRole::Starter { scales: scales.clone() });
        let proposal = encode(&models[0], &starter, &buffers).expect("own scales");
        let responder = job(EncodeRole::Responder { scales: proposal.scales.clone() });
        let own = encode(&models[1], &responder, &buffers).expect("our own scales");
        let merge_job = MergeJob { step_fraction, scales, ..merge_job(own, proposal.codes, width) };
        let merged = merge(&merge_job, &buffers).expect("our own bytes");
        assert_eq!(merged.masked_blocks, 0, "the benchmark's models are near each other");
        let (correction, models) = (merged.correction, models.clone());
        Exchange { models, encodes: [starter, responder], merge: merge_job, correction, buffers }
    }

    /// On a link that has had its first exchange.
    fn on_link(models: &[Snapshot; 2]) -> Exchange {
        let (buffers, width) = (Buffers::new(), CodeWidth::One);
        let job = |reference| EncodeJob { role: EncodeRole::Link { reference, received: None }, nonce: 2, width };
        let reference = encode(&models[0], &job(None), &buffers).expect("a new reference").reference;
        let [starter, responder] = [(); 2].map(|()| job(reference.clone()));
        let encoded = |model, job| encode(model, job, &buffers).expect("our own reference");
        let (proposal, own) = (encoded(&models[0], &starter), encoded(&models[1], &responder));
        let merge_job = MergeJob { reference, ..merge_job(own, proposal.codes, width) };
        let correction = merge(&merge_job, &buffers).expect("our own bytes").correction;
        Exchange { models: models.clone(), encodes: [starter, responder], merge: merge_job, correction, buffers }
    }

    fn encode(&self, side: usize) -> Encoded {
        encode(&self.models[side], &self.encodes[side], &self.buffers).expect("our own scales")
    }

    fn merge(&self) -> Merged {
        merge(&self.merge, &self.buffers).expect("our own bytes")
    }
}

/// A responder's, of what it has encoded and received.
fn merge_job(own: Encoded, received: Payload, width: CodeWidth) -> MergeJob {
    MergeJob {
        role: MergeRole::Responder,
        parameters: PARAMETERS,
        own,
        received,
        width,
        nonce: 2,
        gamma: 0.5,
        starter_share: 0.5,
        clip: f64::MAX,
        step_fraction: 0.2,
        scales: None,
        reference: None,
    }
}

/// What is measured: its name, the bytes that it must touch, and the work.
type Work<'a> = (String, usize, Box<dyn FnMut() + 'a>);

fn all_work<'a>(exchanges: &'a [Exchange], source: &'a Snapshot, targets: &'a mut [Vec<f32>; 2]) -> Vec<Work<'a>> {
    let [copied, moved] = targets;
    let copy = move || black_box(&mut *copied).copy_from_slice(source.values());
    let mut work: Vec<Work<'a>> = vec![("copy".to_owned(), 8 * PARAMETERS, Box::new(copy))];
    let correction = &exchanges[0].correction;
    for exchange in exchanges {
        let bits = exchange.merge.width.bits();
        let (scales, codes) = (exchange.merge.own.scales.len(), exchange.merge.own.codes.len());
        // A reference is read by all, and written anew by a merge.
        let references = if bits == 1 { 2 * PARAMETERS } else { 0 };
        let mut add = |name: &str, bytes, run: Box<dyn FnMut() + 'a>| {
            work.push((format!("{name}, {bits} bits"), bytes, run));
        };
        for (side, name) in ["encode as starter", "encode as responder"].into_iter().enumerate() {
            add(
                name,
                4 * PARAMETERS + references + scales + codes,
                Box::new(move || drop(black_box(exchange.encode(side)))),
            );
        }
        add("merge", scales + 2 * codes + PARAMETERS + 2 * references, Box::new(|| drop(black_box(exchange.merge()))));
    }
    work.push(("add correction".to_owned(), 9 * PARAMETERS, Box::new(move || correction.add_to(black_box(moved)))));
    work
}

fn main() {
    let mut generator = stream(1, "benchmark", &[]);
    let one: Vec<f32> = (0..PARAMETERS).map(|_| generator.random_range(-0.1..0.1)).collect();
    let other: Vec<f32> = one.iter().map(|value| value + generator.random_range(-1e-3f32..1e-3)).collect();
    let models = [Snapshot::from(one), Snapshot::from(other)];
    // A first exchange calibrates the scales for 8 bits; fewer bits take wider ones, so that nothing wraps.
    let fractions = [(CodeWidth::Eight, 0.2), (CodeWidth::Six, 0.2), (CodeWidth::Four, 0.5)];
    let on_grids = fractions.map(|(width, fraction)| {
        let calibrated = Exchange::new(&models, CodeWidth::Sixteen, None, fraction).merge();
        Exchange::new(&models, width, calibrated.scales, fraction)
    });
    let exchanges: Vec<Exchange> = on_grids.into_iter().chain([Exchange::on_link(&models)]).collect();
    let mut targets = [vec![0f32; PARAMETERS], vec![0f32; PARAMETERS]];
    let mut work = all_work(&exchanges, &models[0], &mut targets);
    report_each(&mut work);
    report_ratios(&mut work);
}

fn report_each(work: &mut [Work<'_>]) {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("10M parameters");
    for (name, bytes, run) in work {
        group.throughput(Throughput::BytesDecimal(*bytes as u64));
        group.bench_function(name.as_str(), |bencher| bencher.iter(&mut *run));
    }
    group.finish();
}

fn report_ratios(work: &mut [Work<'_>]) {
    let mut times: Vec<Vec<Duration>> = vec![Vec::with_capacity(ROUNDS); work.len()];
    for _ in 0..ROUNDS {
        for ((_, _, run), times) in work.iter_mut().zip(&mut times) {
            let start = Instant::now();
            run();
            times.push(start.elapsed());
        }
    }
    times.iter_mut().for_each(|times| times.sort_unstable());
    let rate = |bytes: usize, time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    let copy = [ROUNDS / 2, 0].map(|rank| rate(work[0].1, times[0][rank]));
    println!("{:28} {:>21} {:>21}", "interleaved rounds", "median", "best");
    println!("{:28}{}", "", "     ms    GB/s copies".repeat(2));
    let mut summary = Vec::new();
    for ((name, bytes, _), times) in work.iter().zip(&times) {
        print!("{name:28}");
        for (rank, copy) in [ROUNDS / 2, 0].into_iter().zip(copy) {
            let rate = rate(*bytes, times[rank]);
            print!("{:7.2} {rate:7.1} {:6.2}", times[rank].as_secs_f64() * 1e3, rate / copy);
        }
        println!();
        summary.push(format!("{name} {:.2}", rate(*bytes, times[ROUNDS / 2]) / copy[0]));
    }
    println!("bandwidth as a multiple of the plain copy's, by medians: {}", summary.join("; "));
}

//! What 16 bits gain and cost a transformer on the CPU, against `f32` in turns.
//!
//! `cargo run --release -p murmur-training --example precision -- [THREADS]`: steps of gpt-s (0.82M parameters) and gpt-m (10.8M)
//! by the clock and by processor time, medians over rounds.
//! `… --example precision -- THREADS TEXT STEPS`: how far the losses of gpt-s over a text are apart.

use std::path::PathBuf;
use std::time::Instant;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, TransformerModel};
use murmur_training::{Corpus, DataPlace, Device, Engine, Precision, TrainingOptions, median};

/// As in the daemon: a step allocates and frees the same large buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;

const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Bf16];

/// (name, layers, width, heads, feed-forward and context as in `configs/bench`, sequences in a batch, steps in a round).
const MODELS: [(&str, [u32; 5], u32, usize); 2] =
    [("gpt-s", [4, 128, 4, 320, 128], 16, 8), ("gpt-m", [6, 384, 6, 1024, 256], 8, 1)];

/// Orders of the text in which losses are compared.
const SEEDS: u8 = 5;

/// Steps whose mean losses are compared: a batch's own loss differs by more than precision does.
const WINDOW: usize = 50;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(0);
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().expect("the first pool");
    println!("{}", processor());
    match (arguments.next(), arguments.next().and_then(|steps| steps.parse().ok())) {
        (Some(text), Some(steps)) => compare_losses(text.into(), steps),
        _ => compare_speeds(),
    }
}

fn manifest([layers, width, heads, feed_forward, context]: [u32; 5], sequences: u32) -> RunManifest {
    let model = TransformerModel { layers, width, heads, feed_forward, context, ..TransformerModel::default() };
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    manifest.optimizer.batch_sequences = sequences;
    manifest
}

fn engines(manifest: &RunManifest, seed: u8, corpus: impl Fn() -> Corpus) -> [Engine; 2] {
    PRECISIONS.map(|precision| {
        let options = TrainingOptions { precision, ..TrainingOptions::default() };
        Engine::with_options(manifest, corpus(), [seed; 32], Device::Cpu, options).expect("memory for the model")
    })
}

fn compare_speeds() {
    for (name, sizes, sequences, steps) in MODELS {
        let manifest = manifest(sizes, sequences);
        let mut engines = engines(&manifest, 0, Corpus::grammar);
        let (mut wall, mut processor) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for round in 0..=ROUNDS {
            for (index, engine) in engines.iter_mut().enumerate() {
                let (begin, before) = (Instant::now(), processor_seconds());
                (0..steps).for_each(|step| drop(engine.timed_step(step as f64).expect("a step")));
                if round > 0 {
                    wall[index].push(begin.elapsed().as_secs_f64() / steps as f64);
                    processor[index].push((processor_seconds() - before) / steps as f64);
                }
            }
        }
        for (what, seconds) in [("by the clock", &wall), ("of a processor", &processor)] {
            let middle = |index: usize| 1e3 * median(seconds[index].iter().copied()).expect("several rounds");
            let ratios = seconds[0].iter().zip(&seconds[1]).map(|(exact, rounded)| exact / rounded);
            let ratio = median(ratios).expect("several rounds");
            println!("{name} {what}: f32 {:.1} ms, bf16 {:.1} ms a step; {ratio:.2} × as fast", middle(0), middle(1));
        }
    }
}

fn compare_losses(text: PathBuf, steps: usize) {
    let (_, sizes, _, _) = MODELS[0];
    let mut manifest = manifest(sizes, 4);
    manifest.data.source = DataSource::Files;
    let place = DataPlace::of_files(&[text]);
    let manifest = place.complete(manifest).expect("a text");
    let differences: Vec<f64> = (0..SEEDS)
        .map(|seed| {
            let mut engines = engines(&manifest, seed, || Corpus::open(&manifest, &place).expect("a text"));
            println!("seed {seed}");
            for first in (0..steps).step_by(WINDOW) {
                let mean = |engine: &mut Engine| {
                    let losses = (first..first + WINDOW).map(|step| engine.step(step as f64).expect("a step").loss);
                    losses.sum::<f64>() / WINDOW as f64
                };
                show(&format!("steps to {:>4}", first + WINDOW), engines.each_mut().map(mean));
            }
            let held_out = |engine: &mut Engine| engine.validation_loss().expect("a held-out slice");
            show("held out", engines.each_mut().map(held_out))
        })
        .collect();
    let mean = differences.iter().sum::<f64>() / f64::from(SEEDS);
    let squares = differences.iter().map(|difference| (difference - mean).powi(2)).sum::<f64>();
    println!("held out, {SEEDS} seeds: {mean:+.3} ± {:.3} %", (squares / f64::from(SEEDS - 1)).sqrt());
}

/// Prints losses in `f32` and in 16 bits, and returns how much higher the latter is, in percent.
fn show(what: &str, [exact, rounded]: [f64; 2]) -> f64 {
    let difference = 100.0 * (rounded / exact - 1.0);
    println!("{what}: f32 {exact:.5}, bf16 {rounded:.5}: {difference:+.3} %");
    difference
}

/// Of all threads of this process, as Linux says it, in hundredths of a second.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// As Linux names it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or("a processor without a name".to_owned(), |(_, name)| name.to_owned())
}

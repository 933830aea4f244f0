//! The optimizer's moments in 8 bits beside those in 32, on two threads of the CPU.
//!
//! `moments memory SIZE adamw|muon 8|32 [STEPS]`: the process' peak memory, with the sizes gpt-s and gpt-m (`configs/bench`), 35M
//! and 100M. `moments speed SIZE [ROUNDS]`: processor time of steps, in turns. `moments losses TEXT STEPS [SEEDS
//! [adamw|muon]]`: how far losses of gpt-s are apart.

use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, ModelSpec, OptimizerKind, TransformerModel};
use murmur_training::ops::Kernels;
use murmur_training::{Corpus, DataPlace, Device, Engine, MemoryEstimate, TrainingOptions, median};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error>;

/// Both optimizers, as `configs/runs` have them, and AdamW matched to the batch.
const WAYS: [(OptimizerKind, bool); 3] =
    [(OptimizerKind::AdamW, false), (OptimizerKind::AdamW, true), (OptimizerKind::Muon, true)];

fn main() -> Result<(), Failure> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["memory", size, kind, bits, rest @ ..] => {
            let steps = rest.first().map_or(Ok(2), |steps| steps.parse())?;
            take_memory(sized(size)?, kind_of(kind)?, *bits == "8", steps)
        }
        ["speed", size, rest @ ..] => compare_speed(sized(size)?, rest.first().map_or(Ok(9), |rounds| rounds.parse())?),
        ["losses", text, steps, rest @ ..] => {
            let seeds = rest.first().map_or(Ok(1), |seeds| seeds.parse())?;
            let kind = rest.get(1).map(|kind| kind_of(kind)).transpose()?;
            compare_losses(text.as_ref(), steps.parse()?, seeds, kind)
        }
        _ => Err("memory SIZE adamw|muon 8|32, speed SIZE or losses TEXT STEPS [SEEDS [adamw|muon]]".into()),
    }
}

fn options(in_8_bits: bool) -> TrainingOptions {
    TrainingOptions { moments_in_8_bits: in_8_bits, ..TrainingOptions::default() }
}

fn take_memory(mut manifest: RunManifest, kind: OptimizerKind, in_8_bits: bool, steps: u32) -> Result<(), Failure> {
    manifest.optimizer.kind = kind;
    let options = options(in_8_bits);
    println!("before: {} MB", peak());
    let mut engine = Engine::with_options(&manifest, Corpus::grammar(), [1; 32], Device::Cpu, options)?;
    for _ in 0..steps {
        engine.step(10.0)?;
    }
    let estimate = MemoryEstimate::of(&manifest, &options, Kernels::Fused, 2);
    let count = engine.layout().parameters();
    let bits = if in_8_bits { 8 } else { 32 };
    println!(
        "{count} parameters, {kind:?}, moments in {bits} bits: peak {} MB, {:.2} bytes a parameter; {} MB estimated ({estimate})",
        peak(),
        peak() as f64 * 1e6 / count as f64,
        (estimate.on_device() + estimate.process) / 1_000_000,
    );
    Ok(())
}

/// Of a model whose steps are mostly the optimizer's: 16 tokens each. Processor time, for others may be at work.
fn compare_speed(mut manifest: RunManifest, rounds: usize) -> Result<(), Failure> {
    if let ModelSpec::Transformer(model) = &mut manifest.model {
        model.context = 16;
    }
    manifest.optimizer.batch_sequences = 1;
    for (kind, match_batch) in WAYS {
        (manifest.optimizer.kind, manifest.optimizer.match_batch) = (kind, match_batch);
        let engine =
            |in_8_bits| Engine::with_options(&manifest, Corpus::grammar(), [1; 32], Device::Cpu, options(in_8_bits));
        let mut engines = [engine(false)?, engine(true)?];
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for (engine, times) in engines.iter_mut().zip(&mut times) {
                let begin = processor_seconds();
                for _ in 0..STEPS_IN_ROUND {
                    engine.step(10.0)?;
                }
                if round > 0 {
                    times.push(1e3 * (processor_seconds() - begin) / STEPS_IN_ROUND as f64);
                }
            }
        }
        let middle = |bits: usize| median(times[bits].iter().copied()).unwrap_or_default();
        let more = median(times[1].iter().zip(&times[0]).map(|(eight, all)| eight - all)).unwrap_or_default();
        println!(
            "{kind:?}{}: a step takes {:.1} ms of processors in 32 bits, {:.1} in 8; {:+.2} ns a parameter",
            if match_batch { ", matched" } else { "" },
            middle(0),
            middle(1),
            1e6 * more / engines[0].layout().parameters() as f64,
        );
    }
    Ok(())
}

/// Steps between two looks at the processors' time, which Linux tells in hundredths of a second.
const STEPS_IN_ROUND: usize = 10;

/// Steps whose mean losses are compared.
const WINDOW: usize = 50;

fn compare_losses(text: &Path, steps: usize, seeds: u64, only: Option<OptimizerKind>) -> Result<(), Failure> {
    let mut manifest = sized("gpt-s")?;
    manifest.optimizer.batch_sequences = 4;
    manifest.data.source = DataSource::Files;
    let place = DataPlace::of_files(&[text.to_owned()]);
    let mut manifest = place.complete(manifest)?;
    for (kind, match_batch) in WAYS.into_iter().filter(|(kind, _)| only.is_none_or(|only| only == *kind)) {
        (manifest.optimizer.kind, manifest.optimizer.match_batch) = (kind, match_batch);
        let mut furthest = 0.0_f64;
        let mut held_out = Vec::new();
        for seed in 0..seeds {
            manifest.run.seed = seed;
            let engine = |in_8_bits| -> Result<Engine, Failure> {
                let corpus = Corpus::open(&manifest, &place)?;
                let options = options(in_8_bits);
                let mut engine = Engine::with_options(&manifest, corpus, [1; 32], Device::Cpu, options)?;
                engine.set_members(8.0);
                Ok(engine)
            };
            let mut engines = [engine(false)?, engine(true)?];
            for first in (0..steps).step_by(WINDOW) {
                let mut sums = [0.0; 2];
                for (engine, sum) in engines.iter_mut().zip(&mut sums) {
                    for step in first..first + WINDOW {
                        *sum += engine.step(step as f64)?.loss / WINDOW as f64;
                    }
                }
                let apart = 100.0 * (sums[1] / sums[0] - 1.0);
                furthest = if apart.abs() > furthest.abs() { apart } else { furthest };
                println!("  steps to {}: {:.5}, in 8 bits {:.5} ({apart:+.3} %)", first + WINDOW, sums[0], sums[1]);
            }
            let [exact, eight] = &mut engines;
            let (exact, eight) = (exact.validation_loss()?, eight.validation_loss()?);
            held_out.push(100.0 * (eight / exact - 1.0));
            println!("  held out {exact:.5}, in 8 bits {eight:.5} ({:+.3} %)", held_out[held_out.len() - 1]);
        }
        let matched = if match_batch { ", matched to 8 members" } else { "" };
        println!(
            "{kind:?}{matched}: means of {WINDOW} steps at most {furthest:+.3} % apart, held out {held_out:+.3?} %"
        );
    }
    Ok(())
}

fn kind_of(word: &str) -> Result<OptimizerKind, Failure> {
    match word {
        "adamw" => Ok(OptimizerKind::AdamW),
        "muon" => Ok(OptimizerKind::Muon),
        _ => Err("adamw or muon".into()),
    }
}

fn sized(size: &str) -> Result<RunManifest, Failure> {
    let spec = |layers, width, heads, feed_forward, context| TransformerModel {
        layers,
        width,
        heads,
        feed_forward,
        context,
        ..TransformerModel::default()
    };
    let (model, sequences) = match size {
        "gpt-s" => (spec(4, 128, 4, 320, 128), 16),
        "gpt-m" => (spec(6, 384, 6, 1024, 256), 8),
        "35M" => (spec(11, 512, 8, 1408, 128), 4),
        "100M" => (spec(14, 768, 12, 2048, 128), 4),
        _ => return Err(format!("{size} is no size: gpt-s, gpt-m, 35M or 100M").into()),
    };
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    manifest.optimizer.batch_sequences = sequences;
    Ok(manifest)
}

/// Of all threads so far, in user and in system mode.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |index: usize| fields.split_whitespace().nth(index).and_then(|text| text.parse::<f64>().ok());
    (ticks(11).unwrap_or_default() + ticks(12).unwrap_or_default()) / 100.0
}

/// Of the process so far, in megabytes.
fn peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() * 1024 / 1_000_000
}

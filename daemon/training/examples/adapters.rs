//! Steps of adapters on a frozen base, on two threads of the CPU: milliseconds a step, and the process' peak memory. The base's
//! weights are drawn, for neither depends on them.
//!
//! `adapters SIZE [BITS [STEPS [recompute]]]` with the bits in which the base is held, 8, 16 or 32, and the sizes gpt-s and gpt-m
//! (`configs/bench`), 100M and 1B; `recompute` computes activations again in the backward instead of keeping them.
//! `adapters losses TEXT STEPS`: how far losses on bases of 8, 16 and 32 bits are apart; the base is gpt-s, trained for so many
//! steps on the first half of the text, and the adapters on the second.

use std::path::Path;
use std::time::Instant;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, TransformerModel};
use murmur_training::ops::Kernels;
use murmur_training::{Corpus, DataPlace, Device, Engine, MemoryEstimate, TrainingOptions, median, model};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, text, steps] = &arguments[..]
        && word == "losses"
    {
        return compare_losses(text.as_ref(), steps.parse()?);
    }
    let [size, rest @ ..] = &arguments[..] else { return Err("adapters SIZE [BITS [STEPS [recompute]]]".into()) };
    let number = |place: usize, default| rest.get(place).map_or(Ok(default), |number: &String| number.parse::<u32>());
    let (bits, steps) = (number(0, 32)?, number(1, 10)?);
    let mut manifest = sized(size)?;
    (manifest.lora.rank, manifest.lora.base_bits) = (8, bits);
    let weights = model::drawn_base(&manifest);
    let count = weights.len();
    let recompute = rest.get(2).is_some_and(|word| word == "recompute");
    let options = TrainingOptions { recompute, ..TrainingOptions::default() };
    let mut engine = Engine::on_base(&manifest, Some(weights), Corpus::grammar(), [1; 32], &[Device::Cpu], options)?;
    let (mut times, mut of_processors) = (Vec::new(), Vec::new());
    // The first step makes buffers.
    for step in 0..=steps {
        let (begin, processors) = (Instant::now(), processor_seconds());
        engine.step(10.0)?;
        if step > 0 {
            times.push(1e3 * begin.elapsed().as_secs_f64());
            of_processors.push(1e3 * (processor_seconds() - processors));
        }
    }
    let [time, of_processors] = [times, of_processors].map(|times| median(times).unwrap_or_default());
    let time = format!("{time:.1} ms a step, {of_processors:.0} ms of processors");
    let estimate = MemoryEstimate::of(&manifest, &options, Kernels::Fused, 2);
    let estimate = (estimate.on_device() + estimate.process) / 1_000_000;
    println!("{size}, {count} frozen weights in {bits} bits: {time}; peak {} MB, {estimate} MB estimated", peak());
    Ok(())
}

/// Steps whose mean losses are compared.
const WINDOW: usize = 50;

fn compare_losses(text: &Path, steps: usize) -> Result<(), Failure> {
    let bytes = std::fs::read(text)?;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let folder = tempfile::tempdir()?;
    let half = |name: &str, bytes: &[u8]| -> Result<(RunManifest, DataPlace), Failure> {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes)?;
        let mut manifest = sized("gpt-s")?;
        manifest.optimizer.batch_sequences = 4;
        manifest.data.source = DataSource::Files;
        let place = DataPlace::of_files(&[path]);
        Ok((place.complete(manifest)?, place))
    };
    let (manifest, place) = half("first", first)?;
    let mut base = Engine::new(&manifest, Corpus::open(&manifest, &place)?, [1; 32], Device::Cpu)?;
    for step in 0..steps {
        base.step(step as f64)?;
    }
    println!("base: {:.5} held out", base.validation_loss()?);
    let weights = base.parameters()?;
    let (mut manifest, place) = half("second", second)?;
    manifest.lora.rank = 8;
    let mut engines = Vec::new();
    for bits in [32, 16, 8] {
        manifest.lora.base_bits = bits;
        let (base, corpus) = (Some(weights.clone().into()), Corpus::open(&manifest, &place)?);
        engines.push(Engine::on_base(&manifest, base, corpus, [1; 32], &[Device::Cpu], TrainingOptions::default())?);
    }
    let tell = |what: String, losses: [f64; 3]| {
        let [exact, sixteen, eight] = losses;
        let [in_sixteen, in_eight] = [sixteen, eight].map(|loss| 100.0 * (loss / exact - 1.0));
        println!(
            "{what}: {exact:.5}, in 16 bits {sixteen:.5} ({in_sixteen:+.3} %), in 8 {eight:.5} ({in_eight:+.3} %)"
        );
    };
    let before = engines.iter_mut().map(Engine::validation_loss).collect::<Result<Vec<f64>, _>>()?;
    tell("held out, before".to_owned(), before.try_into().expect("three"));
    for first in (0..steps).step_by(WINDOW) {
        let mut sums = [0.0; 3];
        for (engine, sum) in engines.iter_mut().zip(&mut sums) {
            for step in first..first + WINDOW {
                *sum += engine.step(step as f64)?.loss / WINDOW as f64;
            }
        }
        tell(format!("steps to {}", first + WINDOW), sums);
    }
    let after = engines.iter_mut().map(Engine::validation_loss).collect::<Result<Vec<f64>, _>>()?;
    tell("held out, after".to_owned(), after.try_into().expect("three"));
    Ok(())
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
        "100M" => (spec(14, 768, 12, 2048, 128), 4),
        "1B" => (spec(20, 2048, 16, 5632, 128), 2),
        _ => return Err(format!("{size} is no size: gpt-s, gpt-m, 100M or 1B").into()),
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

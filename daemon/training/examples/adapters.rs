//! Steps of adapters on a frozen base, on two threads of the CPU: milliseconds a step, and the process' peak memory. The base's
//! weights are drawn, for neither depends on them.
//!
//! `adapters SIZE [STEPS]` with the sizes gpt-s and gpt-m (`configs/bench`), 100M and 1B.

use std::time::Instant;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::ModelSpec;
use murmur_training::{Corpus, Device, Engine, TrainingOptions, median, model};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [size, rest @ ..] = &arguments[..] else { return Err("adapters SIZE [STEPS]".into()) };
    let steps: usize = rest.first().map_or(Ok(10), |steps| steps.parse())?;
    let mut manifest = sized(size)?;
    manifest.lora.rank = 8;
    let weights = model::build(&manifest.model).initial_parameters(1);
    let count = weights.len();
    let options = TrainingOptions::default();
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
    let (time, peak) = (format!("{time:.1} ms a step, {of_processors:.0} ms of processors"), peak());
    println!("{size}, {count} frozen weights: {time}, peak {peak} MB");
    Ok(())
}

fn sized(size: &str) -> Result<RunManifest, Failure> {
    let spec = |layers, width, heads, feed_forward, context| ModelSpec {
        layers,
        width,
        heads,
        feed_forward,
        context,
        ..ModelSpec::default()
    };
    let (model, sequences) = match size {
        "gpt-s" => (spec(4, 128, 4, 320, 128), 16),
        "gpt-m" => (spec(6, 384, 6, 1024, 256), 8),
        "100M" => (spec(14, 768, 12, 2048, 128), 4),
        "1B" => (spec(20, 2048, 16, 5632, 128), 2),
        _ => return Err(format!("{size} is no size: gpt-s, gpt-m, 100M or 1B").into()),
    };
    let mut manifest = RunManifest { model, ..RunManifest::default() };
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
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() / 1000
}

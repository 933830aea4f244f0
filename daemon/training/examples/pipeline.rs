//! Steps of gpt-s and gpt-m (`configs/bench`) on two threads of the CPU, the whole model and a pipeline of two stages in turns;
//! or one of both alone, so that the process' peak memory is its own: `pipeline gpt-m whole`.
//!
//! Medians over the rounds are printed, with the ratio within each round. The time that processors spent is the second witness: on a
//! busy machine the clock on the wall counts what others took.

use std::time::Instant;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::TransformerModel;
use murmur_training::ops::Kernels;
use murmur_training::split::{Place, cut};
use murmur_training::{Corpus, Device, Engine, StageOnDevice, TrainingOptions, median};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Of each way.
const ROUNDS: usize = 9;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wants = |word: &str, of: &[&str]| {
        !arguments.iter().any(|argument| of.contains(&argument.as_str())) || arguments.iter().any(|a| a == word)
    };
    for (name, manifest, steps) in [("gpt-s", small(), 8), ("gpt-m", medium(), 2)] {
        if !wants(name, &["gpt-s", "gpt-m"]) {
            continue;
        }
        let mut engines = Vec::new();
        for way in ["whole", "pipeline"] {
            if wants(way, &["whole", "pipeline"]) {
                engines.push((way, engine(&manifest, way)?, Vec::new()));
            }
        }
        for round in 0..=ROUNDS {
            for (_, engine, measured) in &mut engines {
                let (wall, processor) = (Instant::now(), processor_seconds());
                for _ in 0..steps {
                    engine.step(10.0)?;
                }
                // The first round makes buffers.
                if round > 0 {
                    let each = |seconds: f64| seconds / f64::from(steps);
                    measured.push([each(wall.elapsed().as_secs_f64()), each(processor_seconds() - processor)]);
                }
            }
        }
        let middle = |measured: &[[f64; 2]], which: usize| median(measured.iter().map(|round| round[which]));
        for (way, _, measured) in &engines {
            let [wall, processor] = [0, 1].map(|which| 1e3 * middle(measured, which).unwrap_or_default());
            println!("{name} {way:8} {wall:8.1} ms a step, {processor:8.1} ms of processors, peak {} MB", peak());
        }
        if let [(_, _, whole), (_, _, pipeline)] = &engines[..] {
            let ratio = |which: usize| median(whole.iter().zip(pipeline).map(|(a, b)| b[which] / a[which]));
            let [wall, processor] = [0, 1].map(|which| ratio(which).unwrap_or_default());
            println!("{name} pipeline / whole {wall:.3} on the wall, {processor:.3} of processors");
        }
    }
    Ok(())
}

fn small() -> RunManifest {
    let model =
        TransformerModel { layers: 4, width: 128, heads: 4, feed_forward: 320, context: 128, ..Default::default() };
    with_batch(model, 16)
}

fn medium() -> RunManifest {
    let model =
        TransformerModel { layers: 6, width: 384, heads: 6, feed_forward: 1024, context: 256, ..Default::default() };
    with_batch(model, 8)
}

fn with_batch(model: TransformerModel, sequences: u32) -> RunManifest {
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    manifest.optimizer.batch_sequences = sequences;
    manifest
}

fn engine(manifest: &RunManifest, way: &str) -> Result<Engine, Failure> {
    let (corpus, options) = (Corpus::grammar(), TrainingOptions::default());
    if way == "whole" {
        return Ok(Engine::with_options(manifest, corpus, [1; 32], Device::Cpu, options)?);
    }
    let place = Place { kernels: Kernels::Fused, threads: 1, speed: 1.0, free: None };
    let cut = cut(manifest, &options, &[place; 2])?;
    println!("layers {:?}, {:.0} % busy expected", cut.stages[0].stage.layers, 100.0 * cut.busy);
    let stages = cut.stages.into_iter().map(|placed| StageOnDevice { device: Device::Cpu, stage: placed.stage });
    let stages: Vec<StageOnDevice> = stages.collect();
    Ok(Engine::over_stages(manifest, None, corpus, [1; 32], &stages, options)?)
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

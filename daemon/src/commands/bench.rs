//! `murmur bench`: how fast this machine trains, beside its own matrix products, and beside PyTorch on the same model.
//!
//! Everything is measured in rounds, one after the other in turn, so that whatever else the machine does weighs on all
//! alike; figures are medians over the rounds. Processor time is the second witness: on a busy machine the clock on the
//! wall counts what others took.

mod parity;
mod pytorch;

use std::time::{Duration, Instant};

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, DataSpec, OptimizerKind, OptimizerSpec};
use murmur_training::engine::TimedStep;
use murmur_training::measure::{operations_per_token, timed_product};
use murmur_training::{Device, Engine, free_memory};
use serde::Serialize;
use serde_json::json;

use crate::cli::BenchOptions;
use crate::console::figures::count;
use crate::console::{Console, counted, human_bytes, note, print_line};
use crate::failure::{ExitCode, Failure};
use crate::limits::memory_check;
use crate::process::stats::{peak_memory, processor, processor_time};
use crate::remote;
use crate::settings::{DataSettings, NodeSettings, TrainingSettings};
use crate::setup::corpus::open_corpus;
use crate::setup::devices::Devices;
use parity::Parity;
use pytorch::{PyTorch, Way, Workplace};

/// Steps before the first round: buffers are made, PyTorch compiles.
const WARM_UP_STEPS: usize = 3;

/// Rounds; figures are their medians.
const ROUNDS: usize = 5;

/// Steps whose losses are compared with PyTorch's.
const PARITY_STEPS: usize = 50;

/// What training does in a second.
#[derive(Clone, Copy, Debug, Serialize)]
struct Speed {
    tokens_per_second: f64,
    /// Counting only the time that processors spent on it; `None` where the system does not say.
    tokens_per_processor_second: Option<f64>,
    /// The most memory held, in bytes; of the GPU where one trains.
    peak_bytes: Option<u64>,
}

/// Where a step's time goes, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Split {
    data: f64,
    forward: f64,
    backward: f64,
    optimizer: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    parameters: usize,
    threads: usize,
    speed: Speed,
    /// Thousand millions of operations a second.
    gigaflops: f64,
    /// Of plain matrix products, in the same unit.
    product_gigaflops: f64,
    seconds: Split,
    /// The processor's name, where it trains and the system says it.
    processor: Option<String>,
    /// Each way in which PyTorch was measured.
    pytorch: Vec<(&'static str, Speed)>,
}

impl Report {
    fn fastest_pytorch(&self) -> Option<&(&'static str, Speed)> {
        self.pytorch.iter().max_by(|left, right| left.1.tokens_per_second.total_cmp(&right.1.tokens_per_second))
    }
}

pub(super) fn run(options: &mut BenchOptions) -> anyhow::Result<()> {
    remote::bring_paths(&mut options.data, None, None)?;
    let options = &*options;
    let manifest = manifest(options)?;
    let settings = settings(options);
    let _ = rayon::ThreadPoolBuilder::new().num_threads(settings.threads).build_global();
    if options.python.is_some() && !is_plain_adamw(&manifest.optimizer) {
        let message = "PyTorch is measured with AdamW alone, and the run has another optimizer";
        return Err(Failure::new(ExitCode::CommandLine, message)
            .hint("without --python the run is measured by itself")
            .into());
    }
    let devices = Devices::open(&settings)?;
    if let Some(warning) = &devices.warning {
        note(&format!("warning: {warning}"));
    }
    memory_check::check(&manifest, &settings, &devices)?;
    let device = devices.all.into_iter().next().expect("a device is open");
    if options.parity {
        let python = options.python.as_ref().expect("the command line demands it");
        let threads = rayon::current_num_threads();
        let parity = parity::compare(
            python,
            &manifest,
            engine(&manifest, options, &device)?,
            (&device, settings.precision),
            threads,
            PARITY_STEPS,
        )?;
        show_parity(options.format, &parity);
        return Ok(());
    }
    let report = measure(&manifest, options, &device)?;
    match options.format {
        Console::Json => print_line(&serde_json::to_string(&report)?),
        Console::Text => show(&report),
    }
    Ok(())
}

/// Whether `bench_pytorch.py` takes the same steps.
fn is_plain_adamw(optimizer: &OptimizerSpec) -> bool {
    optimizer.kind == OptimizerKind::AdamW && !optimizer.match_batch
}

/// The same choices as of a node that trains.
fn settings(options: &BenchOptions) -> TrainingSettings {
    let BenchOptions { device, micro_batch, settings, .. } = options;
    TrainingSettings { device: device.clone(), micro_batch: micro_batch.unwrap_or(0), ..settings.settings().training }
}

fn manifest(options: &BenchOptions) -> anyhow::Result<RunManifest> {
    let mut manifest = match &options.run {
        Some(path) => crate::settings::load_run_manifest(path)?,
        None => RunManifest::default(),
    };
    // A step takes as long on any bytes, so the stories do where no files are given.
    let source = if options.data.is_empty() { DataSource::Grammar } else { DataSource::Files };
    manifest.data = DataSpec { source, ..DataSpec::default() };
    Ok(manifest)
}

fn engine(manifest: &RunManifest, options: &BenchOptions, device: &Device) -> anyhow::Result<Engine> {
    let node = NodeSettings {
        data: DataSettings { files: options.data.clone(), ..DataSettings::default() },
        ..NodeSettings::default()
    };
    let corpus = open_corpus(manifest, &node, None)?;
    Ok(Engine::with_options(manifest, corpus, [0; 32], device.clone(), settings(options).options())?)
}

fn measure(manifest: &RunManifest, options: &BenchOptions, device: &Device) -> anyhow::Result<Report> {
    let not_of_text = || Failure::new(ExitCode::Settings, "only models that read text are measured");
    let spec = manifest.model.transformer().ok_or_else(not_of_text)?;
    let free_before = free_memory(device);
    let (mut engine, steps) = (engine(manifest, options, device)?, options.steps as usize);
    let precision = settings(options).precision;
    for step in 0..WARM_UP_STEPS {
        engine.timed_step(step as f64)?;
    }
    // Before PyTorch takes its share of the same GPU; after the first step ours grows no more.
    let on_gpu = free_before.zip(free_memory(device)).map(|(before, after)| before.saturating_sub(after));
    let threads = rayon::current_num_threads();
    let workplace = Workplace::new()?;
    let mut others = Vec::new();
    let processor = processor().filter(|_| device.is_cpu());
    let forces_mkl = processor.as_ref().is_some_and(|(_, maker)| maker != "GenuineIntel");
    if let Some(python) = &options.python {
        workplace.remove_when_interrupted()?;
        // They load and compile at the same time.
        let start = |way: Way| {
            note(&format!("starting PyTorch, {}", way.name));
            let more: Vec<String> = way.options.iter().map(|option| (*option).to_owned()).collect();
            let mut other = PyTorch::start(python, &workplace, manifest, (device, way.precision), threads, &more)?;
            other.order_steps(WARM_UP_STEPS)?;
            Ok(other)
        };
        let ways = Way::all(device, precision, forces_mkl);
        let started: Vec<(Way, anyhow::Result<PyTorch>)> = ways.into_iter().map(|way| (way, start(way))).collect();
        for (way, started) in started {
            match started.and_then(|mut other| other.taken_steps().map(|_| other)) {
                Ok(other) => others.push((way.name, other, Vec::new())),
                Err(error) if way.may_fail => note(&format!("warning: {} is left out: {error}", way.name)),
                Err(error) => return Err(error),
            }
        }
    }
    let tokens = (manifest.optimizer.batch_sequences * spec.context) as f64;
    let (mut rounds, mut products, mut peak_bytes) = (Vec::new(), Vec::new(), on_gpu);
    for round in 0..ROUNDS {
        note(&format!("round {} of {ROUNDS}", round + 1));
        rounds.push(Round::of(&mut engine, steps)?);
        if round == 0 && device.is_cpu() {
            // The matrices that are multiplied below are no part of training, which takes no more after a few steps.
            peak_bytes = peak_memory();
        }
        let (duration, operations) = timed_product(spec, tokens as usize, device, precision)?;
        products.push(operations / duration.as_secs_f64() / 1e9);
        for (_, other, results) in &mut others {
            results.push(other.take_steps(steps)?);
        }
    }
    let (last, mut forwards) = (engine.timed_step(0.0)?, Vec::new());
    for _ in 0..ROUNDS {
        forwards.push(engine.timed_forward(&last.batch)?.as_secs_f64());
    }
    let speed = Speed {
        tokens_per_second: middle(rounds.iter().map(|round| round.tokens / round.wall.as_secs_f64())),
        // Of a model so small that the clock of the system has not moved on, it is not known.
        tokens_per_processor_second: rounds
            .iter()
            .all(|round| round.processor.is_some_and(|taken| !taken.is_zero()))
            .then(|| {
                let seconds = |round: &Round| round.processor.unwrap_or_default().as_secs_f64();
                middle(rounds.iter().map(|round| round.tokens / seconds(round)))
            }),
        peak_bytes,
    };
    let all: Vec<&TimedStep> = rounds.iter().flat_map(|round| &round.steps).collect();
    let part = |part: fn(&TimedStep) -> Duration| middle(all.iter().map(|step| part(step).as_secs_f64()));
    let (gradient, forward) = (part(|step| step.gradient), middle(forwards));
    let (data, optimizer) = (part(|step| step.data), part(|step| step.optimizer));
    let pytorch = others.into_iter().map(|(name, _, results)| {
        let processor = middle(results.iter().map(|result| steps as f64 * tokens / result.processor_seconds));
        let speed = Speed {
            tokens_per_second: middle(results.iter().map(|result| steps as f64 * tokens / result.seconds)),
            tokens_per_processor_second: Some(processor),
            peak_bytes: results.last().map(|result| result.peak_bytes),
        };
        (name, speed)
    });
    Ok(Report {
        parameters: engine.layout().parameters(),
        threads,
        gigaflops: speed.tokens_per_second * operations_per_token(spec) / 1e9,
        product_gigaflops: middle(products),
        processor: processor.map(|(name, _)| name),
        seconds: Split { data, forward, backward: (gradient - forward).max(0.0), optimizer },
        pytorch: pytorch.collect(),
        speed,
    })
}

/// Some steps in a row.
struct Round {
    steps: Vec<TimedStep>,
    tokens: f64,
    wall: Duration,
    processor: Option<Duration>,
}

impl Round {
    fn of(engine: &mut Engine, count: usize) -> anyhow::Result<Round> {
        let (begin, processor) = (Instant::now(), processor_time());
        let steps = (0..count).map(|_| engine.timed_step(0.0)).collect::<Result<Vec<_>, _>>()?;
        let wall = begin.elapsed();
        let processor = processor_time().zip(processor).map(|(after, before)| after - before);
        let tokens = steps.iter().map(|step| step.report.tokens as f64).sum();
        Ok(Round { steps, tokens, wall, processor })
    }
}

/// Not a number where nothing was measured.
fn middle(values: impl IntoIterator<Item = f64>) -> f64 {
    murmur_training::median(values).unwrap_or(f64::NAN)
}

fn show(report: &Report) {
    let Report { speed, seconds, .. } = report;
    if let Some(processor) = &report.processor {
        print_line(&format!("processor   {processor}"));
    }
    print_line(&format!(
        "model       {} parameters, {}",
        count(report.parameters as u64),
        counted(report.threads as u64, "thread")
    ));
    print_line(&format!("speed       {} tokens/s{}", count(speed.tokens_per_second as u64), per_processor(speed)));
    let share = 100.0 * report.gigaflops / report.product_gigaflops;
    let (ours, most) = (report.gigaflops, report.product_gigaflops);
    print_line(&format!("arithmetic  {ours:.0} GFLOP/s, {share:.0} % of plain matrix products ({most:.0} GFLOP/s)"));
    let milliseconds = |seconds: f64| 1e3 * seconds;
    print_line(&format!(
        "a step      data {:.1} ms, forward {:.1} ms, backward {:.1} ms, optimizer {:.1} ms",
        milliseconds(seconds.data),
        milliseconds(seconds.forward),
        milliseconds(seconds.backward),
        milliseconds(seconds.optimizer),
    ));
    if let Some(peak) = speed.peak_bytes {
        print_line(&format!("memory      {} at most", human_bytes(peak)));
    }
    for (name, other) in &report.pytorch {
        let ratio = speed.tokens_per_second / other.tokens_per_second;
        let processor = speed.tokens_per_processor_second.zip(other.tokens_per_processor_second);
        let processor =
            processor.map_or(String::new(), |(ours, theirs)| format!(" ({:.2} × by processor time)", ours / theirs));
        print_line(&format!(
            "PyTorch     {name}: {} tokens/s{}, {} at most; murmur is {ratio:.2} × as fast{processor}",
            count(other.tokens_per_second as u64),
            per_processor(other),
            human_bytes(other.peak_bytes.unwrap_or_default()),
        ));
    }
    if let Some((name, other)) = report.fastest_pytorch() {
        let ratio = speed.tokens_per_second / other.tokens_per_second;
        print_line(&format!("            its fastest is {name}; murmur is {ratio:.2} × as fast"));
    }
}

fn per_processor(speed: &Speed) -> String {
    let told = |tokens: f64| format!(" ({} per second of a processor)", count(tokens as u64));
    speed.tokens_per_processor_second.map(told).unwrap_or_default()
}

fn show_parity(format: Console, parity: &Parity) {
    let Parity { ours, theirs } = parity;
    let difference = parity.difference();
    if format == Console::Json {
        print_line(&json!({ "ours": ours, "theirs": theirs, "difference": difference }).to_string());
        return;
    }
    for (step, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        print_line(&format!("step {:>3}    murmur {ours:.6}    PyTorch {theirs:.6}", step + 1));
    }
    print_line(&format!("largest difference {difference:.2e} nats"));
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{MlpModel, TransformerModel};

    use super::*;

    #[test]
    fn another_optimizer_is_not_compared_with_pytorchs_adamw() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let run = folder.path().join("run.toml");
        for setting in ["kind = \"muon\"", "match_batch = true"] {
            std::fs::write(&run, format!("[optimizer]\n{setting}\n")).expect("written");
            let python = Some("no-such-python".into());
            let mut options = BenchOptions { run: Some(run.clone()), python, ..BenchOptions::default() };
            let message = super::run(&mut options).expect_err("another optimizer").to_string();
            assert!(message.contains("AdamW alone"), "{message}");
        }
    }

    #[test]
    fn a_model_that_reads_no_text_is_refused() {
        let manifest = RunManifest { model: MlpModel::default().into(), ..RunManifest::default() };
        let failure = measure(&manifest, &BenchOptions::default(), &Device::Cpu).expect_err("no text");
        assert!(failure.to_string().contains("only models that read text"), "{failure}");
    }

    #[test]
    fn a_small_model_is_measured() {
        let options = BenchOptions { steps: 1, ..BenchOptions::default() };
        let model = TransformerModel { layers: 1, width: 16, context: 16, ..TransformerModel::default() };
        let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        let report = measure(&manifest, &options, &Device::Cpu).expect("a report");
        assert!(report.speed.tokens_per_second > 0.0 && report.gigaflops > 0.0 && report.product_gigaflops > 0.0);
        assert!(report.seconds.optimizer > 0.0 && report.pytorch.is_empty());
        assert!(report.speed.tokens_per_processor_second.is_none_or(f64::is_finite), "{:?}", report.speed);
        show(&report);
    }
}

//! Device, memory and speed: the run's own model takes some steps.

use std::time::{Duration, Instant};

use murmur_protocol::RunManifest;
use murmur_training::{Corpus, TrainingError, median, parameter_count};

use super::Finding;
use crate::console::figures::count;
use crate::console::{counted, examples, human_bytes};
use crate::limits::memory_check;
use crate::process::memory::give_back;
use crate::process::stats::{available_memory, peak_memory};
use crate::settings::NodeSettings;
use crate::setup::arrangement::{Arranged, Arrangement, arrange};
use crate::setup::devices::Devices;

/// Steps are taken for about this long.
const MEASURING: Duration = Duration::from_secs(3);

/// The same before a node begins: it is to begin soon.
const MEASURING_BRIEFLY: Duration = Duration::from_millis(200);

/// A step of less arithmetic takes at most a second on any processor of today (a guess).
const QUICK_OPERATIONS: f64 = 5e10;

/// At least so many: the first one is slower.
const STEPS_MIN: usize = 3;

/// At most so many: tiny models take microseconds.
const STEPS_MAX: usize = 2000;

/// What the machine can do with the run's model.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Parameters of the model.
    pub parameters: usize,
    /// The median of a step.
    pub step_seconds: f64,
    /// Trained on.
    pub tokens_per_second: f64,
}

/// Checks device, memory and speed; `None` where no step could be taken.
pub fn check_machine(manifest: &RunManifest, settings: &NodeSettings, findings: &mut Vec<Finding>) -> Option<Measured> {
    let devices = match Devices::open(&settings.training) {
        Ok(opened) => opened,
        Err(error) => {
            findings.push(Finding::of_failure("device", &error));
            return None;
        }
    };
    let threads = rayon::current_num_threads();
    let name = if devices.on_cpu() > 0 {
        format!("{}, {}", devices.name, counted(threads as u64, "thread"))
    } else {
        devices.name.clone()
    };
    findings.push(match devices.warning.clone() {
        None => Finding::good("device", name),
        Some(warning) => Finding::warning("device", name, warning),
    });
    let free = available_memory();
    let Arranged { arrangement, line } = match arrange(manifest, &settings.training, &devices) {
        Ok(arranged) => arranged,
        Err(failure) => {
            findings.push(Finding::of_failure("memory", &failure));
            return None;
        }
    };
    findings.extend(line.map(|line| Finding::good("split", line)));
    match take_steps(manifest, &arrangement, settings, MEASURING) {
        Ok((measured, parameters)) => {
            findings.push(judge_memory(free, memory_check::copies(manifest, &settings.training, &devices)));
            let Times { step_seconds, tokens_per_second } = measured;
            let what = examples(manifest.prediction());
            let text =
                format!("{} {what}/s: a step takes {}", count(tokens_per_second as u64), milliseconds(step_seconds));
            findings.push(Finding::good("speed", text));
            Some(Measured { parameters, step_seconds, tokens_per_second })
        }
        Err(error) => {
            let fix = "free memory on the device, or use --device cpu";
            findings.push(Finding::problem("speed", format!("no step can be taken: {error}"), fix));
            None
        }
    }
}

/// The median of a few steps of the run's model in an arrangement that has room for it; `None` where that would take long, or
/// none could be taken. Takes the memory of training for as long.
pub(crate) fn measure_briefly(
    manifest: &RunManifest,
    arrangement: &Arrangement,
    settings: &NodeSettings,
) -> Option<(Duration, usize)> {
    let spec = &manifest.model;
    let predictions = f64::from(manifest.optimizer.batch_sequences) * f64::from(spec.context());
    // Two operations for each weight forward and four backward.
    let operations = 6.0 * parameter_count(spec) as f64 * predictions;
    if operations > QUICK_OPERATIONS && arrangement.may_be_slow() {
        return None;
    }
    let (times, parameters) = take_steps(manifest, arrangement, settings, MEASURING_BRIEFLY).ok()?;
    Some((Duration::from_secs_f64(times.step_seconds), parameters))
}

/// The same whatever a step takes, in seconds, with the pauses that the settings ask for; `None` also where the model has no room here.
pub(super) fn measure_step(manifest: &RunManifest, settings: &NodeSettings) -> Option<f64> {
    let devices = Devices::open(&settings.training).ok()?;
    let arranged = arrange(manifest, &settings.training, &devices).ok()?;
    take_steps(manifest, &arranged.arrangement, settings, MEASURING_BRIEFLY).ok().map(|(times, _)| times.step_seconds)
}

struct Times {
    step_seconds: f64,
    tokens_per_second: f64,
}

/// On data that is made up, whatever the run's: a step takes as long on any. With the pauses that the settings ask for.
fn take_steps(
    manifest: &RunManifest,
    arrangement: &Arrangement,
    settings: &NodeSettings,
    measuring: Duration,
) -> Result<(Times, usize), TrainingError> {
    // A step on any base takes as long as on the run's.
    let base = manifest.lora.is_on().then(|| murmur_training::model::drawn_base(manifest));
    let corpus = Corpus::made_up(manifest);
    let mut engine = arrangement.engine(manifest, base, corpus, [0; 32], settings.training.options())?;
    let (mut times, mut tokens, begin) = (Vec::new(), 0, Instant::now());
    while times.len() < STEPS_MIN || (begin.elapsed() < measuring && times.len() < STEPS_MAX) {
        let step = Instant::now();
        // A step that is skipped for its numbers takes as long.
        match engine.step(0.0) {
            Ok(report) => tokens = report.tokens,
            Err(TrainingError::NotFinite { .. }) => {}
            Err(error) => return Err(error),
        }
        times.push(step.elapsed().as_secs_f64());
    }
    let step_seconds = median(times).unwrap_or_default().max(1e-9) * 100.0 / settings.limits.training_percent;
    let parameters = engine.layout().parameters();
    drop(engine);
    // The model that is trained next would be made beside what the allocator keeps of this one.
    give_back();
    Ok((Times { step_seconds, tokens_per_second: tokens as f64 / step_seconds }, parameters))
}

fn milliseconds(seconds: f64) -> String {
    let digits = usize::from(seconds < 0.01);
    format!("{:.digits$} ms", 1e3 * seconds)
}

/// After the steps: their peak is in the process' own record. A daemon that exchanges has copies beside.
fn judge_memory(free: Option<u64>, copies: u64) -> Finding {
    let (Some(peak), Some(free)) = (peak_memory(), free) else {
        return Finding::good("memory", "this system does not tell how much is free".to_owned());
    };
    let text = format!(
        "a daemon takes up to {}, {} are free; training takes {} of it, exchanges and checkpoints the rest",
        human_bytes(peak + copies),
        human_bytes(free),
        human_bytes(peak)
    );
    if peak + copies < free {
        Finding::good("memory", text)
    } else {
        Finding::warning("memory", text, format!("it is tight: {}", memory_check::REMEDY))
    }
}

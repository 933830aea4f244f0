//! What is to be compared, from options and files; every mistake is found before any work.

use std::path::Path;
use std::time::Duration;

use murmur_protocol::manifest::{BaseSpec, ModelSpec, OptimizerSpec, RunManifest, ScheduleSpec, TransformerModel};
use murmur_sim::compare::{ALL, Fault, LEARNING_RATES, Links, Method, Plan, Setting};
use murmur_sim::{LatencySpec, Text, TrainerSpecError, TransformerSpec};
use murmur_training::model::transformer::transformer_layout;
use serde::Deserialize;

use super::real::is_real;
use crate::cli::CompareOptions;
use crate::console::quoted;
use crate::failure::{ExitCode, Failure};
use crate::remote;
use crate::settings::{load_run_manifest, nearest, out_of_range, parse};

/// The default model: learns to write words in a few hundred steps of under a millisecond.
fn small_model() -> TransformerModel {
    TransformerModel { layers: 2, width: 64, heads: 4, feed_forward: 128, context: 64, ..Default::default() }
}

/// Sequences of the default batch.
const BATCH_SEQUENCES: u32 = 4;

/// Held-out windows of an evaluation: they cost as much as a few steps, at every point of every curve.
const VALIDATION_SEQUENCES: u32 = 32;

/// Parameters that a run may train here: every node has a model, and all of them are in memory.
const PARAMETERS_MAX: usize = 20_000_000;

/// A file for `--links`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinksFile {
    up_mbit: f64,
    down_mbit: f64,
    latency_ms: f64,
    #[serde(default)]
    loss: f64,
}

/// What the options ask for.
pub(super) fn plan(options: &CompareOptions) -> Result<Plan, Failure> {
    let (methods, faults) = (methods(&options.methods)?, faults(&options.faults)?);
    if options.real && !methods.iter().any(is_real) {
        let names: Vec<&str> = ALL.iter().filter(|method| is_real(method)).map(|method| method.name).collect();
        let message = "--real has nothing to train: daemons have none of these methods, and alone is only trained beside another one";
        return Err(Failure::new(ExitCode::CommandLine, message)
            .hint(format!("add to --methods one that daemons have: {}", names.join(", "))));
    }
    let (speeds, nodes) = (options.speeds.len(), options.nodes);
    if speeds > nodes {
        return Err(Failure::new(ExitCode::CommandLine, format!("--speeds has {speeds} speeds, for {nodes} nodes"))
            .hint("one for each node, or fewer, which are repeated"));
    }
    let base = Setting {
        method: ALL[0],
        trainer: trainer(options)?,
        nodes: options.nodes,
        steps: options.steps,
        step_time: Duration::from_secs_f64(options.step_seconds),
        speeds: options.speeds.clone(),
        links: links(&options.links)?,
        fault: Fault::None,
        seed: 0,
        sabotage: None,
    };
    let plan = Plan { base, methods, faults, seeds: options.seeds, learning_rates: LEARNING_RATES.to_vec() };
    plan.base.trainer.check(&Default::default(), options.nodes).map_err(|error| {
        let of_data = options.data.as_ref().map_or(String::new(), |data| format!("{}: ", data.display()));
        let code = if matches!(error, TrainerSpecError::Corpus(_)) { ExitCode::Files } else { ExitCode::Settings };
        Failure::new(code, format!("{of_data}{error}")).hint("a longer text, a shorter context or fewer nodes")
    })?;
    Ok(plan)
}

/// The line that does this again.
pub(super) fn command(options: &CompareOptions) -> String {
    let mut words = vec!["murmur compare".to_owned()];
    words.extend(options.file.iter().map(|file| quoted(file)));
    if !options.methods.is_empty() {
        words.push(format!("--methods {}", options.methods.join(",")));
    }
    let speeds: Vec<String> = options.speeds.iter().map(f64::to_string).collect();
    words.push(format!("--nodes {} --steps {}", options.nodes, options.steps));
    words.push(format!("--step-seconds {} --speeds {}", options.step_seconds, speeds.join(",")));
    words.push(format!("--links {} --faults {}", quoted(Path::new(&options.links)), options.faults.join(",")));
    words.extend(options.data.iter().map(|data| format!("--data {}", quoted(data))));
    words.push(format!("--seeds {}", options.seeds));
    words.extend(options.real.then(|| "--real".to_owned()));
    words.extend(options.target.map(|target| format!("--target {target}")));
    words.join(" ")
}

fn methods(names: &[String]) -> Result<Vec<Method>, Failure> {
    let wanted: Vec<&str> =
        if names.is_empty() { Method::DEFAULT.to_vec() } else { names.iter().map(String::as_str).collect() };
    let mut methods: Vec<Method> = Vec::new();
    for name in wanted {
        let known: Vec<&str> = ALL.iter().map(|method| method.name).collect();
        let method = Method::named(name).ok_or_else(|| unknown("method", name, &known))?;
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    Ok(methods)
}

fn faults(names: &[String]) -> Result<Vec<Fault>, Failure> {
    let mut faults = Vec::new();
    if names.len() > 1 && names.iter().any(|name| name == "none") {
        let failure = Failure::new(ExitCode::CommandLine, "`none` and a fault exclude each other");
        return Err(failure.hint("every comparison is also made without faults; leave `none` out"));
    }
    for name in names.iter().filter(|name| *name != "none") {
        let known: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).chain(["none"]).collect();
        let fault = Fault::ALL.into_iter().find(|fault| fault.name() == name);
        let fault = fault.ok_or_else(|| unknown("fault", name, &known))?;
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    Ok(faults)
}

fn unknown(kind: &str, name: &str, known: &[&str]) -> Failure {
    let failure = Failure::new(ExitCode::CommandLine, format!("there is no {kind} `{name}`"));
    match nearest(name, known) {
        Some(nearest) => failure.hint(format!("did you mean `{nearest}`?")),
        None => failure.hint(format!("one of {}", known.join(", "))),
    }
}

fn links(name: &str) -> Result<Links, Failure> {
    if let Some(links) = Links::named(name) {
        return Ok(links);
    }
    let example = "up_mbit = 10, down_mbit = 50, latency_ms = 20, loss = 0.01, a line each";
    if !Path::new(name).exists() {
        return Err(Failure::new(ExitCode::Settings, format!("there are no links `{name}`"))
            .hint(format!("lan, home or world, or a file with {example}")));
    }
    let hinted = |failure: Failure| failure.hint(format!("a file of links holds {example}"));
    let text = std::fs::read_to_string(name)
        .map_err(|error| hinted(Failure::new(ExitCode::Files, format!("cannot read {name}: {error}"))))?;
    let file: LinksFile = parse(Path::new(name), &text, "murmur compare --help").map_err(hinted)?;
    let ranges = [
        ("up_mbit", file.up_mbit, 0.01, 1e6),
        ("down_mbit", file.down_mbit, 0.01, 1e6),
        ("latency_ms", file.latency_ms, 0.001, 60_000.0),
        ("loss", file.loss, 0.0, 0.5),
    ];
    for (key, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            let range = format!("{least} to {most}");
            return Err(out_of_range(Path::new(name), &text, key, &value.to_string(), &range));
        }
    }
    let stem = Path::new(name).file_stem().map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok(Links {
        name: stem,
        latency: LatencySpec { median: Duration::from_secs_f64(file.latency_ms / 1000.0), spread: 0.3 },
        up_bytes_per_second: file.up_mbit * 1e6 / 8.0,
        down_bytes_per_second: file.down_mbit * 1e6 / 8.0,
        loss: file.loss,
    })
}

fn trainer(options: &CompareOptions) -> Result<TransformerSpec, Failure> {
    let (model, optimizer) = match &options.file {
        None => (small_model().into(), OptimizerSpec { batch_sequences: BATCH_SEQUENCES, ..OptimizerSpec::muon() }),
        Some(file) => {
            let RunManifest { model, optimizer, base, lora, .. } =
                load_run_manifest(file).map_err(|failure| match failure.remedy() {
                    "" => failure.hint("`murmur init` writes an annotated run file to begin with"),
                    _ => failure,
                })?;
            if base != BaseSpec::default() || lora.is_on() {
                let message =
                    format!("{} fine-tunes a base, and simulated nodes train from the beginning", file.display());
                return Err(Failure::new(ExitCode::Settings, message)
                    .hint("of a run file compare reads [model] and [optimizer]; leave [base] and [lora] out"));
            }
            (model, optimizer)
        }
    };
    let ModelSpec::Transformer(model) = model else {
        return Err(Failure::new(ExitCode::Settings, "only transformers on text can be compared")
            .hint("model.kind = \"transformer\" in the run file"));
    };
    let parameters = transformer_layout(&model).parameters();
    if parameters > PARAMETERS_MAX {
        let message = format!("a model of {parameters} parameters is too large to be trained on every simulated node");
        return Err(Failure::new(ExitCode::Settings, message).hint(format!("at most {PARAMETERS_MAX} parameters")));
    }
    let text = match &options.data {
        None => Text::Grammar,
        Some(path) => {
            let mut path = path.clone();
            remote::bring_paths([&mut path], None, None)?;
            Text::read(&path).map_err(|error| {
                Failure::new(ExitCode::Files, error.to_string()).hint("--data takes one file of plain text")
            })?
        }
    };
    let total_steps = options.steps;
    Ok(TransformerSpec {
        model,
        optimizer,
        schedule: ScheduleSpec {
            total_steps,
            warmup_steps: total_steps / 10,
            final_fraction: 0.1,
            ..ScheduleSpec::default()
        },
        text,
        validation_sequences: VALIDATION_SEQUENCES,
        ..TransformerSpec::default()
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_run_file_with_adapters_or_a_base_is_refused_with_what_is_read_of_one() {
        let runs = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/runs");
        let plan = |file: &str| {
            let Command::Compare(options) = Cli::parse_from(["murmur", "compare", file]).command else { panic!() };
            plan(&options)
        };
        let refused = plan(&format!("{runs}/lora.toml")).expect_err("adapters");
        assert!(refused.to_string().contains("lora.toml fine-tunes a base"), "{refused}");
        assert!(refused.remedy().contains("compare reads [model] and [optimizer]"), "{}", refused.remedy());
        assert!(plan(&format!("{runs}/stories.toml")).is_ok());
    }

    /// Else the simulation would be all that there is, and nobody would be told.
    #[test]
    fn real_daemons_that_would_have_nothing_to_train_are_refused_before_any_work() {
        let plan = |methods: &str| {
            let words = ["murmur", "compare", "--real", "--methods", methods];
            let Command::Compare(options) = Cli::parse_from(words).command else { panic!() };
            plan(&options)
        };
        for methods in ["alone", "noloco,alone", "ps-async"] {
            let refused = plan(methods).expect_err(methods);
            assert_eq!(refused.code(), ExitCode::CommandLine, "{methods}");
            let (message, hint) = (refused.to_string(), refused.remedy());
            assert!(message.contains("--real has nothing to train"), "{message}");
            assert!(hint.contains("gossip, ") && hint.contains("ring, ") && !hint.contains("alone"), "{hint}");
        }
        assert!(plan("noloco,ring,alone").is_ok() && plan("gossip").is_ok());
    }

    #[test]
    fn a_text_that_is_too_short_is_a_fault_of_the_file() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for text in ["", "short"] {
            let file = folder.path().join("text.txt");
            std::fs::write(&file, text).expect("written");
            let words = ["murmur", "compare", "--data", file.to_str().expect("UTF-8")];
            let Command::Compare(options) = Cli::parse_from(words).command else { panic!() };
            assert_eq!(super::plan(&options).expect_err("too short").code(), ExitCode::Files);
        }
    }
}

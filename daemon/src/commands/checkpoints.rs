//! `murmur sample` and `murmur eval`: uses of a checkpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;
use murmur_training::generate::Sampling;
use murmur_training::{Corpus, DeviceChoice, LanguageModel};
use serde_json::json;

use crate::cli::{EvalOptions, SampleOptions};
use crate::console::{Console, print_line};
use crate::daemon::open_corpus;
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;
use crate::sharing::held_out_corpus;
use crate::store::{Checkpoint, DataDirectory, load_latest};

pub(super) fn sample(options: &SampleOptions) -> anyhow::Result<()> {
    let checkpoint = newest(options.checkpoint.as_deref())?;
    let model = language_model(&checkpoint)?;
    eprintln!("{} · step {}", checkpoint.manifest.run.name, checkpoint.state.counters.steps);
    let mut output = std::io::stdout().lock();
    output.write_all(options.prompt.as_bytes())?;
    let sampling = Sampling { temperature: options.temperature, seed: options.seed };
    let bytes = usize::try_from(options.bytes)?;
    for byte in model.generate(options.prompt.as_bytes(), &sampling).take(bytes) {
        output.write_all(&[byte?])?;
        output.flush()?;
    }
    output.write_all(b"\n")?;
    Ok(())
}

pub(super) fn evaluate(options: &EvalOptions) -> anyhow::Result<()> {
    let checkpoint = newest(options.checkpoint.as_deref())?;
    let manifest = &checkpoint.manifest;
    let mut settings = NodeSettings::default();
    settings.data.files.clone_from(&options.data);
    settings.data.tokenizer = options.tokenizer.clone().unwrap_or_default();
    let root = data_directory(options.checkpoint.as_deref());
    let corpus: Corpus = match &root {
        Some(root) if manifest.data.share && options.data.is_empty() => held_out_corpus(manifest, root)?,
        _ => open_corpus(manifest, &settings, root.map(|root| root.join("prepared")))?,
    };
    let (loss, accuracy) = if manifest.model.kind.reads_images() {
        let batches = corpus.validation_batches(manifest);
        let evaluation = murmur_training::model::evaluate(&manifest.model, &checkpoint.state.parameters, &batches)?;
        (evaluation.loss(), Some(evaluation.accuracy()))
    } else {
        let batch = manifest.optimizer.batch_sequences as usize;
        (language_model(&checkpoint)?.evaluate(&corpus.validation(manifest), batch)?, None)
    };
    let floor = corpus.entropy_rate();
    let steps = checkpoint.state.counters.steps;
    if options.format == Console::Json {
        let result =
            json!({ "steps": steps, "loss": loss, "perplexity": loss.exp(), "accuracy": accuracy, "floor": floor });
        print_line(&result.to_string());
        return Ok(());
    }
    let each = manifest.prediction();
    print_line(&format!("steps        {steps}"));
    print_line(&format!("loss         {loss:.4} nats/{each} ({:.4} bits/{each})", loss / std::f64::consts::LN_2));
    print_line(&format!("perplexity   {:.3} per {each}", loss.exp()));
    if let Some(accuracy) = accuracy {
        print_line(&format!("accuracy     {:.2} % of held-out images", 100.0 * accuracy));
    }
    if let Some(floor) = floor {
        print_line(&format!("floor        {floor:.4} nats/byte, the entropy rate of the built-in stories"));
    }
    Ok(())
}

/// The data directory that a path is, or that the checkpoint there lies in.
fn data_directory(path: Option<&Path>) -> Option<PathBuf> {
    path?.ancestors().take(3).find(|folder| folder.join("run.toml").exists()).map(Path::to_owned)
}

/// The newest intact checkpoint of a data directory, or the one at the path itself.
fn newest(path: Option<&Path>) -> Result<Checkpoint, Failure> {
    let path = path.map_or_else(|| DataDirectory::default_path(&RunManifest::default().run.name), Path::to_owned);
    find(&path)
}

/// The model of a checkpoint that writes text.
fn language_model(checkpoint: &Checkpoint) -> anyhow::Result<LanguageModel> {
    if checkpoint.manifest.model.kind.reads_images() {
        let failure = Failure::new(ExitCode::Settings, "this checkpoint's model classifies images: it writes no text");
        return Err(failure.hint("`murmur eval` says how well it does").into());
    }
    let (device, _) = DeviceChoice::Auto.open()?;
    Ok(LanguageModel::from_parameters(&checkpoint.manifest.model, &checkpoint.state.parameters, &device)?)
}

fn find(path: &Path) -> Result<Checkpoint, Failure> {
    if path.join("checkpoint.json").exists() {
        return Checkpoint::read(path).map_err(|error| {
            Failure::new(ExitCode::Files, format!("checkpoint refused: {error}"))
                .hint("give the data directory instead: the newest intact checkpoint in it is used")
        });
    }
    let folder: PathBuf = if path.join("checkpoints").is_dir() { path.join("checkpoints") } else { path.to_owned() };
    let (checkpoint, refused) = load_latest(&folder);
    for refused in &refused {
        eprintln!("warning: checkpoint refused: {}", refused.error);
    }
    checkpoint.ok_or_else(|| {
        Failure::new(ExitCode::Files, format!("no usable checkpoint in {}", path.display()))
            .hint("give a daemon's data directory; `murmur start` and `murmur local` print theirs")
    })
}

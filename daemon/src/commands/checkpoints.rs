//! `murmur sample`, `murmur eval` and `murmur export`: uses of a checkpoint.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, TransformerModel};
use murmur_training::generate::Sampling;
use murmur_training::model::trained_layout;
use murmur_training::pretrained::{self, AdapterBase, ExportType};
use murmur_training::{Corpus, LanguageModel, PretrainedConfig, PretrainedError, Tokenizer};
use serde_json::json;

use super::chosen::checkpoint_path;
use super::client::start_line;
use crate::cli::{EvalOptions, ExportOptions, SampleOptions, WeightType};
use crate::console::figures::{count, counted};
use crate::console::output::StandardOutput;
use crate::console::{Console, ModelText, note, print_line, screen};
use crate::failure::{ExitCode, Failure, to_write};
use crate::limits::memory_check;
use crate::remote;
use crate::settings::{NodeSettings, TrainingSettings};
use crate::setup::base_model::{self, pretrained_failure};
use crate::setup::corpus::{corpus_failure, open_corpus};
use crate::setup::devices::Devices;
use crate::setup::sharing::held_out_corpus;
use crate::store::{Checkpoint, has_set_aside, load_latest, newest_checkpoint};

/// Which model it is, in a line.
fn of_run(checkpoint: &Checkpoint) -> String {
    format!("{} · own step {}", checkpoint.manifest.run.name, count(checkpoint.state.counters.steps))
}

pub(super) fn sample(options: &mut SampleOptions) -> anyhow::Result<()> {
    remote::bring_paths([], options.base.as_mut(), options.tokenizer.as_mut())?;
    let path = checkpoint_path(options.checkpoint.as_deref())?;
    let (checkpoint, model) = load(&path, options.base.as_deref(), &options.device)?;
    let tokenizer = tokenizer(&checkpoint.manifest, options)?;
    let prompt = match &tokenizer {
        None => options.prompt.bytes().map(u32::from).collect(),
        // Every text begins after a line's end, as it does without a tokenizer.
        Some(tokenizer) if options.prompt.is_empty() => encode(tokenizer, "\n", &checkpoint.manifest)?,
        Some(tokenizer) => encode(tokenizer, &options.prompt, &checkpoint.manifest)?,
    };
    let mut decode = tokenizer.as_ref().map(Tokenizer::decoding);
    note(&of_run(&checkpoint));
    let columns = screen::Size::now().columns;
    let mut output = ModelText::new(StandardOutput, std::io::stdout().is_terminal()).folded(columns);
    output.write(options.prompt.as_bytes())?;
    if let Some(decode) = &mut decode {
        // Spaces and parts of characters depend on what stands in front.
        prompt.iter().try_for_each(|token| decode(*token).map(drop))?;
    }
    let sampling = Sampling { temperature: options.temperature, top_p: options.top_p, seed: options.seed };
    for token in model.generate(&prompt, &sampling)?.take(usize::try_from(options.tokens)?) {
        match &mut decode {
            None => output.write(&[u8::try_from(token?)?])?,
            Some(decode) => output.write(decode(token?)?.as_bytes())?,
        }
    }
    output.finish()?;
    Ok(())
}

/// What a run's tokens are as text; `None` where they are bytes.
fn tokenizer(manifest: &RunManifest, options: &SampleOptions) -> Result<Option<Tokenizer>, Failure> {
    let vocabulary = manifest.model.vocabulary();
    match run_tokenizer(manifest, options.tokenizer.as_deref(), options.base.as_deref())? {
        None if !manifest.data.tokenizer.is_empty() => {
            let failure = Failure::new(ExitCode::Settings, "this run reads its text with a tokenizer");
            Err(failure.hint("give it with --tokenizer FILE: the tokenizer.json that its nodes have"))
        }
        None if vocabulary > base_model::BYTES => {
            let message = format!("this model's {vocabulary} tokens are not bytes, and its run names no tokenizer");
            Err(Failure::new(ExitCode::Settings, message)
                .hint("`murmur export` it, and sample with the transformers library"))
        }
        found => Ok(found),
    }
}

/// The run's tokenizer: the file that is given, else the one beside the base. `None` where there is neither, or the run reads bytes.
fn run_tokenizer(
    manifest: &RunManifest,
    given: Option<&Path>,
    base: Option<&Path>,
) -> Result<Option<Tokenizer>, Failure> {
    let (digest, vocabulary) = (&manifest.data.tokenizer, manifest.model.vocabulary());
    if digest.is_empty() {
        let unused = Failure::new(ExitCode::Settings, "this run reads bytes, so it has no tokenizer");
        return given.map_or(Ok(None), |_| Err(unused.hint("leave --tokenizer out")));
    }
    let Some(path) = given.map(Path::to_owned).or_else(|| base.and_then(base_model::tokenizer_in)) else {
        return Ok(None);
    };
    Tokenizer::of_run(&path, digest, vocabulary as usize).map(Some).map_err(|error| corpus_failure(&error))
}

fn encode(tokenizer: &Tokenizer, prompt: &str, manifest: &RunManifest) -> Result<Vec<u32>, Failure> {
    let tokens = tokenizer.encode_prompt(prompt, manifest).map_err(|error| corpus_failure(&error))?;
    if tokens.is_empty() {
        let failure =
            Failure::new(ExitCode::Settings, format!("the tokenizer makes no token of the prompt {prompt:?}"));
        return Err(failure.hint("give some text with --prompt"));
    }
    Ok(tokens)
}

pub(super) fn evaluate(options: &mut EvalOptions) -> anyhow::Result<()> {
    remote::bring_paths(&mut options.data, options.base.as_mut(), options.tokenizer.as_mut())?;
    let path = checkpoint_path(options.checkpoint.as_deref())?;
    let checkpoint = find(&path)?;
    let manifest = &checkpoint.manifest;
    let gives_tokenizer = options.tokenizer.is_none() && !manifest.data.tokenizer.is_empty();
    if let Some(base) = options.base.as_deref().filter(|_| !manifest.lora.is_on() && !gives_tokenizer) {
        note(&format!("warning: the checkpoint has the whole model: the base {} is not needed", base.display()));
    }
    let mut settings = NodeSettings::default();
    settings.data.files.clone_from(&options.data);
    settings.data.tokenizer = options.tokenizer.clone().unwrap_or_default();
    settings.model.base = options.base.clone().unwrap_or_default();
    base_model::take_tokenizer(&mut settings, manifest)?;
    let root = data_directory(&path);
    let corpus: Corpus = match &root {
        Some(root) if manifest.data.share && options.data.is_empty() => held_out_corpus(manifest, root)?,
        _ => open_corpus(manifest, &settings, root.map(|root| root.join("prepared")))?,
    };
    let parameters = base_model::whole_model(&checkpoint, options.base.as_deref())?;
    let batches = || corpus.validation_batches(manifest);
    let evaluation = murmur_training::model::evaluate(&manifest.model, &parameters, batches())?;
    let (loss, accuracy) = (evaluation.loss(), evaluation.accuracy());
    let scores = match manifest.data.source {
        DataSource::Table => murmur_training::model::scores::of_batches(manifest, &parameters, batches())?,
        _ => None,
    };
    let floor = corpus.entropy_rate();
    let steps = checkpoint.state.counters.steps;
    if options.format == Console::Json {
        let of_classes = |value: f64| (manifest.model.reads_text() || manifest.classifies()).then_some(value);
        let result = json!({
            "steps": steps,
            "loss": loss,
            "perplexity": of_classes(loss.exp()),
            "accuracy": of_classes(accuracy),
            "predictions": evaluation.predictions,
            "floor": floor,
            "scores": scores,
        });
        print_line(&result.to_string());
        return Ok(());
    }
    let each = manifest.prediction();
    print_line(&format!("own steps    {}", count(steps)));
    print_line(&format!("loss         {loss:.4} nats/{each} ({:.4} bits/{each})", loss / std::f64::consts::LN_2));
    if let Some(scores) = scores {
        print_line(&format!("scores       {scores} of {}", counted(scores.rows as u64, "row")));
        return Ok(());
    }
    print_line(&format!("perplexity   {:.3} per {each}", loss.exp()));
    print_line(&format!("accuracy     {:.2} % of {} {each}s", 100.0 * accuracy, count(evaluation.predictions as u64)));
    if let Some(floor) = floor {
        print_line(&format!("floor        {floor:.4} nats/byte, the entropy rate of the built-in stories"));
    }
    Ok(())
}

pub(super) fn export(options: &mut ExportOptions) -> anyhow::Result<()> {
    let named_base = options.base.clone();
    remote::bring_paths([], options.base.as_mut(), options.tokenizer.as_mut())?;
    let checkpoint = find(&checkpoint_path(options.checkpoint.as_deref())?)?;
    let tensors = "; its tensors are in checkpoints/*/model.safetensors, for any tool";
    let model = text_model(&checkpoint.manifest, "the Hugging Face library has no such model", tensors)?;
    let export_type = match options.dtype {
        WeightType::F32 => ExportType::F32,
        WeightType::F16 => ExportType::F16,
        WeightType::Bf16 => ExportType::Bf16,
    };
    let manifest = &checkpoint.manifest;
    let tokenizer = run_tokenizer(manifest, options.tokenizer.as_deref(), options.base.as_deref())?;
    let given = options.tokenizer.as_deref().map(content_of).transpose()?;
    if options.adapters {
        let base = adapter_base(manifest, named_base.as_deref(), options.base.as_deref());
        export_adapters(&checkpoint, export_type, base.as_ref(), options)?;
    } else {
        export_whole(&checkpoint, model, export_type, tokenizer.as_ref(), options)?;
    }
    let beside = options.to.join("tokenizer.json");
    if let Some(content) = given {
        std::fs::write(&beside, content).map_err(|error| {
            let message = format!("cannot write {}: {error}", beside.display());
            Failure::new(ExitCode::Files, message).hint(to_write(&error))
        })?;
    } else if !options.adapters && !manifest.data.tokenizer.is_empty() && !reads_with(manifest, &beside) {
        note("warning: this run reads its text with a tokenizer, and none is beside the model");
        note("hint: copy the run's tokenizer.json there, or export again with --tokenizer FILE");
    }
    note(&of_run(&checkpoint));
    print_line(&options.to.display().to_string());
    Ok(())
}

/// Whether this file is the tokenizer that the run reads with.
fn reads_with(manifest: &RunManifest, path: &Path) -> bool {
    run_tokenizer(manifest, Some(path), None).is_ok_and(|tokenizer| tokenizer.is_some())
}

/// The content of the tokenizer that is to be written beside the model.
fn content_of(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot read {}: {error}", path.display()))
            .hint("give the run's own file")
    })
}

/// Where PEFT finds the base: on the hub, where the command line or the run names it there, else in the folder on this machine.
fn adapter_base(manifest: &RunManifest, named: Option<&Path>, folder: Option<&Path>) -> Option<AdapterBase> {
    let named = named.and_then(Path::to_str).into_iter().chain([manifest.base.remote.as_str()]);
    if let Some((name, revision)) = named.filter_map(remote::hub_model).next() {
        return Some(AdapterBase { name, revision });
    }
    // PEFT looks for the base from wherever it runs.
    let folder = folder.map(|folder| std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()))?;
    let name = folder.display().to_string();
    note(&format!("warning: the adapters name their base by a folder of this machine: {name}"));
    note(
        "hint: elsewhere change base_model_name_or_path in adapter_config.json, or export with --base hf://OWNER/NAME",
    );
    Some(AdapterBase { name, revision: None })
}

fn export_adapters(
    checkpoint: &Checkpoint,
    export_type: ExportType,
    base: Option<&AdapterBase>,
    options: &ExportOptions,
) -> Result<(), Failure> {
    let (manifest, adapters) = (&checkpoint.manifest, &checkpoint.state.parameters);
    if !manifest.lora.is_on() {
        let failure = Failure::new(ExitCode::Settings, "this run trains all weights: it has no adapters");
        return Err(failure.hint("leave --adapters out"));
    }
    let layout = trained_layout(manifest);
    pretrained::export_adapters(&manifest.lora, &layout, adapters, export_type, base, &options.to, options.force)
        .map_err(|error| export_failure(&error, None))
}

/// All weights, with adapters merged into their base.
fn export_whole(
    checkpoint: &Checkpoint,
    model: &TransformerModel,
    export_type: ExportType,
    tokenizer: Option<&Tokenizer>,
    options: &ExportOptions,
) -> Result<(), Failure> {
    let base = options.base.as_deref();
    let own = PretrainedConfig::of(model);
    let config = match base {
        None => own,
        Some(folder) => {
            let config = PretrainedConfig::read(folder).map_err(|error| pretrained_failure(&error))?;
            if !config.computes_as(&own) {
                let message = format!("{} holds another architecture than the run's", folder.display());
                return Err(Failure::new(ExitCode::Files, message).hint("give the run's own base"));
            }
            config
        }
    };
    let parameters = base_model::whole_model(checkpoint, base)?;
    let companions = base.map(|base| companions(&checkpoint.manifest, tokenizer, base)).unwrap_or_default();
    pretrained::export(&config, &parameters, export_type, &companions, &options.to, options.force)
        .map_err(|error| export_failure(&error, base))
}

/// What comes along from the base: its tokenizer only where the run reads with it.
fn companions(manifest: &RunManifest, tokenizer: Option<&Tokenizer>, base: &Path) -> Vec<PathBuf> {
    let own = base_model::tokenizer_in(base);
    if own.is_some() && manifest.data.tokenizer.is_empty() {
        note("tokenizer   the run reads bytes: the tokenizer of its base does not come along");
    }
    let is_known = |own: &PathBuf| tokenizer.is_some_and(|tokenizer| tokenizer.path() == own);
    pretrained::companions(base, own.is_some_and(|own| is_known(&own) || reads_with(manifest, &own)))
}

/// A failure of writing: what the library advises is for reading.
fn export_failure(error: &PretrainedError, base: Option<&Path>) -> Failure {
    let failure = pretrained_failure(error);
    match error {
        PretrainedError::Io(path, error) if base.is_none_or(|base| !path.starts_with(base)) => {
            failure.hint(format!("{}, or choose another folder with --to", to_write(error)))
        }
        _ => failure,
    }
}

/// The data directory that a path is, or that the checkpoint there lies in.
fn data_directory(path: &Path) -> Option<PathBuf> {
    path.ancestors().take(3).find(|folder| folder.join("run.toml").exists()).map(Path::to_owned)
}

/// The model, where it is one of text; else refuses what only such models can do, with a hint to what this one can.
fn text_model<'a>(manifest: &'a RunManifest, refusal: &str, more: &str) -> Result<&'a TransformerModel, Failure> {
    if let Some(model) = manifest.model.transformer() {
        return Ok(model);
    }
    let message = format!("this checkpoint's model reads {}s: {refusal}", manifest.prediction());
    let hint = match manifest.data.source {
        DataSource::Table => "`murmur predict` predicts new rows with it",
        _ => "`murmur eval` says how well it does",
    };
    Err(Failure::new(ExitCode::Settings, message).hint(format!("{hint}{more}")))
}

/// The checkpoint with its whole model, ready to write text.
fn load(path: &Path, base: Option<&Path>, device: &str) -> anyhow::Result<(Checkpoint, LanguageModel)> {
    let checkpoint = find(path)?;
    let spec = text_model(&checkpoint.manifest, "it writes no text", "")?;
    let settings = TrainingSettings { device: device.to_owned(), ..TrainingSettings::default() };
    let opened = Devices::open(&settings)?.all.into_iter().next().expect("a device is open");
    let parameters = base_model::whole_model(&checkpoint, base)?;
    let ends = base.map(pretrained::end_tokens).transpose().map_err(|error| pretrained_failure(&error))?;
    let (model, why) = match device {
        "auto" => LanguageModel::where_it_fits(spec, &parameters, &opened)?,
        _ => (LanguageModel::from_parameters(spec, &parameters, &opened)?, None),
    };
    if let Some(why) = why {
        note(&format!("warning: the model does not fit the GPU ({why}): its text is written on the CPU"));
    }
    Ok((checkpoint, model.ending_at(ends.unwrap_or_default())))
}

/// The newest intact checkpoint of a data directory, or the one at the path itself.
pub(super) fn find(path: &Path) -> Result<Checkpoint, Failure> {
    if !path.is_dir() {
        let what = if path.exists() { "is no folder" } else { "does not exist" };
        return Err(Failure::new(ExitCode::Files, format!("{} {what}", path.display()))
            .hint("give a daemon's data directory, or the name of a run that `murmur list` shows"));
    }
    if path.join("checkpoint.json").exists() {
        memory_check::check_checkpoint(path)?;
        return Checkpoint::read(path).map_err(|error| {
            Failure::new(ExitCode::Files, format!("checkpoint refused: {error}"))
                .hint("give the data directory instead: the newest intact checkpoint in it is used")
        });
    }
    let folder: PathBuf = if path.join("checkpoints").is_dir() { path.join("checkpoints") } else { path.to_owned() };
    if let Some(newest) = newest_checkpoint(&folder) {
        memory_check::check_checkpoint(&newest)?;
    }
    let (checkpoint, refused) = load_latest(&folder);
    for refused in &refused {
        note(&format!("warning: checkpoint refused: {}", refused.error));
    }
    checkpoint.ok_or_else(|| {
        let shown = path.display();
        if let Some(remedy) = refused.iter().find_map(|refused| refused.error.remedy()) {
            return Failure::new(ExitCode::Files, format!("no checkpoint in {shown} can be used now")).hint(remedy);
        }
        if !refused.is_empty() || has_set_aside(&folder) {
            return Failure::new(ExitCode::Files, format!("all checkpoints in {shown} are damaged")).hint(format!(
                "`{}` copies the model from a member of its run; or restore them from a backup",
                start_line(path)
            ));
        }
        Failure::new(ExitCode::Files, format!("no usable checkpoint in {shown}"))
            .hint("give a daemon's data directory; `murmur start` and `murmur local` print theirs")
    })
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::MlpModel;

    use super::*;

    /// A tokenizer of these words.
    fn write_tokenizer(path: &Path, words: &[&str]) -> String {
        let words: Vec<String> = words.iter().zip(1..).map(|(word, id)| format!(", \"{word}\": {id}")).collect();
        let model =
            format!("{{\"type\": \"WordLevel\", \"vocab\": {{\"?\": 0{}}}, \"unk_token\": \"?\"}}", words.concat());
        std::fs::write(path, format!("{{\"version\": \"1.0\", \"model\": {model}}}")).expect("written");
        Tokenizer::open(path).expect("a tokenizer").digest().to_owned()
    }

    #[test]
    fn where_all_checkpoints_are_damaged_the_way_to_the_members_model_is_told() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let checkpoints = folder.path().join("checkpoints");
        std::fs::create_dir(&checkpoints).expect("made");
        let refused = || find(folder.path()).expect_err("none is usable");
        assert!(refused().to_string().starts_with("no usable checkpoint in "), "there is none");
        // As it lies there, and as a daemon that met it puts it aside.
        for name in ["step-000000000007", "refused-step-000000000007"] {
            let damaged = checkpoints.join(name);
            std::fs::create_dir(&damaged).expect("made");
            std::fs::write(damaged.join("checkpoint.json"), "{").expect("written");
            let failure = refused();
            assert!(failure.to_string().starts_with("all checkpoints in "), "{failure}");
            assert!(failure.remedy().contains("murmur start --data-dir "), "{}", failure.remedy());
            std::fs::remove_dir_all(damaged).expect("removed");
        }
    }

    #[test]
    fn only_the_runs_own_tokenizer_comes_along() {
        let base = tempfile::tempdir().expect("a temporary directory");
        let (base, other) = (base.path(), base.path().join("other.json"));
        let own = base.join("tokenizer.json");
        let digests = [write_tokenizer(&own, &["a"]), write_tokenizer(&other, &["b"])];
        std::fs::write(base.join("tokenizer_config.json"), "{}").expect("written");
        let mut manifest = RunManifest::default();
        let of = |manifest: &RunManifest, given: Option<&Path>| {
            let tokenizer = run_tokenizer(manifest, given, Some(base))?;
            Ok::<_, Failure>((companions(manifest, tokenizer.as_ref(), base).len(), tokenizer.is_some()))
        };
        assert_eq!(of(&manifest, None).expect("it reads bytes"), (0, false));
        assert_eq!(of(&manifest, Some(&own)).expect_err("bytes need none").code(), ExitCode::Settings);
        manifest.data.tokenizer.clone_from(&digests[0]);
        assert_eq!(of(&manifest, None).expect("the base's own"), (2, true));
        assert_eq!(of(&manifest, Some(&own)).expect("the same"), (2, true));
        manifest.data.tokenizer.clone_from(&digests[1]);
        assert_eq!(of(&manifest, Some(&other)).expect("the run's"), (0, true), "the base's is another");
        for given in [None, Some(&*own), Some(Path::new("/absent"))] {
            let failure = of(&manifest, given).expect_err("another, or none");
            assert_eq!(failure.code(), ExitCode::Files);
            assert!(given == Some(Path::new("/absent")) || failure.remedy().contains("--tokenizer FILE"), "{failure}");
        }
        assert!(reads_with(&manifest, &other) && !reads_with(&manifest, &own));
    }

    #[test]
    fn adapters_name_their_base_on_the_hub_where_it_is_known() {
        let mut manifest = RunManifest::default();
        let named = |manifest: &RunManifest, base: Option<&str>, folder: Option<&str>| {
            let found = adapter_base(manifest, base.map(Path::new), folder.map(Path::new));
            found.map(|base| (base.name, base.revision))
        };
        let on_hub = |name: &str, revision: Option<&str>| Some((name.to_owned(), revision.map(str::to_owned)));
        assert_eq!(named(&manifest, Some("hf://a/b"), Some("/cache")), on_hub("a/b", None));
        assert_eq!(named(&manifest, Some("hf://a/b@v1"), Some("/cache")), on_hub("a/b", Some("v1")));
        assert_eq!(named(&manifest, Some("/base"), Some("/base")), on_hub("/base", None));
        assert_eq!(named(&manifest, None, None), None);
        manifest.base.remote = "hf://c/d".to_owned();
        assert_eq!(named(&manifest, Some("/base"), Some("/base")), on_hub("c/d", None));
        assert_eq!(named(&manifest, None, None), on_hub("c/d", None));
    }

    #[test]
    fn what_only_models_of_text_can_do_is_refused_to_others_with_what_they_can() {
        let mut manifest = RunManifest::default();
        assert!(text_model(&manifest, "no", "").is_ok());
        manifest.model = MlpModel::default().into();
        for (source, hint) in [(DataSource::Table, "murmur predict"), (DataSource::Idx, "murmur eval")] {
            manifest.data.source = source;
            let failure = text_model(&manifest, "no", "; model.safetensors").expect_err("no text");
            assert_eq!(failure.code(), ExitCode::Settings);
            assert!(failure.remedy().contains(hint) && failure.remedy().ends_with("; model.safetensors"), "{failure}");
        }
    }
}

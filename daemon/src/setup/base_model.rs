//! The model that a run begins from: the founder's folder becomes part of the run, every other node's must hold the same.

use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{BaseSpec, DataSource};
use murmur_training::model::{lora, trained_layout};
use murmur_training::{BaseWeights, Pretrained, PretrainedBase, PretrainedConfig, PretrainedError};

use crate::console::{note, quoted};
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;
use crate::setup::arrangement::Fitted;
use crate::store::Checkpoint;

/// A higher learning rate for all weights of a base is warned of. Fine-tuning of models of these sizes is published with 0.00001 to
/// 0.001, the high ones for the smallest.
const FULL_RATE_MAX: f64 = 1e-3;

/// Different bytes: the vocabulary of a model without a tokenizer.
pub const BYTES: u32 = 256;

/// A folder that cannot be read, or not be written, with the remedy.
pub(crate) fn pretrained_failure(error: &PretrainedError) -> Failure {
    Failure::new(ExitCode::Files, error.to_string()).hint(error.remedy())
}

/// What was read and opened for a run's base before the daemon is prepared, so that nothing of it is done twice: a GPU takes
/// minutes to open, and memory that the base takes already is none that it lacks.
#[derive(Default)]
pub struct ReadBase {
    /// `None` where there is none, or other machines hold its layers.
    pub(crate) weights: Option<PretrainedBase>,
    /// `None` where nothing was opened.
    pub(crate) fitted: Option<Fitted>,
}

/// Fills a founder's base, where it has one, into its manifest: its architecture and its digest.
///
/// # Errors
/// When it cannot be read, is not the one that the run calls for, or was trained with a shorter context.
pub fn found(manifest: RunManifest, settings: &NodeSettings) -> Result<(RunManifest, ReadBase), Failure> {
    let mut manifest = described(manifest, settings)?;
    say_rate(&manifest, settings);
    let Some(folder) = settings.model.base() else {
        check_named(&manifest)?;
        return Ok((manifest, ReadBase::default()));
    };
    let fitted = fit(&manifest, settings)?;
    let (weights, digest) = if is_shared_out(&manifest, settings) {
        (None, PretrainedBase::digest_of(folder).map_err(|error| pretrained_failure(&error))?)
    } else {
        let base = read_base(&manifest, folder)?;
        let digest = base.digest.clone();
        (Some(base), digest)
    };
    if manifest.base.digest.is_empty() {
        manifest.base.digest = digest;
    } else {
        check_digest(&manifest, folder, &digest)?;
    }
    Ok((manifest, ReadBase { weights, fitted }))
}

/// Says to a founder which rate all weights of its base are trained at, since a rate for random weights destroys what they know.
fn say_rate(manifest: &RunManifest, settings: &NodeSettings) {
    let rate = manifest.optimizer.learning_rate;
    if settings.model.base().is_none() || manifest.lora.is_on() {
        return;
    }
    note(&format!("base        all its weights are trained, at a learning rate of {rate}"));
    if rate > FULL_RATE_MAX {
        note("warning: that rate is high: 0.00001 to 0.001 are usual for all weights of a base");
        note("hint: optimizer.learning_rate in the run file sets it; configs/runs/lora.toml trains adapters instead");
    }
}

/// The base that a joiner needs, where the run trains adapters: read before anything of the run is written. One that is given
/// without need is refused where a founder's would be.
///
/// # Errors
/// When it is missing, cannot be read or is not the run's.
pub fn joined(manifest: &RunManifest, settings: &NodeSettings) -> Result<ReadBase, Failure> {
    if !manifest.lora.is_on() {
        described(manifest.clone(), settings)?;
        return Ok(ReadBase::default());
    }
    let fitted = fit(manifest, settings)?;
    if is_shared_out(manifest, settings) {
        let folder = needed(manifest, settings.model.base())?;
        let digest = PretrainedBase::digest_of(folder).map_err(|error| pretrained_failure(&error))?;
        return check_digest(manifest, folder, &digest).map(|()| ReadBase { weights: None, fitted });
    }
    let weights = read_base_as_named(manifest, settings.model.base())?;
    Ok(ReadBase { weights: Some(weights), fitted })
}

/// The tokenizer.json in a base's folder, where it has one.
pub fn tokenizer_in(folder: &Path) -> Option<PathBuf> {
    Some(folder.join("tokenizer.json")).filter(|path| path.is_file())
}

/// Has the base's own tokenizer read the text, where the node was given a base and no tokenizer: in a run that it founds, and in
/// one that has a tokenizer. A founder whose text would be read as bytes by a model of more tokens, or with another tokenizer than
/// its base's own, is warned.
///
/// # Errors
/// When a founder would share text, which is read as bytes, with a base that has learned tokens.
pub fn take_tokenizer(settings: &mut NodeSettings, manifest: &RunManifest) -> Result<(), Failure> {
    let data = &manifest.data;
    let is_founding = manifest.run.founder.is_empty();
    if !manifest.model.reads_text() {
        return Ok(());
    }
    if is_founding {
        check_shared(settings, manifest)?;
        if let Some(warning) = of_another_tokenizer(settings) {
            note(&warning);
            note("hint: leave --tokenizer out to read the text with the base's own");
        }
    }
    if settings.data.tokenizer().is_some() {
        return Ok(());
    }
    let Some(folder) = settings.model.base() else {
        let vocabulary = manifest.model.vocabulary();
        if is_founding && data.tokenizer.is_empty() && vocabulary > BYTES {
            note(&format!(
                "warning: the text is read as bytes, and of the model's {vocabulary} tokens only {BYTES} are used"
            ));
            note(match data.share {
                true => "hint: shared data is read as bytes: set model.vocabulary = 256, or data.share = false",
                false => {
                    "hint: give the tokenizer.json of its text with --tokenizer FILE, or set model.vocabulary = 256"
                }
            });
        }
        return Ok(());
    };
    if !is_founding && data.tokenizer.is_empty() {
        return Ok(());
    }
    let takes_one = data.source != DataSource::Grammar && !data.share;
    if let Some(path) = tokenizer_in(folder).filter(|_| takes_one) {
        settings.data.tokenizer = path;
    } else if is_founding && data.tokenizer.is_empty() && has_more_tokens_than_bytes(folder) {
        note("warning: the text is read as bytes, which mean nothing to a base model that has learned tokens");
        note("hint: give the base's tokenizer.json with --tokenizer FILE, and texts with --data FILE");
    }
    Ok(())
}

fn check_shared(settings: &NodeSettings, manifest: &RunManifest) -> Result<(), Failure> {
    match settings.model.base() {
        Some(folder) if manifest.data.share && has_more_tokens_than_bytes(folder) => {
            let message = "shared data is read as bytes, which mean nothing to a base model that has learned tokens";
            Err(Failure::new(ExitCode::Settings, message)
                .hint("set data.share = false in the run file, and give each node its texts with --data FILE"))
        }
        _ => Ok(()),
    }
}

/// A warning where a tokenizer is given, and the base has another one of its own. What cannot be read is an error when it is opened.
fn of_another_tokenizer(settings: &NodeSettings) -> Option<String> {
    let (given, own) = (settings.data.tokenizer()?, tokenizer_in(settings.model.base()?)?);
    let [read, known] = [given, &own].map(|path| path.is_file().then(|| std::fs::read(path).ok()).flatten());
    let (given, own) = (given.display(), own.display());
    (read? != known?).then(|| format!("warning: the text is read with {given}, and the base has learned with {own}"))
}

/// What cannot be read is an error when it is opened.
fn has_more_tokens_than_bytes(folder: &Path) -> bool {
    PretrainedConfig::read(folder).is_ok_and(|config| config.spec.vocabulary > BYTES)
}

/// Whether no machine is to hold all of a frozen base: other machines hold the weights of their layers.
fn is_shared_out(manifest: &RunManifest, settings: &NodeSettings) -> bool {
    manifest.lora.is_on() && !settings.training.helpers.is_empty()
}

/// The manifest with the architecture of this node's base, where it has one, and as many fragments as the model's size wants;
/// the weights are not read.
///
/// # Errors
/// When it cannot be read, was trained with a shorter context, or the run's model is of another kind.
pub fn described(mut manifest: RunManifest, settings: &NodeSettings) -> Result<RunManifest, Failure> {
    let Some(folder) = settings.model.base() else { return Ok(sized(manifest)) };
    let Some(context) = manifest.model.transformer().map(|model| model.context) else {
        let message = "a base model is a transformer, and this run trains a model of another kind";
        return Err(Failure::new(ExitCode::Settings, message).hint("start it without --base"));
    };
    let config = PretrainedConfig::read(folder).map_err(|error| pretrained_failure(&error))?;
    let (longest, key) = (config.spec.context, config.context_key);
    if context > longest {
        let folder = folder.display();
        let message = format!("model.context = {context}, but the model in {folder} knows {longest} ({key})");
        return Err(Failure::new(ExitCode::Settings, message).hint(format!("at most {longest} tokens of context")));
    }
    manifest.model = config.model(context).into();
    Ok(sized(manifest))
}

fn sized(mut manifest: RunManifest) -> RunManifest {
    let parameters = trained_layout(&manifest).parameters();
    manifest.gossip = manifest.gossip.sized(parameters);
    manifest
}

/// The weights that a node begins from; `None` where it needs none, because the run has none or because all that it
/// trains comes from a checkpoint or from a peer.
///
/// # Errors
/// When the base is missing, cannot be read or is not the run's.
pub fn weights(
    manifest: &RunManifest,
    settings: &NodeSettings,
    read: Option<PretrainedBase>,
    has_model: bool,
) -> Result<Option<BaseWeights>, Failure> {
    check_named(manifest)?;
    if manifest.base.digest.is_empty() || (has_model && !manifest.lora.is_on()) {
        return Ok(None);
    }
    if let Some(base) = read {
        return Ok(Some(base.weights));
    }
    Ok(Some(read_base_as_named(manifest, settings.model.base())?.weights))
}

/// What this node's base is, in words, where it needs one: a founder's begins the run, and adapters need it everywhere.
///
/// # Errors
/// When it is missing, cannot be read or is not the run's.
pub fn inspected(manifest: &RunManifest, settings: &NodeSettings) -> Result<Option<String>, Failure> {
    let base = match (manifest.base.digest.is_empty(), settings.model.base()) {
        (true, None) => return check_named(manifest).map(|()| None),
        (true, Some(folder)) => read_base(manifest, folder)?,
        (false, _) if !manifest.lora.is_on() => return Ok(None),
        (false, folder) => read_base_as_named(manifest, folder)?,
    };
    Ok(Some(format!("{} parameters, digest {}", base.weights.len(), base.digest)))
}

/// All weights of the model that a checkpoint stands for: where it holds adapters, merged into the base in `folder`.
///
/// # Errors
/// When the base is needed and missing, cannot be read or is not the run's.
pub fn whole_model(checkpoint: &Checkpoint, folder: Option<&Path>) -> Result<Vec<f32>, Failure> {
    let (manifest, parameters) = (&checkpoint.manifest, &checkpoint.state.parameters);
    if !manifest.lora.is_on() {
        return Ok(parameters.clone());
    }
    let base = read_as_named(manifest, folder)?;
    let layout = murmur_training::model::layout(&manifest.model);
    Ok(lora::merge(&layout, &manifest.lora, &base.parameters, parameters))
}

/// Sizes first: a model that is too large is not read. `None` where it is known later whether it fits: once helpers are there.
fn fit(manifest: &RunManifest, settings: &NodeSettings) -> Result<Option<Fitted>, Failure> {
    let is_alone = settings.training.helpers.is_empty();
    is_alone.then(|| Fitted::find(manifest, &settings.training)).transpose()
}

fn check_named(manifest: &RunManifest) -> Result<(), Failure> {
    if !manifest.lora.is_on() || !manifest.base.digest.is_empty() {
        return Ok(());
    }
    let message = format!("lora.rank = {}: adapters need a base model, and this run names none", manifest.lora.rank);
    Err(Failure::new(ExitCode::Settings, message)
        .hint("give a model's folder with --base FOLDER; GUIDE.md lists those accepted"))
}

fn read_as_named(manifest: &RunManifest, folder: Option<&Path>) -> Result<Pretrained, Failure> {
    let folder = needed(manifest, folder)?;
    let base = Pretrained::read(folder).map_err(|error| pretrained_failure(&error))?;
    check_digest(manifest, folder, &base.digest())?;
    Ok(base)
}

fn read_base_as_named(manifest: &RunManifest, folder: Option<&Path>) -> Result<PretrainedBase, Failure> {
    let folder = needed(manifest, folder)?;
    let base = read_base(manifest, folder)?;
    check_digest(manifest, folder, &base.digest)?;
    Ok(base)
}

/// In the bits in which the run holds it; where all of it is trained, in 32.
fn read_base(manifest: &RunManifest, folder: &Path) -> Result<PretrainedBase, Failure> {
    let bits = if manifest.lora.is_on() { manifest.lora.base_bits } else { 32 };
    PretrainedBase::read(folder, bits).map_err(|error| pretrained_failure(&error))
}

fn needed<'a>(manifest: &RunManifest, folder: Option<&'a Path>) -> Result<&'a Path, Failure> {
    folder.ok_or_else(|| {
        let what = if manifest.lora.is_on() { "trains adapters on" } else { "begins from" };
        let message = format!("this run {what} a base model, and no folder of it is given");
        let BaseSpec { digest, remote } = &manifest.base;
        let place = if remote.is_empty() { "FOLDER".to_owned() } else { quoted(Path::new(remote)) };
        Failure::new(ExitCode::Files, message)
            .hint(format!("give it with --base {place}: the model whose digest is {digest}"))
    })
}

fn check_digest(manifest: &RunManifest, folder: &Path, found: &str) -> Result<(), Failure> {
    let expected = &manifest.base.digest;
    if expected.eq_ignore_ascii_case(found) {
        return Ok(());
    }
    let message = format!("{} holds another base model: expected digest {expected}, found {found}", folder.display());
    Err(Failure::new(ExitCode::Files, message).hint("every node of a run has the same base: ask its founder for it"))
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::MlpModel;

    use super::*;

    #[test]
    fn a_base_that_is_missing_is_asked_for_by_the_place_that_the_run_names() {
        let mut manifest = RunManifest::default();
        manifest.base.digest = "00".repeat(32);
        let hint = |manifest: &RunManifest| needed(manifest, None).expect_err("none is given").remedy().to_owned();
        assert!(hint(&manifest).starts_with("give it with --base FOLDER: the model"), "{}", hint(&manifest));
        manifest.base.remote = "hf://me/tiny".to_owned();
        assert!(hint(&manifest).starts_with("give it with --base hf://me/tiny: the model"), "{}", hint(&manifest));
    }

    #[test]
    fn a_base_is_refused_to_a_model_of_another_kind() {
        let manifest = RunManifest { model: MlpModel::default().into(), ..RunManifest::default() };
        let mut settings = NodeSettings::default();
        settings.model.base = "base".into();
        let failure = described(manifest, &settings).expect_err("no transformer");
        assert!(failure.to_string().starts_with("a base model is a transformer"), "{failure}");
        assert!(failure.remedy().contains("--base"), "{failure}");
    }

    #[test]
    fn a_joiners_base_that_is_not_there_is_refused_as_a_founders_where_the_run_needs_none() {
        let mut settings = NodeSettings::default();
        assert!(joined(&RunManifest::default(), &settings).is_ok(), "none is given");
        settings.model.base = "/nonexist".into();
        let refused = |result: Result<(), Failure>| result.expect_err("it is not there").to_string();
        let founder = refused(found(RunManifest::default(), &settings).map(drop));
        assert_eq!(refused(joined(&RunManifest::default(), &settings).map(drop)), founder);
        assert!(founder.contains("/nonexist"), "{founder}");
    }
    #[test]
    fn a_bases_own_tokenizer_reads_the_text_of_a_run_that_is_founded_or_has_one() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut founded = RunManifest::default();
        founded.data.source = DataSource::Files;
        let taken = |manifest: &RunManifest, given: &str| {
            let mut settings = NodeSettings::default();
            (settings.model.base, settings.data.tokenizer) = (folder.path().to_owned(), given.into());
            take_tokenizer(&mut settings, manifest).expect("it can be read");
            settings.data.tokenizer
        };
        assert_eq!(taken(&founded, ""), Path::new(""), "the folder has none");
        let own = folder.path().join("tokenizer.json");
        std::fs::write(&own, "{}").expect("written");
        assert_eq!(taken(&founded, ""), own);
        assert_eq!(taken(&founded, "/other"), Path::new("/other"));
        assert_eq!(taken(&RunManifest::default(), ""), Path::new(""), "the built-in stories are bytes");
        let mut joined = founded.clone();
        joined.run.founder = "somebody".to_owned();
        assert_eq!(taken(&joined, ""), Path::new(""), "its text is bytes");
        joined.data.tokenizer = "0".repeat(64);
        assert_eq!(taken(&joined, ""), own);
        joined.data.share = true;
        assert_eq!(taken(&joined, ""), Path::new(""), "its text comes from others");
    }

    /// A folder with the configuration of a base of so many tokens.
    fn base_of(vocabulary: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let config = format!(
            "{{\"model_type\": \"llama\", \"hidden_size\": 16, \"num_attention_heads\": 2, \"num_hidden_layers\": 1, \
             \"intermediate_size\": 24, \"max_position_embeddings\": 64, \"vocab_size\": {vocabulary}}}"
        );
        std::fs::write(folder.path().join("config.json"), config).expect("written");
        assert!(PretrainedConfig::read(folder.path()).is_ok());
        folder
    }

    #[test]
    fn shared_text_is_refused_to_a_founder_whose_base_has_learned_tokens() {
        let taken = |vocabulary: u32, given: &str, change: fn(&mut RunManifest)| {
            let (folder, mut manifest) = (base_of(vocabulary), RunManifest::default());
            (manifest.data.source, manifest.data.share) = (DataSource::Files, true);
            change(&mut manifest);
            let mut settings = NodeSettings::default();
            (settings.model.base, settings.data.tokenizer) = (folder.path().to_owned(), given.into());
            take_tokenizer(&mut settings, &manifest)
        };
        for given in ["", "/tokenizer.json"] {
            let failure = taken(1000, given, |_| ()).expect_err("bytes");
            assert_eq!(failure.code(), ExitCode::Settings);
            assert!(failure.to_string().starts_with("shared data is read as bytes"), "{failure}");
            assert!(failure.remedy().contains("data.share = false"), "{}", failure.remedy());
        }
        assert!(taken(BYTES, "", |_| ()).is_ok(), "its tokens are bytes");
        assert!(taken(1000, "", |manifest| manifest.data.share = false).is_ok());
        assert!(taken(1000, "", |manifest| manifest.run.founder = "somebody".to_owned()).is_ok(), "it is founded");
    }

    #[test]
    fn another_tokenizer_than_the_bases_own_is_warned_of() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let [own, copy, other] = ["tokenizer.json", "copy", "other"].map(|name| folder.path().join(name));
        for (path, content) in [(&own, "{}"), (&copy, "{}"), (&other, "{} ")] {
            std::fs::write(path, content).expect("written");
        }
        let warned = |base: &Path, given: &Path| {
            let mut settings = NodeSettings::default();
            (settings.model.base, settings.data.tokenizer) = (base.to_owned(), given.to_owned());
            of_another_tokenizer(&settings)
        };
        assert_eq!(warned(folder.path(), &copy), None);
        assert_eq!(warned(folder.path(), Path::new("")), None, "none is given");
        assert_eq!(warned(Path::new(""), &other), None, "there is no base");
        assert_eq!(warned(Path::new("/absent"), &other), None, "the base has none");
        let told = warned(folder.path(), &other).expect("another");
        assert!(told.contains(&own.display().to_string()) && told.contains(&other.display().to_string()), "{told}");
    }
}

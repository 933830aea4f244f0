//! The data of a run from this machine's files, and what is wrong with them in words.

use std::path::PathBuf;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, OptimizerSpec, TransformerModel};
use murmur_training::folders::{self, Listing};
use murmur_training::{Corpus, CorpusError, PretrainedConfig};

use crate::console::note;
use crate::failure::{ExitCode, Failure};
use crate::named;
use crate::settings::NodeSettings;
use crate::setup::data_kind::DataKind;

/// What a run on texts of one's own is called.
const OWN_TEXTS: &str = "own-texts";

/// The learning rate for all weights of a base where no run file sets one: in the middle of what is usual, 0.00001 to 0.001. A guess;
/// that of random weights, 0.004, destroys what a base knows.
const BASE_RATE: f64 = 1e-4;

/// Of files that are warned of, so many are named.
const NAMED_MAX: usize = 3;

/// Opens the run's corpus from this machine's files; prepared data goes to `cache` unless the settings say otherwise.
///
/// # Errors
/// When files are missing, unwanted, damaged or not those of the run.
pub(crate) fn open_corpus(
    manifest: &RunManifest,
    settings: &NodeSettings,
    cache: Option<PathBuf>,
) -> Result<Corpus, Failure> {
    warn_of_left_out(manifest, &settings.data.files);
    let place = settings.data.place(cache);
    if let Some(token) = place.unknown_token(manifest) {
        note(&format!("warning: the run's tokenizer has no token {token:?}: it is read as ordinary text"));
        note("hint: data.prefix and data.separator in the run file name tokens of the tokenizer.json");
    }
    Corpus::open(manifest, &place).map_err(|error| corpus_failure(&error))
}

/// The run that is founded without a run file: on the built-in stories, or on texts of one's own; from a base, where one is given, with
/// no longer a context than the base knows, once that is on this machine.
pub(crate) fn built_in_run(settings: &NodeSettings) -> RunManifest {
    let mut manifest = RunManifest::built_in();
    if let Some(folder) = settings.model.base() {
        // What cannot be read is an error when it is opened.
        if let (Some(model), Ok(base)) = (manifest.model.transformer().cloned(), PretrainedConfig::read(folder)) {
            let context = model.context.min(base.spec.context);
            manifest.model = TransformerModel { context, ..model }.into();
        }
        // Weights that AdamW has trained go on with it.
        manifest.optimizer = OptimizerSpec { learning_rate: BASE_RATE, ..OptimizerSpec::default() };
    }
    if !settings.data.files.is_empty() {
        manifest.run.name = OWN_TEXTS.to_owned();
        manifest.data.source = DataSource::Files;
    }
    manifest
}

/// Says what of the data folders is not trained on, and what should perhaps not be. A file that is named and looks like no text is no
/// mistake for sure, since a model of bytes learns any: a text in UTF-16 looks so, too. What cannot be listed is an error when it is
/// opened.
pub(crate) fn warn_of_left_out(manifest: &RunManifest, paths: &[PathBuf]) {
    let Ok(Listing { files, left_out, mut doubtful }) = folders::list(manifest.data.source, paths) else { return };
    if manifest.data.source == DataSource::Files {
        warn_of_syntax(&files);
        doubtful.retain(|doubtful| DataKind::of(&doubtful.path).is_none());
    }
    if manifest.data.tokenizer.is_empty() && !doubtful.is_empty() {
        let doubtful = named::shown(&folders::described(&doubtful));
        note(&format!("warning: trained on as it is, though it looks like no text: {doubtful}"));
        note("hint: leave it out, or give the text that it was made from");
    }
    if !left_out.is_empty() {
        let (count, all) = (left_out.len(), left_out.len() + files.len());
        let (are, left_out) = (if count == 1 { "is" } else { "are" }, named::shown(&folders::described(&left_out)));
        note(&format!("warning: {count} of {all} entries of the data folders {are} not trained on: {left_out}"));
    }
}

/// Says of which files the syntax is trained on, and how the texts in them are read instead.
fn warn_of_syntax(files: &[PathBuf]) {
    let kinds: Vec<(DataKind, String)> = files
        .iter()
        .filter_map(|path| Some((DataKind::of(path)?, named::shown(&path.display().to_string()))))
        .collect();
    for kind in DataKind::ALL {
        let names: Vec<&str> = kinds.iter().filter(|(its, _)| *its == kind).map(|(_, name)| name.as_str()).collect();
        if names.is_empty() {
            continue;
        }
        let more = match names.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = names[..names.len().min(NAMED_MAX)].join(", ");
        note(&format!("warning: trained on as it is, though it looks like {}: {named}{more}", kind.name()));
        note(&format!("hint: {}", kind.remedy()));
    }
}

/// Refuses the same statistics twice, under whatever names: a member's rows would count twice. What cannot be read is an error when
/// it is opened.
pub(crate) fn check_statistics(paths: &[PathBuf]) -> Result<(), Failure> {
    let mut known: Vec<(&PathBuf, Vec<u8>)> = Vec::new();
    for path in paths.iter().filter(|path| path.is_file()) {
        let Ok(content) = std::fs::read(path) else { continue };
        if let Some((first, _)) = known.iter().find(|(_, known)| *known == content) {
            let (first, path) = (first.display(), path.display());
            let message = match first.to_string() == path.to_string() {
                true => format!("{path} is given twice: its rows would count twice"),
                false => format!("{first} and {path} are the same statistics: their rows would count twice"),
            };
            return Err(Failure::new(ExitCode::Files, message).hint("give each member's statistics once"));
        }
        known.push((path, content));
    }
    Ok(())
}

/// What is wrong with the data, with its remedy.
pub(crate) fn corpus_failure(error: &CorpusError) -> Failure {
    let code = match error {
        CorpusError::FilesUnused | CorpusError::TokenizerUnused(_) | CorpusError::NoTokenizer(_) => ExitCode::Settings,
        _ => ExitCode::Files,
    };
    Failure::new(code, error.to_string()).hint(error.remedy())
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::OptimizerKind;

    use super::*;

    #[test]
    fn the_same_statistics_are_taken_once() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let [one, copy, other] = ["one", "copy", "other"].map(|name| folder.path().join(name));
        for (path, content) in [(&one, "{\"rows\": 1}"), (&copy, "{\"rows\": 1}"), (&other, "{\"rows\": 2}")] {
            std::fs::write(path, content).expect("written");
        }
        assert!(check_statistics(&[one.clone(), other.clone(), folder.path().join("absent")]).is_ok());
        let twice = check_statistics(&[one.clone(), other, one.clone()]).expect_err("twice");
        assert!(twice.to_string().ends_with("one is given twice: its rows would count twice"), "{twice}");
        let copied = check_statistics(&[one, copy]).expect_err("a copy");
        assert!(copied.to_string().contains("copy are the same statistics"), "{copied}");
    }

    #[test]
    fn a_base_without_a_run_file_is_trained_at_a_rate_for_fine_tuning() {
        let mut settings = NodeSettings::default();
        assert_eq!(built_in_run(&settings).optimizer, OptimizerSpec::muon());
        settings.model.base = "base".into();
        let optimizer = built_in_run(&settings).optimizer;
        assert_eq!((optimizer.kind, optimizer.learning_rate), (OptimizerKind::AdamW, 1e-4));
    }

    #[test]
    fn a_base_without_a_run_file_is_trained_with_the_usual_context_or_its_own_shorter_one() {
        let usual = RunManifest::built_in().model.context();
        let folder = tempfile::tempdir().expect("a temporary directory");
        for (known, expected) in [(usual / 2, usual / 2), (2 * usual, usual)] {
            let config = format!(
                "{{\"model_type\": \"llama\", \"hidden_size\": 16, \"num_attention_heads\": 2, \"num_hidden_layers\": 1, \
                 \"intermediate_size\": 24, \"max_position_embeddings\": {known}, \"vocab_size\": 256}}"
            );
            std::fs::write(folder.path().join("config.json"), config).expect("written");
            let mut settings = NodeSettings::default();
            settings.model.base = folder.path().to_owned();
            let manifest = built_in_run(&settings);
            assert_eq!(manifest.model.context(), expected);
            assert!(crate::setup::base_model::described(manifest, &settings).is_ok());
        }
    }
}

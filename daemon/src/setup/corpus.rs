//! The data of a run from this machine's files, and what is wrong with them in words.

use std::path::PathBuf;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::DataSource;
use murmur_training::folders::{self, Listing};
use murmur_training::{Corpus, CorpusError};

use crate::console::note;
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;

/// What a run on texts of one's own is called.
const OWN_TEXTS: &str = "own-texts";

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
    Corpus::open(manifest, &settings.data.place(cache)).map_err(|error| corpus_failure(&error))
}

/// The run that is founded without a run file: on the built-in stories, or on texts of one's own.
pub(crate) fn built_in_run(settings: &NodeSettings) -> RunManifest {
    let mut manifest = RunManifest::default();
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
    let Ok(Listing { files, left_out, doubtful }) = folders::list(manifest.data.source, paths) else { return };
    if manifest.data.tokenizer.is_empty() && !doubtful.is_empty() {
        note(&format!("warning: trained on as it is, though it looks like no text: {}", folders::described(&doubtful)));
        note("hint: leave it out, or give the text that it was made from");
    }
    if !left_out.is_empty() {
        let (count, all) = (left_out.len(), left_out.len() + files.len());
        note(&format!(
            "warning: {count} of {all} entries of the data folders are not trained on: {}",
            folders::described(&left_out)
        ));
    }
}

/// What is wrong with the data, with its remedy.
pub(crate) fn corpus_failure(error: &CorpusError) -> Failure {
    let code = match error {
        CorpusError::FilesUnused | CorpusError::TokenizerUnused(_) | CorpusError::NoTokenizer(_) => ExitCode::Settings,
        _ => ExitCode::Files,
    };
    Failure::new(code, error.to_string()).hint(error.remedy())
}

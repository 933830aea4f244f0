//! Where a machine has the data of a run, and what a founder's data say about it.

use std::path::PathBuf;

use murmur_protocol::manifest::{DataSource, RunManifest};

use super::tokenizer::written_like_tokens;
use super::{CorpusError, Tokenizer, image_folders, table};

/// Where a machine has the data of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPlace {
    /// Files and folders, in order.
    pub files: Vec<PathBuf>,
    /// The run's `tokenizer.json`, where it reads with one.
    pub tokenizer: Option<PathBuf>,
    /// Where data is kept in the form that training reads; without it that is done anew each time.
    pub cache: Option<PathBuf>,
    /// Statistics of other members' tables, by which a founder standardises.
    pub statistics: Vec<PathBuf>,
    /// Whether what is told of these data has to be private.
    pub private: bool,
}

impl DataPlace {
    /// These files, and nothing else.
    pub fn of_files(files: &[PathBuf]) -> DataPlace {
        DataPlace { files: files.to_vec(), ..DataPlace::default() }
    }

    /// Fills in what a founder's data say about its run: the digest of its tokenizer, the names of its classes, how its tables
    /// are read.
    ///
    /// # Errors
    /// When the tokenizer, the folders or the tables cannot be read.
    pub fn complete(&self, mut manifest: RunManifest) -> Result<RunManifest, CorpusError> {
        if manifest.data.source == DataSource::Table {
            return table::complete(manifest, &self.files, &self.statistics, self.private);
        }
        if let Some(path) = self.statistics.first() {
            return Err(CorpusError::StatisticsUnused(path.clone()));
        }
        let data = &mut manifest.data;
        let reads_text = data.source.gives_text_of_files();
        if let Some(path) = self.tokenizer.as_ref().filter(|_| data.tokenizer.is_empty() && reads_text && !data.share) {
            data.tokenizer = Tokenizer::open(path)?.digest().to_owned();
        }
        if data.source == DataSource::ImageFolders && data.class_names.is_empty() {
            let names = image_folders::class_names(&self.files)?;
            let classes = manifest.model.classes() as usize;
            if names.len() != classes {
                return Err(CorpusError::ClassCount { names: names.len(), classes });
            }
            data.class_names = names;
        }
        check_vocabulary(&manifest)?;
        Ok(manifest)
    }

    /// What of the run's `data.prefix` and `data.separator` is written like a token that its tokenizer does not have: then it is cut
    /// into ordinary pieces. What cannot be read is an error when the data are opened.
    pub fn unknown_token(&self, manifest: &RunManifest) -> Option<String> {
        written_like_tokens(&manifest.data).next()?;
        let tokenizer = self.tokenizer(manifest).ok()??;
        tokenizer.unknown_token(&manifest.data).map(str::to_owned)
    }

    /// The run's tokenizer; `None` where it reads bytes.
    pub(super) fn tokenizer(&self, manifest: &RunManifest) -> Result<Option<Tokenizer>, CorpusError> {
        let digest = &manifest.data.tokenizer;
        match &self.tokenizer {
            _ if digest.is_empty() => Ok(None),
            None => Err(CorpusError::NoTokenizer(digest.clone())),
            Some(path) => Tokenizer::of_run(path, digest, manifest.model.vocabulary() as usize).map(Some),
        }
    }
}

/// Whether a model that reads bytes knows them all: the first that it does not know would end training, be it after hours.
///
/// # Errors
/// When it does not.
pub(super) fn check_vocabulary(manifest: &RunManifest) -> Result<(), CorpusError> {
    let vocabulary = manifest.model.vocabulary();
    let reads_bytes = manifest.model.reads_text() && manifest.data.tokenizer.is_empty();
    if reads_bytes && vocabulary < 256 { Err(CorpusError::VocabularyTooSmall(vocabulary)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::TransformerModel;

    use super::*;
    use crate::Corpus;

    #[test]
    fn a_vocabulary_without_all_bytes_is_refused_before_the_run_begins() {
        for source in [DataSource::Files, DataSource::Grammar] {
            let mut manifest = RunManifest::default();
            manifest.data.source = source;
            assert!(DataPlace::default().complete(manifest.clone()).is_ok());
            manifest.model = TransformerModel { vocabulary: 110, ..TransformerModel::default() }.into();
            let error =
                DataPlace::default().complete(manifest.clone()).expect_err("no place for all bytes").to_string();
            assert!(error.contains("reads bytes") && error.contains("has 110 of 256"), "{error}");
            let opened = Corpus::open(&manifest, &DataPlace::default());
            assert_eq!(opened.err().map(|error| error.to_string()), Some(error));
        }
    }
}

//! The text of a run: the built-in grammar, the bytes of files, or shards of them, with a part held out for validation.

use std::ops::Range;
use std::path::{Path, PathBuf};

use murmur_protocol::Payload;
use murmur_protocol::manifest::{DataSource, DataSpec, RunManifest};
use murmur_protocol::random::stream;
use murmur_protocol::shards::{ShardSet, Sharding};

use super::shared::SharedText;
use super::{Grammar, Window};

/// Where batches and validation windows come from.
pub struct Corpus {
    text: Text,
    /// Bytes that are trained on.
    training: Range<usize>,
    /// Bytes from here on are only validated on.
    validation_start: usize,
}

/// The kinds of text.
pub(crate) enum Text {
    /// Endless.
    Grammar(Grammar),
    /// The files' content.
    Bytes(Vec<u8>),
    /// What there is so far of data that the swarm shares.
    Shared(SharedText),
}

/// Why there is no corpus.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The run reads files and none were given.
    #[error("this run trains on files, but no data file was given")]
    NoFiles,
    /// The run reads its built-in text and files were given.
    #[error("this run trains on the built-in stories (data.source = \"grammar\"), but data files were given")]
    FilesUnused,
    /// A file could not be read.
    #[error("data file {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file holds nothing.
    #[error("data file {0} is empty")]
    Empty(PathBuf),
    /// A part of the corpus does not hold one window.
    #[error("the data is too short: its {part} part has {bytes} bytes, and one window needs {needed}")]
    TooShort {
        /// Training or validation.
        part: &'static str,
        /// Bytes there are.
        bytes: usize,
        /// Bytes of one window: context + 1.
        needed: usize,
    },
    /// The content is not that of the run.
    #[error("the data differs from this run's: BLAKE3 {actual}, but data.digest is {expected}")]
    OtherData {
        /// What the run says.
        expected: String,
        /// What the files hold.
        actual: String,
    },
}

impl Corpus {
    /// The corpus of a run: the grammar, or `files` one after the other in the given order.
    ///
    /// # Errors
    /// When files are missing, unwanted, unreadable, empty, too short or not the run's.
    pub fn open(manifest: &RunManifest, files: &[PathBuf]) -> Result<Corpus, CorpusError> {
        match (manifest.data.source, files) {
            (DataSource::Grammar, []) => Ok(Corpus::grammar()),
            (DataSource::Grammar, _) => Err(CorpusError::FilesUnused),
            (DataSource::Files, files) => {
                let bytes = Corpus::read_files(files)?;
                Corpus::from_bytes(bytes, &manifest.data, manifest.model.context as usize)
            }
        }
    }

    /// The content of `files`, one after the other.
    ///
    /// # Errors
    /// When there are none, or one is unreadable or empty.
    pub fn read_files(files: &[PathBuf]) -> Result<Vec<u8>, CorpusError> {
        if files.is_empty() {
            return Err(CorpusError::NoFiles);
        }
        let mut bytes = Vec::new();
        for file in files {
            bytes.extend(read(file)?);
        }
        Ok(bytes)
    }

    /// The built-in stories.
    pub fn grammar() -> Corpus {
        Corpus { text: Text::Grammar(Grammar::stories()), training: 0..0, validation_start: 0 }
    }

    /// A corpus that the swarm shares, without any of its shards so far.
    pub fn shared(sharding: Sharding) -> Corpus {
        Corpus { text: Text::Shared(SharedText::new(sharding)), training: 0..0, validation_start: 0 }
    }

    /// Adds a shard of a shared corpus; other kinds stay as they are.
    ///
    /// # Panics
    /// When there is no such shard, or its length is another.
    pub fn add_shard(&mut self, index: usize, shard: Payload) {
        if let Text::Shared(text) = &mut self.text {
            text.add(index, shard);
        }
    }

    /// Whether training and evaluation may begin: always, but for a shared corpus of which too little is here.
    pub fn suffices(&self) -> bool {
        if let Text::Shared(text) = &self.text { text.suffices() } else { true }
    }

    /// The shards of a shared corpus that are here.
    pub fn held(&self) -> ShardSet {
        if let Text::Shared(text) = &self.text { text.held() } else { ShardSet::EMPTY }
    }

    /// `bytes` as a corpus for windows of `context` bytes.
    ///
    /// # Errors
    /// When they are too few, or `data.digest` is set and not theirs.
    pub fn from_bytes(bytes: Vec<u8>, data: &DataSpec, context: usize) -> Result<Corpus, CorpusError> {
        let actual = blake3::hash(&bytes).to_hex().to_string();
        if !data.digest.is_empty() && !data.digest.eq_ignore_ascii_case(&actual) {
            return Err(CorpusError::OtherData { expected: data.digest.clone(), actual });
        }
        let training_end = data.training_bytes(bytes.len() as u64) as usize;
        let needed = context + 1;
        for (part, bytes) in [("training", training_end), ("validation", bytes.len() - training_end)] {
            if bytes < needed {
                return Err(CorpusError::TooShort { part, bytes, needed });
            }
        }
        Ok(Corpus { text: Text::Bytes(bytes), training: 0..training_end, validation_start: training_end })
    }

    /// Trains on one of `count` equal shares of the bytes alone, for nodes whose texts differ; validates as before. The
    /// grammar has no shares, and a shared corpus is shared out by the swarm: they stay whole.
    ///
    /// # Errors
    /// When the share does not hold one window of `context` bytes.
    ///
    /// # Panics
    /// When `index` is not below `count`.
    pub fn into_share(self, index: usize, count: usize, context: usize) -> Result<Corpus, CorpusError> {
        assert!(index < count, "a share is one of its count");
        if !matches!(self.text, Text::Bytes(_)) {
            return Ok(self);
        }
        let length = self.training.len() / count;
        let start = self.training.start + index * length;
        if length < context + 1 {
            return Err(CorpusError::TooShort { part: "training", bytes: length, needed: context + 1 });
        }
        Ok(Corpus { training: start..start + length, ..self })
    }

    pub(crate) fn text(&self) -> &Text {
        &self.text
    }

    /// The stretches of the files that are here and trained on, in order; none for the grammar.
    pub(crate) fn stretches(&self) -> Vec<Range<usize>> {
        match &self.text {
            Text::Grammar(_) => Vec::new(),
            Text::Bytes(_) => vec![self.training.clone()],
            Text::Shared(text) => text.stretches(),
        }
    }

    /// A window of the files; `None` where it is not all here.
    pub(crate) fn read(&self, range: Range<usize>) -> Option<Window> {
        match &self.text {
            Text::Grammar(_) => None,
            Text::Bytes(bytes) => bytes.get(range).map(<[u8]>::to_vec),
            Text::Shared(text) => text.read(range),
        }
    }

    /// BLAKE3 of the files' content in hexadecimal, as for `data.digest`; `None` for the grammar and for shared
    /// data, of which the manifest says more.
    pub fn digest(&self) -> Option<String> {
        match &self.text {
            Text::Grammar(_) | Text::Shared(_) => None,
            Text::Bytes(bytes) => Some(blake3::hash(bytes).to_hex().to_string()),
        }
    }

    /// The lowest loss that any model can reach on unseen text, in nats per byte, where it is known.
    pub fn entropy_rate(&self) -> Option<f64> {
        match &self.text {
            Text::Grammar(grammar) => Some(grammar.entropy_rate()),
            Text::Bytes(_) | Text::Shared(_) => None,
        }
    }

    /// The fixed held-out windows of a run, the same on every node with the same data: `data.validation_sequences`
    /// windows of `model.context + 1` bytes.
    ///
    /// Files: evenly spaced over the held-out end (they overlap where it is short). Grammar: one after the other in a
    /// text from a stream of its own. None where shards of them are still missing.
    ///
    /// # Panics
    /// When the corpus was opened for a longer context.
    pub fn validation(&self, manifest: &RunManifest) -> Vec<Window> {
        let length = manifest.model.context as usize + 1;
        let count = manifest.data.validation_sequences as usize;
        match &self.text {
            Text::Grammar(grammar) => {
                let mut generator = stream(manifest.run.seed, "validation stories", &[]);
                let text = grammar.window(&mut generator, count * length);
                text.chunks_exact(length).map(<[u8]>::to_vec).collect()
            }
            Text::Bytes(bytes) => self.spaced(self.validation_start..bytes.len(), length, count),
            Text::Shared(text) => self.spaced(text.held_out(), length, count),
        }
    }

    /// Windows evenly spaced over a range of the files; none where one is not here.
    fn spaced(&self, range: Range<usize>, length: usize, count: usize) -> Vec<Window> {
        let last = range.len().checked_sub(length).expect("the held-out part holds one window");
        let start = |index: usize| range.start + (last as u128 * index as u128 / (count.max(2) - 1) as u128) as usize;
        let windows = (0..count).map(|index| self.read(start(index)..start(index) + length));
        windows.collect::<Option<_>>().unwrap_or_default()
    }
}

fn read(file: &Path) -> Result<Vec<u8>, CorpusError> {
    match std::fs::read(file) {
        Ok(bytes) if bytes.is_empty() => Err(CorpusError::Empty(file.to_owned())),
        Ok(bytes) => Ok(bytes),
        Err(source) => Err(CorpusError::Unreadable { path: file.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(source: DataSource) -> RunManifest {
        let mut manifest = RunManifest::default();
        manifest.data.source = source;
        manifest.data.validation_sequences = 5;
        manifest.model.context = 16;
        manifest
    }

    fn message(result: Result<Corpus, CorpusError>) -> String {
        result.err().expect("an error").to_string()
    }

    #[test]
    fn files_are_joined_in_order_and_errors_name_the_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (first, second) = (directory.path().join("first.txt"), directory.path().join("second.txt"));
        std::fs::write(&first, vec![b'a'; 200]).expect("written");
        std::fs::write(&second, vec![b'b'; 200]).expect("written");
        let manifest = manifest(DataSource::Files);
        let corpus = Corpus::open(&manifest, &[second.clone(), first.clone()]).expect("a corpus");
        assert_eq!(corpus.digest(), Some(blake3::hash(&[[b'b'; 200], [b'a'; 200]].concat()).to_hex().to_string()));
        assert_eq!(corpus.stretches().first(), Some(&(0..360)));
        std::fs::write(&second, b"").expect("written");
        assert!(message(Corpus::open(&manifest, &[first.clone(), second])).ends_with("second.txt is empty"));
        let missing = directory.path().join("third.txt");
        assert!(message(Corpus::open(&manifest, &[first, missing])).contains("third.txt: No such file"));
        assert!(message(Corpus::open(&manifest, &[])).contains("no data file"));
    }

    #[test]
    fn too_little_data_is_an_error_with_the_numbers() {
        let text = message(Corpus::from_bytes(vec![b'x'; 160], &DataSpec::default(), 16));
        assert_eq!(text, "the data is too short: its validation part has 16 bytes, and one window needs 17");
        assert!(Corpus::from_bytes(vec![b'x'; 170], &DataSpec::default(), 16).is_ok());
        assert!(Corpus::from_bytes(Vec::new(), &DataSpec::default(), 16).is_err());
    }

    #[test]
    fn other_data_than_the_runs_is_refused() {
        let bytes = vec![b'x'; 400];
        let mut data = DataSpec { digest: blake3::hash(&bytes).to_hex().to_uppercase(), ..DataSpec::default() };
        assert!(Corpus::from_bytes(bytes.clone(), &data, 16).is_ok());
        data.digest = "00".repeat(32);
        assert!(message(Corpus::from_bytes(bytes, &data, 16)).starts_with("the data differs from this run's"));
    }

    #[test]
    fn shares_cover_the_training_bytes_and_validate_alike() {
        let bytes: Vec<u8> = (0..=255).collect();
        let corpus = || Corpus::from_bytes(bytes.clone(), &DataSpec::default(), 16).expect("long enough");
        let share = |index| corpus().into_share(index, 3, 16).expect("long enough");
        let stretches: Vec<_> = (0..3).flat_map(|index| share(index).stretches()).collect();
        assert_eq!(stretches, [0..77, 77..154, 154..231]);
        let manifest = manifest(DataSource::Files);
        assert_eq!(share(2).validation(&manifest), corpus().validation(&manifest));
        assert!(message(corpus().into_share(0, 20, 16)).contains("its training part has 11 bytes"));
    }

    #[test]
    fn validation_windows_are_fixed_and_held_out() {
        let bytes: Vec<u8> = (0..=255).collect();
        let corpus = Corpus::from_bytes(bytes, &DataSpec::default(), 16).expect("long enough");
        let windows = corpus.validation(&manifest(DataSource::Files));
        let starts: Vec<u8> = windows.iter().map(|window| window[0]).collect();
        assert_eq!(starts, [231, 233, 235, 237, 239]);
        assert!(windows.iter().all(|window| window.len() == 17));
        let grammar = Corpus::grammar();
        let windows = grammar.validation(&manifest(DataSource::Grammar));
        assert_eq!(windows, grammar.validation(&manifest(DataSource::Grammar)));
        assert_eq!((windows.len(), windows[4].len()), (5, 17));
    }
}

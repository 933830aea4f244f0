//! The data of a run: the built-in grammar, text of files as bytes or tokens, shards of it, images, or tables, with a part
//! held out for validation.

use std::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;
use murmur_protocol::Payload;
use murmur_protocol::manifest::{DataSource, DataSpec, RunManifest};
use murmur_protocol::random::stream;
use murmur_protocol::shards::{ShardSet, Sharding};

use super::files::{JoinedFiles, digest_of};
use super::images::ImageSet;
use super::place::{DataPlace, check_vocabulary};
use super::shared::SharedText;
use super::table::RowSet;
use super::tokens::TokenFile;
use super::{Batch, CorpusError, Grammar, Image, Window, ids};

/// Where batches and validation windows come from.
pub struct Corpus {
    content: Content,
    /// Bytes or tokens that are trained on.
    training: Range<usize>,
    /// Bytes or tokens that are only validated on.
    held_out: Range<usize>,
}

/// The kinds of data.
pub(crate) enum Content {
    /// Endless.
    Grammar(Grammar),
    /// The files' content.
    Bytes(JoinedFiles),
    /// Tokens of texts.
    Tokens(TokenFile),
    /// What there is so far of data that the swarm shares.
    Shared(SharedText),
    /// Images with labels.
    Images(ImageSet),
    /// Rows of tables.
    Rows(RowSet),
}

impl Corpus {
    /// The corpus of a run: the grammar, or what `place` holds, in the given order.
    ///
    /// # Errors
    /// When something is missing, unwanted, unreadable, too short or not the run's.
    pub fn open(manifest: &RunManifest, place: &DataPlace) -> Result<Corpus, CorpusError> {
        check_vocabulary(manifest)?;
        let (data, context) = (&manifest.data, manifest.model.context() as usize);
        if let Some(path) = place.tokenizer.as_ref().filter(|_| data.tokenizer.is_empty()) {
            return Err(CorpusError::TokenizerUnused(path.clone()));
        }
        if data.source == DataSource::Grammar {
            return if place.files.is_empty() { Ok(Corpus::grammar()) } else { Err(CorpusError::FilesUnused) };
        }
        if data.source == DataSource::Files && data.tokenizer.is_empty() {
            return Corpus::of_bytes(JoinedFiles::open(&place.files)?, data, context);
        }
        if !data.digest.is_empty() {
            check_digest(digest_of(data.source, &place.files)?, data)?;
        }
        if data.source.gives_images() {
            let images = ImageSet::open(manifest, &place.files, place.cache.as_deref())?;
            return Ok(Corpus { content: Content::Images(images), training: 0..0, held_out: 0..0 });
        }
        if data.source == DataSource::Table {
            let rows = RowSet::open(manifest, &place.files)?;
            return Ok(Corpus { content: Content::Rows(rows), training: 0..0, held_out: 0..0 });
        }
        let tokenizer = place.tokenizer(manifest)?;
        let tokens = TokenFile::open(manifest, &place.files, tokenizer.as_ref(), place.cache.as_deref())?;
        let (training, held_out) = (tokens.training(), tokens.held_out());
        let unit = if tokenizer.is_some() { "tokens" } else { "bytes" };
        Corpus::with_windows(Content::Tokens(tokens), training, held_out, unit, context)
    }

    /// The content of `files` and folders, one after the other, mapped where it is a single file.
    ///
    /// # Errors
    /// When there are none, or one is unreadable or empty.
    pub fn read_files(files: &[PathBuf]) -> Result<Bytes, CorpusError> {
        Ok(JoinedFiles::open(files)?.into_bytes())
    }

    /// BLAKE3 in hexadecimal of the content of files and folders as a run of this source reads them: for `data.digest`.
    ///
    /// # Errors
    /// As [`Corpus::read_files`].
    pub fn digest_of(source: DataSource, files: &[PathBuf]) -> Result<String, CorpusError> {
        Ok(digest_of(source, files)?.to_hex().to_string())
    }

    /// The built-in stories.
    pub fn grammar() -> Corpus {
        Corpus { content: Content::Grammar(Grammar::stories()), training: 0..0, held_out: 0..0 }
    }

    /// Data of a run's kind for measuring how fast its model trains: the built-in stories, or noise for images and tables.
    pub fn made_up(manifest: &RunManifest) -> Corpus {
        if manifest.model.reads_text() {
            return Corpus::grammar();
        }
        let content = match manifest.model.inputs() {
            0 => Content::Images(ImageSet::made_up(manifest)),
            _ => Content::Rows(RowSet::made_up(manifest)),
        };
        Corpus { content, training: 0..0, held_out: 0..0 }
    }

    /// These images.
    #[cfg(test)]
    pub(crate) fn of_images(images: ImageSet) -> Corpus {
        Corpus { content: Content::Images(images), training: 0..0, held_out: 0..0 }
    }

    /// A corpus that the swarm shares, without any of its shards so far.
    pub fn shared(sharding: Sharding) -> Corpus {
        Corpus { content: Content::Shared(SharedText::new(sharding)), training: 0..0, held_out: 0..0 }
    }

    /// Adds a shard of a shared corpus; other kinds stay as they are.
    ///
    /// # Panics
    /// When there is no such shard, or its length is another.
    pub fn add_shard(&mut self, index: usize, shard: Payload) {
        if let Content::Shared(text) = &mut self.content {
            text.add(index, shard);
        }
    }

    /// Whether training and evaluation may begin: always, but for a shared corpus of which too little is here.
    pub fn suffices(&self) -> bool {
        if let Content::Shared(text) = &self.content { text.suffices() } else { true }
    }

    /// The shards of a shared corpus that are here.
    pub fn held(&self) -> ShardSet {
        if let Content::Shared(text) = &self.content { text.held() } else { ShardSet::EMPTY }
    }

    /// `bytes` as a corpus for windows of `context` bytes.
    ///
    /// # Errors
    /// When they are too few, or `data.digest` is set and not theirs.
    pub fn from_bytes(bytes: Vec<u8>, data: &DataSpec, context: usize) -> Result<Corpus, CorpusError> {
        Corpus::of_bytes(JoinedFiles::of([bytes.into()]), data, context)
    }

    fn of_bytes(bytes: JoinedFiles, data: &DataSpec, context: usize) -> Result<Corpus, CorpusError> {
        if !data.digest.is_empty() {
            check_digest(bytes.digest(), data)?;
        }
        let (training, length) = (data.training_bytes(bytes.len() as u64) as usize, bytes.len());
        Corpus::with_windows(Content::Bytes(bytes), 0..training, training..length, "bytes", context)
    }

    fn with_windows(
        content: Content,
        training: Range<usize>,
        held_out: Range<usize>,
        unit: &'static str,
        context: usize,
    ) -> Result<Corpus, CorpusError> {
        let needed = context + 1;
        for (part, length) in [("training", training.len()), ("validation", held_out.len())] {
            if length < needed {
                return Err(CorpusError::TooShort { part, length, unit, needed });
            }
        }
        Ok(Corpus { content, training, held_out })
    }

    /// Trains on one of `count` equal shares alone, for nodes whose data differ; validates as before. The grammar has no
    /// shares, and a shared corpus is shared out by the swarm: they stay whole.
    ///
    /// # Errors
    /// When the share does not hold one window of `context` bytes or tokens, one image or one row.
    ///
    /// # Panics
    /// When `index` is not below `count`.
    pub fn into_share(mut self, index: usize, count: usize, context: usize) -> Result<Corpus, CorpusError> {
        assert!(index < count, "a share is one of its count");
        match &mut self.content {
            Content::Grammar(_) | Content::Shared(_) => {}
            Content::Images(images) => images.keep_share(index, count)?,
            Content::Rows(rows) => rows.keep_share(index, count)?,
            Content::Bytes(_) | Content::Tokens(_) => {
                let length = self.training.len() / count;
                let start = self.training.start + index * length;
                if length < context + 1 {
                    let unit = if matches!(self.content, Content::Bytes(_)) { "bytes" } else { "tokens" };
                    return Err(CorpusError::TooShort { part: "training", length, unit, needed: context + 1 });
                }
                self.training = start..start + length;
            }
        }
        Ok(self)
    }

    pub(crate) fn content(&self) -> &Content {
        &self.content
    }

    /// Rows of tables that are trained on; none of other data.
    pub(crate) fn training_rows(&self) -> Option<usize> {
        match &self.content {
            Content::Rows(rows) => Some(rows.training().len()),
            _ => None,
        }
    }

    /// The stretches of the text that are here and trained on, in order; none for the grammar, images and tables.
    pub(crate) fn stretches(&self) -> Vec<Range<usize>> {
        match &self.content {
            Content::Grammar(_) | Content::Images(_) | Content::Rows(_) => Vec::new(),
            Content::Bytes(_) | Content::Tokens(_) => vec![self.training.clone()],
            Content::Shared(text) => text.stretches(),
        }
    }

    /// Number of texts that are trained on; `None` where borders between them are not known, or a share cuts through them.
    pub(crate) fn texts(&self) -> Option<usize> {
        match &self.content {
            Content::Tokens(tokens) if self.training == tokens.training() => tokens.texts(),
            _ => None,
        }
    }

    /// Where one of them lies; `None` where borders are not known.
    ///
    /// # Panics
    /// When there is no such text.
    pub(crate) fn text(&self, number: usize) -> Option<Range<usize>> {
        self.texts()?;
        if let Content::Tokens(tokens) = &self.content { Some(tokens.text(number)) } else { None }
    }

    /// A window of the text; `None` where it is not all here.
    pub(crate) fn read(&self, range: Range<usize>) -> Option<Window> {
        match &self.content {
            Content::Grammar(_) | Content::Images(_) | Content::Rows(_) => None,
            Content::Bytes(bytes) => bytes.read(range).map(|bytes| ids(&bytes)),
            Content::Tokens(tokens) => tokens.read(range),
            Content::Shared(text) => text.read(range).map(|bytes| ids(&bytes)),
        }
    }

    /// The lowest loss that any model can reach on unseen text, in nats per byte, where it is known.
    pub fn entropy_rate(&self) -> Option<f64> {
        match &self.content {
            Content::Grammar(grammar) => Some(grammar.entropy_rate()),
            _ => None,
        }
    }

    /// The fixed held-out windows of a run, the same on every node with the same data: `data.validation_sequences`
    /// windows of `model.context + 1` bytes or tokens.
    ///
    /// Text: evenly spaced over what is held out (they overlap where it is short). Grammar: one after the other in a
    /// text from a stream of its own. None where shards of them are still missing, and of images and tables.
    ///
    /// # Panics
    /// When the corpus was opened for a longer context.
    pub fn validation(&self, manifest: &RunManifest) -> Vec<Window> {
        let length = manifest.model.context() as usize + 1;
        let count = manifest.data.validation_sequences as usize;
        match &self.content {
            Content::Grammar(grammar) => {
                let mut generator = stream(manifest.run.seed, "validation stories", &[]);
                grammar.window(&mut generator, count * length).chunks_exact(length).map(ids).collect()
            }
            Content::Bytes(_) | Content::Tokens(_) => self.spaced(self.held_out.clone(), length, count),
            Content::Shared(text) => self.spaced(text.held_out(), length, count),
            Content::Images(_) | Content::Rows(_) => Vec::new(),
        }
    }

    /// What a run evaluates with, the same on every node with the same data: the windows of [`Corpus::validation`], or up
    /// to `data.validation_sequences` held-out images or rows. None where shards of it are still missing. They are made one by one:
    /// as inputs of a model images take four times as much memory as they do here.
    ///
    /// # Panics
    /// When the corpus was opened for a longer context.
    pub fn validation_batches(&self, manifest: &RunManifest) -> Box<dyn Iterator<Item = Batch> + '_> {
        let size = manifest.optimizer.batch_sequences as usize;
        let first = |numbers: &[usize]| numbers.len().min(manifest.data.validation_sequences as usize);
        match &self.content {
            Content::Images(images) => {
                let numbers = &images.held_out()[..first(images.held_out())];
                Box::new(numbers.chunks(size).map(|numbers| {
                    let examples: Vec<Image> = numbers.iter().map(|number| images.image(*number)).collect();
                    Batch::of_images(&examples, images.shape())
                }))
            }
            Content::Rows(rows) => {
                let numbers = &rows.held_out()[..first(rows.held_out())];
                Box::new(numbers.chunks(size).map(|numbers| rows.batch(numbers)))
            }
            _ => {
                let mut windows = self.validation(manifest);
                let batch = move || {
                    let later = windows.split_off(size.min(windows.len()));
                    let now = std::mem::replace(&mut windows, later);
                    (!now.is_empty()).then(|| Batch::of(&now))
                };
                Box::new(std::iter::from_fn(batch))
            }
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

fn check_digest(actual: blake3::Hash, data: &DataSpec) -> Result<(), CorpusError> {
    let actual = actual.to_hex().to_string();
    if data.digest.eq_ignore_ascii_case(&actual) {
        return Ok(());
    }
    Err(CorpusError::OtherData { expected: data.digest.clone(), actual })
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{ModelSpec, TransformerModel};

    use super::super::tokenizer::tests::write_tokenizer;
    use super::*;

    fn model(vocabulary: u32, context: u32) -> ModelSpec {
        TransformerModel { vocabulary, context, ..TransformerModel::default() }.into()
    }

    fn manifest(source: DataSource) -> RunManifest {
        let mut manifest = RunManifest { model: model(256, 16), ..RunManifest::default() };
        manifest.data.source = source;
        manifest.data.validation_sequences = 5;
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
        let open = |files: &[PathBuf]| Corpus::open(&manifest, &DataPlace::of_files(files));
        let corpus = open(&[second.clone(), first.clone()]).expect("a corpus");
        assert_eq!(corpus.read(199..201), Some(vec![u32::from(b'b'), u32::from(b'a')]));
        assert_eq!(corpus.stretches().first(), Some(&(0..360)));
        std::fs::write(&second, b"").expect("written");
        assert!(message(open(&[first.clone(), second])).ends_with("second.txt is empty"));
        let missing = directory.path().join("third.txt");
        assert!(message(open(&[first, missing])).contains("third.txt: No such file"));
        assert!(message(open(&[])).contains("no data file"));
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
    fn a_run_with_a_tokenizer_reads_tokens_and_wants_that_very_tokenizer() {
        let folder = tempfile::tempdir().expect("a folder");
        let (text, tokenizer) = (folder.path().join("text.txt"), folder.path().join("tokenizer.json"));
        std::fs::write(&text, "a b c d e f g h i j k l m n o p q r s t u v w x y z\n".repeat(20)).expect("written");
        write_tokenizer(&tokenizer);
        let place = DataPlace { tokenizer: Some(tokenizer), ..DataPlace::of_files(&[text]) };
        let bytes = manifest(DataSource::Files);
        assert!(
            message(Corpus::open(&bytes, &place)).starts_with("this run reads without a tokenizer, but one was given")
        );
        let tokens = place.complete(bytes).expect("a tokenizer");
        let corpus = Corpus::open(&tokens, &place).expect("a corpus");
        assert_eq!(corpus.stretches().first(), Some(&(0..468)));
        assert_eq!(corpus.read(24..28), Some(vec![25, 26, 1, 2]));
        let without = DataPlace { tokenizer: None, ..place.clone() };
        assert!(message(Corpus::open(&tokens, &without)).contains("but none was given"));
        let small = RunManifest { model: model(20, 16), ..tokens.clone() };
        assert!(message(Corpus::open(&small, &place)).contains("27 tokens, but the model's vocabulary has 20"));
        let long = RunManifest { model: model(256, 60), ..tokens };
        let text = message(Corpus::open(&long, &place));
        assert_eq!(text, "the data is too short: its validation part has 52 tokens, and one window needs 61");
    }

    #[test]
    fn validation_windows_are_fixed_and_held_out() {
        let bytes: Vec<u8> = (0..=255).collect();
        let corpus = Corpus::from_bytes(bytes, &DataSpec::default(), 16).expect("long enough");
        let windows = corpus.validation(&manifest(DataSource::Files));
        let starts: Vec<u32> = windows.iter().map(|window| window[0]).collect();
        assert_eq!(starts, [231, 233, 235, 237, 239]);
        assert!(windows.iter().all(|window| window.len() == 17));
        let grammar = Corpus::grammar();
        let windows = grammar.validation(&manifest(DataSource::Grammar));
        assert_eq!(windows, grammar.validation(&manifest(DataSource::Grammar)));
        assert_eq!((windows.len(), windows[4].len()), (5, 17));
    }
}

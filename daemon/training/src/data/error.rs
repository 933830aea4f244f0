//! What can be wrong with the data that people have: each error names the file, the place in it and the remedy.

use std::path::PathBuf;

use super::image_shape::ImageShape;
use super::table::TableError;

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
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, #[source] std::io::Error),
    /// A file holds nothing.
    #[error("data file {0} is empty")]
    Empty(PathBuf),
    /// A folder holds no file of the kind that the run reads.
    #[error("data folder {0} holds no {1}")]
    NothingIn(PathBuf, &'static str),
    /// A folder holds files, and none of them is what the run reads.
    #[error("data folder {0} holds nothing to train on: {1}")]
    AllLeftOut(PathBuf, String),
    /// A file that is named, and is not what the run reads.
    #[error("data file {0} is no {1}, which this run reads")]
    OtherKind(PathBuf, &'static str),
    /// A folder that murmur itself writes.
    #[error("{0} is a data directory of murmur: its checkpoints and logs are no data to train on")]
    DataDirectory(PathBuf),
    /// A part of the corpus does not hold one window.
    #[error("the data is too short: its {part} part has {length} {unit}, and one window needs {needed}")]
    TooShort {
        /// Training or validation.
        part: &'static str,
        /// What there is.
        length: usize,
        /// Bytes or tokens.
        unit: &'static str,
        /// The length of one window: context + 1.
        needed: usize,
    },
    /// A part of the images is empty.
    #[error("the data is too little: none of {1} images is left for its {0} part")]
    TooFewImages(&'static str, usize),
    /// Text is read as bytes, of which the model does not know all.
    #[error("this run reads bytes (data.tokenizer is empty), but the model's vocabulary has {0} of 256")]
    VocabularyTooSmall(u32),
    /// The content is not that of the run.
    #[error("the data differs from this run's: BLAKE3 {actual}, but data.digest is {expected}")]
    OtherData {
        /// What the run says.
        expected: String,
        /// What the files hold.
        actual: String,
    },
    /// A tokenizer reads text, and this is none.
    #[error("data file {path} is not UTF-8 text: byte {offset} cannot be read")]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first offending byte, from 0.
        offset: usize,
    },
    /// A line that is no JSON object.
    #[error("{path}:{line}: not a JSON object: {reason}")]
    NotJson {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// An object without the field, or with something else than text in it.
    #[error("{path}:{line}: no text in the field {field:?}; the line has {found}")]
    NoField {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// The run's `data.field`.
        field: String,
        /// The fields there are, or what the field holds.
        found: String,
    },
    /// A file that is no Parquet, or damaged.
    #[error("data file {0} cannot be read as Parquet: {1}")]
    NotParquet(PathBuf, String),
    /// A Parquet file without the column, or with something else than text in it.
    #[error("{path} has no text column {column:?}; its text columns: {columns}")]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The run's `data.field`.
        column: String,
        /// Those it has.
        columns: String,
    },
    /// The run reads tokens and no tokenizer was given.
    #[error("this run reads its text with a tokenizer (BLAKE3 {0}), but none was given")]
    NoTokenizer(String),
    /// A tokenizer was given to a run that has none.
    #[error("this run reads without a tokenizer, but one was given: {0}")]
    TokenizerUnused(PathBuf),
    /// A file that is no tokenizer.
    #[error("tokenizer {0}: {1}")]
    TokenizerUnreadable(PathBuf, String),
    /// Another tokenizer than the run's.
    #[error("tokenizer {path} is not this run's: BLAKE3 {actual}, but data.tokenizer is {expected}")]
    OtherTokenizer {
        /// The file.
        path: PathBuf,
        /// What the run says.
        expected: String,
        /// What the file holds.
        actual: String,
    },
    /// Token ids that the model has no embedding for.
    #[error("tokenizer {path} has {tokens} tokens, but the model's vocabulary has {vocabulary}")]
    VocabularyTooLarge {
        /// The file.
        path: PathBuf,
        /// The largest id, plus one.
        tokens: usize,
        /// The run's `model.vocabulary`.
        vocabulary: usize,
    },
    /// A text that the tokenizer fails on.
    #[error("{0}: the tokenizer fails on a text: {1}")]
    NotTokenized(PathBuf, String),
    /// A file that is no IDX file, or of another length than its header says.
    #[error("data file {0} is not a whole IDX file: {1}")]
    NotIdx(PathBuf, String),
    /// Images without labels or the other way round.
    #[error("IDX files come in pairs, but there are {images} of images and {labels} of labels")]
    Unpaired {
        /// Files of images.
        images: usize,
        /// Files of labels.
        labels: usize,
    },
    /// A pair of files of different counts.
    #[error("{images_path} holds {images} images, but {labels_path} {labels} labels")]
    CountMismatch {
        /// The images' file.
        images_path: PathBuf,
        /// Its images.
        images: usize,
        /// The labels' file.
        labels_path: PathBuf,
        /// Its labels.
        labels: usize,
    },
    /// A label that the model has no output for.
    #[error("{path}: label {label} of image {index} is out of range: the model has {classes} classes, from 0")]
    LabelOutOfRange {
        /// The labels' file.
        path: PathBuf,
        /// From 0.
        index: usize,
        /// What it says.
        label: u32,
        /// The run's `model.classes`.
        classes: usize,
    },
    /// Images of another size than the model's.
    #[error("{path}: images of {actual} pixels, but the model reads {expected}")]
    ImageSize {
        /// The file.
        path: PathBuf,
        /// In the file.
        actual: ImageShape,
        /// Of the run's model.
        expected: ImageShape,
    },
    /// An image that cannot be decoded.
    #[error("image {0}: {1}")]
    NotAnImage(PathBuf, String),
    /// A sub-folder that is none of the run's classes.
    #[error("folder {0} is none of the run's classes: {1}")]
    UnknownClass(PathBuf, String),
    /// A number of class names that is not the model's.
    #[error("{names} {} (sub-folders of the data), but the model has {classes}", if *.names == 1 { "class" } else { "classes" })]
    ClassCount {
        /// How many names there are.
        names: usize,
        /// The run's `model.classes`.
        classes: usize,
    },
    /// A table that is not read, or a run on it not founded.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Statistics for a run that reads no table.
    #[error("this run reads no table, but statistics of one were given: {0}")]
    StatisticsUnused(PathBuf),
    /// The data in the form that training reads could not be written.
    #[error("cannot write prepared data to {0}: {1}")]
    CacheUnwritable(PathBuf, #[source] std::io::Error),
}

/// Fields of examples that have several parts: dialogues, and prompts with their answers.
const PARTS: [&str; 8] =
    ["messages", "conversations", "conversation", "prompt", "completion", "instruction", "chosen", "rejected"];

/// Whether such a field was asked for, or is among these names, each in quotation marks.
fn has_parts(asked: &str, names: &str) -> bool {
    PARTS.iter().any(|part| asked == *part || names.contains(&format!("{part:?}")))
}

impl CorpusError {
    /// What to do about it, in one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            CorpusError::NoFiles => "name them with --data FILE… (a run with data.share = true brings them along)",
            CorpusError::FilesUnused => {
                "leave --data out (and MURMUR_DATA), or use a run whose data.source is \"files\""
            }
            CorpusError::Unreadable(..) | CorpusError::Empty(_) => "check the path and the content of the file",
            CorpusError::AllLeftOut(..) => {
                "check the folder, and data.source in the run file: it names the kind of data"
            }
            CorpusError::DataDirectory(_) => "give the folder or the files that hold the data",
            CorpusError::OtherKind(..) => {
                "data.source in the run file names the kind of data: files, json-lines, parquet, table, idx or image-folders"
            }
            CorpusError::NothingIn(_, what) if *what != "file" => {
                "each class is a sub-folder of its images: FOLDER/CLASS/1.png; give FOLDER"
            }
            CorpusError::NothingIn(..) => "give the files themselves, or the folder that they lie in",
            CorpusError::TooShort { .. } | CorpusError::TooFewImages(..) => {
                "give more data, a smaller model.context, or another data.validation_fraction"
            }
            CorpusError::OtherData { .. } => "every node of this run trains on the same files, in the same order",
            CorpusError::NotText { .. } => {
                "convert the file to UTF-8, or leave it out; without a tokenizer any bytes are read"
            }
            CorpusError::NotJson { .. } => "one JSON object a line; correct or remove the line",
            CorpusError::NoField { field, found: names, .. }
            | CorpusError::NoColumn { column: field, columns: names, .. }
                if has_parts(field, names) =>
            {
                "make one text of each example first, e.g. with tokenizer.apply_chat_template(messages, tokenize=False); \
                 all of it is learned, prompts too"
            }
            CorpusError::NoField { .. } => "every line needs the field; data.field in the run file names it",
            CorpusError::NotParquet(..) => "check that the file is whole, and compressed with snappy, gzip or zstd",
            CorpusError::NoColumn { .. } => "data.field in the run file names the column",
            CorpusError::NoTokenizer(_) => "give it with --tokenizer FILE (its tokenizer.json)",
            CorpusError::TokenizerUnused(_) => {
                "leave --tokenizer out, or use a run whose data.tokenizer is its BLAKE3 digest; shared data (data.share) \
                 are read as bytes"
            }
            CorpusError::TokenizerUnreadable(..) => "it takes the tokenizer.json of a Hugging Face model",
            CorpusError::OtherTokenizer { .. } => {
                "every node of a run needs the very same tokenizer.json: give it with --tokenizer FILE"
            }
            CorpusError::VocabularyTooLarge { .. } => {
                "with a base take its own tokenizer; without one set model.vocabulary in the run file to the tokenizer's size"
            }
            CorpusError::VocabularyTooSmall(..) => {
                "set model.vocabulary in the run file to 256, or give a tokenizer with --tokenizer FILE"
            }
            CorpusError::NotTokenized(..) => "check the text and the tokenizer",
            CorpusError::NotIdx(..) => "fetch the file again; plain and .gz files are read",
            CorpusError::Unpaired { .. } | CorpusError::CountMismatch { .. } => {
                "give pairs of files in the same order: images, labels, images, labels…"
            }
            CorpusError::LabelOutOfRange { .. } => "set model.classes in the run file, or correct the labels",
            CorpusError::ImageSize { .. } => "set model.image_height, image_width and image_channels in the run file",
            CorpusError::NotAnImage(..) => "PNG and JPEG are read; replace or remove the file",
            CorpusError::UnknownClass(..) => {
                "classes are the sub-folders' names: rename it, or add it to data.class_names and model.classes"
            }
            CorpusError::ClassCount { .. } => "set model.classes in the run file to their number",
            CorpusError::Table(error) => error.remedy(),
            CorpusError::StatisticsUnused(_) => "leave --statistics out, or use a run whose data.source is \"table\"",
            CorpusError::CacheUnwritable(..) => "free or repair the disk, or choose another folder with data.cache",
        }
    }
}

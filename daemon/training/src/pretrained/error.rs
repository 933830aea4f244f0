//! What can be wrong with a folder of a pretrained model. Each error names file and place, what was expected and what was
//! found; nothing has been changed when one is returned.

use std::path::PathBuf;

/// Why a pretrained model cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// A file is missing or unreadable, or cannot be written.
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
    /// There is no safetensors file.
    #[error("{0} holds neither model.safetensors nor model.safetensors.index.json")]
    NoWeights(PathBuf),
    /// Weights in the form of llama.cpp.
    #[error("{0} is a GGUF file, and GGUF is not read")]
    Gguf(PathBuf),
    /// Adapters by themselves.
    #[error("{0} holds an adapter, not a model: it belongs to {1}")]
    Adapter(PathBuf, String),
    /// One of several files of weights is not there.
    #[error("the shard {1} is missing: {0} names it")]
    NoShard(PathBuf, String),
    /// A file is no JSON, or no safetensors file, or cut off.
    #[error("{0} is damaged: {1}")]
    Damaged(PathBuf, String),
    /// A model that this project cannot train.
    #[error("{path}: {key} is {found}, but only {expected} is supported")]
    Unsupported {
        /// The configuration.
        path: PathBuf,
        /// Its key.
        key: &'static str,
        /// What would be supported.
        expected: String,
        /// What it says.
        found: String,
    },
    /// A size that this project does not go to.
    #[error("{0}: {1}")]
    OutOfRange(PathBuf, murmur_protocol::manifest::ManifestError),
    /// A key without which the model is not known.
    #[error("{0}: {1} is missing")]
    MissingKey(PathBuf, &'static str),
    /// A tensor of the model is not there.
    #[error("{path} has no tensor {tensor}: expected one of shape {expected:?}")]
    Missing {
        /// The file, or the index.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// The shape that config.json calls for.
        expected: Vec<usize>,
    },
    /// A tensor that the model does not have: silently left out, the numbers would be wrong.
    #[error("{path} has a tensor {tensor} of shape {found:?}, which a model of this config.json does not have")]
    Extra {
        /// The file.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// A tensor of another shape.
    #[error("{path}: tensor {tensor} has shape {found:?}, but config.json calls for {expected:?}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// By config.json.
        expected: Vec<usize>,
        /// In the file.
        found: Vec<usize>,
    },
    /// A tensor of a type that is not read.
    #[error("{path}: tensor {tensor} has type {found}, expected F32, F16 or BF16")]
    Type {
        /// The file.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// In the file.
        found: String,
    },
    /// Values that would destroy the model.
    #[error("{0}: tensor {1} holds values that are not finite")]
    NotFinite(PathBuf, String),
    /// The same tensor twice.
    #[error("tensor {tensor} is in {first} and in {second}")]
    Twice {
        /// Its name.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A head in the file although the configuration ties it to the embedding.
    #[error("{0}: lm_head.weight differs from model.embed_tokens.weight, but config.json says tie_word_embeddings")]
    HeadNotTied(PathBuf),
    /// An export would overwrite something.
    #[error("{0} exists already")]
    Exists(PathBuf),
    /// A file is where an export's folder would be, or a folder above it.
    #[error("{0} is a file, and an export is a folder of files")]
    NoFolder(PathBuf),
}

impl PretrainedError {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            PretrainedError::Io(..) => "check the path: it is a folder with config.json and safetensors files",
            PretrainedError::NoWeights(_) => {
                "only safetensors are read: `save_pretrained` of the transformers library writes them"
            }
            PretrainedError::Gguf(_) => "give the folder of the original model, with config.json and safetensors files",
            PretrainedError::Adapter(..) => "give its base; an adapter that is merged into its base is a model, too",
            PretrainedError::NoShard(..) => "get that file of the model as well, into the same folder",
            PretrainedError::Damaged(..) | PretrainedError::NotFinite(..) => "get the file again",
            PretrainedError::OutOfRange(..) => "use a smaller base model",
            PretrainedError::Unsupported { .. } => "use another base model: GUIDE.md lists what is accepted",
            PretrainedError::MissingKey(..) => "is this the config.json that came with the weights?",
            PretrainedError::Missing { .. }
            | PretrainedError::Extra { .. }
            | PretrainedError::Shape { .. }
            | PretrainedError::Twice { .. }
            | PretrainedError::HeadNotTied(..) => "weights and config.json must be of one model: get both again",
            PretrainedError::Type { found, .. } if found == "F64" => {
                "save the weights in 32 bits first: `model.float().save_pretrained(FOLDER)` of the transformers library"
            }
            PretrainedError::Type { .. } => "quantized models cannot be trained: use the original weights",
            PretrainedError::Exists(_) => "choose another folder, or --force to overwrite the model in it",
            PretrainedError::NoFolder(_) => "choose a folder that is not there yet with --to",
        }
    }
}

//! Writes a model as a folder that the transformers library loads.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use murmur_protocol::layout::{ModelLayout, TensorSpec};
use safetensors::tensor::{Dtype, View};

use super::config::{CONFIG_FILE, PretrainedConfig};
use super::error::PretrainedError;
use super::{ExportType, adapters};

const WEIGHTS_FILE: &str = "model.safetensors";

/// How the library writes text with a model.
const GENERATION_FILE: &str = "generation_config.json";

/// The files of a tokenizer.
const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];

/// What comes along from the folder of a base model, where it is there: how to generate, and its tokenizer where the exported
/// model reads with it.
pub fn companions(base: &Path, with_tokenizer: bool) -> Vec<PathBuf> {
    let tokenizer = if with_tokenizer { &TOKENIZER_FILES[..] } else { &[] };
    let names = [GENERATION_FILE].into_iter().chain(tokenizer.iter().copied());
    names.map(|name| base.join(name)).filter(|path| path.exists()).collect()
}

/// A tensor on its way into a file: converted only while it is written.
struct Outgoing<'a> {
    spec: &'a TensorSpec,
    values: &'a [f32],
    export_type: ExportType,
}

impl View for Outgoing<'_> {
    fn dtype(&self) -> Dtype {
        self.export_type.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.spec.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.export_type.bytes_of(self.values))
    }

    fn data_len(&self) -> usize {
        self.values.len() * self.export_type.dtype().bitsize() / 8
    }
}

/// Where an export goes, and what may happen to what is there.
pub(super) struct Target<'a> {
    pub(super) folder: &'a Path,
    pub(super) overwrites: bool,
}

impl Target<'_> {
    /// Has `write` fill the folder, which is there whole or not at all.
    pub(super) fn fill(&self, write: impl FnOnce(&Path) -> Result<(), PretrainedError>) -> Result<(), PretrainedError> {
        let folder = self.folder;
        if let Some(file) = folder.ancestors().find(|path| path.exists()).filter(|path| !path.is_dir()) {
            return Err(PretrainedError::NoFolder(file.to_owned()));
        }
        if folder.exists() && !self.overwrites {
            return Err(PretrainedError::Exists(folder.to_owned()));
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let temporary = folder.with_file_name(format!(".{name}.tmp"));
        let _ = std::fs::remove_dir_all(&temporary);
        let result = std::fs::create_dir_all(&temporary)
            .map_err(|error| PretrainedError::Io(temporary.clone(), error))
            .and_then(|()| write(&temporary))
            .and_then(|()| put_in_place(&temporary, folder));
        if result.is_err() {
            let _ = std::fs::remove_dir_all(&temporary);
        }
        result
    }
}

/// Writes `parameters`, flat in the order of the model's layout, and `config.json` into `folder`, with copies
/// of the files `companions`. The folder is there whole or not at all.
///
/// # Errors
/// When `folder` exists, unless `overwrites`, when it is a file or would lie in one, or the disk is full; nothing has changed then.
///
/// # Panics
/// When `parameters` is of another model.
pub fn export(
    config: &PretrainedConfig,
    parameters: &[f32],
    export_type: ExportType,
    companions: &[PathBuf],
    folder: &Path,
    overwrites: bool,
) -> Result<(), PretrainedError> {
    let layout = config.layout();
    assert_eq!(parameters.len(), layout.parameters(), "one value per parameter");
    let target = folder;
    Target { folder, overwrites }.fill(|folder| {
        write_weights(&layout, parameters, export_type, &folder.join(WEIGHTS_FILE))?;
        write_file(&folder.join(CONFIG_FILE), &config.to_json(export_type))?;
        companions.iter().try_for_each(|path| {
            let to = folder.join(path.file_name().unwrap_or_default());
            std::fs::copy(path, to).map(drop).map_err(|error| PretrainedError::Io(path.clone(), error))
        })
    })?;
    // Where adapters lie beside a model, the transformers library loads their base and them instead.
    for path in [adapters::CONFIG_FILE, adapters::WEIGHTS_FILE].map(|name| target.join(name)) {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(PretrainedError::Io(path, error));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), PretrainedError> {
    std::fs::write(path, bytes).map_err(|error| PretrainedError::Io(path.to_owned(), error))
}

/// A safetensors file of `parameters`, on the disk when this returns.
pub(super) fn write_weights(
    layout: &ModelLayout,
    parameters: &[f32],
    export_type: ExportType,
    path: &Path,
) -> Result<(), PretrainedError> {
    let io = |error| PretrainedError::Io(path.to_owned(), error);
    let tensors = layout.tensors().iter().map(|spec| {
        let values = &parameters[spec.range()];
        (spec.name.clone(), Outgoing { spec, values, export_type })
    });
    // The transformers library refuses files that do not say which framework they are for.
    let about = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    // The library writes a file that only its owner may read.
    let usual = std::fs::File::create(path).and_then(|file| file.metadata()).map_err(io)?.permissions();
    safetensors::serialize_to_file(tensors, Some(about), path).map_err(|error| io(std::io::Error::other(error)))?;
    std::fs::set_permissions(path, usual).map_err(io)?;
    std::fs::File::open(path).and_then(|file| file.sync_all()).map_err(io)
}

/// Replaces what is there only once the new folder is complete.
fn put_in_place(temporary: &Path, folder: &Path) -> Result<(), PretrainedError> {
    let io = |error| PretrainedError::Io(folder.to_owned(), error);
    if !folder.exists() {
        return std::fs::rename(temporary, folder).map_err(io);
    }
    for entry in std::fs::read_dir(temporary).map_err(io)? {
        let entry = entry.map_err(io)?;
        std::fs::rename(entry.path(), folder.join(entry.file_name())).map_err(io)?;
    }
    std::fs::remove_dir(temporary).map_err(io)
}

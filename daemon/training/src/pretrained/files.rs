//! Where the tensors of a checkpoint lie: one safetensors file, or several with an index.
//!
//! Only headers are read here; values are read one tensor at a time, straight to where they belong, so that a model is in
//! memory once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::convert::ReadType;
use super::error::PretrainedError;
use super::forms::other_form;
use crate::regular;

const SINGLE_FILE: &str = "model.safetensors";
const SHARD_INDEX: &str = "model.safetensors.index.json";

/// The largest header read, in bytes: the safetensors library's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Values are converted in pieces of so many bytes. A guess: large enough for the disk, small enough for the cache.
const PIECE_BYTES: usize = 1024 * 1024;

/// One tensor's place.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Of its first byte in the file.
    start: u64,
}

/// All tensors of a checkpoint, by name.
#[derive(Debug)]
pub(super) struct TensorFiles {
    /// The file, or the index, in which a missing tensor should have been.
    pub(super) root: PathBuf,
    pub(super) places: BTreeMap<String, Place>,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl TensorFiles {
    /// Reads the headers of all files in `folder`.
    pub(super) fn open(folder: &Path) -> Result<TensorFiles, PretrainedError> {
        let (single, index) = (folder.join(SINGLE_FILE), folder.join(SHARD_INDEX));
        if single.exists() {
            let places = read_header(&single)?;
            return Ok(TensorFiles { root: single, places });
        }
        if !index.exists() {
            return Err(other_form(folder).unwrap_or_else(|| PretrainedError::NoWeights(folder.to_owned())));
        }
        let places = read_shards(folder, &index)?;
        Ok(TensorFiles { root: index, places })
    }

    /// Reads the values of `place`, which is the tensor called `name`, into `values`, of its length.
    pub(super) fn read(name: &str, place: &Place, values: &mut [f32]) -> Result<(), PretrainedError> {
        let Some(read_type) = ReadType::of(place.dtype) else {
            let found = format!("{:?}", place.dtype);
            return Err(PretrainedError::Type { path: place.path.clone(), tensor: name.to_owned(), found });
        };
        let io = |error| PretrainedError::Io(place.path.clone(), error);
        let mut file = regular::open(&place.path).map_err(io)?;
        file.seek(SeekFrom::Start(place.start)).map_err(io)?;
        let mut piece = vec![0; PIECE_BYTES.min(values.len() * read_type.bytes())];
        for values in values.chunks_mut(PIECE_BYTES / read_type.bytes()) {
            let bytes = &mut piece[..values.len() * read_type.bytes()];
            file.read_exact(bytes).map_err(io)?;
            read_type.read(bytes, values);
            if !values.iter().all(|value| value.is_finite()) {
                return Err(PretrainedError::NotFinite(place.path.clone(), name.to_owned()));
            }
        }
        Ok(())
    }
}

fn read_header(path: &Path) -> Result<BTreeMap<String, Place>, PretrainedError> {
    let io = |error| PretrainedError::Io(path.to_owned(), error);
    let damaged = |reason: String| PretrainedError::Damaged(path.to_owned(), reason);
    let mut file = regular::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut eight = [0; 8];
    file.read_exact(&mut eight).map_err(|_| damaged(format!("{length} bytes are no safetensors file")))?;
    let header_bytes = u64::from_le_bytes(eight);
    if header_bytes > HEADER_BYTES_MAX.min(length - 8) {
        return Err(damaged(format!("a header of {header_bytes} bytes in a file of {length}")));
    }
    let mut header = vec![0; usize::try_from(header_bytes).expect("at most the limit above")];
    file.read_exact(&mut header).map_err(io)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
    let begin = 8 + header_bytes;
    let expected = begin + metadata.data_len() as u64;
    if expected != length {
        return Err(damaged(format!("expected {expected} bytes by its header, found {length}")));
    }
    let place = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let start = begin + info.data_offsets.0 as u64;
        (name, Place { path: path.to_owned(), dtype: info.dtype, shape: info.shape.clone(), start })
    };
    Ok(metadata.tensors().into_iter().map(place).collect())
}

fn read_shards(folder: &Path, index_path: &Path) -> Result<BTreeMap<String, Place>, PretrainedError> {
    let bytes = regular::read(index_path, HEADER_BYTES_MAX)
        .map_err(|error| PretrainedError::Io(index_path.to_owned(), error))?;
    let damaged = |reason: String| PretrainedError::Damaged(index_path.to_owned(), reason);
    let index: ShardIndex = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    for name in index.weight_map.values().collect::<BTreeSet<_>>() {
        // A name from a file must not lead out of the folder.
        if Path::new(name).file_name() != Some(name.as_ref()) {
            return Err(damaged(format!("{name:?} is no name of a file in this folder")));
        }
        let path = folder.join(name);
        if !path.exists() {
            return Err(PretrainedError::NoShard(index_path.to_owned(), name.clone()));
        }
        for (tensor, place) in read_header(&path)? {
            if let Some(first) = places.get(&tensor) {
                let (first, second) = (first.path.clone(), place.path);
                return Err(PretrainedError::Twice { tensor, first, second });
            }
            places.insert(tensor, place);
        }
    }
    for (tensor, name) in &index.weight_map {
        if places.get(tensor).is_none_or(|place| place.path != folder.join(name)) {
            return Err(damaged(format!("it says that {tensor} is in {name}, where it is not")));
        }
    }
    Ok(places)
}

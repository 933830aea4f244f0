//! The weights of a pretrained model in the order of its layout: one flat vector, or a base in fewer bits.

use std::convert::Infallible;
use std::path::Path;

use blake3::Hasher;
use murmur_protocol::layout::{ModelLayout, TensorSpec};
use murmur_protocol::manifest::{RopeScaling, TransformerModel};

use super::config::PretrainedConfig;
use super::error::PretrainedError;
use super::files::{Place, TensorFiles};
use crate::model::StageSpec;
use crate::model::transformer::stage_layout;
use crate::ops::base_weights::BaseWeights;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A model from elsewhere.
#[derive(Clone, Debug)]
pub struct Pretrained {
    /// What it is.
    pub config: PretrainedConfig,
    /// Its weights, flat in the order of its layout.
    pub parameters: Vec<f32>,
}

impl Pretrained {
    /// Reads the model in `folder`.
    ///
    /// # Errors
    /// When anything is missing, too much, damaged or not supported.
    pub fn read(folder: &Path) -> Result<Pretrained, PretrainedError> {
        let config = PretrainedConfig::read(folder)?;
        let parameters = read_weights(folder, &config.layout())?;
        Ok(Pretrained { config, parameters })
    }

    /// BLAKE3 over names, shapes and values in hexadecimal: the same however the values are spread over files, and
    /// whether they are stored with 16 bits or were widened to 32.
    pub fn digest(&self) -> String {
        let hash = |tensor: &TensorSpec, hasher: &mut Hasher| -> Result<(), Infallible> {
            hash_values(hasher, &self.parameters[tensor.range()]);
            Ok(())
        };
        let Ok(digest) = digest_of(&self.config, hash);
        digest
    }
}

/// The weights of a model from elsewhere, read tensor by tensor into as many bits as a run holds its base in.
#[derive(Clone, Debug)]
pub struct PretrainedBase {
    /// In the order of the model's layout.
    pub weights: BaseWeights,
    /// As [`Pretrained::digest`]: of the values in the files.
    pub digest: String,
}

impl PretrainedBase {
    /// Reads the model in `folder`. Never more than one of its tensors is held in 32 bits beside the result.
    ///
    /// # Errors
    /// As [`Pretrained::read`].
    ///
    /// # Panics
    /// When `bits` are not 8, 16 or 32.
    pub fn read(folder: &Path, bits: u32) -> Result<PretrainedBase, PretrainedError> {
        let config = PretrainedConfig::read(folder)?;
        let layout = config.layout();
        let (files, mut weights) = (checked_files(folder, &layout)?, BaseWeights::with_room(&layout, bits));
        let mut values = Vec::new();
        for tensor in layout.tensors() {
            values.resize(tensor.len(), 0.0);
            TensorFiles::read(&tensor.name, find(&files, tensor)?, &mut values)?;
            weights.push(tensor.shape.len() > 1, &values);
            if tensor.name == EMBEDDING {
                check_tied_head(&files, &layout, &values)?;
            }
        }
        // In another order, so values that were rounded are read again.
        let digest = digest_of(&config, |tensor, hasher| {
            let exact = weights.exact(&tensor.range());
            if exact.is_none() {
                values.resize(tensor.len(), 0.0);
                TensorFiles::read(&tensor.name, find(&files, tensor)?, &mut values)?;
            }
            hash_values(hasher, exact.unwrap_or(&values));
            Ok(())
        })?;
        Ok(PretrainedBase { weights, digest })
    }
}

impl PretrainedBase {
    /// Reads one part of the model in `folder`, which is known to be the right one: the tensors of its layers, in the order of the
    /// part's layout.
    ///
    /// # Errors
    /// As [`Pretrained::read`].
    ///
    /// # Panics
    /// When `bits` are not 8, 16 or 32.
    pub fn read_part(folder: &Path, bits: u32, part: &StageSpec) -> Result<BaseWeights, PretrainedError> {
        let config = PretrainedConfig::read(folder)?;
        let files = checked_files(folder, &config.layout())?;
        let layout = stage_layout(&config.spec, part);
        let (mut weights, mut values) = (BaseWeights::with_room(&layout, bits), Vec::new());
        for tensor in layout.tensors() {
            values.resize(tensor.len(), 0.0);
            TensorFiles::read(&tensor.name, find(&files, tensor)?, &mut values)?;
            weights.push(tensor.shape.len() > 1, &values);
        }
        Ok(weights)
    }

    /// The digest of the model in `folder`, of which never more than one tensor is held: for one that no machine holds whole.
    ///
    /// # Errors
    /// As [`Pretrained::read`].
    pub fn digest_of(folder: &Path) -> Result<String, PretrainedError> {
        let config = PretrainedConfig::read(folder)?;
        let (files, mut values) = (checked_files(folder, &config.layout())?, Vec::new());
        digest_of(&config, |tensor, hasher| {
            values.resize(tensor.len(), 0.0);
            TensorFiles::read(&tensor.name, find(&files, tensor)?, &mut values)?;
            hash_values(hasher, &values);
            Ok(())
        })
    }
}

/// The digest of a model of which `hash` hashes a tensor's values.
fn digest_of<E>(
    config: &PretrainedConfig,
    mut hash: impl FnMut(&TensorSpec, &mut Hasher) -> Result<(), E>,
) -> Result<String, E> {
    let mut hasher = Hasher::new_derive_key("murmuration 2026 base model");
    // In the order of names, which digests in run files have: whatever the order in memory.
    let (layout, sorted) = (config.layout(), config.layout().by_name());
    hasher.update(sorted.digest());
    // What does not show in shapes, but in what the model computes.
    let TransformerModel { heads, rope_theta, norm_epsilon, .. } = config.spec;
    let key_value_heads = config.spec.resolved_key_value_heads();
    hasher.update(format!("{heads} {key_value_heads} {rope_theta:?} {norm_epsilon:?}\n").as_bytes());
    hasher.update(positions(&config.spec).as_bytes());
    for tensor in sorted.tensors() {
        hash(layout.tensor(&tensor.name).expect("both have the same tensors"), &mut hasher)?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn hash_values(hasher: &mut Hasher, values: &[f32]) {
    for values in values.chunks(HASHED_VALUES) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
}

/// What a model does otherwise with positions than a plain one; nothing of it keeps the digests that these had before.
fn positions(spec: &TransformerModel) -> String {
    let without = &spec.layers_without_rope;
    let skipped = if without.is_empty() { String::new() } else { format!("without {without:?}\n") };
    let TransformerModel { rope_factor: factor, rope_low_factor: low, rope_high_factor: high, .. } = *spec;
    let scaled = match spec.rope_scaling {
        RopeScaling::None => String::new(),
        RopeScaling::Linear => format!("linear {factor:?}\n"),
        RopeScaling::Llama3 => format!("llama3 {factor:?} {low:?} {high:?} {}\n", spec.rope_original_context),
    };
    scaled + &skipped
}

/// Values that are hashed at a time: 4 MiB.
const HASHED_VALUES: usize = 1024 * 1024;

/// Reads exactly the tensors of `layout` from the safetensors files in `folder`.
fn read_weights(folder: &Path, layout: &ModelLayout) -> Result<Vec<f32>, PretrainedError> {
    let files = checked_files(folder, layout)?;
    let mut parameters = vec![0.0; layout.parameters()];
    for tensor in layout.tensors() {
        TensorFiles::read(&tensor.name, find(&files, tensor)?, &mut parameters[tensor.range()])?;
    }
    if let Some(embedding) = layout.tensor(EMBEDDING) {
        check_tied_head(&files, layout, &parameters[embedding.range()])?;
    }
    Ok(parameters)
}

/// Files that have exactly the tensors of `layout`. Everything is checked before anything is read: the first megabyte of a
/// wrong model is as wrong as the last.
fn checked_files(folder: &Path, layout: &ModelLayout) -> Result<TensorFiles, PretrainedError> {
    let files = TensorFiles::open(folder)?;
    layout.tensors().iter().try_for_each(|tensor| find(&files, tensor).map(drop))?;
    let is_extra = |name: &str| layout.tensor(name).is_none() && name != HEAD && !is_old_buffer(name);
    if let Some((name, place)) = files.places.iter().find(|(name, _)| is_extra(name)) {
        let (path, tensor, found) = (place.path.clone(), name.clone(), place.shape.clone());
        return Err(PretrainedError::Extra { path, tensor, found });
    }
    Ok(files)
}

fn find<'a>(files: &'a TensorFiles, tensor: &TensorSpec) -> Result<&'a Place, PretrainedError> {
    let Some(place) = files.places.get(&tensor.name) else {
        let (path, tensor, expected) = (files.root.clone(), tensor.name.clone(), tensor.shape.clone());
        return Err(PretrainedError::Missing { path, tensor, expected });
    };
    check_shape(place, &tensor.name, &tensor.shape)?;
    Ok(place)
}

fn check_shape(place: &Place, name: &str, expected: &[usize]) -> Result<(), PretrainedError> {
    if place.shape == expected {
        return Ok(());
    }
    let (path, found) = (place.path.clone(), place.shape.clone());
    Err(PretrainedError::Shape { path, tensor: name.to_owned(), expected: expected.to_vec(), found })
}

/// A tied head that was saved all the same must be the embedding, whose values these are.
fn check_tied_head(files: &TensorFiles, layout: &ModelLayout, values: &[f32]) -> Result<(), PretrainedError> {
    let (None, Some(head), Some(embedding)) = (layout.tensor(HEAD), files.places.get(HEAD), layout.tensor(EMBEDDING))
    else {
        return Ok(());
    };
    check_shape(head, HEAD, &embedding.shape)?;
    let mut saved = vec![0.0; values.len()];
    TensorFiles::read(HEAD, head, &mut saved)?;
    if saved == values { Ok(()) } else { Err(PretrainedError::HeadNotTied(head.path.clone())) }
}

/// Old checkpoints hold a table that follows from `rope_theta`; the transformers library passes over it as well.
fn is_old_buffer(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
}

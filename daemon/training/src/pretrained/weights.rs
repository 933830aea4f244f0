//! The weights of a pretrained model, as one flat vector in the order of its layout.

use std::path::Path;

use murmur_protocol::layout::{ModelLayout, TensorSpec};
use murmur_protocol::manifest::{ModelSpec, RopeScaling};

use super::config::PretrainedConfig;
use super::error::PretrainedError;
use super::files::{Place, TensorFiles};

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
        let mut hasher = blake3::Hasher::new_derive_key("murmuration 2026 base model");
        // In the order of names, which digests in run files have: whatever the order in memory.
        let (layout, sorted) = (self.config.layout(), self.config.layout().by_name());
        hasher.update(sorted.digest());
        // What does not show in shapes, but in what the model computes.
        let ModelSpec { heads, rope_theta, norm_epsilon, .. } = self.config.spec;
        let key_value_heads = self.config.spec.resolved_key_value_heads();
        hasher.update(format!("{heads} {key_value_heads} {rope_theta:?} {norm_epsilon:?}\n").as_bytes());
        hasher.update(positions(&self.config.spec).as_bytes());
        for tensor in sorted.tensors() {
            let tensor = layout.tensor(&tensor.name).expect("both have the same tensors");
            for values in self.parameters[tensor.range()].chunks(HASHED_VALUES) {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                hasher.update(&bytes);
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// What a model does otherwise with positions than a plain one; nothing of it keeps the digests that these had before.
fn positions(spec: &ModelSpec) -> String {
    let without = &spec.layers_without_rope;
    let skipped = if without.is_empty() { String::new() } else { format!("without {without:?}\n") };
    let ModelSpec { rope_factor: factor, rope_low_factor: low, rope_high_factor: high, .. } = *spec;
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
    let files = TensorFiles::open(folder)?;
    // Everything is checked before anything is read: the first megabyte of a wrong model is as wrong as the last.
    let places = layout.tensors().iter().map(|tensor| find(&files, tensor)).collect::<Result<Vec<_>, _>>()?;
    let is_extra = |name: &str| layout.tensor(name).is_none() && name != HEAD && !is_old_buffer(name);
    if let Some((name, place)) = files.places.iter().find(|(name, _)| is_extra(name)) {
        let (path, tensor, found) = (place.path.clone(), name.clone(), place.shape.clone());
        return Err(PretrainedError::Extra { path, tensor, found });
    }
    let mut parameters = vec![0.0; layout.parameters()];
    for (tensor, place) in layout.tensors().iter().zip(places) {
        TensorFiles::read(&tensor.name, place, &mut parameters[tensor.range()])?;
    }
    if let (None, Some(head), Some(embedding)) = (layout.tensor(HEAD), files.places.get(HEAD), layout.tensor(EMBEDDING))
    {
        check_tied_head(head, embedding, &parameters[embedding.range()])?;
    }
    Ok(parameters)
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

/// A tied head that was saved all the same must be the embedding.
fn check_tied_head(head: &Place, embedding: &TensorSpec, values: &[f32]) -> Result<(), PretrainedError> {
    check_shape(head, HEAD, &embedding.shape)?;
    let mut saved = vec![0.0; values.len()];
    TensorFiles::read(HEAD, head, &mut saved)?;
    if saved == values { Ok(()) } else { Err(PretrainedError::HeadNotTied { path: head.path.clone() }) }
}

/// Old checkpoints hold a table that follows from `rope_theta`; the transformers library passes over it as well.
fn is_old_buffer(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
}

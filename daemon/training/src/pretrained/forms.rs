//! What a folder holds where it holds no model in safetensors: forms that are known well enough to be named.

use std::path::Path;

use serde_json::Value;

use super::adapters;
use super::error::PretrainedError;
use crate::regular;

/// The largest configuration of an adapter that is read; they have a kilobyte.
const ADAPTER_CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The form of what is at `place`, as the error that it is; `None` where it is none that is known.
pub(super) fn other_form(place: &Path) -> Option<PretrainedError> {
    let is_gguf = |path: &Path| path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
    if place.is_file() {
        return is_gguf(place).then(|| PretrainedError::Gguf(place.to_owned()));
    }
    let adapter = place.join(adapters::CONFIG_FILE);
    if adapter.is_file() {
        return Some(PretrainedError::Adapter(place.to_owned(), base_of(&adapter)));
    }
    let mut paths = std::fs::read_dir(place).ok()?.flatten().map(|entry| entry.path());
    paths.find(|path| is_gguf(path)).map(PretrainedError::Gguf)
}

/// What an adapter's configuration names as its base.
fn base_of(config: &Path) -> String {
    let bytes = regular::read(config, ADAPTER_CONFIG_BYTES_MAX).unwrap_or_default();
    let config: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    config["base_model_name_or_path"].as_str().unwrap_or("a base that it does not name").to_owned()
}

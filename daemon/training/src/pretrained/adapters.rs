//! Writes adapters by themselves, as a folder that PEFT loads beside their base.

use std::path::Path;

use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::LoraSpec;
use serde_json::{Value, json};

use super::ExportType;
use super::error::PretrainedError;
use super::export::{Target, write_file, write_weights};

pub(super) const CONFIG_FILE: &str = "adapter_config.json";
pub(super) const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// Where PEFT finds the base of adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterBase {
    /// A model of the hub, `OWNER/NAME`, or a folder.
    pub name: String,
    /// The branch, tag or commit of the hub's model, where it is not the usual one.
    pub revision: Option<String>,
}

/// Writes `adapters`, flat in the order of their `layout`, and what PEFT needs to know of them into `folder`; with `base` also
/// where their base lies. The folder is there whole or not at all.
///
/// # Errors
/// When `folder` exists, unless `overwrites`, when it is a file or would lie in one, or the disk is full; nothing has changed then.
///
/// # Panics
/// When `adapters` is of another layout.
pub fn export_adapters(
    spec: &LoraSpec,
    layout: &ModelLayout,
    adapters: &[f32],
    export_type: ExportType,
    base: Option<&AdapterBase>,
    folder: &Path,
    overwrites: bool,
) -> Result<(), PretrainedError> {
    assert_eq!(adapters.len(), layout.parameters(), "one value per parameter");
    Target { folder, overwrites }.fill(|folder| {
        write_weights(layout, adapters, export_type, &folder.join(WEIGHTS_FILE))?;
        let mut text = serde_json::to_vec_pretty(&config(spec, base)).expect("JSON values can be written");
        text.push(b'\n');
        write_file(&folder.join(CONFIG_FILE), &text)
    })
}

fn config(spec: &LoraSpec, base: Option<&AdapterBase>) -> Value {
    // PEFT's own type is a whole number; it computes with others as well.
    let whole = spec.alpha.fract() == 0.0;
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.map(|base| &base.name),
        "revision": base.and_then(|base| base.revision.as_ref()),
        "r": spec.rank,
        "lora_alpha": if whole { json!(spec.alpha as u64) } else { json!(spec.alpha) },
        "lora_dropout": 0.0,
        "target_modules": spec.targets,
        "modules_to_save": null,
        "bias": "none",
        "fan_in_fan_out": false,
        "use_rslora": false,
        "use_dora": false,
        "inference_mode": true,
    })
}

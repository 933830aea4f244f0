//! `config.json` of a model of Llama's relatives: what is kept of it, and how it is written. `reader.rs` reads it.
//!
//! Both forms of the transformers library are written: since its version 5 the rotary settings are in `rope_parameters`,
//! before they were `rope_theta` and `rope_scaling`.

use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::{AttentionBias, RopeScaling, TransformerModel};
use serde_json::{Map, Value, json};

use super::ExportType;
use super::family::Family;
use crate::model::transformer::transformer_layout;

/// The file's name.
pub const CONFIG_FILE: &str = "config.json";

/// A model's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct PretrainedConfig {
    /// The model, with the longest context that it can be trained with.
    pub spec: TransformerModel,
    /// The key that this context comes from.
    pub context_key: &'static str,
    /// The file as it is, with what training has no use for (such as the token that ends a text).
    pub(super) object: Map<String, Value>,
}

impl PretrainedConfig {
    /// The model with a run's `context`, in tokens.
    pub fn model(&self, context: u32) -> TransformerModel {
        TransformerModel { context, ..self.spec.clone() }
    }

    /// The configuration of a run's model.
    pub fn of(model: &TransformerModel) -> PretrainedConfig {
        let object = own_keys(model);
        PretrainedConfig { spec: model.clone(), context_key: "max_position_embeddings", object }
    }

    /// Names and shapes of its weights.
    pub fn layout(&self) -> ModelLayout {
        transformer_layout(&self.spec)
    }

    /// Two configurations of models with the same tensors and the same arithmetic.
    pub fn computes_as(&self, other: &PretrainedConfig) -> bool {
        self.spec == other.model(self.spec.context)
    }

    /// The file, for weights of this type.
    pub(super) fn to_json(&self, export_type: ExportType) -> Vec<u8> {
        let mut object = self.object.clone();
        // The name until version 4, and the one since.
        object.remove("torch_dtype");
        object.insert("dtype".to_owned(), json!(export_type.name()));
        let mut bytes = serde_json::to_vec_pretty(&object).expect("JSON values can be written");
        bytes.push(b'\n');
        bytes
    }
}

/// The file of a run's model, as the first family that computes it.
fn own_keys(model: &TransformerModel) -> Map<String, Value> {
    let family = Family::of(model);
    let mut object = object(json!({
        "architectures": [family.architecture()],
        "model_type": family.model_type(),
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.feed_forward,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.resolved_key_value_heads(),
        "head_dim": model.resolved_head_width(),
        "max_position_embeddings": model.context,
        "tie_word_embeddings": model.tied_head,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "hidden_act": "silu",
        "attention_bias": model.attention_bias != AttentionBias::None,
        "attention_dropout": 0.0,
        "mlp_bias": false,
        "sliding_window": null,
        "use_sliding_window": false,
        // A model from scratch has no tokens that begin, end and fill a text; the library would assume its own.
        "bos_token_id": null,
        "eos_token_id": null,
        "pad_token_id": null,
    }));
    // Each version of the library reads its own form of the same numbers.
    let scaling = rope_scaling(model);
    let mut parameters = scaling.clone();
    parameters.insert("rope_theta".to_owned(), json!(model.rope_theta));
    object.insert("rope_parameters".to_owned(), Value::Object(parameters));
    if model.rope_scaling != RopeScaling::None {
        object.insert("rope_scaling".to_owned(), Value::Object(scaling));
    }
    if family == Family::SmolLm3 {
        let has_rope = (0..model.layers).map(|layer| u32::from(model.has_rope(layer)));
        object.insert("no_rope_layers".to_owned(), has_rope.collect());
    }
    object
}

fn rope_scaling(model: &TransformerModel) -> Map<String, Value> {
    object(match model.rope_scaling {
        RopeScaling::None => json!({ "rope_type": "default" }),
        RopeScaling::Linear => json!({ "rope_type": "linear", "factor": model.rope_factor }),
        RopeScaling::Llama3 => json!({
            "rope_type": "llama3",
            "factor": model.rope_factor,
            "low_freq_factor": model.rope_low_factor,
            "high_freq_factor": model.rope_high_factor,
            "original_max_position_embeddings": model.rope_original_context,
        }),
    })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => unreachable!("written as an object above, not {other}"),
    }
}

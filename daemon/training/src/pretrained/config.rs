//! `config.json` of a Llama model: read into the settings of a run's model, and written from them.
//!
//! Both forms of the transformers library are read: since its version 5 the rotary settings are in `rope_parameters`,
//! before they were `rope_theta` and `rope_scaling`.

use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::ModelSpec;
use serde_json::{Map, Value, json};

use super::ExportType;
use super::error::PretrainedError;
use crate::model::transformer::transformer_layout;
use crate::regular;

/// The largest `config.json` that is read, a thousand times what they have.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The file's name.
pub const CONFIG_FILE: &str = "config.json";

/// What LlamaConfig of the transformers library takes where `rope_theta` is not given.
const ROPE_THETA: f64 = 10_000.0;

/// What it takes where `rms_norm_eps` is not given.
const NORM_EPSILON: f64 = 1e-6;

/// A Llama model's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct PretrainedConfig {
    /// Rows of the embedding.
    pub vocabulary: u32,
    /// Number of blocks.
    pub layers: u32,
    /// Width of the residual stream.
    pub width: u32,
    /// Attention heads.
    pub heads: u32,
    /// Heads of keys and values: each serves `heads / key_value_heads` queries.
    pub key_value_heads: u32,
    /// Width inside the feed-forward part.
    pub feed_forward: u32,
    /// The longest context that it was trained with, in tokens.
    pub context_max: u32,
    /// Whether the head is the embedding.
    pub tied_head: bool,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Added to the mean square in RMSNorm.
    pub norm_epsilon: f64,
    /// The file as it is, with what training has no use for (such as the token that ends a text).
    object: Map<String, Value>,
}

/// A key, its only supported values (absent and null are fine as well), and those in words.
type Supported = (&'static str, &'static [Value], &'static str);

/// Settings that change what a model computes, in ways that are not implemented here.
const SUPPORTED: [Supported; 8] = [
    ("attention_bias", &[Value::Bool(false)], "false"),
    ("mlp_bias", &[Value::Bool(false)], "false"),
    ("sliding_window", &[], "null (attention to all earlier tokens)"),
    ("use_sliding_window", &[Value::Bool(false)], "false"),
    ("quantization_config", &[], "null (weights that are not quantized)"),
    ("num_experts", &[], "null (no mixture of experts)"),
    ("num_local_experts", &[], "null (no mixture of experts)"),
    ("rope_interleaved", &[Value::Bool(false)], "false"),
];

impl PretrainedConfig {
    /// Reads `config.json` in `folder`.
    ///
    /// # Errors
    /// When it is missing, is no JSON, is of another architecture or has a setting that is not supported.
    pub fn read(folder: &Path) -> Result<PretrainedConfig, PretrainedError> {
        let path = folder.join(CONFIG_FILE);
        let bytes = regular::read(&path, CONFIG_BYTES_MAX)
            .map_err(|error| PretrainedError::Io { path: path.clone(), error })?;
        let parsed = serde_json::from_slice::<Map<String, Value>>(&bytes);
        let object =
            parsed.map_err(|error| PretrainedError::Damaged { path: path.clone(), reason: error.to_string() })?;
        Reader { path, object }.config()
    }

    /// The model with a run's `context`, in tokens.
    pub fn model(&self, context: u32) -> ModelSpec {
        ModelSpec {
            layers: self.layers,
            width: self.width,
            heads: self.heads,
            // As run files have it where both are as many.
            key_value_heads: if self.key_value_heads == self.heads { 0 } else { self.key_value_heads },
            feed_forward: self.feed_forward,
            vocabulary: self.vocabulary,
            tied_head: self.tied_head,
            rope_theta: self.rope_theta,
            norm_epsilon: self.norm_epsilon,
            context,
            ..ModelSpec::default()
        }
    }

    /// The configuration of a run's model.
    pub fn of(model: &ModelSpec) -> PretrainedConfig {
        let config = PretrainedConfig {
            vocabulary: model.vocabulary,
            layers: model.layers,
            width: model.width,
            heads: model.heads,
            key_value_heads: model.resolved_key_value_heads(),
            feed_forward: model.feed_forward,
            context_max: model.context,
            tied_head: model.tied_head,
            rope_theta: model.rope_theta,
            norm_epsilon: model.norm_epsilon,
            object: Map::new(),
        };
        PretrainedConfig { object: config.own_keys(), ..config }
    }

    /// Names and shapes of its weights.
    pub fn layout(&self) -> ModelLayout {
        transformer_layout(&self.model(self.context_max))
    }

    /// Two configurations of models with the same tensors and the same arithmetic.
    pub fn computes_as(&self, other: &PretrainedConfig) -> bool {
        self.model(self.context_max) == other.model(self.context_max)
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

    fn own_keys(&self) -> Map<String, Value> {
        let object = json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "max_position_embeddings": self.context_max,
            "tie_word_embeddings": self.tied_head,
            "rms_norm_eps": self.norm_epsilon,
            // Each version of the library reads its own form of the same number.
            "rope_theta": self.rope_theta,
            "rope_parameters": { "rope_theta": self.rope_theta, "rope_type": "default" },
            "hidden_act": "silu",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "mlp_bias": false,
            // A model from scratch has no tokens that begin and end a text; the library would assume its own.
            "bos_token_id": null,
            "eos_token_id": null,
        });
        match object {
            Value::Object(object) => object,
            _ => unreachable!("written as an object above"),
        }
    }
}

/// The file while it is being read.
struct Reader {
    path: PathBuf,
    object: Map<String, Value>,
}

impl Reader {
    fn config(self) -> Result<PretrainedConfig, PretrainedError> {
        self.check_architecture()?;
        self.check_supported()?;
        let rope_theta = self.rope_theta()?;
        let (width, heads) = (self.count("hidden_size")?, self.count("num_attention_heads")?);
        let key_value_heads =
            if self.value("num_key_value_heads").is_some() { self.count("num_key_value_heads")? } else { heads };
        self.check_heads(width, heads, key_value_heads)?;
        let path = self.path.clone();
        let config = PretrainedConfig {
            vocabulary: self.count("vocab_size")?,
            layers: self.count("num_hidden_layers")?,
            feed_forward: self.count("intermediate_size")?,
            context_max: self.count("max_position_embeddings")?,
            tied_head: self.value("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
            norm_epsilon: self.number("rms_norm_eps", &self.object)?.unwrap_or(NORM_EPSILON),
            rope_theta,
            width,
            heads,
            key_value_heads,
            object: self.object,
        };
        // The ranges of a run's model hold for this one, before anything is allocated by its numbers.
        let manifest = RunManifest { model: config.model(RunManifest::default().model.context), ..Default::default() };
        manifest.validate().map_err(|error| PretrainedError::OutOfRange { path, error })?;
        Ok(config)
    }

    /// A key's value; null counts as absent.
    fn value(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn unsupported(&self, key: &'static str, expected: impl Into<String>, found: &Value) -> PretrainedError {
        PretrainedError::Unsupported {
            path: self.path.clone(),
            key,
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    fn count(&self, key: &'static str) -> Result<u32, PretrainedError> {
        let missing = || PretrainedError::MissingKey { path: self.path.clone(), key };
        let value = self.value(key).ok_or_else(missing)?;
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
        count.ok_or_else(|| self.unsupported(key, "a whole number above 0", value))
    }

    fn number(&self, key: &'static str, object: &Map<String, Value>) -> Result<Option<f64>, PretrainedError> {
        let Some(value) = object.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.unsupported(key, "a number above 0", value))
    }

    fn check_architecture(&self) -> Result<(), PretrainedError> {
        let named = self.value("architectures").and_then(|names| names.get(0));
        if let Some(name) = named.filter(|name| **name != json!("LlamaForCausalLM")) {
            return Err(self.unsupported("architectures", "LlamaForCausalLM", name));
        }
        match self.value("model_type") {
            Some(kind) if *kind == json!("llama") => Ok(()),
            Some(kind) => Err(self.unsupported("model_type", "llama", kind)),
            None if named.is_some() => Ok(()),
            None => Err(PretrainedError::MissingKey { path: self.path.clone(), key: "model_type" }),
        }
    }

    fn check_supported(&self) -> Result<(), PretrainedError> {
        for (key, values, words) in SUPPORTED {
            if let Some(value) = self.value(key).filter(|value| !values.contains(value)) {
                return Err(self.unsupported(key, words, value));
            }
        }
        match self.value("hidden_act") {
            // Two names of one function.
            Some(name) if *name != json!("silu") && *name != json!("swish") => {
                Err(self.unsupported("hidden_act", "silu", name))
            }
            _ => Ok(()),
        }?;
        match self.value("attention_dropout") {
            Some(rate) if rate.as_f64() != Some(0.0) => Err(self.unsupported("attention_dropout", "0", rate)),
            _ => Ok(()),
        }
    }

    fn rope_theta(&self) -> Result<f64, PretrainedError> {
        for key in ["rope_scaling", "rope_parameters"] {
            let Some(value) = self.value(key) else { continue };
            let Some(rope) = value.as_object() else { return Err(self.unsupported(key, "an object", value)) };
            let kind = rope.get("rope_type").or(rope.get("type"));
            let partial = rope.get("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
            if kind.is_some_and(|kind| *kind != json!("default")) || partial != 1.0 {
                return Err(self.unsupported(key, "null or of rope_type default (no scaling)", value));
            }
            if let Some(theta) = self.number("rope_theta", rope)? {
                return Ok(theta);
            }
        }
        Ok(self.number("rope_theta", &self.object)?.unwrap_or(ROPE_THETA))
    }

    fn check_heads(&self, width: u32, heads: u32, key_value_heads: u32) -> Result<(), PretrainedError> {
        if !width.is_multiple_of(heads) || !(width / heads).is_multiple_of(2) {
            let expected = format!("a divisor of hidden_size {width} with an even quotient");
            return Err(self.unsupported("num_attention_heads", expected, &json!(heads)));
        }
        if !heads.is_multiple_of(key_value_heads) {
            let expected = format!("a divisor of num_attention_heads {heads}");
            return Err(self.unsupported("num_key_value_heads", expected, &json!(key_value_heads)));
        }
        match self.value("head_dim") {
            Some(value) if *value != json!(width / heads) => {
                let expected = format!("{}, hidden_size over num_attention_heads,", width / heads);
                Err(self.unsupported("head_dim", expected, value))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "rope_theta": 50000.0,
        "tie_word_embeddings": true, "eos_token_id": 7, "torch_dtype": "bfloat16"}"#;

    fn read(text: &str) -> Result<PretrainedConfig, String> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(folder.path().join(CONFIG_FILE), text).expect("written");
        PretrainedConfig::read(folder.path())
            .map_err(|error| error.to_string().replace(&folder.path().display().to_string(), "…"))
    }

    fn with(extra: &str) -> Result<PretrainedConfig, String> {
        read(&LLAMA.replacen('{', &format!("{{{extra}, "), 1))
    }

    #[test]
    fn both_forms_of_the_library_are_read() {
        let old = read(LLAMA).expect("a configuration");
        assert_eq!((old.vocabulary, old.key_value_heads, old.context_max), (300, 2, 64));
        assert_eq!((old.rope_theta, old.norm_epsilon, old.tied_head), (50_000.0, 1e-5, true));
        let parameters = r#""rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}"#;
        let new = read(&LLAMA.replace(r#""rope_theta": 50000.0"#, parameters)).expect("a configuration");
        assert!(new.computes_as(&old));
        let theta_missing = read(&LLAMA.replace(r#""rope_theta": 50000.0,"#, "")).expect("a configuration");
        assert_eq!(theta_missing.rope_theta, 10_000.0);
        assert!(!theta_missing.computes_as(&old));
    }

    #[test]
    fn unsupported_settings_are_refused_by_name() {
        for (extra, expected) in [
            (r#""attention_bias": true"#, "attention_bias is true, but only false"),
            (r#""mlp_bias": true"#, "mlp_bias is true"),
            (r#""sliding_window": 4096"#, "sliding_window is 4096, but only null"),
            (r#""hidden_act": "gelu""#, "hidden_act is \"gelu\", but only silu"),
            (r#""head_dim": 16"#, "head_dim is 16, but only 8"),
            (r#""attention_dropout": 0.1"#, "attention_dropout is 0.1, but only 0"),
            (r#""quantization_config": {"bits": 4}"#, "quantization_config is {\"bits\":4}"),
            (r#""rope_scaling": {"type": "linear", "factor": 2.0}"#, "rope_scaling is {"),
            (r#""rope_parameters": {"rope_type": "llama3", "factor": 8.0}"#, "rope_parameters is {"),
        ] {
            let message = with(extra).expect_err(extra);
            assert!(message.starts_with("…/config.json: ") && message.contains(expected), "{message}");
        }
        assert!(with(r#""rope_scaling": null, "sliding_window": null, "head_dim": 8"#).is_ok());
    }

    #[test]
    fn another_architecture_and_missing_keys_are_named() {
        let message = read(&LLAMA.replace("LlamaForCausalLM", "GPT2LMHeadModel")).expect_err("GPT-2");
        assert_eq!(
            message,
            "…/config.json: architectures is \"GPT2LMHeadModel\", but only LlamaForCausalLM is supported"
        );
        let message = read(r#"{"model_type": "bert"}"#).expect_err("BERT");
        assert!(message.contains("model_type is \"bert\", but only llama"), "{message}");
        let message = read(&LLAMA.replace(r#""hidden_size": 32,"#, "")).expect_err("no width");
        assert_eq!(message, "…/config.json: hidden_size is missing");
        let message = read(&LLAMA.replace(r#""hidden_size": 32,"#, r#""hidden_size": -1,"#)).expect_err("no width");
        assert!(message.contains("hidden_size is -1"), "{message}");
        assert!(read("[").expect_err("no JSON").contains("is damaged"));
    }

    #[test]
    fn a_written_configuration_reads_back_and_keeps_what_is_not_ours() {
        let read_in = read(LLAMA).expect("a configuration");
        let text = String::from_utf8(read_in.to_json(ExportType::F16)).expect("text");
        assert!(text.contains("\"eos_token_id\": 7") && text.contains("\"dtype\": \"float16\""), "{text}");
        assert!(read(&text).expect("a configuration").computes_as(&read_in));
        let own = PretrainedConfig::of(&read_in.model(48));
        let text = String::from_utf8(own.to_json(ExportType::F32)).expect("text");
        let again = read(&text).expect("a configuration");
        assert!(again.computes_as(&read_in) && again.context_max == 48);
    }
}

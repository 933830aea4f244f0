//! `config.json` while it is being read into the settings of a run's model. What it asks for and is not computed here is
//! refused by its key.

use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{AttentionBias, RopeScaling, TransformerModel};
use serde_json::{Map, Value, json};

use super::config::{CONFIG_FILE, PretrainedConfig};
use super::error::PretrainedError;
use super::family::Family;
use super::forms::other_form;
use crate::regular;

/// The largest `config.json` that is read, a thousand times what they have.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// How the library writes text with the model.
const GENERATION_FILE: &str = "generation_config.json";

/// The key of the tokens that end a text.
const END_KEY: &str = "eos_token_id";

/// What the library takes where `rms_norm_eps` is not given.
const NORM_EPSILON: f64 = 1e-6;

/// Every how manieth layer of SmolLM3 has no positions where the file does not say.
const NO_ROPE_INTERVAL: u32 = 4;

/// A key, its only supported values (absent and null are fine as well), and those in words.
type Supported = (&'static str, &'static [Value], &'static str);

/// Settings that change what a model computes, in ways that are not implemented here.
const SUPPORTED: [Supported; 5] = [
    ("mlp_bias", &[Value::Bool(false)], "false"),
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
        match Reader::open(folder.join(CONFIG_FILE)) {
            Err(error @ PretrainedError::Io(..)) => Err(other_form(folder).unwrap_or(error)),
            file => file?.config(),
        }
    }
}

/// The tokens that end a text of the model in `folder`: those of `generation_config.json`, where it names none those of
/// `config.json`. Files that are not there name none.
///
/// # Errors
/// When a file cannot be read, is no JSON, or names something else than tokens.
pub fn end_tokens(folder: &Path) -> Result<Vec<u32>, PretrainedError> {
    for path in [GENERATION_FILE, CONFIG_FILE].map(|name| folder.join(name)) {
        let file = if path.exists() { Reader::open(path)? } else { continue };
        let Some(value) = file.value(END_KEY) else { continue };
        let tokens = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let token = |token: &Value| token.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens = tokens.iter().map(token).collect::<Option<Vec<_>>>();
        return tokens.ok_or_else(|| file.unsupported(END_KEY, "a token's number, or a list of them,", value));
    }
    Ok(Vec::new())
}

/// A file of settings.
struct Reader {
    path: PathBuf,
    object: Map<String, Value>,
}

impl Reader {
    fn open(path: PathBuf) -> Result<Reader, PretrainedError> {
        let bytes = regular::read(&path, CONFIG_BYTES_MAX).map_err(|error| PretrainedError::Io(path.clone(), error))?;
        let parsed = serde_json::from_slice::<Map<String, Value>>(&bytes);
        let object = parsed.map_err(|error| PretrainedError::Damaged(path.clone(), error.to_string()))?;
        Ok(Reader { path, object })
    }

    fn config(self) -> Result<PretrainedConfig, PretrainedError> {
        let family = self.family()?;
        self.check_supported()?;
        let (width, heads) = (self.count("hidden_size")?, self.count("num_attention_heads")?);
        let (key_value_heads, head_width) = self.heads(family, width, heads)?;
        let layers = self.count("num_hidden_layers")?;
        let (context, context_key) = self.context(family)?;
        let spec = TransformerModel {
            vocabulary: self.count("vocab_size")?,
            layers,
            width,
            heads,
            head_width,
            key_value_heads,
            feed_forward: self.count("intermediate_size")?,
            context,
            tied_head: self.flag("tie_word_embeddings", family.tied_head())?,
            norm_epsilon: self.number("rms_norm_eps", &self.object)?.unwrap_or(NORM_EPSILON),
            attention_bias: self.attention_bias(family)?,
            head_norm: family == Family::Qwen3,
            layers_without_rope: if family == Family::SmolLm3 { self.layers_without_rope(layers)? } else { Vec::new() },
            ..self.rope(family)?
        };
        // The ranges of a run's model hold for this one, before anything is allocated by its numbers.
        let model = TransformerModel { context: TransformerModel::default().context, ..spec.clone() };
        let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.validate().map_err(|error| PretrainedError::OutOfRange(self.path.clone(), error))?;
        Ok(PretrainedConfig { spec, context_key, object: self.object })
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

    fn missing(&self, key: &'static str) -> PretrainedError {
        PretrainedError::MissingKey(self.path.clone(), key)
    }

    fn count(&self, key: &'static str) -> Result<u32, PretrainedError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
        count.ok_or_else(|| self.unsupported(key, "a whole number above 0", value))
    }

    fn number(&self, key: &'static str, object: &Map<String, Value>) -> Result<Option<f64>, PretrainedError> {
        let Some(value) = object.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.unsupported(key, "a number above 0", value))
    }

    fn flag(&self, key: &'static str, absent: bool) -> Result<bool, PretrainedError> {
        let Some(value) = self.value(key) else { return Ok(absent) };
        value.as_bool().ok_or_else(|| self.unsupported(key, "true or false", value))
    }

    fn family(&self) -> Result<Family, PretrainedError> {
        let listed = |name: fn(Family) -> &'static str| {
            let [others @ .., last] = Family::ALL.map(name);
            format!("{} or {last}", others.join(", "))
        };
        let named = self.value("architectures").and_then(|names| names.get(0));
        let by_name = named.map(|found| {
            let family = Family::ALL.into_iter().find(|family| *found == json!(family.architecture()));
            family.ok_or_else(|| self.unsupported("architectures", listed(Family::architecture), found))
        });
        let by_name = by_name.transpose()?;
        let Some(found) = self.value("model_type") else { return by_name.ok_or_else(|| self.missing("model_type")) };
        let family = Family::ALL.into_iter().find(|family| *found == json!(family.model_type()));
        match (family, by_name) {
            (None, None) => Err(self.unsupported("model_type", listed(Family::model_type), found)),
            (_, Some(named)) if family != Some(named) => Err(self.unsupported("model_type", named.model_type(), found)),
            (Some(family), _) => Ok(family),
            (None, Some(_)) => unreachable!("the case before"),
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
        match self.value("partial_rotary_factor") {
            Some(part) if part.as_f64() != Some(1.0) => Err(self.unsupported("partial_rotary_factor", "1", part)),
            _ => Ok(()),
        }?;
        match self.value("attention_dropout") {
            Some(rate) if rate.as_f64() != Some(0.0) => Err(self.unsupported("attention_dropout", "0", rate)),
            _ => Ok(()),
        }
    }

    /// Heads of keys and values, and the width of a head, as run files have them: 0 where it is the usual.
    fn heads(&self, family: Family, width: u32, heads: u32) -> Result<(u32, u32), PretrainedError> {
        let head_width = match self.value("head_dim") {
            Some(value) => {
                let found = self.count("head_dim")?;
                let even = found.is_multiple_of(2);
                even.then_some(found).ok_or_else(|| self.unsupported("head_dim", "an even number", value))?
            }
            None => match family.head_width() {
                Some(head_width) => head_width,
                None if width.is_multiple_of(heads) && (width / heads).is_multiple_of(2) => width / heads,
                None => {
                    let expected = format!("a divisor of hidden_size {width} with an even quotient");
                    return Err(self.unsupported("num_attention_heads", expected, &json!(heads)));
                }
            },
        };
        let key_value_heads = match self.object.get("num_key_value_heads") {
            Some(Value::Null) => heads,
            // Every family but Llama has a number of its own here, and its checkpoints always say theirs.
            None if family == Family::Llama => heads,
            _ => self.count("num_key_value_heads")?,
        };
        if !heads.is_multiple_of(key_value_heads) {
            let expected = format!("a divisor of num_attention_heads {heads}");
            return Err(self.unsupported("num_key_value_heads", expected, &json!(key_value_heads)));
        }
        let usual = width.is_multiple_of(heads) && head_width == width / heads;
        Ok((if key_value_heads == heads { 0 } else { key_value_heads }, if usual { 0 } else { head_width }))
    }

    fn attention_bias(&self, family: Family) -> Result<AttentionBias, PretrainedError> {
        let all = match family {
            // It knows no such key.
            Family::Qwen2 => return Ok(AttentionBias::Qkv),
            _ => self.flag("attention_bias", false)?,
        };
        if all && family == Family::Mistral {
            return Err(self.unsupported("attention_bias", "false", &json!(all)));
        }
        Ok(if all { AttentionBias::All } else { AttentionBias::None })
    }

    /// The longest context that is computed as the library does, and the key that it comes from. As long as the context is
    /// not above a sliding window, every token sees all earlier ones.
    fn context(&self, family: Family) -> Result<(u32, &'static str), PretrainedError> {
        let longest = self.count("max_position_embeddings")?;
        match self.window(family)? {
            Some(window) if window < longest => Ok((window, "sliding_window")),
            _ => Ok((longest, "max_position_embeddings")),
        }
    }

    /// The sliding window that some layers have.
    fn window(&self, family: Family) -> Result<Option<u32>, PretrainedError> {
        let (full, sliding) = (json!("full_attention"), json!("sliding_attention"));
        let layers = self.value("layer_types").map(|layers| (layers, layers.as_array().map_or(&[][..], Vec::as_slice)));
        let is_known = |kind: &Value| *kind == full || *kind == sliding;
        if let Some((found, _)) = layers.filter(|(_, kinds)| !kinds.iter().all(is_known)) {
            return Err(self.unsupported("layer_types", "full_attention and sliding_attention", found));
        }
        let slides = match family {
            Family::Llama => match self.value("sliding_window") {
                Some(window) => {
                    return Err(self.unsupported(
                        "sliding_window",
                        "null (Llama attends to all earlier tokens)",
                        window,
                    ));
                }
                None => false,
            },
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 | Family::SmolLm3 => self.flag("use_sliding_window", false)?,
        };
        let window = match self.object.get("sliding_window") {
            _ if !slides => None,
            Some(Value::Null) => None,
            None => family.window(),
            Some(_) => Some(self.count("sliding_window")?),
        };
        match layers.filter(|(_, kinds)| window.is_none() && kinds.contains(&sliding)) {
            Some((found, _)) => Err(self.unsupported("layer_types", "full_attention without a window", found)),
            None => Ok(window),
        }
    }

    /// The layers that SmolLM3 leaves without positions: in its list, 1 is a layer with them.
    fn layers_without_rope(&self, layers: u32) -> Result<Vec<u32>, PretrainedError> {
        let Some(value) = self.value("no_rope_layers") else {
            let interval = match self.value("no_rope_layer_interval") {
                Some(_) => self.count("no_rope_layer_interval")?,
                None => NO_ROPE_INTERVAL,
            };
            return Ok((0..layers).filter(|layer| (layer + 1).is_multiple_of(interval)).collect());
        };
        let listed: Option<Vec<u64>> = value.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
        let listed = listed.filter(|list| list.len() == layers as usize && list.iter().all(|has| *has <= 1));
        let expected = format!("a list of 0 or 1 for each of {layers} layers");
        let listed = listed.ok_or_else(|| self.unsupported("no_rope_layers", expected, value))?;
        Ok((0..layers).zip(listed).filter(|(_, has)| *has == 0).map(|(layer, _)| layer).collect())
    }

    /// A model with these rotary positions, and all else at its default.
    fn rope(&self, family: Family) -> Result<TransformerModel, PretrainedError> {
        let theta = self.number("rope_theta", &self.object)?;
        let mut spec =
            TransformerModel { rope_theta: theta.unwrap_or(family.rope_theta()), ..TransformerModel::default() };
        // Where both are there, the library reads the older one.
        let given = |key: &'static str| self.value(key).filter(|value| **value != json!({})).map(|value| (key, value));
        let Some((key, value)) = given("rope_scaling").or_else(|| given("rope_parameters")) else { return Ok(spec) };
        let Some(rope) = value.as_object() else { return Err(self.unsupported(key, "an object", value)) };
        let kind = rope.get("rope_type").or(rope.get("type"));
        let partial = rope.get("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
        let of_layers = rope.values().any(Value::is_object);
        let kind = kind.map_or(Some("default"), Value::as_str).filter(|_| partial == 1.0 && !of_layers);
        spec.rope_scaling = match kind {
            Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear,
            Some("llama3") => RopeScaling::Llama3,
            _ => return Err(self.unsupported(key, "null or of rope_type default, linear or llama3", value)),
        };
        let number = |key: &'static str| self.number(key, rope)?.ok_or_else(|| self.missing(key));
        if let Some(theta) = self.number("rope_theta", rope)? {
            spec.rope_theta = theta;
        }
        if spec.rope_scaling != RopeScaling::None {
            spec.rope_factor = number("factor")?;
        }
        if spec.rope_scaling == RopeScaling::Llama3 {
            (spec.rope_low_factor, spec.rope_high_factor) = (number("low_freq_factor")?, number("high_freq_factor")?);
            // Out of range above; `validate` says so.
            spec.rope_original_context = number("original_max_position_embeddings")? as u32;
        }
        Ok(spec)
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;

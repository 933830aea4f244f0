//! A transformer's settings: their ranges, and which of them go together.
//!
//! Only what a model of some family of Hugging Face has goes together, so that every run can be exported.

use serde::{Deserialize, Serialize};

use super::{ManifestError, check, within};

/// The widest head. A guess: four times that of any model known.
const HEAD_WIDTH_MAX: u32 = 1024;

/// The widest queries of a token. A guess: four times the widest stream.
const QUERY_WIDTH_MAX: u32 = 65_536;

/// How the angles of rotary positions are made to reach further than those of the first training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// All frequencies are divided by `rope_factor` (Chen et al., arXiv 2306.15595).
    Linear,
    /// Long wavelengths are divided by `rope_factor`, short ones stay, those between are blended (Llama 3.1, arXiv
    /// 2407.21783).
    Llama3,
}

/// Which projections of attention have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionBias {
    /// None of them.
    #[default]
    None,
    /// Those of queries, keys and values (Qwen2).
    Qkv,
    /// That of the output as well.
    All,
}

/// Llama-style decoder: RMSNorm, rotary positions, SwiGLU.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerModel {
    /// Number of blocks, 1 to 128.
    pub layers: u32,
    /// Width of the residual stream, up to 16,384; a multiple of `heads` where `head_width` is 0.
    pub width: u32,
    /// Attention heads, 1 to 256.
    pub heads: u32,
    /// Width of a head, even for the rotary positions, up to 1,024; 0 for `width / heads`.
    pub head_width: u32,
    /// Heads of keys and values, shared by equal groups of attention heads (Ainslie et al., arXiv 2305.13245): a divisor
    /// of `heads`, or 0 for as many as `heads`.
    pub key_value_heads: u32,
    /// Width inside the feed-forward part.
    pub feed_forward: u32,
    /// Tokens of context, 8 to 65,536.
    pub context: u32,
    /// Different tokens, 2 to 262,144; 256 for bytes.
    pub vocabulary: u32,
    /// Whether the head is the embedding's table (Press and Wolf, arXiv 1608.05859) instead of a matrix of its own.
    pub tied_head: bool,
    /// Base of the rotary positions' angles, 1 to 1e9.
    pub rope_theta: f64,
    /// What becomes of these angles.
    pub rope_scaling: RopeScaling,
    /// By how much the scaling reaches further, 1 to 10,000; 1 without a scaling.
    pub rope_factor: f64,
    /// Of `llama3`: wavelengths above `rope_original_context` over this are divided by the factor, above 0, at most 1,000.
    pub rope_low_factor: f64,
    /// Of `llama3`: wavelengths below `rope_original_context` over this stay, above `rope_low_factor`, at most 1,000.
    pub rope_high_factor: f64,
    /// Of `llama3`: tokens of context of the first training, 1 to 2²⁴.
    pub rope_original_context: u32,
    /// Numbers of the layers, from 0 and rising, whose queries and keys are not turned by their positions (SmolLM3).
    pub layers_without_rope: Vec<u32>,
    /// Which projections of attention have a bias.
    pub attention_bias: AttentionBias,
    /// Whether each head's query and key go through an RMSNorm before they are turned (Qwen3).
    pub head_norm: bool,
    /// Added to RMSNorm's mean square, above 0, at most 0.01.
    pub norm_epsilon: f64,
}

impl TransformerModel {
    /// Heads of keys and values, with 0 resolved.
    pub fn resolved_key_value_heads(&self) -> u32 {
        if self.key_value_heads == 0 { self.heads } else { self.key_value_heads }
    }

    /// Width of a head, with 0 resolved.
    pub fn resolved_head_width(&self) -> u32 {
        if self.head_width == 0 { self.width / self.heads } else { self.head_width }
    }

    /// Width of all queries of a token, and of what attention gives.
    pub fn query_width(&self) -> u32 {
        self.heads * self.resolved_head_width()
    }

    /// Width of all keys of a token, and of all values.
    pub fn key_width(&self) -> u32 {
        self.resolved_key_value_heads() * self.resolved_head_width()
    }

    /// Whether this layer turns queries and keys by their positions.
    pub fn has_rope(&self, layer: u32) -> bool {
        !self.layers_without_rope.contains(&layer)
    }
}

/// Checks the ranges of its fields, and which of them go together.
pub(super) fn validate(model: &TransformerModel) -> Result<(), ManifestError> {
    check("model.layers", model.layers, (1..=128).contains(&model.layers), "1 to 128")?;
    heads(model)?;
    let feed_forward_holds = (1..=65_536).contains(&model.feed_forward);
    check("model.feed_forward", model.feed_forward, feed_forward_holds, "1 to 65536")?;
    check("model.context", model.context, (8..=65_536).contains(&model.context), "8 to 65536")?;
    check("model.vocabulary", model.vocabulary, (2..=262_144).contains(&model.vocabulary), "2 to 262144")?;
    within("model.norm_epsilon", model.norm_epsilon, f64::MIN_POSITIVE, 0.01, "above 0, at most 0.01")?;
    rope(model)?;
    let bias = toml::Value::try_from(model.attention_bias).expect("the name of a choice");
    let fits = model.attention_bias != AttentionBias::Qkv || !model.head_norm;
    check("model.attention_bias", &bias, fits, "\"none\" or \"all\" where model.head_norm = true")?;
    let plain = model.layers_without_rope.is_empty();
    let fits = plain || model.attention_bias != AttentionBias::Qkv;
    check("model.attention_bias", &bias, fits, "\"none\" or \"all\" where model.layers_without_rope has some")?;
    check(
        "model.head_norm",
        model.head_norm,
        plain || !model.head_norm,
        "false where model.layers_without_rope has some",
    )
}

fn heads(model: &TransformerModel) -> Result<(), ManifestError> {
    let TransformerModel { width, heads, head_width, .. } = *model;
    check("model.heads", heads, (1..=256).contains(&heads), "1 to 256")?;
    let width_holds = (2..=16_384).contains(&width);
    if head_width == 0 {
        let even = width.is_multiple_of(heads) && (width / heads).is_multiple_of(2);
        let rule = "2 to 16384, and width / heads a whole even number";
        check("model.width", width, width_holds && even, rule)?;
    } else {
        check("model.width", width, width_holds, "2 to 16384")?;
        let holds = (2..=HEAD_WIDTH_MAX).contains(&head_width) && head_width.is_multiple_of(2);
        let holds = holds && heads * head_width <= QUERY_WIDTH_MAX;
        let rule = "0 (width / heads) or an even number of 2 to 1024, and all heads together up to 65536";
        check("model.head_width", head_width, holds, rule)?;
    }
    let groups = model.resolved_key_value_heads();
    let groups_hold = groups <= heads && heads.is_multiple_of(groups);
    check("model.key_value_heads", groups, groups_hold, "a divisor of model.heads, or 0 for as many")
}

fn rope(model: &TransformerModel) -> Result<(), ManifestError> {
    within("model.rope_theta", model.rope_theta, 1.0, 1e9, "1 to 1000000000")?;
    within("model.rope_factor", model.rope_factor, 1.0, 1e4, "1 to 10000")?;
    let scaled = model.rope_scaling != RopeScaling::None;
    let rule = "1 unless model.rope_scaling is \"linear\" or \"llama3\"";
    check("model.rope_factor", model.rope_factor, scaled || model.rope_factor == 1.0, rule)?;
    let (low, high) = (model.rope_low_factor, model.rope_high_factor);
    within("model.rope_low_factor", low, f64::MIN_POSITIVE, 1e3, "above 0, at most 1000")?;
    check("model.rope_high_factor", high, high > low && high <= 1e3, "above model.rope_low_factor, at most 1000")?;
    let original = model.rope_original_context;
    check("model.rope_original_context", original, (1..=1 << 24).contains(&original), "1 to 16777216")?;
    let without = &model.layers_without_rope;
    let rising = without.windows(2).all(|pair| pair[0] < pair[1]);
    let holds = rising && without.last().is_none_or(|last| *last < model.layers);
    let rule = "numbers of layers from 0, rising, below model.layers";
    check("model.layers_without_rope", format!("{without:?}"), holds, rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunManifest;

    /// Everything that the built-in model has not.
    fn qwen() -> TransformerModel {
        TransformerModel {
            head_width: 24,
            rope_scaling: RopeScaling::Llama3,
            rope_factor: 8.0,
            rope_low_factor: 1.5,
            rope_high_factor: 5.0,
            rope_original_context: 64,
            attention_bias: AttentionBias::All,
            head_norm: true,
            ..TransformerModel::default()
        }
    }

    #[test]
    fn what_other_families_have_is_told_only_where_it_is_there() {
        let plain = RunManifest::default();
        let text = plain.canonical_text();
        for field in ["head_width", "rope_scaling", "rope_factor", "without_rope", "bias", "head_norm"] {
            assert!(!text.contains(field), "{field}: {text}");
        }
        let mut skipping = TransformerModel { layers_without_rope: vec![0, 3], ..qwen() };
        skipping.head_norm = false;
        for model in [qwen(), skipping] {
            let manifest = RunManifest { model: model.into(), ..plain.clone() };
            assert_eq!(manifest.validate(), Ok(()));
            let text = manifest.canonical_text();
            assert!(text.contains("model.rope_scaling = \"llama3\"\n"), "{text}");
            assert_eq!(RunManifest::from_text(&text), Ok(manifest.clone()));
            assert_ne!(manifest.run_id(), plain.run_id());
        }
    }

    #[test]
    fn models_of_no_family_are_refused_by_name() {
        let refused = |edit: fn(&mut TransformerModel)| {
            let mut model = qwen();
            edit(&mut model);
            validate(&model).expect_err("no such model").to_string()
        };
        assert!(refused(|model| model.head_width = 7).starts_with("model.head_width = 7"));
        assert!(refused(|model| model.head_width = 1026).starts_with("model.head_width"));
        assert!(refused(|model| model.rope_factor = 0.5).starts_with("model.rope_factor"));
        assert!(refused(|model| model.rope_factor = f64::NAN).starts_with("model.rope_factor"));
        assert!(refused(|model| model.rope_scaling = RopeScaling::None).starts_with("model.rope_factor = 8"));
        assert!(refused(|model| model.rope_low_factor = 5.0).starts_with("model.rope_high_factor = 5"));
        assert!(refused(|model| model.rope_original_context = 0).starts_with("model.rope_original_context"));
        assert!(refused(|model| model.layers_without_rope = vec![1]).starts_with("model.head_norm"));
        assert!(refused(|model| model.layers_without_rope = vec![2, 1]).starts_with("model.layers_without_rope"));
        assert!(refused(|model| model.layers_without_rope = vec![4]).starts_with("model.layers_without_rope"));
        assert!(refused(|model| model.attention_bias = AttentionBias::Qkv).starts_with("model.attention_bias"));
        assert!(refused(|model| model.heads = 0).starts_with("model.heads"));
    }
}

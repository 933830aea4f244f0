//! The part of a manifest about fine-tuning: from which model a run begins, and which of its weights are trained.
//!
//! Runs from scratch are told without the base, and runs that train all weights without the adapters, so that they keep
//! the id that they had before there were such things.

use serde::{Deserialize, Serialize};

use super::{ManifestError, check, remote, within};

/// The largest rank of adapters. More would hardly be fewer parameters than the layers themselves.
const RANK_MAX: u32 = 1024;

/// In which a base is held unless the run says otherwise. Runs with these bits are told without them, as before there was a choice.
const BASE_BITS: u32 = 32;

/// The layers that can have adapters, by the last part of their names.
pub const LORA_TARGETS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// The model that a run begins from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BaseSpec {
    /// BLAKE3 of its weights in hexadecimal, filled in by the founder (`--base FOLDER`); empty: begins from scratch.
    pub digest: String,
    /// Where it is, for members who agree to load it: an address that begins with `s3://` or `hf://`, of at most 512 bytes;
    /// empty: each member has it.
    pub remote: String,
}

/// Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): the base stays as it is, and each chosen layer `W` becomes
/// `W + alpha / rank · B · A`, of which only `A` and `B` are trained and exchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraSpec {
    /// Rows of `A` and columns of `B`, 1 to 1024; 0 trains all weights instead.
    pub rank: u32,
    /// Scales what the adapters add, above 0, at most 10000.
    pub alpha: f64,
    /// The layers that have adapters: names from [`LORA_TARGETS`], each once.
    pub targets: Vec<String>,
    /// Bits in which the base's matrices are held, which training only reads: 8, 16 or 32. 8 have a scale for 64 values.
    pub base_bits: u32,
}

impl Default for LoraSpec {
    fn default() -> Self {
        // PEFT's alpha and the paper's targets.
        LoraSpec { rank: 0, alpha: 8.0, targets: vec!["q_proj".to_owned(), "v_proj".to_owned()], base_bits: BASE_BITS }
    }
}

impl LoraSpec {
    /// Whether the run trains adapters.
    pub fn is_on(&self) -> bool {
        self.rank > 0
    }

    /// By what the product of the adapters is multiplied.
    pub fn scale(&self) -> f64 {
        self.alpha / f64::from(self.rank.max(1))
    }
}

pub(super) fn validate(base: &BaseSpec, lora: &LoraSpec) -> Result<(), ManifestError> {
    let hexadecimal = base.digest.len() == 64 && base.digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    check("base.digest", &base.digest, base.digest.is_empty() || hexadecimal, "empty or 64 hexadecimal digits")?;
    let is_place = base.remote.is_empty() || remote::is_place(&base.remote, &["s3://", "hf://"]);
    let rule = "an address that begins with s3:// or hf://, without a key, or nothing";
    check("base.remote", format!("{:?}", base.remote), is_place, rule)?;
    check("lora.rank", lora.rank, lora.rank <= RANK_MAX, "0 (all weights) to 1024")?;
    within("lora.alpha", lora.alpha, f64::MIN_POSITIVE, 1e4, "above 0, at most 10000")?;
    let known = |target: &String| LORA_TARGETS.contains(&target.as_str());
    let once = |(index, target): (usize, &String)| !lora.targets[..index].contains(target);
    let holds = !lora.targets.is_empty() && lora.targets.iter().all(known) && lora.targets.iter().enumerate().all(once);
    let rule = "some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, each once";
    check("lora.targets", format!("{:?}", lora.targets), holds, rule)?;
    check("lora.base_bits", lora.base_bits, matches!(lora.base_bits, 8 | 16 | 32), "8, 16 or 32")
}

/// Whether a field has no line in the canonical text.
pub(super) fn is_left_out(base: &BaseSpec, lora: &LoraSpec, section: &str, field: &str) -> bool {
    (section == "base" && base.digest.is_empty() && base.remote.is_empty())
        || (section == "lora" && (!lora.is_on() || (field == "base_bits" && lora.base_bits == BASE_BITS)))
}

#[cfg(test)]
mod tests {
    use super::super::RunManifest;

    #[test]
    fn runs_from_scratch_are_told_as_ever() {
        let text = RunManifest::default().canonical_text();
        assert!(!text.contains("base.") && !text.contains("lora."), "{text}");
        let mut manifest = RunManifest::default();
        manifest.lora.rank = 8;
        manifest.base.digest = "ab".repeat(32);
        let text = manifest.canonical_text();
        for line in ["lora.alpha = 8.0\n", "lora.rank = 8\n", "lora.targets = [\"q_proj\", \"v_proj\"]\n"] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(RunManifest::from_text(&text), Ok(manifest.clone()));
        assert_ne!(manifest.run_id(), RunManifest::default().run_id());
        assert!(!text.contains("base_bits"), "as before a base had a choice of bits: {text}");
        manifest.lora.base_bits = 8;
        let eight = manifest.canonical_text();
        assert_eq!(eight, text.replace("lora.rank", "lora.base_bits = 8\nlora.rank"));
        assert_eq!(RunManifest::from_text(&eight), Ok(manifest));
    }

    #[test]
    fn impossible_adapters_are_refused_by_name() {
        let refused = |edit: fn(&mut RunManifest)| {
            let mut manifest = RunManifest::default();
            edit(&mut manifest);
            manifest.validate().expect_err("out of range").to_string()
        };
        assert!(refused(|manifest| manifest.lora.rank = 5000).starts_with("lora.rank = 5000"));
        assert!(refused(|manifest| manifest.lora.alpha = 0.0).starts_with("lora.alpha = 0"));
        assert!(refused(|manifest| manifest.lora.targets.clear()).starts_with("lora.targets = []"));
        assert!(refused(|manifest| manifest.lora.targets = vec!["lm_head".to_owned()]).contains("lm_head"));
        assert!(refused(|manifest| manifest.lora.targets = vec!["q_proj".to_owned(); 2]).contains("each once"));
        assert!(refused(|manifest| manifest.lora.base_bits = 4).starts_with("lora.base_bits = 4"));
        assert!(refused(|manifest| manifest.base.digest = "12".to_owned()).starts_with("base.digest = 12"));
    }
}

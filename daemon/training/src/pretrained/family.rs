//! The families of models that are read: what each takes for granted where `config.json` is silent, as the transformers
//! library does.

use murmur_protocol::manifest::{AttentionBias, TransformerModel};

/// A family, by the architecture that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Llama 1 to 3.3, SmolLM2, TinyLlama.
    Llama,
    Mistral,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    Qwen3,
    SmolLm3,
}

impl Family {
    pub(super) const ALL: [Family; 5] = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::SmolLm3];

    /// As `architectures` names it.
    pub(super) fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Mistral => "MistralForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
            Family::SmolLm3 => "SmolLM3ForCausalLM",
        }
    }

    /// As `model_type` names it.
    pub(super) fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::SmolLm3 => "smollm3",
        }
    }

    /// The first family that computes a run's model.
    pub(super) fn of(model: &TransformerModel) -> Family {
        if model.head_norm {
            Family::Qwen3
        } else if model.attention_bias == AttentionBias::Qkv {
            Family::Qwen2
        } else if !model.layers_without_rope.is_empty() || !model.width.is_multiple_of(model.heads) {
            // The library refuses a Llama whose width is no multiple of its heads.
            Family::SmolLm3
        } else {
            Family::Llama
        }
    }

    /// `rope_theta` where the file has none.
    pub(super) fn rope_theta(self) -> f64 {
        if self == Family::SmolLm3 { 2e6 } else { 1e4 }
    }

    /// `tie_word_embeddings` where the file has none.
    pub(super) fn tied_head(self) -> bool {
        self == Family::SmolLm3
    }

    /// `head_dim` where the file has none, and it is not the width over the heads.
    pub(super) fn head_width(self) -> Option<u32> {
        (self == Family::Qwen3).then_some(128)
    }

    /// `sliding_window` where the file has none.
    pub(super) fn window(self) -> Option<u32> {
        match self {
            Family::Mistral | Family::Qwen2 | Family::Qwen3 => Some(4096),
            Family::Llama | Family::SmolLm3 => None,
        }
    }
}

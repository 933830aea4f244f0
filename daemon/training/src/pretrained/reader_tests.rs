//! Configurations of every family, those that are refused, and those that are written.

use super::*;
use crate::pretrained::ExportType;

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
    assert_eq!((old.spec.vocabulary, old.spec.key_value_heads, old.spec.context), (300, 2, 64));
    assert_eq!((old.spec.rope_theta, old.spec.norm_epsilon, old.spec.tied_head), (50_000.0, 1e-5, true));
    let parameters = r#""rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}"#;
    let new = read(&LLAMA.replace(r#""rope_theta": 50000.0"#, parameters)).expect("a configuration");
    assert!(new.computes_as(&old));
    let theta_missing = read(&LLAMA.replace(r#""rope_theta": 50000.0,"#, "")).expect("a configuration");
    assert_eq!(theta_missing.spec.rope_theta, 10_000.0);
    assert!(!theta_missing.computes_as(&old));
}

#[test]
fn a_text_ends_where_the_generation_says_and_else_where_the_model_does() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let found = |files: &[(&str, &str)]| {
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        end_tokens(folder.path()).map_err(|error| error.to_string())
    };
    assert_eq!(found(&[]), Ok(vec![]));
    assert_eq!(found(&[(CONFIG_FILE, r#"{"eos_token_id": null}"#)]), Ok(vec![]));
    assert_eq!(found(&[(CONFIG_FILE, LLAMA), (GENERATION_FILE, "{}")]), Ok(vec![7]));
    assert_eq!(found(&[(GENERATION_FILE, r#"{"eos_token_id": [9, 8]}"#)]), Ok(vec![9, 8]));
    let refused = found(&[(GENERATION_FILE, r#"{"eos_token_id": [9, -1]}"#)]).expect_err("no token");
    assert!(refused.contains("generation_config.json: eos_token_id is [9,-1]"), "{refused}");
}

#[test]
fn unsupported_settings_are_refused_by_name() {
    for (extra, expected) in [
        (r#""attention_bias": 1"#, "attention_bias is 1, but only true or false"),
        (r#""mlp_bias": true"#, "mlp_bias is true"),
        (r#""sliding_window": 4096"#, "sliding_window is 4096, but only null"),
        (r#""hidden_act": "gelu""#, "hidden_act is \"gelu\", but only silu"),
        (r#""head_dim": 7"#, "head_dim is 7, but only an even number"),
        (r#""layer_types": ["linear_attention"]"#, "layer_types is [\"linear_attention\"], but only full_attention"),
        (r#""partial_rotary_factor": 0.5"#, "partial_rotary_factor is 0.5, but only 1"),
        (r#""attention_dropout": 0.1"#, "attention_dropout is 0.1, but only 0"),
        (r#""quantization_config": {"bits": 4}"#, "quantization_config is {\"bits\":4}"),
        (r#""rope_scaling": {"type": "linear"}"#, "factor is missing"),
        (
            r#""rope_scaling": {"type": "yarn", "factor": 2.0}"#,
            "rope_scaling is {\"factor\":2.0,\"type\":\"yarn\"}, but only null or",
        ),
        (r#""rope_parameters": {"rope_type": "dynamic", "factor": 8.0}"#, "rope_parameters is {"),
        (r#""rope_parameters": {"full_attention": {"rope_type": "default"}}"#, "rope_parameters is {"),
        (r#""rope_parameters": {"rope_type": "llama3", "factor": 8.0}"#, "low_freq_factor is missing"),
        (r#""rope_scaling": {"rope_type": "linear", "factor": 0.5}"#, "model.rope_factor = 0.5 is out of range"),
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
        "…/config.json: architectures is \"GPT2LMHeadModel\", but only LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, \
         Qwen3ForCausalLM or SmolLM3ForCausalLM is supported"
    );
    let message = read(r#"{"model_type": "bert"}"#).expect_err("BERT");
    assert!(message.contains("model_type is \"bert\", but only llama, mistral, qwen2, qwen3 or smollm3"), "{message}");
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
    assert!(again.computes_as(&read_in) && again.spec.context == 48);
}

/// The same file as another family's.
fn of_family(family: Family, extra: &str) -> Result<PretrainedConfig, String> {
    let text = LLAMA
        .replace("LlamaForCausalLM", family.architecture())
        .replace("\"llama\"", &json!(family.model_type()).to_string());
    read(&text.replacen('{', &format!("{{{extra}, "), 1))
}

#[test]
fn each_family_has_what_its_architecture_computes() {
    let llama3 = r#""rope_scaling": {"factor": 8.0, "high_freq_factor": 5.0, "low_freq_factor": 2.0,
        "original_max_position_embeddings": 32, "rope_type": "llama3"}, "head_dim": 16, "attention_bias": true"#;
    let spec = with(llama3).expect("Llama 3.1").spec;
    assert_eq!((spec.rope_scaling, spec.rope_factor, spec.rope_original_context), (RopeScaling::Llama3, 8.0, 32));
    assert_eq!((spec.rope_low_factor, spec.rope_high_factor), (2.0, 5.0));
    assert_eq!((spec.head_width, spec.attention_bias, spec.head_norm), (16, AttentionBias::All, false));
    let linear = r#""rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 300}"#;
    let spec = of_family(Family::Mistral, &format!("{linear}, \"sliding_window\": null")).expect("Mistral").spec;
    assert_eq!((spec.rope_scaling, spec.rope_factor, spec.rope_theta), (RopeScaling::Linear, 4.0, 300.0));
    let spec = of_family(Family::Qwen2, r#""sliding_window": 8, "use_sliding_window": false"#).expect("Qwen2").spec;
    assert_eq!((spec.attention_bias, spec.head_norm, spec.context), (AttentionBias::Qkv, false, 64));
    let spec = of_family(Family::Qwen3, r#""attention_bias": false, "head_dim": 8"#).expect("Qwen3").spec;
    assert_eq!((spec.attention_bias, spec.head_norm, spec.head_width), (AttentionBias::None, true, 0));
    assert_eq!(of_family(Family::Qwen3, r#""head_dim": null"#).expect("Qwen3").spec.head_width, 128);
    let spec = of_family(Family::SmolLm3, r#""no_rope_layers": [0, 1]"#).expect("SmolLM3").spec;
    assert_eq!(spec.layers_without_rope, [0]);
    let spec = of_family(Family::SmolLm3, r#""no_rope_layer_interval": 2"#).expect("SmolLM3").spec;
    assert_eq!(spec.layers_without_rope, [1]);
    let refused = of_family(Family::SmolLm3, r#""no_rope_layers": [1]"#).expect_err("one of two");
    assert!(refused.contains("no_rope_layers is [1], but only a list of 0 or 1 for each of 2 layers"), "{refused}");
    let refused = of_family(Family::Mistral, r#""attention_bias": true"#).expect_err("it has none");
    assert!(refused.contains("attention_bias is true, but only false"), "{refused}");
    let refused = read(&LLAMA.replace("\"llama\"", "\"qwen3\"")).expect_err("a contradiction");
    assert!(refused.contains("model_type is \"qwen3\", but only llama is supported"), "{refused}");
    let text = LLAMA.replace("LlamaForCausalLM", "MistralForCausalLM").replace("\"llama\"", "\"mistral\"");
    let refused = read(&text.replace("\"num_key_value_heads\": 2,", "")).expect_err("eight by default");
    assert_eq!(refused, "…/config.json: num_key_value_heads is missing");
}

#[test]
fn a_sliding_window_bounds_the_context() {
    let bound = |family, extra| {
        let config = of_family(family, extra).expect("a configuration");
        (config.spec.context, config.context_key)
    };
    let whole = (64, "max_position_embeddings");
    assert_eq!(bound(Family::Mistral, r#""sliding_window": 48"#), (48, "sliding_window"));
    assert_eq!(bound(Family::Mistral, r#""sliding_window": 64"#), whole);
    assert_eq!(bound(Family::Mistral, r#""sliding_window": null"#), whole);
    assert_eq!(bound(Family::Qwen3, r#""head_dim": 8, "sliding_window": 48"#), whole);
    let slides = r#""head_dim": 8, "sliding_window": 48, "use_sliding_window": true,
        "layer_types": ["full_attention", "sliding_attention"]"#;
    assert_eq!(bound(Family::Qwen3, slides), (48, "sliding_window"));
    assert_eq!(bound(Family::SmolLm3, slides), (48, "sliding_window"));
    let slides = r#""layer_types": ["full_attention", "sliding_attention"]"#;
    let refused = of_family(Family::Qwen2, slides).expect_err("a window of unknown size");
    assert!(refused.contains("layer_types is [") && refused.contains("full_attention without a window"), "{refused}");
    // Mistral's default, where the file says nothing.
    let text = LLAMA.replace("LlamaForCausalLM", "MistralForCausalLM").replace("\"llama\"", "\"mistral\"");
    let long = read(&text.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 32768"));
    assert_eq!(long.expect("a configuration").spec.context, 4096);
}

#[test]
fn a_model_of_every_family_is_written_as_one_that_reads_back() {
    let plain =
        TransformerModel { layers: 2, width: 32, heads: 4, feed_forward: 48, context: 64, ..Default::default() };
    let llama3 = TransformerModel { rope_scaling: RopeScaling::Llama3, rope_factor: 8.0, ..plain.clone() };
    let cases = [
        (Family::Llama, TransformerModel { head_width: 12, attention_bias: AttentionBias::All, ..llama3.clone() }),
        (Family::Qwen2, TransformerModel { attention_bias: AttentionBias::Qkv, tied_head: true, ..plain.clone() }),
        (Family::Qwen3, TransformerModel { head_norm: true, key_value_heads: 2, ..llama3 }),
        (Family::SmolLm3, TransformerModel { layers_without_rope: vec![1], ..plain.clone() }),
        (Family::SmolLm3, TransformerModel { width: 30, head_width: 8, ..plain }),
    ];
    for (family, model) in cases {
        let text = String::from_utf8(PretrainedConfig::of(&model).to_json(ExportType::F32)).expect("text");
        let config = read(&text).expect("a configuration");
        assert!(text.contains(family.architecture()), "{text}");
        assert_eq!(config.spec, model);
    }
}

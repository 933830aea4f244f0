//! A model from elsewhere, a tokenizer, a checkpoint: first the text of `config.json`, `tokenizer.json` or `checkpoint.json`, then the
//! bytes of files of tensors.

use std::path::Path;

use murmur::store::Checkpoint;
use murmur_protocol::RunManifest;
use murmur_protocol::manifest::TransformerModel;
use murmur_training::pretrained::{ExportType, export};
use murmur_training::{Counters, EngineState, Pretrained, PretrainedBase, PretrainedConfig, Tokenizer, trained_layout};
use serde_json::Value;

use super::{folder, joined, split};

const MODEL_FILE: &str = "model.safetensors";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const CONFIG_FILE: &str = "config.json";
const TOKENIZER_FILE: &str = "tokenizer.json";
const INDEX_FILE: &str = "checkpoint.json";

pub(super) fn read(bytes: &[u8]) -> bool {
    let (settings, tensors) = split(bytes);
    let is_model = is_sound_model(settings, tensors);
    let is_tokenizer = is_sound_tokenizer(settings);
    is_sound_checkpoint(settings, tensors) || is_model || is_tokenizer
}

fn write(name: &str, bytes: &[u8]) {
    std::fs::write(folder().join(name), bytes).expect("written");
}

fn is_sound_model(settings: &[u8], weights: &[u8]) -> bool {
    write(CONFIG_FILE, settings);
    write(MODEL_FILE, weights);
    let Ok(model) = Pretrained::read(&folder()) else { return false };
    let base = PretrainedBase::read(&folder(), 8).expect("the same files");
    assert_eq!(base.digest, model.digest());
    assert_eq!(model.parameters.len(), model.config.layout().parameters());
    true
}

fn is_sound_tokenizer(text: &[u8]) -> bool {
    write(TOKENIZER_FILE, text);
    let Ok(tokenizer) = Tokenizer::open(&folder().join(TOKENIZER_FILE)) else { return false };
    let prompt = "Once upon a time, \u{96c0} <|endoftext|>\n";
    if let Ok(tokens) = tokenizer.encode_prompt(prompt, &RunManifest::built_in()) {
        let all = tokenizer.tokens();
        let mut decode = tokenizer.decoding();
        for token in tokens {
            assert!((token as usize) < all);
            let _ = decode(token);
        }
    }
    true
}

/// The first part of `tensors` is the model's file, the second the optimizer's. Whoever writes a checkpoint writes what seals it.
fn is_sound_checkpoint(index: &[u8], tensors: &[u8]) -> bool {
    let Ok(mut index) = serde_json::from_slice::<Value>(index) else { return false };
    let Some(manifest) = index["manifest"].as_str() else { return false };
    if let Ok(manifest) = RunManifest::from_text(manifest) {
        index["run"] = manifest.run_id().to_string().into();
    }
    let (model, optimizer) = split(tensors);
    let files = [(MODEL_FILE, model), (OPTIMIZER_FILE, optimizer)].map(|(name, bytes)| {
        write(name, bytes);
        (name.to_owned(), blake3::hash(bytes).to_string().into())
    });
    index["files"] = Value::Object(files.into_iter().collect());
    write(INDEX_FILE, index.to_string().as_bytes());
    let Ok(checkpoint) = Checkpoint::read(&folder()) else { return false };
    let parameters = &checkpoint.state.parameters;
    assert_eq!(parameters.len(), trained_layout(&checkpoint.manifest).parameters());
    assert!(parameters.iter().all(|value| value.is_finite()));
    true
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let model = TransformerModel {
        layers: 1,
        width: 4,
        heads: 2,
        feed_forward: 4,
        vocabulary: 256,
        ..TransformerModel::default()
    };
    let tokenizer = r#"{"version":"1.0","added_tokens":[{"id":0,"content":"<|endoftext|>","special":true,"single_word":false,
        "lstrip":false,"rstrip":false,"normalized":false}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel",
        "add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel",
        "add_prefix_space":true,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE","unk_token":"<|endoftext|>",
        "vocab":{"<|endoftext|>":0,"a":1,"e":2,"ae":3},"merges":[["a","e"]]}}"#;
    let folder = tempfile::tempdir().expect("a folder to write to");
    vec![of_model(&model, folder.path()), of_checkpoint(model, folder.path()), joined(tokenizer.as_bytes(), &[])]
}

fn of_model(model: &TransformerModel, folder: &Path) -> Vec<u8> {
    let (config, at) = (PretrainedConfig::of(model), folder.join("model"));
    let weights = vec![0.5; config.layout().parameters()];
    export(&config, &weights, ExportType::F32, &[], &at, false).expect("written");
    let read = |name| std::fs::read(at.join(name)).expect("it is there");
    joined(&read(CONFIG_FILE), &read(MODEL_FILE))
}

fn of_checkpoint(model: TransformerModel, folder: &Path) -> Vec<u8> {
    let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    let layout = trained_layout(&manifest);
    let values = || vec![0.5; layout.parameters()];
    let state = EngineState {
        parameters: values(),
        first_moment: values(),
        second_moment: values(),
        coded_moments: Default::default(),
        gradient_average: None,
        slow_weights: None,
        outer_momentum: None,
        counters: Counters::default(),
    };
    let checkpoint = Checkpoint { manifest, progress: 1.0, state, evaluation: None };
    let at = checkpoint.write(&folder.join("checkpoints"), &layout, 2).expect("written");
    let read = |name| std::fs::read(at.join(name)).expect("it is there");
    joined(&read(INDEX_FILE), &joined(&read(MODEL_FILE), &read(OPTIMIZER_FILE)))
}

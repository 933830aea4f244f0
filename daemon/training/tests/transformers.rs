//! The same numbers as the transformers library of Hugging Face: golden ones always, and in both directions where a Python
//! with that library is at hand (`MURMUR_TEST_PYTHON`, or `python3`).

use std::path::{Path, PathBuf};
use std::process::Command;

use candle_core::{Device, Tensor};
use murmur_protocol::manifest::{AttentionBias, LoraSpec, RopeScaling, TransformerModel};
use murmur_training::data::{Batch, TokenBatch};
use murmur_training::model::{self, Model, Transformer, lora};
use murmur_training::pretrained::{ExportType, export};
use murmur_training::{LanguageModel, Pretrained, PretrainedConfig};

/// `TOKENS` of check.py.
const TOKENS: [u32; 8] = [1, 5, 9, 77, 31, 7, 7, 64];

/// The largest difference of two logits that may come from rounding.
const TOLERANCE: f32 = 1e-4;

type Logits = Vec<Vec<f32>>;

/// Of every position, in the three ways that this project computes: with the cache, with candle's operations, and, by its
/// loss alone, with its own.
fn assert_computes(spec: &TransformerModel, parameters: &[f32], expected: &Logits, what: &str) {
    let language_model = LanguageModel::from_parameters(spec, parameters, &Device::Cpu).expect("memory");
    for (position, expected) in expected.iter().enumerate() {
        let logits = language_model.logits_after(&TOKENS[..=position]).expect("logits");
        assert_close(&logits, expected, &format!("{what} with the cache, position {position}"));
    }
    let model = model::build(&spec.clone().into());
    let composed = composed_logits(&*model, parameters);
    for (position, (logits, expected)) in composed.iter().zip(expected).enumerate() {
        assert_close(logits, expected, &format!("{what} composed, position {position}"));
    }
    let loss = model.evaluate(parameters, &batch()).expect("evaluated").loss();
    let expected = loss_of(expected);
    assert!((loss - expected).abs() < f64::from(TOLERANCE), "{what}: loss {loss}, expected {expected}");
}

fn batch() -> Batch {
    let mut targets = TOKENS.to_vec();
    targets.rotate_left(1);
    Batch::Tokens(TokenBatch { inputs: TOKENS.to_vec(), targets, sequences: 1 })
}

fn composed_logits(model: &dyn Model, parameters: &[f32]) -> Logits {
    let tensor = |tensor: &murmur_protocol::TensorSpec| {
        Tensor::from_slice(&parameters[tensor.range()], tensor.shape.as_slice(), &Device::Cpu).expect("a tensor")
    };
    let tensors: Vec<Tensor> = model.layout().tensors().iter().map(tensor).collect();
    model.logits(&tensors, &batch()).and_then(|logits| logits.to_vec2()).expect("logits")
}

fn loss_of(logits: &Logits) -> f64 {
    let targets = batch().targets().to_vec();
    let losses = logits.iter().zip(targets).map(|(logits, target)| {
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        sum.ln() - f64::from(logits[target as usize])
    });
    losses.sum::<f64>() / logits.len() as f64
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let pairs = found.iter().zip(expected);
    let error = pairs.fold(0.0_f32, |largest, (found, expected)| largest.max((found - expected).abs()));
    assert!(error < TOLERANCE, "{what}: {error}\n{found:?}\n{expected:?}");
}

/// Printed by `check.py golden VARIANT` with version 5.23 of the library: the first logits of the last position.
#[test]
fn logits_are_those_of_the_transformers_library() {
    let plain = TransformerModel {
        vocabulary: 80,
        width: 32,
        feed_forward: 48,
        layers: 2,
        heads: 4,
        context: 64,
        norm_epsilon: 1e-6,
        ..TransformerModel::default()
    };
    let tied = TransformerModel { tied_head: true, rope_theta: 50_000.0, norm_epsilon: 1e-5, ..plain.clone() };
    let grouped = TransformerModel { key_value_heads: 2, ..plain.clone() };
    let llama3 = TransformerModel { rope_scaling: RopeScaling::Llama3, rope_factor: 8.0, ..plain.clone() };
    let llama3 = TransformerModel { rope_high_factor: 2.0, rope_original_context: 16, ..llama3 };
    let llama3 = TransformerModel { head_width: 12, attention_bias: AttentionBias::All, ..llama3 };
    let mistral = TransformerModel { rope_scaling: RopeScaling::Linear, rope_factor: 4.0, ..grouped.clone() };
    let mistral = TransformerModel { head_width: 10, rope_theta: 5_000.0, ..mistral };
    let qwen2 = TransformerModel { attention_bias: AttentionBias::Qkv, tied_head: true, ..grouped.clone() };
    let qwen3 = TransformerModel { head_norm: true, head_width: 12, ..grouped.clone() };
    let smollm3 = TransformerModel { layers_without_rope: vec![1], rope_theta: 2e6, ..grouped.clone() };
    for (spec, golden) in [
        (plain, [-0.591_884, -0.110_548, 0.004_479, -0.290_157, -0.667_977, 0.231_803]),
        (tied, [-1.210_368, 0.373_136, -0.043_081, -1.258_172, -1.356_835, 0.712_72]),
        (grouped, [1.103_007, 0.554_411, 0.182_58, 0.378_519, 0.516_726, 0.228_069]),
        (llama3, [1.017_585, 0.870_3, 0.132_596, -1.378_964, -0.801_068, 1.912_6]),
        (mistral, [0.574_88, -0.409_476, -0.616_578, -1.016_881, -1.697_802, 0.844_589]),
        (qwen2, [0.757_324, -1.256_738, 1.208_496, -1.243_346, 1.462_823, -0.643_37]),
        (qwen3, [-0.078_988, 0.059_977, -1.358_669, 0.453_235, 1.977_329, 0.026_21]),
        (smollm3, [1.074_839, 0.444_423, 0.187_54, 0.282_147, 0.671_851, 0.170_082]),
    ] {
        let parameters = by_formula(&spec);
        let model = LanguageModel::from_parameters(&spec, &parameters, &Device::Cpu).expect("memory");
        let with_cache = model.logits_after(&TOKENS).expect("logits");
        assert_close(&with_cache[..6], &golden, &format!("{spec:?}"));
        let composed = composed_logits(&*model::build(&spec.clone().into()), &parameters);
        assert_close(&composed[7][..6], &golden, &format!("{spec:?}"));
        let fused = model::build(&spec.clone().into()).evaluate(&parameters, &batch()).expect("evaluated").loss();
        assert!((fused - loss_of(&composed)).abs() < 1e-5, "{spec:?}");
    }
}

/// `by_formula` of check.py, which numbers values in the order of the tensors' names.
fn by_formula(spec: &TransformerModel) -> Vec<f32> {
    let layout = model::layout(&spec.clone().into());
    let numbers = layout.by_name();
    let mut values = Vec::with_capacity(layout.parameters());
    for tensor in layout.tensors() {
        let numbers = numbers.tensor(&tensor.name).expect("the same tensors").range();
        values.extend(numbers.map(|index| {
            let value = (index as u64 * 2_654_435_761 % (1 << 32)) as f64 / 4_294_967_296.0 - 0.5;
            (if tensor.shape.len() == 1 { 0.2 * value + 1.0 } else { value }) as f32
        }));
    }
    values
}

/// How check.py ends where there is no transformers library.
const NO_LIBRARY: i32 = 77;

/// Runs check.py: the logits of each model. `None`, with the reason printed, where there is no transformers library.
fn check(arguments: &[&str]) -> Option<Vec<Logits>> {
    let python = std::env::var("MURMUR_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/check.py");
    let output = Command::new(&python).arg(script).args(arguments).env("HF_HUB_OFFLINE", "1").output();
    let Some(output) = output.ok().filter(|output| output.status.code() != Some(NO_LIBRARY)) else {
        println!("skipped: {python} has no torch and transformers; set MURMUR_TEST_PYTHON to one that has");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "check.py {arguments:?}: {errors}");
    Some(serde_json::from_slice(&output.stdout).expect("logits"))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

fn write(config: &PretrainedConfig, parameters: &[f32], folder: &Path) {
    export(config, parameters, ExportType::F32, &[], folder, false).expect("exported");
}

#[test]
fn models_go_to_the_transformers_library_and_back() {
    const LLAMA: [&str; 7] = ["plain", "tied", "grouped", "sharded", "half", "brain", "llama3"];
    const OTHERS: [&str; 5] = ["mistral", "qwen2", "qwen3", "qwen3-bias", "smollm3"];
    let variants = [&LLAMA[..], &OTHERS[..]].concat();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let Some(expected) = check(&[&["save", text(folder.path())], &variants[..]].concat()) else { return };
    let mut written: Vec<PathBuf> = Vec::new();
    for (variant, expected) in variants.iter().zip(&expected) {
        let model = Pretrained::read(&folder.path().join(variant)).unwrap_or_else(|error| panic!("{variant}: {error}"));
        let spec = model.config.model(16);
        assert_computes(&spec, &model.parameters, expected, variant);
        // Both with their configuration and with one of our own making.
        for (name, config) in [("theirs", &model.config), ("ours", &PretrainedConfig::of(&spec))] {
            written.push(folder.path().join(format!("{variant}-{name}")));
            write(config, &model.parameters, written.last().expect("just pushed"));
        }
    }
    let folders: Vec<&str> = written.iter().map(|folder| text(folder)).collect();
    let found = check(&[&["load"], &folders[..]].concat()).expect("the library was there a moment ago");
    for (index, (folder, found)) in folders.iter().zip(found).enumerate() {
        for (found, expected) in found.iter().zip(&expected[index / 2]) {
            assert_close(found, expected, folder);
        }
    }
}

#[test]
fn merged_adapters_compute_the_same_in_the_transformers_library() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    if check(&["save", text(folder.path()), "grouped"]).is_none() {
        return;
    }
    let base = Pretrained::read(&folder.path().join("grouped")).expect("a model");
    let spec = base.config.model(16);
    let targets = ["q_proj", "v_proj", "down_proj"].map(str::to_owned).to_vec();
    let adapted = LoraSpec { rank: 3, alpha: 6.0, targets, ..LoraSpec::default() };
    let tuned = Transformer::new(&spec).with_adapters(base.parameters.clone(), &adapted);
    let count = tuned.layout().parameters();
    let adapters: Vec<f32> = (0..count).map(|index| (index % 13) as f32 / 40.0 - 0.15).collect();
    let merged = lora::merge(&base.config.layout(), &adapted, &base.parameters, &adapters);
    let target = folder.path().join("ours");
    write(&base.config, &merged, &target);
    let found = &check(&["load", text(&target)]).expect("the library was there a moment ago")[0];
    assert_computes(&spec, &merged, found, "merged");
    for (expected, found) in composed_logits(&tuned, &adapters).iter().zip(found) {
        assert_close(found, expected, "merged, against the adapters beside their base");
    }
}

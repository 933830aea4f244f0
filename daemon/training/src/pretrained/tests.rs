//! Models that are written, read back, and damaged in every way that is told apart.

use std::collections::HashMap;
use std::path::Path;

use murmur_protocol::TensorSpec;
use murmur_protocol::manifest::{LoraSpec, RopeScaling, TransformerModel};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::*;
use crate::model::lora::lora_layout;
use crate::ops::base_weights::BaseWeights;

fn config() -> PretrainedConfig {
    PretrainedConfig::of(&TransformerModel {
        layers: 1,
        width: 8,
        heads: 2,
        key_value_heads: 1,
        feed_forward: 12,
        vocabulary: 20,
        context: 16,
        ..TransformerModel::default()
    })
}

fn weights(config: &PretrainedConfig) -> Vec<f32> {
    // Exact in 16 bits of either kind.
    (0..config.layout().parameters()).map(|index| (index % 101) as f32 / 64.0 - 0.5).collect()
}

fn written(folder: &Path, export_type: ExportType) -> PretrainedConfig {
    let config = config();
    export(&config, &weights(&config), export_type, &[], folder, true).expect("written");
    config
}

/// The file's tensors after `edit`: bytes and shape by name.
fn rewrite(path: &Path, edit: impl FnOnce(&mut HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>)) {
    let bytes = std::fs::read(path).expect("there");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("intact");
    let owned = |(name, view): (&str, TensorView)| {
        (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    let mut tensors = file.iter().map(owned).collect();
    edit(&mut tensors);
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).expect("a tensor")));
    std::fs::write(path, safetensors::serialize(views, None).expect("serialised")).expect("written");
}

fn message(folder: &Path) -> String {
    let error = Pretrained::read(folder).expect_err("a bad model");
    assert!(!error.remedy().is_empty());
    let as_base = PretrainedBase::read(folder, 8).expect_err("a bad model");
    assert_eq!(as_base.to_string(), error.to_string());
    error.to_string().replace(&folder.display().to_string(), "…")
}

#[test]
fn a_written_model_reads_back_in_every_type() {
    for export_type in [ExportType::F32, ExportType::F16, ExportType::Bf16] {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let config = written(folder.path(), export_type);
        let model = Pretrained::read(folder.path()).expect("a model");
        assert!(model.config.computes_as(&config));
        assert_eq!(model.parameters, weights(&config), "{export_type:?}");
        let same = Pretrained { config: config.clone(), parameters: weights(&config) };
        assert_eq!(model.digest(), same.digest(), "however it was stored");
        for bits in [8, 16, 32] {
            let base = PretrainedBase::read(folder.path(), bits).expect("a model");
            assert_eq!(base.digest, same.digest(), "of the values in the files, in {bits} bits");
            let expected = BaseWeights::from(weights(&config)).in_bits(&config.layout(), bits);
            assert_eq!(base.weights.into_exact(), expected.into_exact(), "tensor by tensor, in {bits} bits");
        }
        let mut other = same.clone();
        other.parameters[3] += 1.0;
        assert_ne!(other.digest(), same.digest());
        let changes: [fn(&mut TransformerModel); 3] = [
            |spec| spec.rope_theta = 500.0,
            |spec| (spec.rope_scaling, spec.rope_factor) = (RopeScaling::Linear, 2.0),
            |spec| spec.layers_without_rope = vec![0],
        ];
        for change in changes {
            let mut other = same.clone();
            change(&mut other.config.spec);
            assert_ne!(other.digest(), same.digest(), "shapes are the same, results are not");
        }
    }
}

#[test]
fn a_model_in_several_files_is_the_same() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = written(folder.path(), ExportType::F32);
    let single = folder.path().join("model.safetensors");
    let names: Vec<String> = config.layout().tensors().iter().map(|tensor| tensor.name.clone()).collect();
    let file = |index: usize| format!("model-{index}.safetensors");
    for part in 0..2 {
        std::fs::copy(&single, folder.path().join(file(part))).expect("copied");
        rewrite(&folder.path().join(file(part)), |tensors| {
            tensors.retain(|name, _| names.iter().position(|known| known == name).expect("known") % 2 == part);
        });
    }
    std::fs::remove_file(single).expect("removed");
    let places = names.iter().enumerate().map(|(index, name)| (name.clone(), file(index % 2)));
    let mut map: HashMap<String, String> = places.collect();
    let write_index = |map: &HashMap<String, String>| {
        let index = serde_json::json!({ "metadata": {}, "weight_map": map });
        std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).expect("written");
    };
    write_index(&map);
    assert_eq!(Pretrained::read(folder.path()).expect("a model").parameters, weights(&config));

    map.insert(names[0].clone(), file(1));
    write_index(&map);
    let expected = "it says that model.embed_tokens.weight is in model-1.safetensors, where it is not";
    assert!(message(folder.path()).contains(expected));
    map.insert(names[0].clone(), "../elsewhere.safetensors".to_owned());
    write_index(&map);
    assert!(message(folder.path()).contains("no name of a file in this folder"));
    map.insert(names[0].clone(), "model-7.safetensors".to_owned());
    write_index(&map);
    let missing = "the shard model-7.safetensors is missing: …/model.safetensors.index.json names it";
    assert_eq!(message(folder.path()), missing);
    map.remove(&names[0]);
    write_index(&map);
    std::fs::copy(folder.path().join(file(0)), folder.path().join("model-2.safetensors")).expect("copied");
    map.insert(names[0].clone(), "model-2.safetensors".to_owned());
    write_index(&map);
    assert!(message(folder.path()).contains("is in …/model-0.safetensors and in …/model-2.safetensors"));
}

#[test]
fn tensors_that_do_not_fit_are_named_with_what_was_expected_and_found() {
    const NORM: &str = "model.norm.weight";
    type Edit = fn(&mut HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>);
    let cases: [(Edit, &str); 5] = [
        (
            |tensors| drop(tensors.remove(NORM)),
            "…/model.safetensors has no tensor model.norm.weight: expected one of shape [8]",
        ),
        (
            |tensors| drop(tensors.insert("model.extra".to_owned(), (Dtype::F32, vec![1], vec![0; 4]))),
            "…/model.safetensors has a tensor model.extra of shape [1], which a model of this config.json does not have",
        ),
        (
            |tensors| drop(tensors.insert(NORM.to_owned(), (Dtype::F32, vec![2, 4], vec![0; 32]))),
            "…/model.safetensors: tensor model.norm.weight has shape [2, 4], but config.json calls for [8]",
        ),
        (
            |tensors| drop(tensors.insert(NORM.to_owned(), (Dtype::I8, vec![8], vec![0; 8]))),
            "…/model.safetensors: tensor model.norm.weight has type I8, expected F32, F16 or BF16",
        ),
        (
            |tensors| drop(tensors.insert(NORM.to_owned(), (Dtype::F32, vec![8], vec![255; 32]))),
            "…/model.safetensors: tensor model.norm.weight holds values that are not finite",
        ),
    ];
    for (edit, expected) in cases {
        let folder = tempfile::tempdir().expect("a temporary directory");
        written(folder.path(), ExportType::F32);
        rewrite(&folder.path().join("model.safetensors"), edit);
        assert_eq!(message(folder.path()), expected);
    }
}

#[test]
fn damaged_and_missing_files_are_named() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    assert!(message(folder.path()).starts_with("…/config.json: "));
    written(folder.path(), ExportType::F32);
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).expect("there");
    for (damaged, expected) in [
        (&bytes[..bytes.len() - 4], "is damaged: expected"),
        (&bytes[..100], "is damaged: a header of"),
        (&bytes[..5], "is damaged: 5 bytes are no safetensors file"),
        (&b"\xff\xff\xff\xff\xff\xff\xff\xff{}"[..], "is damaged: a header of 18446744073709551615 bytes"),
    ] {
        std::fs::write(&path, damaged).expect("written");
        let message = message(folder.path());
        assert!(message.starts_with("…/model.safetensors ") && message.contains(expected), "{message}");
    }
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(message(folder.path()), "… holds neither model.safetensors nor model.safetensors.index.json");
}

#[test]
fn a_tied_head_may_be_there_if_it_is_the_embedding() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = PretrainedConfig::of(&TransformerModel { tied_head: true, ..config().model(16) });
    export(&config, &weights(&config), ExportType::F32, &[], folder.path(), true).expect("written");
    let path = folder.path().join("model.safetensors");
    rewrite(&path, |tensors| {
        let embedding = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".to_owned(), embedding);
    });
    assert!(Pretrained::read(folder.path()).is_ok());
    rewrite(&path, |tensors| tensors.get_mut("lm_head.weight").expect("there").2[0] ^= 1);
    assert!(message(folder.path()).contains("lm_head.weight differs from model.embed_tokens.weight"));
}

#[test]
fn an_export_overwrites_nothing_unasked_and_brings_the_tokenizer_along() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (base, target) = (folder.path().join("base"), folder.path().join("target"));
    let config = written(&base, ExportType::F32);
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::write(base.join(name), "{}").expect("written");
    }
    let without = folder.path().join("without");
    export(&config, &weights(&config), ExportType::F32, &companions(&base, false), &without, false).expect("written");
    assert!(without.join("generation_config.json").exists());
    assert!(!without.join("tokenizer.json").exists() && !without.join("tokenizer_config.json").exists());
    export(&config, &weights(&config), ExportType::F32, &companions(&base, true), &target, false).expect("written");
    assert!(target.join("tokenizer.json").exists() && target.join("tokenizer_config.json").exists());
    let before = std::fs::read(target.join("model.safetensors")).expect("there");
    let other = vec![0.0; config.layout().parameters()];
    let refused = export(&config, &other, ExportType::F32, &[], &target, false);
    assert!(matches!(refused, Err(PretrainedError::Exists(_))));
    assert_eq!(std::fs::read(target.join("model.safetensors")).expect("there"), before);
    export(&config, &other, ExportType::F32, &[], &target, true).expect("written");
    assert_eq!(Pretrained::read(&target).expect("a model").parameters, other);
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 3, "nothing temporary is left");
}

/// Also with leave to overwrite: what is there is no model.
#[test]
fn an_export_to_a_file_or_into_one_is_refused_by_its_name() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (file, config) = (folder.path().join("notes.txt"), config());
    std::fs::write(&file, "mine").expect("written");
    for (target, overwrites) in [(file.clone(), false), (file.clone(), true), (file.join("model"), false)] {
        let refused = export(&config, &weights(&config), ExportType::F32, &[], &target, overwrites);
        assert!(matches!(&refused, Err(PretrainedError::NoFolder(named)) if *named == file), "{refused:?}");
    }
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "mine");
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "nothing temporary is left");
}

/// The id of a run on a base holds its digest: printed once by this very test.
#[test]
fn digests_of_plain_models_have_not_changed() {
    let config = config();
    // Counted in the order of names, in which they were when this was printed.
    let (layout, sorted, counted) = (config.layout(), config.layout().by_name(), weights(&config));
    let of_tensor = |tensor: &TensorSpec| &counted[sorted.tensor(&tensor.name).expect("the same tensors").range()];
    let parameters = layout.tensors().iter().flat_map(of_tensor).copied().collect();
    assert_eq!(Pretrained { parameters, config }.digest()[..16], *"eb087b31556c6079");
}

#[test]
fn adapters_are_written_for_peft_beside_their_configuration() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let target = folder.path().join("adapters");
    let base = AdapterBase { name: "owner/name".to_owned(), revision: Some("v1".to_owned()) };
    let lora = LoraSpec { rank: 2, alpha: 6.0, ..LoraSpec::default() };
    let layout = lora_layout(&config().layout(), &lora);
    let values: Vec<f32> = (0..layout.parameters()).map(|index| index as f32 / 8.0).collect();
    let write =
        |overwrites| export_adapters(&lora, &layout, &values, ExportType::F32, Some(&base), &target, overwrites);
    write(false).expect("written");
    let text = std::fs::read_to_string(target.join("adapter_config.json")).expect("there");
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&found["peft_type"], &found["r"], &found["lora_alpha"]), (&"LORA".into(), &2.into(), &6.into()));
    assert_eq!(found["target_modules"], serde_json::json!(["q_proj", "v_proj"]));
    assert_eq!((&found["base_model_name_or_path"], &found["revision"]), (&"owner/name".into(), &"v1".into()));
    let bytes = std::fs::read(target.join("adapter_model.safetensors")).expect("there");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("intact");
    assert_eq!(file.len(), layout.tensors().len());
    for tensor in layout.tensors() {
        let found = file.tensor(&tensor.name).expect("by PEFT's name");
        assert_eq!(
            (found.shape(), found.data()),
            (&tensor.shape[..], &ExportType::F32.bytes_of(&values[tensor.range()])[..])
        );
    }
    assert!(matches!(write(false), Err(PretrainedError::Exists(_))));
    write(true).expect("overwritten");
    // A whole model in their place is no model with adapters.
    export(&config(), &weights(&config()), ExportType::F32, &[], &target, true).expect("written");
    assert!(!target.join("adapter_config.json").exists() && !target.join("adapter_model.safetensors").exists());
}

#[test]
fn other_forms_of_models_are_named() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("model.Q4_K_M.gguf");
    std::fs::write(&file, "GGUF").expect("written");
    let gguf = "…/model.Q4_K_M.gguf is a GGUF file, and GGUF is not read";
    assert_eq!(message(folder.path()), gguf);
    assert_eq!(message(&file), "… is a GGUF file, and GGUF is not read");
    written(folder.path(), ExportType::F32);
    assert!(Pretrained::read(folder.path()).is_ok(), "a GGUF file may lie beside the weights");
    std::fs::remove_file(folder.path().join("model.safetensors")).expect("removed");
    assert_eq!(message(folder.path()), gguf, "with a config.json beside it");
    let adapter = tempfile::tempdir().expect("a temporary directory");
    let config = adapter.path().join("adapter_config.json");
    std::fs::write(&config, "{\"base_model_name_or_path\": \"owner/name\"}").expect("written");
    assert_eq!(message(adapter.path()), "… holds an adapter, not a model: it belongs to owner/name");
    std::fs::write(&config, "no JSON").expect("written");
    assert!(message(adapter.path()).ends_with("it belongs to a base that it does not name"));
}

#[test]
fn weights_of_64_bits_are_not_called_quantized() {
    let remedy = |found: &str| {
        let (path, tensor, found) = ("model".into(), "norm".to_owned(), found.to_owned());
        PretrainedError::Type { path, tensor, found }.remedy()
    };
    assert!(remedy("F64").contains("in 32 bits") && !remedy("F64").contains("quantized"));
    assert!(remedy("I8").contains("quantized"));
}

#[test]
fn tables_of_old_checkpoints_are_passed_over() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    written(folder.path(), ExportType::F32);
    rewrite(&folder.path().join("model.safetensors"), |tensors| {
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
        tensors.insert(name.to_owned(), (Dtype::F32, vec![2], vec![0; 8]));
    });
    assert!(Pretrained::read(folder.path()).is_ok());
}

//! The hand-written transformer against the composed one.

use candle_core::Var;
use murmur_protocol::manifest::{AttentionBias, LORA_TARGETS, LoraSpec, ModelSpec, RopeScaling};

use super::workspace::{Pass, Work};
use super::*;
use crate::model::Write;
use crate::model::{gradients_by_autograd, parameter_count, tensors_of};
use crate::ops::gradient_check::{random_tokens, random_values};

/// The built-in kind, and those with everything else.
fn specs() -> [TransformerModel; 5] {
    let plain =
        TransformerModel { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..Default::default() };
    let other = TransformerModel { tied_head: true, vocabulary: 300, rope_theta: 500.0, ..plain.clone() };
    let scaled = TransformerModel { rope_scaling: RopeScaling::Llama3, rope_factor: 8.0, ..plain.clone() };
    let scaled = TransformerModel { rope_original_context: 8, attention_bias: AttentionBias::Qkv, ..scaled };
    // Queries wider than the stream, and narrower.
    let qwen = TransformerModel { head_width: 12, heads: 4, key_value_heads: 2, head_norm: true, ..plain.clone() };
    let qwen = TransformerModel { attention_bias: AttentionBias::All, ..qwen };
    let smol = TransformerModel { head_width: 6, layers_without_rope: vec![1], tied_head: true, ..plain.clone() };
    [plain, TransformerModel { heads: 4, key_value_heads: 2, norm_epsilon: 1e-3, ..other }, scaled, qwen, smol]
}

/// Parameters in which neither biases nor scales are all alike, and no two norms.
fn parameters_of(model: &Transformer) -> Vec<f32> {
    let mut parameters = model.initial_parameters(1);
    for tensor in model.layout().tensors().iter().filter(|tensor| tensor.shape.len() == 1) {
        let noise = random_values(tensor.len(), 5 + tensor.offset as u64);
        parameters[tensor.range()].iter_mut().zip(noise).for_each(|(value, noise)| *value += 0.2 * noise);
    }
    parameters
}

fn batch(spec: &TransformerModel) -> Batch {
    let tokens = |seed| random_tokens(3 * spec.context as usize, spec.vocabulary, seed);
    Batch::Tokens(TokenBatch { inputs: tokens(1), targets: tokens(2), sequences: 3 })
}

fn compare_with_autograd(spec: &TransformerModel) -> Result<()> {
    let (mut model, batch) = (Transformer::new(spec), batch(spec));
    let parameters = parameters_of(&model);
    let mut gradient = vec![f32::NAN; parameters.len()];
    let rows = batch.predictions() as f64;
    let task = Task::alone(1.0 / rows as f32, Write::Replace);
    let loss = model.gradient(&parameters, &batch, &task, &mut gradient)?;
    let variables: Vec<Var> =
        tensors_of(model.layout(), &parameters)?.iter().map(Var::from_tensor).collect::<Result<_>>()?;
    let (expected_loss, expected) = gradients_by_autograd(&model, &variables, &batch)?;
    assert!((loss / rows - f64::from(expected_loss.to_scalar::<f32>()?)).abs() < 1e-5);
    for (tensor, expected) in model.layout().tensors().iter().zip(expected) {
        let (actual, expected) = (&gradient[tensor.range()], expected.flatten_all()?.to_vec1::<f32>()?);
        let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let pairs = actual.iter().zip(&expected);
        let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
        // Errors of a dozen operations in a row add up.
        assert!(error < 1e-4 * largest, "{}: {error} of {largest}", tensor.name);
        let zeros = actual.iter().filter(|value| **value == 0.0).count();
        // Rows of the embedding whose token does not occur have none.
        let may_have = tensor.name.contains("embed_tokens") && zeros < actual.len();
        assert!(zeros == 0 || may_have, "{}: {zeros} zeros", tensor.name);
    }
    Ok(())
}

#[test]
fn every_parameter_receives_the_gradient_of_autograd() -> Result<()> {
    specs().iter().try_for_each(compare_with_autograd)
}

/// More rows than have their logits computed at once.
#[test]
fn a_large_vocabulary_is_predicted_in_parts() -> Result<()> {
    let spec = TransformerModel { layers: 1, width: 8, heads: 2, feed_forward: 8, ..TransformerModel::default() };
    let spec = TransformerModel { context: 50, vocabulary: 70_000, ..spec };
    assert!(super::host::predicted_at_once(70_000, 150) < 150);
    compare_with_autograd(&spec)?;
    compare_with_autograd(&TransformerModel { tied_head: true, ..spec })
}

#[test]
fn gradients_of_parts_add_up() -> Result<()> {
    for spec in specs() {
        let mut model = Transformer::new(&spec);
        let (parameters, batch) = (parameters_of(&model), batch(&spec));
        let (mut whole, mut parts) = (vec![0.0; parameters.len()], vec![f32::NAN; parameters.len()]);
        let loss = model.gradient(&parameters, &batch, &Task::alone(0.1, Write::Replace), &mut whole)?;
        let first = model.gradient(&parameters, &batch.part(0..1), &Task::alone(0.1, Write::Replace), &mut parts)?;
        let second = model.gradient(&parameters, &batch.part(1..3), &Task::alone(0.1, Write::Add), &mut parts)?;
        assert!((loss - first - second).abs() < 1e-3, "{loss} {first} {second}");
        let error = whole.iter().zip(&parts).fold(0.0_f32, |error, (left, right)| error.max((left - right).abs()));
        assert!(error < 1e-5, "{error}");
    }
    Ok(())
}

#[test]
fn products_of_sixteen_bits_give_nearly_the_same_gradient_of_32_bits() -> Result<()> {
    for spec in specs() {
        let mut model = Transformer::new(&spec);
        let variables = tensors_of(model.layout(), &parameters_of(&model))?;
        let variables = variables.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
        let (exact_loss, exact) = gradients_by_autograd(&model, &variables, &batch(&spec))?;
        model.set_precision(Precision::Bf16);
        let (loss, gradients) = gradients_by_autograd(&model, &variables, &batch(&spec))?;
        let difference = (loss - exact_loss)?.abs()?.to_scalar::<f32>()?;
        // Eight bits of mantissa: rounding to 0.4 %, a dozen roundings in a row.
        assert!(difference > 0.0 && difference < 0.02, "{difference}");
        for (tensor, (rounded, exact)) in model.layout().tensors().iter().zip(gradients.iter().zip(&exact)) {
            let error = (rounded - exact)?.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt();
            let norm = exact.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt();
            assert!(error > 0.0 && error < 0.05 * norm, "{}: {error} of {norm}", tensor.name);
        }
    }
    Ok(())
}

#[test]
fn evaluation_agrees_with_the_composed_model() -> Result<()> {
    for spec in specs() {
        let model = Transformer::new(&spec);
        let (parameters, batch) = (parameters_of(&model), batch(&spec));
        let fused = model.evaluate(&parameters, &batch)?;
        let composed =
            Evaluation::of(&model.logits(&tensors_of(model.layout(), &parameters)?, &batch)?, batch.targets())?;
        assert!((fused.loss_sum - composed.loss_sum).abs() < 1e-3, "{fused:?} {composed:?}");
        assert_eq!((fused.predictions, fused.correct), (composed.predictions, composed.correct));
    }
    Ok(())
}

/// The logits after a text that goes through the forward at once, as in training.
fn logits_of_forward(model: &Transformer, parameters: &[f32], text: &[u32]) -> Result<Vec<f32>> {
    let (network, head) = (&model.network, model.network.head.as_ref().expect("a whole model"));
    let batch = TokenBatch { inputs: text.to_vec(), targets: text.to_vec(), sequences: 1 };
    let device = model.model.on(model.weights(parameters), &batch, 2)?;
    let mut pass = Pass::new(&device, network.widths, (network.blocks.len(), 0), false)?;
    let mut work = Work::new(&device, network.widths, true, (None, false))?;
    network.forward(&device, &mut pass, &mut work, &mut [])?;
    head.next_logits(&device, &pass, &mut work, &mut vec![0.0; head.vocabulary()])
}

/// Compares each prefix of a text that is read in parts which end here.
fn compare_reading(model: &Transformer, parameters: &[f32], ends: impl Iterator<Item = usize>) -> Result<()> {
    let spec = &model.model.spec;
    let text = random_tokens(spec.context as usize, spec.vocabulary, 3);
    let (mut decoder, mut read) = (Decoder::new(text.len()), 0);
    for end in ends {
        let found = model.read(parameters, &text[read..end], &mut decoder)?;
        let expected = logits_of_forward(model, parameters, &text[..end])?;
        let pairs = found.iter().zip(&expected);
        let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
        let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        assert!(found.len() == expected.len() && largest > 0.1, "{spec:?} {end}");
        // Sums of a row by itself are in another order.
        assert!(error < 1e-5 * largest.max(1.0), "{spec:?} {end}: {error} of {largest}");
        read = end;
    }
    assert!(model.read(parameters, &text[..1], &mut decoder).is_err() || read < text.len(), "more than the context");
    Ok(())
}

#[test]
fn a_text_read_in_parts_has_the_logits_of_the_forward_in_training() -> Result<()> {
    for spec in specs() {
        let model = Transformer::new(&spec);
        let parameters = parameters_of(&model);
        compare_reading(&model, &parameters, 1..=spec.context as usize)?;
        compare_reading(&model, &parameters, [5, 6, 7, 12].into_iter())?;
        // Longer than what is read at once.
        let long = Transformer::new(&TransformerModel { context: 300, ..spec });
        compare_reading(&long, &parameters, [200, 201, 300].into_iter())?;
    }
    Ok(())
}

#[test]
fn adapters_beside_a_base_in_8_bits_read_as_they_train() -> Result<()> {
    for spec in specs() {
        let model = Transformer::new(&spec);
        let lora = LoraSpec { rank: 3, targets: LORA_TARGETS.map(str::to_owned).to_vec(), ..LoraSpec::default() };
        let base = parameters_of(&model);
        let model = model.with_adapters(base, &LoraSpec { base_bits: 8, ..lora });
        let adapters = random_values(model.layout().parameters(), 5).into_iter().map(|value| 0.2 * value);
        compare_reading(&model, &adapters.collect::<Vec<_>>(), 1..=spec.context as usize)?;
    }
    Ok(())
}

#[test]
fn the_built_in_model_has_its_promised_size() {
    assert_eq!(parameter_count(&ModelSpec::default()), 234_048);
}

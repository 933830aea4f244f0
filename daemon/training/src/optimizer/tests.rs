//! Steps against the book, and against PyTorch's (`tests/optimizer/reference.py`).

use std::collections::BTreeMap;

use super::*;
use crate::ops::gradient_check::random_values;

/// AdamW as in the paper, in f64, value by value.
fn by_the_book(spec: &OptimizerSpec, value: f64, gradients: &[f64], decays: bool, rate: f64) -> f64 {
    let (mut value, mut first, mut second) = (value, 0.0, 0.0);
    for (step, gradient) in (1..).zip(gradients) {
        first = spec.beta1 * first + (1.0 - spec.beta1) * gradient;
        second = spec.beta2 * second + (1.0 - spec.beta2) * gradient * gradient;
        let unbiased = (first / (1.0 - spec.beta1.powi(step)), second / (1.0 - spec.beta2.powi(step)));
        let decay = if decays { spec.weight_decay * value } else { 0.0 };
        value -= rate * (unbiased.0 / (unbiased.1.sqrt() + spec.epsilon) + decay);
    }
    value
}

#[test]
fn steps_follow_the_book_with_clipping_and_without_decay_of_norms() {
    let spec = OptimizerSpec { gradient_norm_max: 0.7, ..OptimizerSpec::default() };
    let layout = ModelLayout::new([("a".to_owned(), vec![3, 5]), ("b".to_owned(), vec![7])]);
    let (before, gradient) = (random_values(22, 1), random_values(22, 2));
    let norm = norm_of(&Optimizer::new(&spec, &layout).squares(&gradient));
    let expected_norm = gradient.iter().map(|value| f64::from(value * value)).sum::<f64>().sqrt();
    assert!((norm - expected_norm).abs() < 1e-6 && norm > 0.7, "{norm}, {expected_norm}");
    let optimizer = Optimizer::new(&spec, &layout);
    let (mut after, mut moments) = (before.clone(), optimizer.moments());
    for steps in 1..=3 {
        let factors = optimizer.factors(steps, norm, 0.01, &mut moments.average_weight);
        optimizer.step(factors, &mut after, &gradient, &mut moments);
    }
    for index in 0..22 {
        let clipped = f64::from(gradient[index]) * 0.7 / norm;
        let expected = by_the_book(&spec, f64::from(before[index]), &[clipped; 3], index < 15, 0.01);
        assert!((f64::from(after[index]) - expected).abs() < 1e-6, "{index}: {} {expected}", after[index]);
    }
}

#[test]
fn a_gradient_that_is_not_finite_shows_in_the_norm() {
    let layout = ModelLayout::new([("a".to_owned(), vec![50]), ("b".to_owned(), vec![50])]);
    let optimizer = Optimizer::new(&OptimizerSpec::default(), &layout);
    for value in [f32::NAN, f32::INFINITY] {
        let mut gradient = [1.0; 100];
        assert_eq!(norm_of(&optimizer.squares(&gradient)), 10.0);
        gradient[99] = value;
        assert!(!norm_of(&optimizer.squares(&gradient)).is_finite());
    }
}

/// `noise` of the script.
fn noise(place: usize, step: u32) -> f32 {
    let mut value = (place as u32).wrapping_mul(7919).wrapping_add(step.wrapping_mul(104_729)).wrapping_add(12345);
    for factor in [0x9E37_79B1, 0x85EB_CA77] {
        value = (value ^ (value >> 15)).wrapping_mul(factor);
    }
    (value >> 8) as f32 / (1 << 24) as f32 - 0.5
}

/// `TENSORS` of the script.
fn layout() -> ModelLayout {
    let tensors = [
        ("model.embed_tokens.weight", vec![6, 4]),
        ("model.layers.0.input_layernorm.weight", vec![4]),
        ("model.layers.0.mlp.down_proj.weight", vec![4, 7]),
        ("model.layers.0.mlp.up_proj.weight", vec![7, 4]),
        ("model.layers.0.self_attn.q_proj.weight", vec![4, 4]),
    ];
    ModelLayout::new(tensors.map(|(name, shape)| (name.to_owned(), shape)))
}

#[test]
fn fifty_steps_are_those_of_pytorch() {
    let text = include_str!("../../tests/optimizer/reference.json");
    let reference: BTreeMap<String, Vec<f64>> = serde_json::from_str(text).expect("lists of numbers by name");
    assert_eq!(reference.len(), 4);
    for (name, expected) in reference {
        let spec = OptimizerSpec {
            kind: if name.starts_with("muon") { OptimizerKind::Muon } else { OptimizerKind::AdamW },
            match_batch: name.ends_with("matched"),
            learning_rate: 0.01,
            ..OptimizerSpec::default()
        };
        let layout = layout();
        let mut optimizer = Optimizer::new(&spec, &layout);
        optimizer.set_members(8.0);
        let mut moments = optimizer.moments();
        let mut values: Vec<f32> = (0..layout.parameters()).map(|place| noise(place, 0)).collect();
        for step in 1..=50 {
            let share = if step % 2 == 1 { 0.1 } else { 1.0 };
            let gradient = |(place, value): (usize, &f32)| noise(place, step) * share + 0.1 * value;
            let gradient: Vec<f32> = values.iter().enumerate().map(gradient).collect();
            let norm = norm_of(&Optimizer::new(&spec, &layout).squares(&gradient));
            assert_eq!(norm > spec.gradient_norm_max, step % 2 == 0, "every other step is clipped");
            let factors = optimizer.factors(u64::from(step), norm, 0.01, &mut moments.average_weight);
            optimizer.step(factors, &mut values, &gradient, &mut moments);
        }
        let pairs = values.iter().zip(&expected);
        let error = pairs.fold(0.0_f64, |error, (value, expected)| error.max((f64::from(*value) - expected).abs()));
        assert!(values.len() == expected.len() && error < 1e-5, "{name}: {error}");
    }
}

#[test]
fn alone_a_matched_second_moment_is_the_plain_one() {
    let layout = layout();
    let (before, gradient) = (random_values(layout.parameters(), 1), random_values(layout.parameters(), 2));
    let stepped = |match_batch| {
        let spec = OptimizerSpec { match_batch, ..OptimizerSpec::default() };
        let optimizer = Optimizer::new(&spec, &layout);
        let (mut values, mut moments) = (before.clone(), optimizer.moments());
        for steps in 1..=3 {
            let factors = optimizer.factors(steps, 1.0, 0.01, &mut moments.average_weight);
            optimizer.step(factors, &mut values, &gradient, &mut moments);
        }
        (values, moments.second)
    };
    assert!(stepped(true) == stepped(false));
}

#[test]
fn muon_keeps_no_second_moments_of_the_matrices_that_it_steps() {
    let spec = OptimizerSpec { kind: OptimizerKind::Muon, match_batch: true, ..OptimizerSpec::default() };
    let moments = Optimizer::new(&spec, &layout()).moments();
    assert_eq!((moments.first.len(), moments.second.len(), moments.average.len()), (100, 28, 28));
    assert_eq!(second_moments(&spec, &layout()), 28);
    let spec = OptimizerSpec::default();
    assert_eq!(second_moments(&spec, &layout()), 100);
}

#[test]
fn steps_move_the_model_no_further_than_is_told() {
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
        let spec = OptimizerSpec { kind, weight_decay: 0.0, gradient_norm_max: 1e6, ..OptimizerSpec::default() };
        let optimizer = Optimizer::new(&spec, &layout());
        let (mut values, mut moments) = (vec![0.0; 100], optimizer.moments());
        let gradient = random_values(100, 3);
        let factors = optimizer.factors(1, 1.0, 0.01, &mut moments.average_weight);
        optimizer.step(factors, &mut values, &gradient, &mut moments);
        let (moved, told) = (norm_of(&optimizer.squares(&values)), optimizer.travel(0.01));
        assert!(moved <= told * (1.0 + 1e-6) && moved > 0.7 * told, "{kind:?}: {moved} {told}");
    }
}

/// Fifty steps of gradients that pull towards zero, with noise: moments in 8 bits stay near those in 32, and are the same where they are
/// not rounded.
#[test]
fn moments_in_eight_bits_walk_beside_those_in_thirty_two() {
    for (kind, match_batch) in
        [(OptimizerKind::AdamW, false), (OptimizerKind::AdamW, true), (OptimizerKind::Muon, true)]
    {
        let spec = OptimizerSpec { kind, match_batch, learning_rate: 0.01, ..OptimizerSpec::default() };
        let layout = ModelLayout::new(
            [
                ("model.embed_tokens.weight", vec![20, 24]),
                ("model.layers.0.input_layernorm.weight", vec![24]),
                ("model.layers.0.mlp.down_proj.weight", vec![24, 50]),
                ("lm_head.weight", vec![30, 24]),
            ]
            .map(|(name, shape)| (name.to_owned(), shape)),
        );
        let before: Vec<f32> = (0..layout.parameters()).map(|place| noise(place, 0)).collect();
        let walked = |in_8_bits| {
            let mut optimizer = Optimizer::new(&spec, &layout).with_moments(in_8_bits);
            optimizer.set_members(4.0);
            let (mut values, mut moments) = (before.clone(), optimizer.moments());
            for step in 1..=50 {
                // Of very unlike sizes within a block.
                let size = |place: usize| 10_f32.powi(-((place % 3) as i32));
                let gradient = |(place, value): (usize, &f32)| size(place) * (noise(place, step) + value);
                let gradient: Vec<f32> = values.iter().enumerate().map(gradient).collect();
                let factors = optimizer.factors(u64::from(step), 1.0, 0.01, &mut moments.average_weight);
                optimizer.step(factors, &mut values, &gradient, &mut moments);
            }
            (values, moments, optimizer)
        };
        let ((exact, exact_moments, of_all), (rounded, moments, of_eight)) = (walked(false), walked(true));
        let distance = |left: &[f32], right: &[f32]| {
            square(&left.iter().zip(right).map(|(l, r)| l - r).collect::<Vec<_>>()).sqrt()
        };
        let (apart, moved) = (distance(&exact, &rounded), distance(&exact, &before));
        assert!(apart > 0.0 && apart < 0.1 * moved, "{kind:?} {match_batch}: {apart} apart after {moved}");
        for tensor in layout.tensors() {
            let is_rounded = exact[tensor.range()] != rounded[tensor.range()];
            assert_eq!(is_rounded, tensor.name.contains("_proj") || tensor.name.contains("head"), "{}", tensor.name);
        }
        // 1.02 bytes for each of 4, and the rest as ever.
        let bytes = |moments: &Moments| MomentLengths::of(moments).bytes();
        let (rest, all) =
            (4 * (moments.first.len() + moments.second.len() + moments.average.len()), bytes(&exact_moments));
        assert!(bytes(&moments) - rest < (all - rest) * 27 / 100, "{} of {all}, {rest} as ever", bytes(&moments));
        // What was saved with one setting goes on with the other.
        let decoded = of_all.in_own_bits(moments.clone());
        assert_eq!(MomentLengths::of(&decoded), MomentLengths::of(&exact_moments));
        let apart = distance(&decoded.first, &exact_moments.first) / square(&exact_moments.first).sqrt();
        assert!(apart < 0.05, "{kind:?}: {apart} of all");
        let again = of_all.in_own_bits(of_eight.in_own_bits(decoded.clone()));
        let apart = distance(&decoded.first, &again.first).max(distance(&decoded.second, &again.second));
        assert!(apart < 1e-6, "codes are themselves again: {apart}");
    }
}

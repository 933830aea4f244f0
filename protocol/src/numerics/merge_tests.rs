//! Examples of an exchange that need a look inside; the properties of whole exchanges are in
//! `tests/numerics_properties.rs`.

use super::super::block_scale::BlockScale;
use super::super::jobs::{Encoded, MergeRole};
use super::super::width::CodeWidth;
use super::*;
use crate::Snapshot;
use crate::numerics::encode::encode_with;
use crate::numerics::jobs::{EncodeJob, EncodeRole};
use crate::random::{RngExt, stream};

const WIDTHS: [CodeWidth; 4] = [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen];

/// Both sides' codes, the starter's first.
fn encode_both(
    instructions: InstructionSet,
    [starter, responder]: [&Snapshot; 2],
    width: CodeWidth,
    scales: Option<Scales>,
) -> [Encoded; 2] {
    let buffers = Buffers::new();
    let job = |role| EncodeJob { role, nonce: 42, width };
    let starter =
        encode_with(instructions, starter, &job(EncodeRole::Starter { scales }), &buffers).expect("own scales");
    let role = EncodeRole::Responder { scales: starter.scales.clone() };
    let responder = encode_with(instructions, responder, &job(role), &buffers).expect("sane scales");
    [starter, responder]
}

fn job(role: MergeRole, [own, partner]: [&Encoded; 2], parameters: usize, width: CodeWidth) -> MergeJob {
    MergeJob {
        role,
        parameters,
        own: own.clone(),
        received: partner.codes.clone(),
        width,
        nonce: 42,
        gamma: 0.5,
        starter_share: 0.5,
        clip: f64::MAX,
        step_fraction: 0.2,
        scales: None,
        reference: None,
    }
}

/// Both sides of an exchange, and their codes.
fn exchange_with(
    instructions: InstructionSet,
    models: [&Snapshot; 2],
    width: CodeWidth,
    scales: Option<Scales>,
) -> ([Encoded; 2], Merged, Merged) {
    let (buffers, parameters) = (Buffers::new(), models[0].values().len());
    let [starter, responder] = encode_both(instructions, models, width, scales.clone());
    let responding = job(MergeRole::Responder, [&responder, &starter], parameters, width);
    let responding = MergeJob { scales: scales.clone(), ..responding };
    let at_responder = merge_with(instructions, &responding, &buffers).expect("honest bytes");
    let role = MergeRole::Starter { digest: at_responder.digest };
    let starting = MergeJob { scales, ..job(role, [&starter, &responder], parameters, width) };
    let at_starter = merge_with(instructions, &starting, &buffers).expect("honest bytes");
    ([starter, responder], at_starter, at_responder)
}

fn exchange(models: [&Snapshot; 2], width: CodeWidth, scales: Option<Scales>) -> ([Encoded; 2], Merged, Merged) {
    exchange_with(InstructionSet::best(), models, width, scales)
}

/// A model, and one near it, at most `distance` apart in each coordinate.
fn two_models(seed: u64, parameters: usize, distance: f32) -> (Vec<f32>, Vec<f32>) {
    let mut generator = stream(seed, "two models", &[]);
    let one: Vec<f32> = (0..parameters).map(|_| generator.random_range(-1.0..1.0)).collect();
    let other = one.iter().map(|value| value + distance * generator.random_range(-1.0f32..1.0)).collect();
    (one, other)
}

/// The same scale for all blocks.
fn scales_of(parameters: usize, scale: f32) -> Scales {
    Scales::from_pooled(vec![BlockScale { scale, wraps_in_row: 0 }; parameters.div_ceil(BLOCK)].into())
}

fn distance(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(one, other)| f64::from(one - other).powi(2)).sum::<f64>().sqrt()
}

/// Whatever a processor can, partners with different ones must find the same integers. To see it fail, add
/// `if cfg!(target_feature = …)`-like differences to a loop, or sum the squares as floats.
#[test]
fn all_instruction_sets_give_the_same_bits() {
    let sets = InstructionSet::available();
    assert!(sets.contains(&InstructionSet::best()));
    for parameters in [1, 3, 64, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 77, 40 * BLOCK] {
        let (mut one, mut other) = two_models(9, parameters, 0.05);
        // Values that only a broken model has, in blocks of their own, where there are that many.
        let oddities = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 8.0, -0.0, 3e38, -1e30];
        for (number, oddity) in oddities.into_iter().enumerate() {
            if let Some(value) = one.get_mut((3 + number) * BLOCK + 5) {
                *value = oddity;
            }
            if let Some(value) = other.get_mut((11 + number) * BLOCK + 99) {
                *value = oddity;
            }
        }
        let (one, other) = (Snapshot::from(one), Snapshot::from(other));
        for width in WIDTHS {
            // Wide enough for all, for most, and for hardly any difference.
            for scale in [None, Some(1.0 / 128.0), Some(1.0 / 2048.0), Some(1.0 / 65_536.0)] {
                let scales = scale.map(|scale| scales_of(parameters, scale));
                let expected = exchange_with(sets[0], [&one, &other], width, scales.clone());
                for set in &sets[1..] {
                    let found = exchange_with(*set, [&one, &other], width, scales.clone());
                    assert_eq!(found, expected, "{parameters} parameters, {width:?}, scale {scale:?}, {set:?}");
                }
            }
        }
    }
}

#[test]
fn meeting_in_the_middle_averages() {
    let (one, other) = two_models(5, 2000, 0.02);
    let (_, at_starter, _) = exchange([&one.clone().into(), &other.clone().into()], CodeWidth::Sixteen, None);
    let mut merged = one.clone();
    at_starter.correction.add_to(&mut merged);
    let middle: Vec<f32> = one.iter().zip(&other).map(|(one, other)| (one + other) / 2.0).collect();
    let error = distance(&merged, &middle) / distance(&one, &other);
    // A first exchange's scale is a thousandth of the rms value, 0.58e-3 here, and rounding errs by about half of it.
    assert!(error < 0.04, "{error}");
}

#[test]
fn a_wrapped_block_is_left_out_on_both_sides_and_widens_the_grid_when_it_wraps_again() {
    let (one, _) = two_models(6, 3 * BLOCK, 0.0);
    for width in WIDTHS {
        let scale = 1.0 / 512.0;
        let mut other = one.clone();
        // Just beyond what a code can tell.
        other[BLOCK + 7] += scale * (1 << (width.bits() - 1)) as f32 * 1.5;
        let models = [&one.clone().into(), &other.into()];
        let (_, at_starter, at_responder) = exchange(models, width, Some(scales_of(3 * BLOCK, scale)));
        assert_eq!((at_starter.masked_blocks, at_responder.masked_blocks), (1, 1));
        assert!(at_starter.correction.to_values().iter().all(|value| *value == 0.0));
        assert_eq!(at_starter.norm, 0.0, "nothing that counts differs");
        assert!(at_starter.distance > 0.0 && at_starter.distance == at_responder.distance, "but something does");
        let mut scales = scales_of(3 * BLOCK, scale).values().to_vec();
        scales[1].wraps_in_row = 2;
        let (_, at_starter, _) = exchange(models, width, Some(Scales::from_pooled(scales.into())));
        assert!(at_starter.scales.as_ref().expect("on a grid").values()[1].scale >= 4.0 * scale);
        assert_eq!((at_starter.masked_blocks, at_starter.stuck_blocks), (1, 1));
    }
}

/// A scale that fits values near zero, as those of a momentum after a calm, says nothing of a partner's.
#[test]
fn a_block_far_beyond_the_grid_is_left_out_on_both_sides() {
    for width in [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen] {
        for (parameters, sign) in [(BLOCK, 1.0), (BLOCK, -1.0), (64, 1.0), (2 * BLOCK + 10, 1.0)] {
            let near = Snapshot::from(vec![0.0; parameters]);
            let far: Snapshot =
                (0..parameters).map(|index| sign * (0.3 + 1e-4 * index as f32)).collect::<Vec<_>>().into();
            let scales = Some(scales_of(parameters, 1e-8));
            let (_, starter, responder) = exchange([&near, &far], width, scales);
            let blocks = parameters.div_ceil(BLOCK) as u32;
            assert_eq!((starter.masked_blocks, responder.masked_blocks), (blocks, blocks), "{width:?} {parameters}");
        }
    }
}

#[test]
fn a_difference_without_an_opposite_is_left_out_on_both_sides() {
    for width in WIDTHS {
        let half_way = (1 << (width.bits() - 1)) as f32;
        let (one, mut other) = (vec![0.0; BLOCK], vec![0.0; BLOCK]);
        other[9] = half_way;
        let (_, at_starter, at_responder) = exchange([&one.into(), &other.into()], width, Some(scales_of(BLOCK, 1.0)));
        assert_eq!((at_starter.masked_blocks, at_responder.masked_blocks), (1, 1), "{width:?}");
    }
}

#[test]
fn a_probe_measures_and_moves_nothing() {
    let (one, other) = two_models(3, 700, 0.02);
    let (one, model) = (Snapshot::from(one), Snapshot::from(other.clone()));
    let [starter, responder] =
        encode_both(InstructionSet::best(), [&one, &model], CodeWidth::Eight, Some(scales_of(700, 1e-3)));
    let mut probe = job(MergeRole::Responder, [&responder, &starter], 700, CodeWidth::Eight);
    probe.gamma = 0.0;
    let probed = merge(&probe, &Buffers::new()).expect("honest");
    let mut moved = other.clone();
    probed.correction.add_to(&mut moved);
    assert_eq!(moved, other);
    assert!(probed.distance > 0.1, "{}", probed.distance);
}

#[test]
fn other_terms_give_another_digest() {
    let (one, other) = two_models(7, 600, 0.01);
    let (one, other) = (Snapshot::from(one), Snapshot::from(other));
    let [starter, responder] = encode_both(InstructionSet::best(), [&one, &other], CodeWidth::Sixteen, None);
    let agreed = job(MergeRole::Responder, [&responder, &starter], 600, CodeWidth::Sixteen);
    let digest = |job: &MergeJob| merge(job, &Buffers::new()).expect("honest").digest;
    let others = [
        MergeJob { gamma: 0.25, ..agreed.clone() },
        MergeJob { starter_share: 0.25, ..agreed.clone() },
        MergeJob { clip: 1.0, ..agreed.clone() },
        MergeJob { nonce: 43, ..agreed.clone() },
    ];
    others.iter().for_each(|other| assert_ne!(digest(other), digest(&agreed)));
}

#[test]
fn a_different_difference_is_noticed_by_the_starter() {
    let (one, other) = two_models(7, 600, 0.01);
    let models = [&one.into(), &other.into()];
    for width in WIDTHS {
        let scales = Some(scales_of(600, 1.0 / 256.0));
        let ([starter, mut responder], _, at_responder) = exchange(models, width, scales);
        let mut codes = responder.codes.bytes().to_vec();
        *codes.last_mut().expect("not empty") ^= 1;
        responder.codes = codes.into();
        let role = MergeRole::Starter { digest: at_responder.digest };
        let result = merge(&job(role, [&starter, &responder], 600, width), &Buffers::new());
        assert_eq!(result, Err(Misbehaviour::Disagreement), "{width:?}");
    }
}

#[test]
fn a_payload_of_another_length_is_refused() {
    let (one, _) = two_models(8, 600, 0.01);
    let one = Snapshot::from(one);
    let [starter, mut responder] = encode_both(InstructionSet::best(), [&one, &one], CodeWidth::Eight, None);
    responder.codes = vec![0; 10].into();
    let job = job(MergeRole::Responder, [&starter, &responder], 600, CodeWidth::Eight);
    let result = merge(&job, &Buffers::new());
    assert_eq!(result, Err(Misbehaviour::WrongLength { expected: 606, actual: 10 }));
}

/// A range of whole blocks is a model of its own: it takes other dither, but nothing else changes.
#[test]
fn a_range_of_blocks_is_exchanged_like_a_model() {
    let (one, other) = two_models(4, 6 * BLOCK + 10, 0.02);
    for range in [2 * BLOCK..4 * BLOCK, 5 * BLOCK..6 * BLOCK + 10] {
        let (mut one, mut other) = (one[range.clone()].to_vec(), other[range].to_vec());
        let before = distance(&one, &other);
        let (_, at_starter, at_responder) =
            exchange([&one.clone().into(), &other.clone().into()], CodeWidth::Eight, Some(scales_of(one.len(), 1e-3)));
        at_starter.correction.add_to(&mut one);
        at_responder.correction.add_to(&mut other);
        assert!(distance(&one, &other) < 0.1 * before);
    }
}

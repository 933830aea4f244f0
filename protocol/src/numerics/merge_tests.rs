//! The invariants of one exchange, as properties of the pure functions.

use proptest::prelude::*;

use super::*;
use crate::numerics::steps::step_after_exchange;
use crate::numerics::{EncodeJob, encode};
use crate::random::{RngExt, stream};

/// Both sides of one exchange.
struct Pair {
    starter: Merged,
    responder: Merged,
}

struct Setting {
    width: CodeWidth,
    starter_steps: Option<StepSizes>,
    gamma: f64,
    starter_share: f32,
    clip: f64,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting { width: CodeWidth::Sixteen, starter_steps: None, gamma: 0.5, starter_share: 0.5, clip: f64::MAX }
    }
}

fn exchange(starter: &Snapshot, responder: &Snapshot, setting: &Setting) -> Pair {
    let encode_job = EncodeJob { nonce: 42, width: setting.width, steps: setting.starter_steps.clone() };
    let proposal = encode(starter, &encode_job, &Buffers::new());
    let job = |role, received, steps| MergeJob {
        role,
        received,
        width: setting.width,
        nonce: 42,
        gamma: setting.gamma,
        starter_share: setting.starter_share,
        clip: setting.clip,
        step_fraction: 0.2,
        steps,
    };
    let responder_job = job(MergeRole::Responder, proposal.clone(), None);
    let at_responder = merge(responder, &responder_job, &Buffers::new()).expect("honest bytes");
    let reply = at_responder.reply.clone().expect("a responder replies");
    let role = MergeRole::Starter { proposal, digest: at_responder.digest };
    let starter_job = job(role, reply, setting.starter_steps.clone());
    let at_starter = merge(starter, &starter_job, &Buffers::new()).expect("honest bytes");
    Pair { starter: at_starter, responder: at_responder }
}

/// A model, and one near it, at most `distance` apart in each coordinate.
fn two_models(seed: u64, parameters: usize, distance: f32) -> (Snapshot, Snapshot) {
    let mut generator = stream(seed, "two models", &[]);
    let one: Vec<f32> = (0..parameters).map(|_| generator.random_range(-1.0..1.0)).collect();
    let other: Vec<f32> = one.iter().map(|value| value + distance * generator.random_range(-1.0f32..1.0)).collect();
    (one.into(), other.into())
}

/// Steps for models that are about `rms` apart.
fn steps_for(parameters: usize, rms: f32) -> StepSizes {
    let steps = vec![step_after_exchange(None, 1.0, Some(rms), 0.2); parameters.div_ceil(BLOCK)];
    StepSizes::from_pooled(steps.into())
}

fn distance(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(one, other)| f64::from(one - other).powi(2)).sum::<f64>().sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Invariant 1: with equal weights the corrections are bit-exact opposites, wraps or not.
    #[test]
    fn corrections_are_antisymmetric(
        seed in any::<u64>(), parameters in 1usize..1500, spread in 1e-4f32..2.0, kind in 0..4usize,
        clip in 1e-3f64..10.0,
    ) {
        let (one, other) = two_models(seed, parameters, spread);
        // Steps that fit a spread of 0.05: larger ones wrap.
        let width = [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen][kind];
        let starter_steps = (kind < 3).then(|| steps_for(parameters, 0.03));
        let setting = Setting { width, starter_steps, clip, ..Setting::default() };
        let pair = exchange(&one, &other, &setting);
        let (at_starter, at_responder) = (pair.starter.correction.to_values(), pair.responder.correction.to_values());
        for (one, other) in at_starter.iter().zip(&at_responder) {
            // `+ 0.0` makes the two zeros one.
            prop_assert_eq!((one + 0.0).to_bits(), (-other + 0.0).to_bits());
        }
        prop_assert_eq!(pair.starter.masked_blocks, pair.responder.masked_blocks);
        prop_assert_eq!(pair.starter.clip_scale.to_bits(), pair.responder.clip_scale.to_bits());
    }

    /// Invariant 2: the weighted mean stays where it was, whatever the weights.
    #[test]
    fn the_weighted_mean_is_kept(seed in any::<u64>(), share in 0.06f32..0.94, spread in 1e-4f32..2.0) {
        let (one, other) = two_models(seed, 700, spread);
        let setting = Setting { width: CodeWidth::Eight, starter_steps: Some(steps_for(700, 0.03)), starter_share: share, ..Setting::default() };
        let pair = exchange(&one, &other, &setting);
        let corrections = pair.starter.correction.to_values().into_iter().zip(pair.responder.correction.to_values());
        for (at_starter, at_responder) in corrections {
            let share = f64::from(share);
            let shift = share * f64::from(at_starter) + (1.0 - share) * f64::from(at_responder);
            prop_assert!(shift.abs() <= 1e-6 * f64::from(at_starter.abs().max(at_responder.abs())), "{}", shift);
        }
    }

    /// Invariant 4: an exchange moves a node by at most 2γ · share · τ.
    #[test]
    fn a_clipped_correction_is_no_longer_than_agreed(seed in any::<u64>(), clip in 1e-4f64..1.0, gamma in 0.01f64..0.5) {
        let (one, other) = two_models(seed, 900, 0.5);
        let pair = exchange(&one, &other, &Setting { gamma, clip, ..Setting::default() });
        let moved = distance(&pair.starter.correction.to_values(), &[0.0; 900]);
        prop_assert!(moved <= 2.0 * gamma * 0.5 * clip * (1.0 + 1e-5), "{}", moved);
    }

    /// Invariant 5: without wraps the pair comes closer, but for the quantization error.
    #[test]
    fn partners_come_closer(seed in any::<u64>(), gamma in 0.01f64..0.5, spread in 1e-3f32..0.1) {
        let (one, other) = two_models(seed, 600, spread);
        let steps = steps_for(600, spread);
        let quantization = f64::from(steps.values()[0]) * 600f64.sqrt();
        let pair = exchange(&one, &other, &Setting { width: CodeWidth::Eight, starter_steps: Some(steps), gamma, ..Setting::default() });
        prop_assert_eq!(pair.starter.masked_blocks, 0);
        let (mut at_starter, mut at_responder) = (one.values().to_vec(), other.values().to_vec());
        pair.starter.correction.add_to(&mut at_starter);
        pair.responder.correction.add_to(&mut at_responder);
        prop_assert!(distance(&at_starter, &at_responder) <= distance(one.values(), other.values()) + quantization);
    }

    /// Whatever a peer sends, merging is a value.
    #[test]
    fn hostile_payloads_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..1300), narrow in any::<bool>()) {
        let (one, _) = two_models(1, 512, 0.1);
        let width = if narrow { CodeWidth::Eight } else { CodeWidth::Sixteen };
        let mut received = bytes;
        received.resize(proposal_bytes(512, width), 0x3c);
        let job = MergeJob {
            role: MergeRole::Responder, received: received.into(), width, nonce: 1, gamma: 0.5, starter_share: 0.5,
            clip: 0.1, step_fraction: 0.2, steps: None,
        };
        if let Ok(merged) = merge(&one, &job, &Buffers::new()) {
            let moved = distance(&merged.correction.to_values(), &[0.0; 512]);
            prop_assert!(moved <= 0.1 * 0.5 * 1.001, "{}", moved);
        }
    }
}

#[test]
fn meeting_in_the_middle_averages() {
    let (one, other) = two_models(5, 2000, 0.02);
    let pair = exchange(&one, &other, &Setting::default());
    let mut merged = one.values().to_vec();
    pair.starter.correction.add_to(&mut merged);
    let middle: Vec<f32> = one.values().iter().zip(other.values()).map(|(one, other)| (one + other) / 2.0).collect();
    let error = distance(&merged, &middle) / distance(one.values(), other.values());
    // A first exchange's step is a thousandth of the rms value, 0.58e-3 here, and rounding errs by about half of it.
    assert!(error < 0.04, "{error}");
}

#[test]
fn a_wrapped_block_is_left_out_on_both_sides_and_widens_the_grid() {
    let (one, _) = two_models(6, 3 * BLOCK, 0.0);
    let mut other = one.values().to_vec();
    other[BLOCK + 7] += 10.0;
    let steps = steps_for(3 * BLOCK, 0.01);
    let pair = exchange(
        &one,
        &other.into(),
        &Setting { width: CodeWidth::Eight, starter_steps: Some(steps.clone()), ..Setting::default() },
    );
    assert_eq!((pair.starter.masked_blocks, pair.responder.masked_blocks), (1, 1));
    assert!(pair.starter.correction.to_values().iter().all(|value| *value == 0.0));
    assert!(pair.starter.steps.values()[1] >= 4.0 * steps.values()[1]);
}

#[test]
fn a_different_difference_is_noticed_by_the_starter() {
    let (one, other) = two_models(7, 600, 0.01);
    let proposal = encode(&one, &EncodeJob { nonce: 1, width: CodeWidth::Sixteen, steps: None }, &Buffers::new());
    let job = |role, received| MergeJob {
        role,
        received,
        width: CodeWidth::Sixteen,
        nonce: 1,
        gamma: 0.5,
        starter_share: 0.5,
        clip: 1.0,
        step_fraction: 0.2,
        steps: None,
    };
    let at_responder = merge(&other, &job(MergeRole::Responder, proposal.clone()), &Buffers::new()).expect("honest");
    let mut reply = at_responder.reply.expect("a reply").bytes().to_vec();
    *reply.last_mut().expect("not empty") ^= 1;
    let role = MergeRole::Starter { proposal, digest: at_responder.digest };
    assert_eq!(merge(&one, &job(role, reply.into()), &Buffers::new()), Err(Misbehaviour::Disagreement));
}

#[test]
fn a_payload_of_another_length_is_refused() {
    let (one, _) = two_models(8, 600, 0.01);
    let job = MergeJob {
        role: MergeRole::Responder,
        received: vec![0; 10].into(),
        width: CodeWidth::Eight,
        nonce: 1,
        gamma: 0.5,
        starter_share: 0.5,
        clip: 1.0,
        step_fraction: 0.2,
        steps: None,
    };
    assert_eq!(merge(&one, &job, &Buffers::new()), Err(Misbehaviour::WrongLength { expected: 612, actual: 10 }));
}

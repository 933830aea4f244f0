//! The invariants of one exchange, as properties of the pure functions, at every width.
//!
//! Each property is a function that says what is wrong; `every_property_can_fail` shows each a wrong exchange.

use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_protocol::numerics::{
    Buffers, CodeWidth, EncodeJob, EncodeRole, Encoded, MergeJob, MergeRole, Merged, Scales, codes_bytes, encode, merge,
};
use murmur_protocol::random::{RngExt, stream};
use murmur_protocol::{Correction, Misbehaviour, Payload, Snapshot};
use proptest::prelude::*;

const WIDTHS: [CodeWidth; 4] = [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen];

/// How two nodes average.
#[derive(Clone, Debug)]
struct Setting {
    parameters: usize,
    width: CodeWidth,
    scale: f32,
    nonce: u64,
    gamma: f64,
    starter_share: f32,
    clip: f64,
}

impl Setting {
    fn new(width: CodeWidth, scale: f32) -> Setting {
        Setting { parameters: 0, width, scale, nonce: 42, gamma: 0.5, starter_share: 0.5, clip: f64::MAX }
    }

    fn merge(&self, role: MergeRole, own: &Encoded, received: Payload) -> Result<Merged, Misbehaviour> {
        let job = MergeJob {
            role,
            parameters: self.parameters,
            own: own.clone(),
            received,
            width: self.width,
            nonce: self.nonce,
            gamma: self.gamma,
            starter_share: self.starter_share,
            clip: self.clip,
            step_fraction: 0.2,
            scales: None,
            reference: None,
        };
        merge(&job, &Buffers::new())
    }

    fn encode(&self, model: &[f32], role: EncodeRole) -> Result<Encoded, Misbehaviour> {
        let job = EncodeJob { role, nonce: self.nonce, width: self.width };
        encode(&Snapshot::from(model.to_vec()), &job, &Buffers::new())
    }

    fn propose(&self, starter: &[f32]) -> Encoded {
        // A model of equal values has scales of a thousandth of them.
        let scales = Scales::for_first_exchange(&vec![1e3 * self.scale; starter.len()]);
        self.encode(starter, EncodeRole::Starter { scales: Some(scales) }).expect("own scales")
    }

    fn exchange(&self, models: [&[f32]; 2]) -> Exchange {
        let setting = Setting { parameters: models[0].len(), ..self.clone() };
        let starter = setting.propose(models[0]);
        let role = EncodeRole::Responder { scales: starter.scales.clone() };
        let responder = setting.encode(models[1], role).expect("honest scales");
        let at_responder = setting.merge(MergeRole::Responder, &responder, starter.codes.clone()).expect("honest");
        let role = MergeRole::Starter { digest: at_responder.digest };
        let at_starter = setting.merge(role, &starter, responder.codes.clone()).expect("honest");
        Exchange { starter, responder, at_starter, at_responder }
    }
}

/// Both sides of an exchange.
struct Exchange {
    starter: Encoded,
    responder: Encoded,
    at_starter: Merged,
    at_responder: Merged,
}

/// A model, and one near it, at most `spread` apart in each coordinate.
fn two_models(seed: u64, parameters: usize, spread: f32) -> [Vec<f32>; 2] {
    let mut generator = stream(seed, "two models", &[]);
    let one: Vec<f32> = (0..parameters).map(|_| generator.random_range(-1.0..1.0)).collect();
    let other = one.iter().map(|value| value + spread * generator.random_range(-1.0f32..1.0)).collect();
    [one, other]
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

fn distance(one: &[f32], other: &[f32]) -> f64 {
    norm(&one.iter().zip(other).map(|(one, other)| one - other).collect::<Vec<_>>())
}

fn require(holds: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(wrong()) }
}

/// Invariant 1: with equal weights the corrections are opposites bit by bit; with others, up to the rounding of the
/// factors (three roundings a side), so that the weighted mean stays.
fn corrections_cancel(starter_share: f32, at_starter: &Correction, at_responder: &Correction) -> Result<(), String> {
    let share = f64::from(starter_share);
    for (one, other) in at_starter.to_values().into_iter().zip(at_responder.to_values()) {
        if starter_share == 0.5 {
            // `+ 0.0` makes the two zeros one.
            require((one + 0.0).to_bits() == (-other + 0.0).to_bits(), || format!("{one:e} is not −({other:e})"))?;
        } else {
            let (one, other) = (share * f64::from(one), (1.0 - share) * f64::from(other));
            let rounding = 8.0 * f64::from(f32::EPSILON) / 2.0;
            require((one + other).abs() <= rounding * one.abs(), || format!("{one:e} and {other:e} do not cancel"))?;
        }
    }
    Ok(())
}

/// Invariant 4: a node moves by at most `factor · τ`, and a coordinate by `factor · (2^(bits−1) − 1) · s`.
fn movement_is_bounded(correction: &Correction, setting: &Setting, share: f64, scales: &[f32]) -> Result<(), String> {
    let factor = 2.0 * setting.gamma * share;
    let moved = correction.to_values();
    let limit = factor * setting.clip * (1.0 + 1e-5);
    require(norm(&moved) <= limit, || format!("moved by {} instead of {limit}", norm(&moved)))?;
    let reach = f64::from((1u32 << (setting.width.bits() - 1)) - 1);
    for (position, value) in moved.iter().enumerate() {
        let limit = factor * reach * f64::from(scales[position / BLOCK]) * (1.0 + 1e-6);
        require(f64::from(value.abs()) <= limit, || format!("coordinate {position} moved by {value} of {limit}"))?;
    }
    Ok(())
}

/// Invariant 5: the distance grows by no more than the quantization error.
fn partners_are_not_further_apart(
    models: [&[f32]; 2],
    corrections: [&Correction; 2],
    scale: f32,
) -> Result<(), String> {
    let mut moved = models.map(<[f32]>::to_vec);
    moved.iter_mut().zip(corrections).for_each(|(model, correction)| correction.add_to(model));
    let quantization = f64::from(scale) * (models[0].len() as f64).sqrt();
    let (before, after) = (distance(models[0], models[1]), distance(&moved[0], &moved[1]));
    require(after <= before + quantization, || format!("{before} became {after}, quantization {quantization}"))
}

/// The scales of an exchange.
fn scales_on_the_wire(scales: &Payload) -> Vec<f32> {
    let pairs = scales.bytes().chunks_exact(2);
    pairs.map(|pair| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16)).collect()
}

/// Invariants 1 and 4 for both sides.
fn holds(exchange: &Exchange, setting: &Setting) -> Result<(), String> {
    let Exchange { starter, at_starter, at_responder, .. } = exchange;
    let share = f64::from(setting.starter_share);
    let scales = scales_on_the_wire(&starter.scales);
    corrections_cancel(setting.starter_share, &at_starter.correction, &at_responder.correction)?;
    movement_is_bounded(&at_starter.correction, setting, 1.0 - share, &scales)?;
    movement_is_bounded(&at_responder.correction, setting, share, &scales)?;
    let same_scale = at_starter.clip_scale.to_bits() == at_responder.clip_scale.to_bits();
    require(same_scale && at_starter.masked_blocks == at_responder.masked_blocks, || "other terms".to_owned())
}

/// Settings whose scales are too small for some of the spreads, so that codes wrap.
fn settings() -> impl Strategy<Value = Setting> {
    let share = prop_oneof![Just(0.5f32), 0.06f32..0.94];
    let clip = prop_oneof![Just(f64::MAX), 1e-3f64..10.0];
    (0..4usize, 1e-4f32..1e-1, any::<u64>(), 0.0f64..=0.5, share, clip).prop_map(
        |(width, scale, nonce, gamma, starter_share, clip)| Setting {
            parameters: 0,
            width: WIDTHS[width],
            scale,
            nonce,
            gamma,
            starter_share,
            clip,
        },
    )
}

/// What a hostile partner may achieve: an error, or a finite correction within the bounds.
fn is_error_or_bounded(
    result: Result<Merged, Misbehaviour>,
    setting: &Setting,
    share: f64,
    scales: &[f32],
) -> Result<(), String> {
    let Ok(merged) = result else { return Ok(()) };
    let finite = merged.correction.to_values().iter().all(|value| value.is_finite());
    require(finite && merged.distance.is_finite(), || "not finite".to_owned())?;
    require(
        merged
            .scales
            .as_ref()
            .expect("on a grid")
            .values()
            .iter()
            .all(|block| block.scale.is_finite() && block.scale > 0.0),
        || "bad scales".to_owned(),
    )?;
    movement_is_bounded(&merged.correction, setting, share, scales)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn corrections_cancel_and_are_bounded(
        seed in any::<u64>(), parameters in 1usize..1500, spread in 1e-4f32..2.0, setting in settings(),
    ) {
        let [one, other] = two_models(seed, parameters, spread);
        let exchange = setting.exchange([&one, &other]);
        prop_assert_eq!(holds(&exchange, &setting), Ok(()));
    }

    #[test]
    fn partners_come_no_further_apart_without_wraps(
        seed in any::<u64>(), parameters in 1usize..1500, width in 0..4usize, gamma in 0.0f64..=0.5, fill in 0.05f32..0.9,
        starter_share in 0.06f32..0.94,
    ) {
        let width = WIDTHS[width];
        let reach = f32::from((1u16 << (width.bits() - 1)) - 2);
        let spread = 0.02;
        let setting = Setting { gamma, starter_share, ..Setting::new(width, spread / (fill * reach)) };
        let [one, other] = two_models(seed, parameters, spread);
        let Exchange { starter, at_starter, at_responder, .. } = setting.exchange([&one, &other]);
        prop_assert_eq!(at_starter.masked_blocks, 0);
        let scale = scales_on_the_wire(&starter.scales).into_iter().fold(0.0, f32::max);
        let corrections = [&at_starter.correction, &at_responder.correction];
        prop_assert_eq!(partners_are_not_further_apart([&one, &other], corrections, scale), Ok(()));
    }

    #[test]
    fn hostile_scales_are_refused_or_bounded(
        seed in any::<u64>(), parameters in 1usize..700, setting in settings(), cut in 0usize..10,
        flips in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..3), is_random in any::<bool>(),
    ) {
        let [one, other] = two_models(seed, parameters, 0.05);
        let setting = Setting { parameters, ..setting };
        let honest = setting.propose(&one);
        let mut bytes = honest.scales.bytes().to_vec();
        if is_random {
            let mut generator = stream(seed, "hostile bytes", &[]);
            bytes.iter_mut().for_each(|byte| *byte = generator.random());
        }
        flips.iter().for_each(|(index, mask)| *index.get_mut(&mut bytes) ^= mask);
        bytes.truncate(bytes.len() - usize::from(cut == 0));
        let scales = Payload::from(bytes);
        let result = setting.encode(&other, EncodeRole::Responder { scales: scales.clone() });
        prop_assert_eq!(cut == 0, matches!(result, Err(Misbehaviour::WrongLength { .. })));
        if let Ok(own) = result {
            let result = setting.merge(MergeRole::Responder, &own, honest.codes);
            let share = f64::from(setting.starter_share);
            prop_assert_eq!(is_error_or_bounded(result, &setting, share, &scales_on_the_wire(&scales)), Ok(()));
        }
    }

    /// A liar knows what digest its lie gives: here the one that an honest partner of its bytes would compute.
    #[test]
    fn hostile_codes_are_refused_or_bounded(
        seed in any::<u64>(), parameters in 1usize..700, setting in settings(), is_random in any::<bool>(),
        flips in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..6), cut in 0usize..3,
    ) {
        let [one, other] = two_models(seed, parameters, 0.05);
        let setting = Setting { parameters, ..setting };
        let Exchange { starter, responder, .. } = setting.exchange([&one, &other]);
        let mut codes = responder.codes.bytes().to_vec();
        if is_random {
            let mut generator = stream(seed, "hostile bytes", &[]);
            codes.iter_mut().for_each(|byte| *byte = generator.random());
        }
        flips.iter().for_each(|(index, mask)| *index.get_mut(&mut codes) ^= mask);
        codes.truncate(codes.len() - cut.saturating_sub(1));
        let codes = Payload::from(codes);
        let is_whole = codes.len() == codes_bytes(parameters, setting.width);
        let scales = scales_on_the_wire(&starter.scales);
        let share = f64::from(setting.starter_share);
        let responding = setting.merge(MergeRole::Responder, &starter, codes.clone());
        prop_assert_eq!(responding.is_ok(), is_whole);
        let digest = responding.as_ref().map_or(0, |merged| merged.digest);
        prop_assert_eq!(is_error_or_bounded(responding, &setting, share, &scales), Ok(()));
        let starting = setting.merge(MergeRole::Starter { digest }, &starter, codes);
        prop_assert_eq!(starting.is_ok(), is_whole, "a digest that fits its lie is believed");
        prop_assert_eq!(is_error_or_bounded(starting, &setting, 1.0 - share, &scales), Ok(()));
    }

    #[test]
    fn a_model_that_is_not_finite_never_panics(
        seed in any::<u64>(), parameters in 1usize..700, setting in settings(), swap in any::<bool>(),
        oddities in prop::collection::vec(any::<(prop::sample::Index, u32)>(), 1..20),
    ) {
        let [mut one, mut other] = two_models(seed, parameters, 0.05);
        for (index, bits) in &oddities {
            // Of any bits: NaN, infinite, denormal, huge.
            *index.get_mut(&mut one) = f32::from_bits(bits | (0x7f00_0000 * (bits & 1)));
        }
        if swap { std::mem::swap(&mut one, &mut other) }
        let exchange = setting.exchange([&one, &other]);
        prop_assert_eq!(holds(&exchange, &setting), Ok(()));
        let first = EncodeJob { role: EncodeRole::Starter { scales: None }, nonce: 1, width: CodeWidth::Sixteen };
        prop_assert!(encode(&Snapshot::from(one), &first, &Buffers::new()).is_ok());
    }
}

/// The mutations: what each property says of an exchange that went wrong.
#[test]
fn every_property_can_fail() {
    let [one, other] = two_models(1, 600, 0.02);
    let setting = Setting { clip: 0.1, ..Setting::new(CodeWidth::Eight, 1e-3) };
    let honest = setting.exchange([&one, &other]);
    assert_eq!(holds(&honest, &setting), Ok(()));
    let (at_starter, at_responder) = (&honest.at_starter.correction, &honest.at_responder.correction);

    // Other dither on one side, another clip norm, another share: the corrections do not cancel.
    for mutant in [
        Setting { nonce: 43, ..setting.clone() },
        Setting { clip: 0.099, ..setting.clone() },
        Setting { starter_share: 0.500_001, ..setting.clone() },
    ] {
        let mutated = mutant.exchange([&one, &other]).at_starter.correction;
        assert!(corrections_cancel(0.5, &mutated, at_responder).is_err(), "{mutant:?}");
        let unequal = Setting { starter_share: 0.3, ..setting.clone() }.exchange([&one, &other]);
        assert_eq!(corrections_cancel(0.3, &unequal.at_starter.correction, &unequal.at_responder.correction), Ok(()));
        assert!(corrections_cancel(0.3, &mutated, &unequal.at_responder.correction).is_err(), "{mutant:?}");
    }

    // Without clipping, or on a grid that is coarser than agreed, a node moves further than allowed.
    let scales = scales_on_the_wire(&honest.starter.scales);
    let unclipped = Setting { clip: f64::MAX, ..setting.clone() };
    let far = unclipped.exchange([&one, &other]).at_starter.correction;
    assert!(movement_is_bounded(&far, &setting, 0.5, &scales).is_err());
    let finer: Vec<f32> = scales.iter().map(|scale| scale / 100.0).collect();
    assert!(movement_is_bounded(&far, &unclipped, 0.5, &finer).is_err());

    // Both jumping past each other, or apart, ends further away than they began.
    let negated = [at_responder, at_starter];
    assert_eq!(partners_are_not_further_apart([&one, &other], [at_starter, at_responder], 1e-5), Ok(()));
    assert!(partners_are_not_further_apart([&one, &other], negated, 1e-5).is_err());

    // A correction that is not finite.
    let mut broken = honest.at_starter.clone();
    broken.correction = Correction::new(Codes::Narrow(vec![1; 600]), vec![f32::NAN; 3]);
    assert!(is_error_or_bounded(Ok(broken), &setting, 0.5, &scales).is_err());
}

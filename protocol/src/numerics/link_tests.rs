//! Exchanges on a link: what both ends compute, and that two models come together by signs alone.

use super::*;
use crate::numerics::encode::encode_with;
use crate::numerics::jobs::{EncodeJob, EncodeRole};
use crate::numerics::merge::merge_with;
use crate::random::{RngExt, stream};

/// Both ends.
struct Link {
    models: [Vec<f32>; 2],
    references: [Option<Reference>; 2],
    starter_share: f32,
    clip: f64,
    buffers: Buffers,
}

impl Link {
    fn new(parameters: usize, distance: f32) -> Link {
        let mut generator = stream(1, "two models", &[]);
        let one: Vec<f32> = (0..parameters).map(|_| generator.random_range(-1.0..1.0)).collect();
        let other = one.iter().map(|value| value + distance * generator.random_range(-1.0f32..1.0)).collect();
        let models = [one, other];
        Link { models, references: [None, None], starter_share: 0.5, clip: f64::MAX, buffers: Buffers::new() }
    }

    fn encode(&self, instructions: InstructionSet, end: usize, received: Option<Payload>) -> Encoded {
        let role = EncodeRole::Link { reference: self.references[end].clone(), received };
        let job = EncodeJob { role, nonce: 7, width: CodeWidth::One };
        encode_with(instructions, &Snapshot::from(self.models[end].clone()), &job, &self.buffers).expect("fit")
    }

    fn job(&self, role: MergeRole, own: &Encoded, received: &Payload) -> MergeJob {
        MergeJob {
            role,
            parameters: self.models[0].len(),
            own: own.clone(),
            received: received.clone(),
            width: CodeWidth::One,
            nonce: 7,
            gamma: 0.5,
            starter_share: self.starter_share,
            clip: self.clip,
            step_fraction: 0.2,
            scales: None,
            reference: own.reference.clone(),
        }
    }

    /// One exchange, which the first end starts; what both ends find.
    fn exchange(&mut self) -> [Merged; 2] {
        let instructions = InstructionSet::best();
        let starter = self.encode(instructions, 0, None);
        let responder = self.encode(instructions, 1, Some(starter.scales.clone()));
        let at_responder = self.job(MergeRole::Responder, &responder, &starter.codes);
        let at_responder = merge_with(instructions, &at_responder, &self.buffers).expect("honest");
        let role = MergeRole::Starter { digest: at_responder.digest };
        let at_starter = self.job(role, &starter, &responder.codes);
        let at_starter = merge_with(instructions, &at_starter, &self.buffers).expect("honest");
        let merged = [at_starter, at_responder];
        for (end, merged) in merged.iter().enumerate() {
            merged.correction.add_to(&mut self.models[end]);
            self.references[end].clone_from(&merged.reference);
        }
        merged
    }

    fn distance(&self) -> f64 {
        let [one, other] = &self.models;
        one.iter().zip(other).map(|(one, other)| f64::from(one - other).powi(2)).sum::<f64>().sqrt()
    }

    /// The weighted mean.
    fn mean(&self) -> Vec<f64> {
        let [one, other] = &self.models;
        let share = f64::from(self.starter_share);
        one.iter().zip(other).map(|(one, other)| share * f64::from(*one) + (1.0 - share) * f64::from(*other)).collect()
    }
}

#[test]
fn two_models_come_together_by_signs_and_their_mean_stays() {
    for (parameters, share) in [(3 * BLOCK + 17, 0.5), (2 * BLOCK, 0.2), (5, 0.5)] {
        let mut link = Link { starter_share: share, ..Link::new(parameters, 0.1) };
        let (before, mean) = (link.distance(), link.mean());
        for _ in 0..40 {
            link.exchange();
        }
        assert!(link.distance() < 0.02 * before, "{parameters}: {} of {before}", link.distance());
        let drift = link.mean().iter().zip(&mean).map(|(now, then)| (now - then).abs()).fold(0.0, f64::max);
        assert!(drift < 1e-5, "{parameters}: the mean moved by {drift}");
    }
}

#[test]
fn both_ends_keep_the_same_reference_and_opposite_corrections() {
    let mut link = Link::new(2 * BLOCK + 100, 0.1);
    for exchange in 1..=20 {
        let [starter, responder] = link.exchange();
        assert_eq!(starter.reference, responder.reference, "bit by bit");
        assert_eq!(starter.reference.expect("on a link").exchanges(), exchange);
        let opposite: Vec<f32> = responder.correction.to_values().iter().map(|value| -value).collect();
        assert_eq!(starter.correction.to_values(), opposite);
    }
}

#[test]
fn the_first_exchange_sends_a_byte_a_parameter_and_the_next_a_bit() {
    let mut link = Link::new(10 * BLOCK, 0.1);
    let ahead = |link: &Link| link.encode(InstructionSet::best(), 0, None).scales.len();
    assert_eq!(ahead(&link), 10 * (BLOCK + 2));
    link.exchange();
    assert_eq!(ahead(&link), 0);
    assert_eq!(link.encode(InstructionSet::best(), 0, None).codes.len(), 10 * (BLOCK / 8 + 2));
}

#[test]
fn what_a_sign_could_not_tell_is_told_later() {
    // One value is far off in a block of small differences.
    let mut link = Link::new(BLOCK, 1e-3);
    link.models[1][9] += 0.5;
    // A sign moves it by a 256th of what is left.
    for _ in 0..1000 {
        link.exchange();
    }
    assert!((link.models[0][9] - link.models[1][9]).abs() < 0.05, "{:?}", [link.models[0][9], link.models[1][9]]);
}

#[test]
fn a_clipped_exchange_moves_both_ends_by_as_much_as_is_allowed() {
    let mut link = Link { clip: 0.01, ..Link::new(BLOCK, 0.1) };
    link.exchange();
    let [starter, _] = link.exchange();
    let moved = starter.correction.to_values().iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    assert!((moved / 0.005 - 1.0).abs() < 1e-3 && starter.clip_scale < 1.0, "{moved}");
    let (before, mean) = (link.distance(), link.mean());
    link.clip = f64::MAX;
    (0..40).for_each(|_| drop(link.exchange()));
    assert!(link.distance() < 0.05 * before && (link.mean()[0] - mean[0]).abs() < 1e-5, "nothing is lost");
}

#[test]
fn the_distance_is_estimated_within_a_tenth() {
    let mut link = Link::new(40 * BLOCK, 0.1);
    (0..10).for_each(|_| drop(link.exchange()));
    // Both ends learn something of their own, as training does.
    let mut generator = stream(2, "steps", &[]);
    for model in &mut link.models {
        let mut normal = || (0..12).map(|_| generator.random_range(-0.5f32..0.5)).sum::<f32>();
        model.iter_mut().for_each(|value| *value += 0.3 * normal());
    }
    let truth = link.distance();
    let [starter, responder] = link.exchange();
    assert_eq!(starter.distance.to_bits(), responder.distance.to_bits());
    assert!((starter.distance / truth - 1.0).abs() < 0.1, "{} for {truth}", starter.distance);
}

#[test]
fn values_that_outgrow_their_reference_double_its_scale() {
    let mut link = Link::new(BLOCK, 0.01);
    link.exchange();
    for _ in 0..300 {
        link.models.iter_mut().for_each(|model| model.iter_mut().for_each(|value| *value *= 1.03));
        let [starter, responder] = link.exchange();
        assert_eq!(starter.reference, responder.reference);
    }
    let reference = link.references[0].as_ref().expect("kept").to_values();
    let largest = |values: &[f32]| values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    assert!(largest(&link.models[0]) > 1000.0 && largest(&reference) > 0.3 * largest(&link.models[0]));
}

#[test]
fn all_instruction_sets_send_and_find_the_same() {
    let mut link = Link::new(3 * BLOCK + 77, 0.1);
    link.exchange();
    let results = InstructionSet::available().into_iter().map(|instructions| {
        let [starter, responder] = [0, 1].map(|end| link.encode(instructions, end, None));
        let job = link.job(MergeRole::Responder, &responder, &starter.codes);
        let merged = merge_with(instructions, &job, &link.buffers).expect("honest");
        (starter, responder, merged)
    });
    let results: Vec<_> = results.collect();
    assert!(results.windows(2).all(|two| two[0] == two[1]));
}

#[test]
fn unfit_bytes_are_refused() {
    let link = Link::new(BLOCK + 1, 0.1);
    let starter = link.encode(InstructionSet::best(), 0, None);
    let answer = |received: Vec<u8>| {
        let role = EncodeRole::Link { reference: None, received: Some(received.into()) };
        let job = EncodeJob { role, nonce: 7, width: CodeWidth::One };
        let snapshot = Snapshot::from(link.models[1].clone());
        encode_with(InstructionSet::best(), &snapshot, &job, &link.buffers).map(drop)
    };
    let honest = starter.scales.bytes().to_vec();
    assert_eq!(answer(honest.clone()), Ok(()));
    assert!(matches!(answer(honest[1..].to_vec()), Err(Misbehaviour::WrongLength { .. })));
    for scale in [0.0, -1.0, 3.0, 8.0, f32::INFINITY, f32::NAN] {
        let mut bytes = honest.clone();
        bytes[..2].copy_from_slice(&scale_to_wire(scale));
        assert_eq!(answer(bytes), Err(Misbehaviour::OutOfRange("scale".into())), "{scale}");
    }
    let responder = link.encode(InstructionSet::best(), 1, Some(starter.scales.clone()));
    let merged = |received: Vec<u8>| {
        let job = link.job(MergeRole::Responder, &responder, &received.into());
        merge_with(InstructionSet::best(), &job, &link.buffers).map(drop)
    };
    let honest = starter.codes.bytes().to_vec();
    assert_eq!(merged(honest.clone()), Ok(()));
    assert!(matches!(merged(honest[1..].to_vec()), Err(Misbehaviour::WrongLength { .. })));
    for scale in [0.0, -1.0, f32::INFINITY, f32::NAN, 1e6] {
        let mut bytes = honest.clone();
        bytes[..2].copy_from_slice(&scale_to_wire(scale));
        assert_eq!(merged(bytes), Err(Misbehaviour::OutOfRange("scale".into())), "{scale}");
    }
}

#[test]
fn another_reference_or_a_spoilt_sign_is_told_by_the_digest() {
    let mut link = Link::new(2 * BLOCK, 0.1);
    link.exchange();
    let [starter, responder] = [0, 1].map(|end| link.encode(InstructionSet::best(), end, None));
    let merge = |role, own: &Encoded, received: &Payload| {
        merge_with(InstructionSet::best(), &link.job(role, own, received), &link.buffers)
    };
    let digest = merge(MergeRole::Responder, &responder, &starter.codes).expect("honest").digest;
    let role = MergeRole::Starter { digest };
    assert!(merge(role, &starter, &responder.codes).is_ok());
    let mut spoilt = responder.codes.bytes().to_vec();
    spoilt[10] ^= 4;
    assert_eq!(merge(role, &starter, &spoilt.into()), Err(Misbehaviour::Disagreement));
    let other = Encoded { reference: Link::new(2 * BLOCK, 0.1).exchange()[0].reference.clone(), ..starter.clone() };
    assert!(merge(role, &other, &responder.codes).is_ok(), "the same reference, made anew");
    link.exchange();
    let newer = Encoded { reference: link.references[0].clone(), ..starter };
    assert_eq!(
        merge_with(InstructionSet::best(), &link.job(role, &newer, &responder.codes), &link.buffers),
        Err(Misbehaviour::Disagreement)
    );
}

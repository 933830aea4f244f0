//! One bit a parameter: exchanges of two partners that keep a common reference.
//!
//! Partners that exchange again and again both keep the same vector r, bit for bit. Each sends only the sign of θ − r for
//! every parameter, and for every block the mean magnitude of θ − r, as its scale: 0.133 bytes a parameter. With c_s and
//! c_r for what starter and responder have sent (a sign times its block's scale), a for the starter's share of the joint
//! weight and κ for the clip:
//!
//! ```text
//!   starter    θ += 2γκ · (1 − a) · (c_r − c_s)
//!   responder  θ += 2γκ · a       · (c_s − c_r)
//!   both       r += 2γκ · (a · c_s + (1 − a) · c_r)
//! ```
//!
//! The weighted mean of the two models stays what it was, and r follows it. What a sign could not tell stays in θ − r and is
//! told by the next ones: this is error feedback without a vector of its own (CHOCO-Gossip: Koloskova et al., arXiv
//! 1902.00340; signs with a scale: Bernstein et al., arXiv 1802.04434).
//!
//! The corrections are integers, as those of other exchanges are: multiples of (s_s + s_r) / 127 for each block, of which
//! both sides hold the same with opposite signs.

use super::buffers::Buffers;
use super::difference::Differences;
use super::instruction_set::{InstructionSet, Kernel};
use super::jobs::{Encoded, MergeJob, MergeRole, Merged};
use super::reference::{Parts, Reference};
use super::scales::{SCALE_MAX, SCALE_MIN, WireScale, sane, scale_from_wire, scale_to_wire};
use super::width::{CodeWidth, codes_bytes, scales_bytes};
use crate::bulk::{BLOCK, Correction, Payload, PooledCodes, Snapshot};
use crate::misbehaviour::Misbehaviour;

/// Bytes of a block's signs.
const SIGN_BYTES: usize = BLOCK / 8;

/// A correction is so many of its block's units where the two signs differ.
const UNITS: i32 = 127;

/// A side's part of an exchange on a link: what is in front of the codes, and the codes, `scales | signs`.
///
/// `reference`: the common one. Without one the starter (`received` is `None`) makes it from its model and sends it, and the
/// responder takes it as received.
///
/// # Errors
/// When a received reference is unfit.
///
/// # Panics
/// When the reference is of another length.
pub(super) fn encode(
    instructions: InstructionSet,
    snapshot: &Snapshot,
    reference: Option<&Reference>,
    received: Option<&Payload>,
    buffers: &Buffers,
) -> Result<Encoded, Misbehaviour> {
    let values = snapshot.values();
    let (reference, ahead) = match (reference, received) {
        (Some(reference), _) => (reference.clone(), Payload::default()),
        (None, None) => {
            let reference = Reference::of_model(values, buffers);
            let payload = reference.to_payload(buffers);
            (reference, payload)
        }
        (None, Some(payload)) => (Reference::from_payload(payload, values.len(), buffers)?, payload.clone()),
    };
    assert_eq!(reference.parts().values.len(), values.len(), "a reference is as long as its part");
    let mut output = buffers.take::<u8>(codes_bytes(values.len(), CodeWidth::One));
    let (scales, signs) = output.split_at_mut(scales_bytes(values.len()));
    instructions.run(Encoding { values, reference: reference.parts(), scales: scales.as_chunks_mut().0, signs });
    let (codes, norm) = (Payload::from(output), snapshot.norm_about());
    Ok(Encoded { scales: ahead, codes, reference: Some(reference), norm })
}

struct Encoding<'a> {
    values: &'a [f32],
    reference: &'a Parts,
    scales: &'a mut [WireScale],
    signs: &'a mut [u8],
}

impl Kernel for Encoding<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Encoding { values, reference, scales, signs } = self;
        let inputs = values.chunks(BLOCK).zip(reference.values.chunks(BLOCK)).zip(reference.scales.iter());
        let outputs = scales.iter_mut().zip(signs.chunks_mut(SIGN_BYTES));
        for (((values, references), unit), (scale, signs)) in inputs.zip(outputs) {
            let mut errors = [0f32; BLOCK];
            for ((error, value), reference) in errors.iter_mut().zip(values).zip(references) {
                *error = value - f32::from(*reference) * unit;
            }
            *scale = scale_to_wire(mean_magnitude(&errors, values.len()));
            for (byte, eight) in signs.iter_mut().zip(errors.as_chunks::<8>().0) {
                let mut bits = 0;
                for (place, error) in eight.iter().enumerate() {
                    bits |= (error.to_bits() >> 31) << place;
                }
                *byte = bits as u8;
            }
        }
    }
}

/// The mean of |error| over the first `length` of a block, the others being zero; within the bounds of scales.
#[inline(always)]
fn mean_magnitude(errors: &[f32; BLOCK], length: usize) -> f32 {
    // Side by side in a fixed order, so that all instruction sets find the same.
    let mut sums = [0f32; 16];
    for row in errors.as_chunks::<16>().0 {
        for (sum, error) in sums.iter_mut().zip(row) {
            *sum += error.abs();
        }
    }
    let mean = sums.iter().sum::<f32>() / length as f32;
    // A NaN, which only a diverged model has, becomes the least; `clamp` would leave it.
    let least = mean.max(2.0 * SCALE_MIN);
    least.min(0.5 * SCALE_MAX)
}

/// What both sides have sent, block by block.
struct Comparison<'a> {
    parameters: usize,
    role: MergeRole,
    own: Side<'a>,
    partner: Side<'a>,
}

#[derive(Clone, Copy)]
struct Side<'a> {
    scales: &'a [WireScale],
    signs: &'a [u8],
}

impl<'a> Side<'a> {
    /// # Errors
    /// When the payload is not for so many parameters, or a scale is absurd.
    fn new(payload: &'a Payload, parameters: usize) -> Result<Side<'a>, Misbehaviour> {
        let bytes = payload.of_length(codes_bytes(parameters, CodeWidth::One))?;
        let (scales, signs) = bytes.split_at(scales_bytes(parameters));
        Ok(Side { scales: sane(scales)?, signs })
    }

    #[inline(always)]
    fn scale(&self, block: usize) -> f32 {
        scale_from_wire(self.scales[block])
    }

    /// The signs of a block, those behind its end as zeros.
    #[inline(always)]
    fn signs(&self, block: usize) -> [u8; SIGN_BYTES] {
        let rest = &self.signs[block * SIGN_BYTES..];
        match rest.first_chunk() {
            Some(signs) => *signs,
            None => {
                let mut signs = [0; SIGN_BYTES];
                signs[..rest.len()].copy_from_slice(rest);
                signs
            }
        }
    }
}

/// One sign of each side for each parameter of a block, as the masks of those that are negative.
#[inline(always)]
fn spread(signs: &[u8; SIGN_BYTES], negative: &mut [bool; BLOCK]) {
    for (eight, byte) in negative.as_chunks_mut::<8>().0.iter_mut().zip(signs) {
        for (place, negative) in eight.iter_mut().enumerate() {
            *negative = byte >> place & 1 == 1;
        }
    }
}

/// What a correction is in units of its block, where both signs are positive: partner's scale less own.
#[inline(always)]
fn units_of_same(own: f32, partner: f32) -> i32 {
    (UNITS as f32 * ((partner - own) / (own + partner))).round() as i32
}

/// What a unit of a block is worth.
#[inline(always)]
fn unit(own: f32, partner: f32) -> f32 {
    (own + partner) / UNITS as f32
}

/// What both sides find.
#[derive(Default)]
struct Found {
    differences: Differences,
    /// An estimate of the squared distance of the two models.
    distance_squared: f64,
}

struct Subtraction<'a> {
    comparison: &'a Comparison<'a>,
    codes: &'a mut [i8],
    units: &'a mut [f32],
}

impl Kernel for Subtraction<'_> {
    type Output = Found;

    #[inline(always)]
    fn run(self) -> Found {
        let Subtraction { comparison: Comparison { role, own, partner, .. }, codes, units } = self;
        let mut found = Found::default();
        for (number, (codes, unit_of_block)) in codes.chunks_mut(BLOCK).zip(units).enumerate() {
            let (own_scale, partner_scale) = (own.scale(number), partner.scale(number));
            let (own_signs, partner_signs) = (own.signs(number), partner.signs(number));
            let same = units_of_same(own_scale, partner_scale) as i8;
            let (mut ours, mut theirs, mut block) = ([false; BLOCK], [false; BLOCK], [0i8; BLOCK]);
            spread(&own_signs, &mut ours);
            spread(&partner_signs, &mut theirs);
            for ((code, own), partner) in block.iter_mut().zip(&ours).zip(&theirs) {
                let magnitude = if own == partner { same } else { UNITS as i8 };
                *code = if *partner { -magnitude } else { magnitude };
            }
            codes.copy_from_slice(&block[..codes.len()]);
            *unit_of_block = unit(own_scale, partner_scale);
            // In the same order on both sides.
            let [first, second] = match role {
                MergeRole::Starter { .. } => [(own_scale, &own_signs), (partner_scale, &partner_signs)],
                MergeRole::Responder => [(partner_scale, &partner_signs), (own_scale, &own_signs)],
            };
            found.add(codes.len(), i64::from(same), *unit_of_block, [first, second]);
        }
        found
    }
}

impl Found {
    #[inline(always)]
    fn add(&mut self, length: usize, same: i64, unit: f32, sides: [(f32, &[u8; SIGN_BYTES]); 2]) {
        let mut differing = 0;
        let [(starter_scale, starter_signs), (responder_scale, responder_signs)] = sides;
        let words = starter_signs.as_chunks::<8>().0.iter().zip(responder_signs.as_chunks::<8>().0);
        for (starter, responder) in words {
            let (starter, responder) = (u64::from_le_bytes(*starter), u64::from_le_bytes(*responder));
            differing += (starter ^ responder).count_ones();
            self.differences.mix(starter);
            self.differences.mix(responder);
        }
        let scales = u64::from(starter_scale.to_bits()) << 32 | u64::from(responder_scale.to_bits());
        self.differences.mix(scales);
        let (length, differing) = (length as f64, f64::from(differing));
        let squares = differing * f64::from(UNITS * UNITS) + (length - differing) * (same * same) as f64;
        self.differences.norm_squared += f64::from(unit) * f64::from(unit) * squares;
        // If both sides' θ − r are normally distributed, signs agree as often as the arcsine law says (Van Vleck and
        // Middleton, Proc. IEEE 54, 1966), and a mean magnitude is √(2/π) of a standard deviation.
        let correlation = sine_of_quarter_turns(1.0 - 2.0 * differing / length);
        let (starter, responder) = (f64::from(starter_scale), f64::from(responder_scale));
        let apart = starter * starter + responder * responder - 2.0 * correlation * starter * responder;
        self.distance_squared += length * std::f64::consts::FRAC_PI_2 * apart;
    }
}

/// sin(π/2 · x) for −1 ≤ x ≤ 1, to 1e-6: a series, since libraries differ in their last bits.
#[inline(always)]
fn sine_of_quarter_turns(x: f64) -> f64 {
    let angle = std::f64::consts::FRAC_PI_2 * x;
    let square = angle * angle;
    angle
        * (1.0
            - square / 6.0
                * (1.0 - square / 20.0 * (1.0 - square / 42.0 * (1.0 - square / 72.0 * (1.0 - square / 110.0)))))
}

/// Merges what both sides have sent on a link: as [`merge`](super::merge()) does with codes on a grid.
///
/// # Errors
/// When the partner's payload is unfit, or (for the starter) its digest another.
pub(super) fn merge(
    instructions: InstructionSet,
    job: &MergeJob,
    reference: &Reference,
    buffers: &Buffers,
) -> Result<Merged, Misbehaviour> {
    let (parameters, blocks) = (job.parameters, job.parameters.div_ceil(BLOCK));
    assert_eq!(reference.parts().values.len(), parameters, "a reference is as long as its part");
    let own = Side::new(&job.own.codes, parameters).expect("this side has encoded them");
    let partner = Side::new(&job.received, parameters)?;
    let comparison = Comparison { parameters, role: job.role, own, partner };
    let mut codes = buffers.take::<i8>(comparison.parameters);
    let mut units = buffers.take::<f32>(blocks);
    let Found { mut differences, distance_squared } =
        instructions.run(Subtraction { comparison: &comparison, codes: &mut codes, units: &mut units });
    differences.mix(reference.digest());
    let digest = job.finish_digest(&mut differences)?;
    let norm = differences.norm_squared.sqrt();
    let clip_scale = job.clip_scale(norm);
    let factor = (2.0 * job.gamma * job.partner_share()) as f32;
    for unit in units.iter_mut() {
        *unit = factor * (clip_scale as f32 * *unit);
    }
    let moved = 2.0 * job.gamma * clip_scale;
    let reference =
        follow(reference, instructions, &comparison, (moved, f64::from(job.starter_share)), digest, buffers);
    Ok(Merged {
        correction: Correction::from_pooled(PooledCodes::Narrow(codes), units),
        distance: distance_squared.max(0.0).sqrt(),
        norm,
        clip_scale,
        masked_blocks: 0,
        stuck_blocks: 0,
        digest,
        scales: job.scales.clone(),
        reference: Some(reference),
    })
}

/// The reference after an exchange: both sides compute the same integers. `moved`: 2γκ.
fn follow(
    reference: &Reference,
    instructions: InstructionSet,
    comparison: &Comparison<'_>,
    (moved, starter_share): (f64, f64),
    digest: u64,
    buffers: &Buffers,
) -> Reference {
    let mut values = buffers.take::<i16>(reference.parts().values.len());
    let mut scales = buffers.take::<f32>(reference.parts().scales.len());
    let shares = [(moved * starter_share) as f32, (moved * (1.0 - starter_share)) as f32];
    let following = Following { comparison, shares, from: reference.parts(), values: &mut values, scales: &mut scales };
    let mut of_values = instructions.run(following);
    of_values.mix(digest);
    let digest = of_values.digest.max(1);
    reference.followed_by(values, scales, digest)
}

struct Following<'a> {
    comparison: &'a Comparison<'a>,
    /// By how much of the starter's and of the responder's codes the reference moves.
    shares: [f32; 2],
    from: &'a Parts,
    values: &'a mut [i16],
    scales: &'a mut [f32],
}

impl Kernel for Following<'_> {
    /// With a digest of the new values: ends that do not compute the same notice it at their next exchange.
    type Output = Differences;

    #[inline(always)]
    fn run(self) -> Differences {
        let mut result = Differences::default();
        let Following { comparison: Comparison { role, own, partner, .. }, shares, from, values, scales } = self;
        let [starter, responder] = match role {
            MergeRole::Starter { .. } => [own, partner],
            MergeRole::Responder => [partner, own],
        };
        let inputs = from.values.chunks(BLOCK).zip(from.scales.iter());
        let outputs = values.chunks_mut(BLOCK).zip(scales);
        for (number, ((before, scale_before), (after, scale))) in inputs.zip(outputs).enumerate() {
            let moves = [shares[0] * starter.scale(number), shares[1] * responder.scale(number)];
            let in_units = |sum: f32| (sum / scale_before).round().clamp(-65_536.0, 65_536.0) as i32;
            let (same, differ) = (in_units(moves[0] + moves[1]), in_units(moves[0] - moves[1]));
            let (mut starters, mut responders, mut sums) = ([false; BLOCK], [false; BLOCK], [0i32; BLOCK]);
            spread(&starter.signs(number), &mut starters);
            spread(&responder.signs(number), &mut responders);
            let mut largest = 0;
            for (((sum, before), starter), responder) in sums.iter_mut().zip(before).zip(&starters).zip(&responders) {
                let magnitude = if starter == responder { same } else { differ };
                *sum = i32::from(*before) + if *starter { -magnitude } else { magnitude };
                largest = largest.max(sum.abs());
            }
            let halvings = (largest >> 15).checked_ilog2().map_or(0, |bit| bit + 1);
            *scale = scale_before * (1 << halvings) as f32;
            // Two sums, one of them weighted by place (Fletcher's checksum).
            let (mut plain, mut weighted) = (0u32, 0u32);
            for (place, (after, sum)) in after.iter_mut().zip(&sums).enumerate() {
                let value = sum >> halvings;
                *after = value as i16;
                plain = plain.wrapping_add(value as u32);
                weighted = weighted.wrapping_add((place as u32 + 1).wrapping_mul(value as u32));
            }
            result.mix(u64::from(weighted) << 32 | u64::from(plain));
        }
        result
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;

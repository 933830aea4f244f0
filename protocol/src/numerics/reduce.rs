//! The arithmetic of an all-reduce: a sum begins as the own contribution, slices that have come are added to it or put in
//! its place, and slices of it are written for others.
//!
//! **Rounding.** Where slices are rounded ([`SliceCodec::rounds`]), all members are to have the same bits: so a member that
//! sends slices to be put in place keeps what the others will read. What rounding took away is kept by who rounded, and is a
//! part of its next contribution (error feedback, Seide et al. 2014; Karimireddy et al., arXiv 1901.09847): it comes late, and
//! is not lost.

use std::ops::Range;

use super::SliceCodec;
use bincode::{Decode, Encode};

use crate::bulk::{Payload, Snapshot};
use crate::collective::Action;
use crate::misbehaviour::Misbehaviour;
use crate::stand_ins::StandIns;

/// A sum of contributions, as far as it has come.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[bincode(decode_context = "StandIns")]
pub struct Accumulator {
    /// One value per parameter.
    pub sum: Snapshot,
    /// What rounding has taken away here in this operation, one value per parameter; empty where nothing is rounded.
    pub residual: Snapshot,
}

/// What is to be done with an accumulator, which is changed where it lies if nobody else holds it.
#[derive(Clone, Debug, PartialEq)]
pub enum ReduceStep {
    /// Begin with the own contribution, and what rounding took away from the one before.
    Begin {
        /// One value per parameter.
        contribution: Snapshot,
        /// Of the last operation that was finished; empty where there is none.
        residual: Snapshot,
    },
    /// Take slices in. They may be no numbers: then so is the sum, at all members alike.
    Absorb {
        /// The sum so far.
        accumulator: Accumulator,
        /// Which values have come.
        range: Range<usize>,
        /// These, as the codec writes them.
        received: Payload,
        /// Added, or put in place.
        action: Action,
    },
    /// Write slices for another member.
    Write {
        /// The sum so far.
        accumulator: Accumulator,
        /// Which values.
        range: Range<usize>,
        /// What the receiver does with them.
        action: Action,
    },
}

/// One step of an all-reduce.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceJob {
    /// How slices are written.
    pub codec: SliceCodec,
    /// What is to be done.
    pub step: ReduceStep,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[bincode(decode_context = "StandIns")]
pub struct Reduced {
    /// The sum.
    pub accumulator: Accumulator,
    /// The slices that were to be written.
    pub written: Option<Payload>,
}

/// Carries a step out.
///
/// # Errors
/// When there are not as many values as the range has.
///
/// # Panics
/// When the range is not within the sum, or a contribution and its residual are not of one length.
pub fn reduce(job: ReduceJob) -> Result<Reduced, Misbehaviour> {
    let codec = job.codec;
    match job.step {
        ReduceStep::Begin { contribution, residual } if residual.values().is_empty() => {
            let residual = Snapshot::from(vec![0.0; if codec.rounds() { contribution.values().len() } else { 0 }]);
            Ok(Reduced { accumulator: Accumulator { sum: contribution, residual }, written: None })
        }
        ReduceStep::Begin { contribution, residual } => {
            assert_eq!(contribution.values().len(), residual.values().len(), "both of one model");
            let both = contribution.values().iter().zip(residual.values());
            let sum = Snapshot::from(both.map(|(value, rest)| value + rest).collect::<Vec<f32>>());
            let residual = Snapshot::from(vec![0.0; contribution.values().len()]);
            Ok(Reduced { accumulator: Accumulator { sum, residual }, written: None })
        }
        ReduceStep::Absorb { accumulator: Accumulator { sum, residual }, range, received, action } => {
            let bytes = received.of_length(codec.bytes(range.len()))?;
            let mut values = sum.into_values();
            codec.decode(bytes, &mut values[range], action);
            Ok(Reduced { accumulator: Accumulator { sum: values.into(), residual }, written: None })
        }
        ReduceStep::Write { accumulator, range, action } => {
            let written = codec.encode(&accumulator.sum.values()[range.clone()]);
            let accumulator =
                if codec.rounds() { settle(codec, accumulator, range, &written, action) } else { accumulator };
            Ok(Reduced { accumulator, written: Some(written.into()) })
        }
    }
}

/// Keeps what rounding has taken away, and where others put the slices in place, what they will read.
fn settle(
    codec: SliceCodec,
    Accumulator { sum, residual }: Accumulator,
    range: Range<usize>,
    written: &[u8],
    action: Action,
) -> Accumulator {
    let (mut sum, mut residual) = (sum.into_values(), residual.into_values());
    let mut read = vec![0.0; range.len()];
    codec.decode(written, &mut read, Action::Replace);
    for ((value, rest), read) in sum[range.clone()].iter_mut().zip(&mut residual[range]).zip(read) {
        let lost = *value - read;
        // What is no number would never be one again.
        *rest += if lost.is_finite() { lost } else { 0.0 };
        if action == Action::Replace {
            *value = read;
        }
    }
    Accumulator { sum: sum.into(), residual: residual.into() }
}

/// Values that a lane of the digest takes at a time: enough that a processor works on several at once.
const LANES: usize = 8;

/// A digest of a state's bits, never 0. It finds mistakes of machines, not forgeries; every value and its place count.
pub fn state_digest(values: &[f32]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |digest: u64, value: f32| (digest ^ u64::from(value.to_bits())).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes: [u64; LANES] = std::array::from_fn(|lane| lane as u64 + 1);
    let (whole, rest) = values.as_chunks::<LANES>();
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, value)| *lane = mix(*lane, *value));
    }
    let rest = rest.iter().fold(values.len() as u64, |digest, value| mix(digest, *value));
    let all = lanes.into_iter().fold(rest, |digest, lane| (digest ^ lane).wrapping_mul(FACTOR).rotate_left(29));
    all.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Shape;
    use crate::random::{RngExt, stream};

    fn begun(codec: SliceCodec, contribution: Vec<f32>, residual: Vec<f32>) -> Accumulator {
        let step = ReduceStep::Begin { contribution: contribution.into(), residual: residual.into() };
        reduce(ReduceJob { codec, step }).expect("it begins").accumulator
    }

    fn absorbed(accumulator: Accumulator, values: Vec<f32>, action: Action) -> Result<Vec<f32>, Misbehaviour> {
        let received = Snapshot::from(values).to_payload();
        let step = ReduceStep::Absorb { accumulator, range: 1..3, received, action };
        Ok(reduce(ReduceJob { codec: SliceCodec::Float32, step })?.accumulator.sum.into_values())
    }

    #[test]
    fn slices_are_added_or_put_in_place_and_the_rest_stays() {
        let sum = || begun(SliceCodec::Float32, vec![1.0, 2.0, 3.0, 4.0], Vec::new());
        assert_eq!(absorbed(sum(), vec![0.5, -1.0], Action::Add), Ok(vec![1.0, 2.5, 2.0, 4.0]));
        assert_eq!(absorbed(sum(), vec![0.5, -1.0], Action::Replace), Ok(vec![1.0, 0.5, -1.0, 4.0]));
        let short = absorbed(sum(), vec![0.5], Action::Add);
        assert_eq!(short, Err(Misbehaviour::WrongLength { expected: 8, actual: 4 }));
    }

    #[test]
    fn a_sum_that_others_hold_is_not_changed_under_them() {
        let sum = begun(SliceCodec::Float32, vec![1.0, 2.0, 3.0, 4.0], Vec::new());
        let held = sum.sum.clone();
        absorbed(sum, vec![1.0, 1.0], Action::Add).expect("as many as called for");
        assert_eq!(held.values(), [1.0, 2.0, 3.0, 4.0]);
    }

    /// What a member may do wrong.
    #[derive(Clone, Copy, PartialEq)]
    enum Sabotage {
        None,
        /// It sends rounded slices to be put in place, and keeps its own.
        KeepsItsSum,
        /// It forgets what rounding took away.
        ForgetsTheRest,
    }

    /// Carries a schedule out once: every member's sum and rest.
    fn all_reduced(codec: SliceCodec, shape: Shape, begun: Vec<Accumulator>, sabotage: Sabotage) -> Vec<Accumulator> {
        let mut members = begun;
        let schedule = shape.schedule(members.len());
        let length = members[0].sum.values().len();
        for round in 0..schedule.rounds {
            let lines = || schedule.moves.iter().filter(|one| one.round == round);
            let mut sent = Vec::new();
            for what in lines() {
                let range = codec.elements(what.slices, length);
                let accumulator = members[usize::from(what.from)].clone();
                let step = ReduceStep::Write { accumulator: accumulator.clone(), range, action: what.action };
                let Reduced { accumulator: after, written } = reduce(ReduceJob { codec, step }).expect("it is written");
                let keeps = sabotage == Sabotage::KeepsItsSum && what.action == Action::Replace;
                members[usize::from(what.from)] = if keeps { accumulator } else { after };
                sent.push(written.expect("slices"));
            }
            for (what, received) in lines().zip(sent) {
                let accumulator = members[usize::from(what.to)].clone();
                let range = codec.elements(what.slices, length);
                let step = ReduceStep::Absorb { accumulator, range, received, action: what.action };
                members[usize::from(what.to)] = reduce(ReduceJob { codec, step }).expect("they fit").accumulator;
            }
        }
        members
    }

    /// Ten operations: whether all members always had the same bits, and how far their sums are from the true ones at most,
    /// in each alone and all added up, beside the largest value of a sum.
    fn operations(codec: SliceCodec, shape: Shape, count: usize, sabotage: Sabotage) -> (bool, f64, f64) {
        let length = 1500;
        let mut dice = stream(count as u64, "contributions", &[]);
        let mut rests = vec![Vec::new(); count];
        let (mut are_one, mut furthest) = (true, 0.0_f64);
        let (mut told, mut truth) = (vec![0.0_f64; length], vec![0.0_f64; length]);
        for _ in 0..10 {
            let mut one = || (0..length).map(|_| dice.random::<f32>() - 0.4).collect::<Vec<f32>>();
            let contributions: Vec<Vec<f32>> = (0..count).map(|_| one()).collect();
            let pairs = contributions.iter().cloned().zip(rests.clone());
            let begun = pairs.map(|(contribution, rest)| begun(codec, contribution, rest)).collect();
            let ends = all_reduced(codec, shape, begun, sabotage);
            let bits = |end: &Accumulator| end.sum.values().iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            are_one &= ends.iter().all(|end| bits(end) == bits(&ends[0]));
            for place in 0..length {
                let sum: f64 = contributions.iter().map(|one| f64::from(one[place])).sum();
                let value = f64::from(ends[0].sum.values()[place]);
                (told[place], truth[place]) = (told[place] + value, truth[place] + sum);
                furthest = furthest.max((value - sum).abs());
            }
            if sabotage != Sabotage::ForgetsTheRest {
                rests = ends.into_iter().map(|end| end.residual.into_values()).collect();
            }
        }
        // What was told, and what is still kept.
        let kept = |place: usize| rests.iter().map(|rest| f64::from(*rest.get(place).unwrap_or(&0.0))).sum::<f64>();
        let lost = (0..length).map(|place| (told[place] + kept(place) - truth[place]).abs()).fold(0.0, f64::max);
        (are_one, furthest / count as f64, lost / count as f64)
    }

    #[test]
    fn all_members_have_the_same_bits_within_the_codecs_bound_and_nothing_is_lost() {
        for codec in SliceCodec::ALL {
            for shape in Shape::ALL {
                for count in [1, 2, 3, 5, 8, 13] {
                    let (are_one, furthest, lost) = operations(codec, shape, count, Sabotage::None);
                    // Each member rounds partial sums of up to `count` contributions below 0.6 once or twice, and adds
                    // what an earlier operation took away.
                    let relative = match codec {
                        SliceCodec::Float32 => 1e-6,
                        SliceCodec::Bfloat16 => 1.0 / 256.0,
                        SliceCodec::Int8 => 1.0 / 250.0,
                    };
                    let bound = 0.6 * 2.0 * relative * (count + 1) as f64;
                    assert!(are_one, "{codec:?} {shape:?} of {count}: not one replica");
                    assert!(furthest <= bound, "{codec:?} {shape:?} of {count}: {furthest} above {bound}");
                    assert!(lost < 1e-5, "{codec:?} {shape:?} of {count}: {lost} lost");
                }
            }
        }
    }

    #[test]
    fn sabotage_is_found() {
        for codec in [SliceCodec::Bfloat16, SliceCodec::Int8] {
            for shape in Shape::ALL {
                assert!(!operations(codec, shape, 5, Sabotage::KeepsItsSum).0, "{codec:?} {shape:?}: one replica");
                let (_, _, lost) = operations(codec, shape, 5, Sabotage::ForgetsTheRest);
                assert!(lost > 1e-3, "{codec:?} {shape:?}: only {lost} lost");
            }
        }
    }

    #[test]
    fn a_flipped_bit_or_two_values_exchanged_give_another_digest() {
        for length in [1, 7, 8, 9, 1000] {
            let values: Vec<f32> = (0..length).map(|index| (index as f32 + 0.5).sin()).collect();
            let digest = state_digest(&values);
            assert_eq!(digest, state_digest(&values.clone()));
            for place in (0..length).step_by(13) {
                for bit in [0, 12, 31] {
                    let mut other = values.clone();
                    other[place] = f32::from_bits(other[place].to_bits() ^ 1 << bit);
                    assert_ne!(state_digest(&other), digest, "bit {bit} of {place} of {length}");
                }
                let mut other = values.clone();
                other.swap(place, length - 1 - place);
                assert!(other == values || state_digest(&other) != digest, "{place} of {length}");
            }
        }
    }
}

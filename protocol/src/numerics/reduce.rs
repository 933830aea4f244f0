//! The arithmetic of an all-reduce: slices that have come are added to a sum or put in its place.

use std::ops::Range;

use crate::bulk::{Payload, Snapshot};
use crate::collective::Action;
use crate::misbehaviour::Misbehaviour;

/// What is to be done with slices.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceJob {
    /// The sum so far, one value per parameter. Changed where it lies if nobody else holds it.
    pub sum: Snapshot,
    /// Which values have come.
    pub range: Range<usize>,
    /// These, as little-endian `f32`. They may be no numbers: then so is the sum, at all members alike.
    pub received: Payload,
    /// Added, or put in place.
    pub action: Action,
}

/// The new sum.
///
/// # Errors
/// When there are not as many values as the range has.
///
/// # Panics
/// When the range is not within the sum.
pub fn reduce(job: ReduceJob) -> Result<Snapshot, Misbehaviour> {
    let ReduceJob { sum, range, received, action } = job;
    let (expected, actual) = (4 * range.len() as u64, received.len() as u64);
    if expected != actual {
        return Err(Misbehaviour::WrongLength { expected, actual });
    }
    let mut values = sum.into_values();
    let places = values[range].iter_mut().zip(received.bytes().as_chunks().0);
    match action {
        Action::Add => places.for_each(|(value, four)| *value += f32::from_le_bytes(*four)),
        Action::Replace => places.for_each(|(value, four)| *value = f32::from_le_bytes(*four)),
    }
    Ok(Snapshot::from(values))
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

    fn job(action: Action, received: Vec<f32>) -> ReduceJob {
        let received = Snapshot::from(received).to_payload();
        ReduceJob { sum: Snapshot::from(vec![1.0, 2.0, 3.0, 4.0]), range: 1..3, received, action }
    }

    #[test]
    fn slices_are_added_or_put_in_place_and_the_rest_stays() {
        let sum = |action| reduce(job(action, vec![0.5, -1.0])).map(Snapshot::into_values);
        assert_eq!(sum(Action::Add), Ok(vec![1.0, 2.5, 2.0, 4.0]));
        assert_eq!(sum(Action::Replace), Ok(vec![1.0, 0.5, -1.0, 4.0]));
        let short = reduce(job(Action::Add, vec![0.5]));
        assert_eq!(short, Err(Misbehaviour::WrongLength { expected: 8, actual: 4 }));
    }

    #[test]
    fn a_sum_that_others_hold_is_not_changed_under_them() {
        let job = job(Action::Add, vec![1.0, 1.0]);
        let held = job.sum.clone();
        reduce(job).expect("as many as called for");
        assert_eq!(held.values(), [1.0, 2.0, 3.0, 4.0]);
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

//! Contributions that have a weight: the mean of all is that of those who are there, whoever is.
//!
//! Each member multiplies what it contributes and puts its weight behind it. The sum then holds the weights' sum as well, and
//! is divided by that. No member has to know who else contributes, or what the others weigh.

use crate::bulk::{BLOCK, Snapshot};

/// Values of a contribution of so many parameters, with its weight behind it where members have weights. The weight has a block
/// of its own: rounded with a scale a block, a block's largest value stays as it is.
pub fn contribution_values(parameters: usize, weighs_members: bool) -> usize {
    if weighs_members { parameters.next_multiple_of(BLOCK) + 1 } else { parameters }
}

/// A contribution with its weight.
pub fn weighed(mut values: Vec<f32>, weight: f32) -> Vec<f32> {
    values.iter_mut().for_each(|value| *value *= weight);
    values.resize(contribution_values(values.len(), true), 0.0);
    if let Some(last) = values.last_mut() {
        *last = weight;
    }
    values
}

/// The mean of so many `parameters` over `members`, of whose contributions this is the sum: by their weights where there are
/// any.
///
/// # Panics
/// When the sum is of another model.
pub fn mean(sum: Snapshot, parameters: usize, members: u32) -> Vec<f32> {
    let mut values = sum.into_values();
    let weights = if values.len() == parameters {
        members.max(1) as f32
    } else {
        assert_eq!(values.len(), contribution_values(parameters, true), "of this model");
        let weights = values[values.len() - 1];
        values.truncate(parameters);
        weights
    };
    values.iter_mut().for_each(|value| *value /= weights);
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Action;
    use crate::numerics::SliceCodec;

    #[test]
    fn the_mean_is_that_of_those_who_are_there_however_slices_are_written() {
        let members: [(Vec<f32>, f32); 2] =
            [((0..600).map(|at| at as f32 / 600.0).collect(), 6.0), (vec![-0.25; 600], 18.0)];
        for codec in SliceCodec::ALL {
            let mut sum = vec![0.0; contribution_values(600, true)];
            for (values, weight) in members.clone() {
                codec.decode(&codec.encode(&weighed(values.clone(), weight)), &mut sum, Action::Add);
                let alone = mean(weighed(values.clone(), weight).into(), 600, 2);
                assert!(alone.iter().zip(&values).all(|(alone, value)| (alone - value).abs() < 1e-6));
            }
            let bound = if codec.rounds() { 0.02 } else { 1e-6 };
            for (at, found) in mean(sum.into(), 600, 2).iter().enumerate() {
                let expected = (6.0 * members[0].0[at] + 18.0 * members[1].0[at]) / 24.0;
                assert!((found - expected).abs() < bound, "{codec:?}: {found} {expected}");
            }
        }
        assert_eq!(mean(vec![3.0, 6.0].into(), 2, 3), [1.0, 2.0], "alike without weights");
    }
}

//! What a part of a model is, as bytes: its parameters, and where they go along the optimizer's moments and count of steps.
//!
//! All values are little-endian and lie one after the other: a byte that says whether there are moments, the parameters, and
//! then the count of steps, the weight of the short average, and the moments' vectors in 32 bits, codes and scales, each as long
//! as part and optimizer want it.

use crate::optimizer::{MomentLengths, Moments};

/// A part's parameters, and what the optimizer has for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PartState {
    /// Flat, in the order of the part's layout.
    pub(crate) parameters: Vec<f32>,
    /// With the steps since they were zero. `None` where only the parameters travel.
    pub(crate) moments: Option<(Moments, u64)>,
}

/// Bytes that are no state of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateError {
    /// Too many, too few, or of another kind.
    #[error("it has another length than a part's state")]
    Length,
    /// A value would destroy the model.
    #[error("it holds values that are not finite")]
    NotFinite,
    /// A sum of squares is below zero: its root would be no number.
    #[error("it holds second moments below zero")]
    Negative,
    /// Finite values that no training comes to.
    #[error("its parameters are more than 64 times as large as before, or as small")]
    Unlike,
}

impl PartState {
    /// Those bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.moments.is_some())];
        push_values(&mut bytes, &self.parameters);
        if let Some((moments, steps)) = &self.moments {
            bytes.extend_from_slice(&steps.to_le_bytes());
            bytes.extend_from_slice(&moments.average_weight.to_le_bytes());
            for values in [&moments.first, &moments.second, &moments.average] {
                push_values(&mut bytes, values);
            }
            for (_, coded) in moments.coded.named() {
                bytes.extend_from_slice(&coded.codes);
                push_values(&mut bytes, &coded.scales);
            }
        }
        bytes
    }

    /// How many bytes the state of a part of so many parameters has with its moments.
    pub(crate) fn bytes(parameters: usize, lengths: &MomentLengths) -> usize {
        1 + 4 * parameters + 8 + 4 + lengths.bytes()
    }

    /// The state of a part of so many parameters, whose optimizer keeps moments of these lengths.
    ///
    /// # Errors
    /// When it is none, or would destroy the model.
    pub(crate) fn from_bytes(
        bytes: &[u8],
        parameters: usize,
        lengths: &MomentLengths,
    ) -> Result<PartState, StateError> {
        let mut rest = bytes;
        let has_moments = match take(&mut rest, 1)? {
            [0] => false,
            [1] => true,
            _ => return Err(StateError::Length),
        };
        let parameters = take_values(&mut rest, parameters)?;
        let moments = has_moments.then(|| take_moments(&mut rest, lengths)).transpose()?;
        if rest.is_empty() { Ok(PartState { parameters, moments }) } else { Err(StateError::Length) }
    }
}

fn take_moments(rest: &mut &[u8], lengths: &MomentLengths) -> Result<(Moments, u64), StateError> {
    let steps = u64::from_le_bytes(*take(rest, 8)?.first_chunk().expect("so many were taken"));
    let average_weight = take_values(rest, 1)?[0].clamp(0.0, 1.0);
    let [first, second, average] = [lengths.first, lengths.second, lengths.average];
    let mut moments = Moments {
        first: take_values(rest, first)?,
        second: take_values(rest, second)?,
        average: take_values(rest, average)?,
        average_weight,
        ..Moments::default()
    };
    if moments.second.iter().any(|value| *value < 0.0) {
        return Err(StateError::Negative);
    }
    for ((_, coded), [codes, scales]) in moments.coded.named_mut().into_iter().zip(lengths.coded) {
        coded.codes = take(rest, codes)?.to_vec();
        coded.scales = take_values(rest, scales)?;
    }
    Ok((moments, steps))
}

fn push_values(bytes: &mut Vec<u8>, values: &[f32]) {
    bytes.reserve(4 * values.len());
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], StateError> {
    let (taken, later) = rest.split_at_checked(count).ok_or(StateError::Length)?;
    *rest = later;
    Ok(taken)
}

fn take_values(rest: &mut &[u8], count: usize) -> Result<Vec<f32>, StateError> {
    let fours = take(rest, count.checked_mul(4).ok_or(StateError::Length)?)?.as_chunks::<4>().0;
    let values: Vec<f32> = fours.iter().map(|four| f32::from_le_bytes(*four)).collect();
    if values.iter().all(|value| value.is_finite()) { Ok(values) } else { Err(StateError::NotFinite) }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::ModelLayout;
    use murmur_protocol::manifest::{OptimizerKind, OptimizerSpec};

    use super::*;
    use crate::ops::gradient_check::random_values;
    use crate::optimizer::Optimizer;

    #[test]
    fn a_state_comes_out_as_it_went_in_and_nothing_else_does() {
        let tensors = [("model.layers.0.a.weight", vec![6, 300]), ("norm.weight", vec![7])];
        let layout = ModelLayout::in_order(tensors.map(|(name, shape)| (name.to_owned(), shape)));
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
            for in_8_bits in [false, true] {
                let spec = OptimizerSpec { kind, match_batch: true, ..OptimizerSpec::default() };
                let optimizer = Optimizer::new(&spec, &layout).with_moments(in_8_bits);
                let (mut moments, lengths) = (optimizer.moments(), optimizer.own_lengths());
                let (mut parameters, gradient) = (random_values(1807, 1), random_values(1807, 2));
                let factors = optimizer.factors(1, 1.0, 0.1, &mut moments.average_weight);
                optimizer.step(factors, &mut parameters, &gradient, &mut moments);
                let state = PartState { parameters, moments: Some((moments, 1 << 40)) };
                let bytes = state.to_bytes();
                assert_eq!(bytes.len(), PartState::bytes(1807, &lengths));
                assert_eq!(PartState::from_bytes(&bytes, 1807, &lengths), Ok(state.clone()));
                let alone = PartState { moments: None, ..state };
                assert_eq!(PartState::from_bytes(&alone.to_bytes(), 1807, &lengths), Ok(alone));
                for length in [0, 1, 8, bytes.len() - 1] {
                    assert_eq!(PartState::from_bytes(&bytes[..length], 1807, &lengths), Err(StateError::Length));
                }
                let longer = [&bytes[..], &[0]].concat();
                assert_eq!(PartState::from_bytes(&longer, 1807, &lengths), Err(StateError::Length));
                let mut broken = bytes.clone();
                broken[1..5].copy_from_slice(&f32::NAN.to_le_bytes());
                assert_eq!(PartState::from_bytes(&broken, 1807, &lengths), Err(StateError::NotFinite));
                if lengths.second > 0 {
                    let mut below = bytes.clone();
                    let second = 1 + 4 * 1807 + 12 + 4 * lengths.first;
                    below[second..second + 4].copy_from_slice(&(-1.0_f32).to_le_bytes());
                    assert_eq!(PartState::from_bytes(&below, 1807, &lengths), Err(StateError::Negative));
                }
                broken[0] = 2;
                assert_eq!(PartState::from_bytes(&broken, 1807, &lengths), Err(StateError::Length));
            }
        }
    }
}

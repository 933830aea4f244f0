//! What a part of a model is, as bytes: its parameters, and where they go along the optimizer's moments and count of steps.
//!
//! All values are little-endian and lie one after the other: a byte that says whether there are moments and whether those are all
//! zero, the parameters, and where they are not the count of steps, the weight of the short average, and the moments' vectors in 32 bits, codes and scales, each as long
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

/// A state, or a part of one, where it lies: parameters, and moments with their steps.
pub(crate) type Lying<'a> = (&'a [f32], Option<(&'a Moments, u64)>);

/// No moments come along.
const WITHOUT: u8 = 0;
/// All of their values do.
const WITH: u8 = 1;
/// They are all zero, as at a beginning, and take no bytes.
const OF_ZEROS: u8 = 2;

/// The bytes of a state whose parts lie one after the other; with moments where all have some.
pub(crate) fn bytes_of(parts: &[Lying<'_>]) -> Vec<u8> {
    let moments: Option<Vec<(&Moments, u64)>> = parts.iter().map(|(_, moments)| *moments).collect();
    let parameters: usize = parts.iter().map(|(parameters, _)| parameters.len()).sum();
    let sum = |sum: MomentLengths, (moments, _): &(&Moments, u64)| sum.with(&MomentLengths::of(moments));
    let lengths = moments.iter().flatten().fold(MomentLengths::default(), sum);
    let are_zero = |moments: &[(&Moments, u64)]| moments.iter().all(|(moments, steps)| *steps == 0 && is_zero(moments));
    let kind = match &moments {
        None => WITHOUT,
        Some(moments) if are_zero(moments) => OF_ZEROS,
        Some(_) => WITH,
    };
    let mut bytes = Vec::with_capacity(PartState::bytes(parameters, &lengths));
    bytes.push(kind);
    parts.iter().for_each(|(parameters, _)| push_values(&mut bytes, parameters));
    let Some(moments) = moments.filter(|_| kind == WITH) else {
        bytes.shrink_to_fit();
        return bytes;
    };
    let (last, steps) = *moments.last().expect("a state has parts");
    bytes.extend_from_slice(&steps.to_le_bytes());
    bytes.extend_from_slice(&last.average_weight.to_le_bytes());
    let vectors: [fn(&Moments) -> &[f32]; 3] = [|all| &all.first, |all| &all.second, |all| &all.average];
    for of in vectors {
        moments.iter().for_each(|(moments, _)| push_values(&mut bytes, of(moments)));
    }
    for place in 0..3 {
        let coded = || moments.iter().map(|(moments, _)| moments.coded.named()[place].1);
        coded().for_each(|coded| bytes.extend_from_slice(&coded.codes));
        coded().for_each(|coded| push_values(&mut bytes, &coded.scales));
    }
    bytes
}

/// Whether moments are as at the beginning.
fn is_zero(moments: &Moments) -> bool {
    let Moments { first, second, average, average_weight, coded } = moments;
    let are_zero = |values: &[f32]| values.iter().all(|value| *value == 0.0);
    let no_codes = coded.named().iter().all(|(_, coded)| coded.codes.is_empty());
    *average_weight == 0.0 && no_codes && [first, second, average].into_iter().all(|values| are_zero(values))
}

/// A state in bytes that have been looked at: nothing of it has been copied.
#[derive(Clone, Copy)]
pub(crate) struct StateView<'a> {
    /// Four of each value.
    parameters: &'a [u8],
    moments: Option<MomentsView<'a>>,
}

/// First and second moments and the average of gradients, in 32 bits.
type Vectors<'a> = [&'a [u8]; 3];

/// Codes and scales of the same three.
type Codes<'a> = [[&'a [u8]; 2]; 3];

#[derive(Clone, Copy)]
struct MomentsView<'a> {
    steps: u64,
    average_weight: f32,
    /// `None` where all are zero.
    values: Option<(Vectors<'a>, Codes<'a>)>,
}

impl<'a> StateView<'a> {
    /// The state of a part of so many parameters, whose optimizer keeps moments of these lengths.
    ///
    /// # Errors
    /// When it is none, or would destroy the model.
    pub(crate) fn of(bytes: &'a [u8], parameters: usize, lengths: &MomentLengths) -> Result<StateView<'a>, StateError> {
        let mut rest = bytes;
        let kind = take(&mut rest, 1)?[0];
        if ![WITHOUT, WITH, OF_ZEROS].contains(&kind) {
            return Err(StateError::Length);
        }
        let parameters = take_values(&mut rest, parameters)?;
        let moments = match kind {
            WITHOUT => None,
            WITH => Some(MomentsView::take(&mut rest, lengths)?),
            OF_ZEROS if lengths.is_exact() => Some(MomentsView { steps: 0, average_weight: 0.0, values: None }),
            _ => return Err(StateError::Length),
        };
        if rest.is_empty() { Ok(StateView { parameters, moments }) } else { Err(StateError::Length) }
    }

    /// Its parameters.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = f32> + 'a {
        values(self.parameters)
    }

    /// Whether moments come along.
    pub(crate) fn has_moments(&self) -> bool {
        self.moments.is_some()
    }

    /// Cuts off what the first parameters, so many, and their moments are.
    pub(crate) fn cut_off(&mut self, parameters: usize, lengths: &MomentLengths) -> StateView<'a> {
        let mut own = *self;
        (own.parameters, self.parameters) = self.parameters.split_at(4 * parameters);
        let both = own.moments.as_mut().and_then(|own| own.values.as_mut());
        if let Some(((vectors, coded), (rest, coded_rest))) =
            both.zip(self.moments.as_mut().and_then(|rest| rest.values.as_mut()))
        {
            let of_vectors = [lengths.first, lengths.second, lengths.average];
            for ((own, rest), length) in vectors.iter_mut().zip(rest).zip(of_vectors) {
                (*own, *rest) = rest.split_at(4 * length);
            }
            for ((own, rest), [codes, scales]) in coded.iter_mut().zip(coded_rest).zip(lengths.coded) {
                (own[0], rest[0]) = rest[0].split_at(codes);
                (own[1], rest[1]) = rest[1].split_at(4 * scales);
            }
        }
        own
    }

    /// Writes its parameters where as many lie.
    pub(crate) fn write_parameters(&self, to: &mut [f32]) {
        to.iter_mut().zip(self.parameters()).for_each(|(to, value)| *to = value);
    }

    /// Writes its moments, where it has some, in the place of those behind the first ones, `at`. Returns their steps.
    pub(crate) fn write_moments(&self, to: &mut Moments, at: &MomentLengths, lengths: &MomentLengths) -> Option<u64> {
        let MomentsView { steps, average_weight, values: read } = self.moments?;
        to.average_weight = average_weight;
        let places = [(at.first, lengths.first), (at.second, lengths.second), (at.average, lengths.average)];
        let vectors = [&mut to.first, &mut to.second, &mut to.average];
        for (place, (vector, (first, length))) in vectors.into_iter().zip(places).enumerate() {
            let to = &mut vector[first..][..length];
            match read {
                Some((vectors, _)) => to.iter_mut().zip(values(vectors[place])).for_each(|(to, value)| *to = value),
                None => to.fill(0.0),
            }
        }
        let coded = to.coded.named_mut().into_iter().zip(at.coded.into_iter().zip(lengths.coded));
        for (((_, to), (at, length)), from) in coded.zip(read.map(|(_, coded)| coded).unwrap_or_default()) {
            to.codes[at[0]..][..length[0]].copy_from_slice(from[0]);
            to.scales[at[1]..][..length[1]].iter_mut().zip(values(from[1])).for_each(|(to, value)| *to = value);
        }
        Some(steps)
    }

    /// A copy of it, of moments of these lengths.
    pub(crate) fn to_state(self, lengths: &MomentLengths) -> PartState {
        let mut moments = lengths.zeros();
        let steps = self.write_moments(&mut moments, &MomentLengths::default(), lengths);
        PartState { parameters: self.parameters().collect(), moments: steps.map(|steps| (moments, steps)) }
    }
}

impl<'a> MomentsView<'a> {
    fn take(rest: &mut &'a [u8], lengths: &MomentLengths) -> Result<MomentsView<'a>, StateError> {
        let steps = u64::from_le_bytes(*take(rest, 8)?.first_chunk().expect("so many were taken"));
        let average_weight = values(take_values(rest, 1)?).next().unwrap_or_default().clamp(0.0, 1.0);
        let mut vectors = Vectors::default();
        for (vector, length) in vectors.iter_mut().zip([lengths.first, lengths.second, lengths.average]) {
            *vector = take_values(rest, length)?;
        }
        if values(vectors[1]).any(|value| value < 0.0) {
            return Err(StateError::Negative);
        }
        let mut coded = Codes::default();
        for (coded, [codes, scales]) in coded.iter_mut().zip(lengths.coded) {
            *coded = [take(rest, codes)?, take_values(rest, scales)?];
        }
        Ok(MomentsView { steps, average_weight, values: Some((vectors, coded)) })
    }
}

impl PartState {
    /// Its bytes.
    #[cfg(test)]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        bytes_of(&[self.lying()])
    }

    /// Where it lies.
    pub(crate) fn lying(&self) -> Lying<'_> {
        (&self.parameters, self.moments.as_ref().map(|(moments, steps)| (moments, *steps)))
    }

    /// With that of what follows; with moments where both have some.
    pub(crate) fn followed_by(mut self, next: &PartState) -> PartState {
        self.parameters.extend_from_slice(&next.parameters);
        self.moments = self.moments.zip(next.moments.as_ref()).map(|((mut all, _), (moments, steps))| {
            all.append(moments);
            (all, *steps)
        });
        self
    }

    /// How many bytes the state of a part of so many parameters has with its moments.
    pub(crate) fn bytes(parameters: usize, lengths: &MomentLengths) -> usize {
        1 + 4 * parameters + 8 + 4 + lengths.bytes()
    }
}

fn values(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four))
}

fn push_values(bytes: &mut Vec<u8>, values: &[f32]) {
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], StateError> {
    let (taken, later) = rest.split_at_checked(count).ok_or(StateError::Length)?;
    *rest = later;
    Ok(taken)
}

/// So many values, which are finite.
fn take_values<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], StateError> {
    let taken = take(rest, count.checked_mul(4).ok_or(StateError::Length)?)?;
    if values(taken).all(f32::is_finite) { Ok(taken) } else { Err(StateError::NotFinite) }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::ModelLayout;
    use murmur_protocol::manifest::{OptimizerKind, OptimizerSpec};

    use super::*;
    use crate::ops::gradient_check::random_values;
    use crate::optimizer::Optimizer;

    fn read(bytes: &[u8], parameters: usize, lengths: &MomentLengths) -> Result<PartState, StateError> {
        StateView::of(bytes, parameters, lengths).map(|view| view.to_state(lengths))
    }

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
                assert_eq!(read(&bytes, 1807, &lengths), Ok(state.clone()));
                let alone = PartState { moments: None, ..state };
                assert_eq!(read(&alone.to_bytes(), 1807, &lengths), Ok(alone));
                for length in [0, 1, 8, bytes.len() - 1] {
                    assert_eq!(read(&bytes[..length], 1807, &lengths), Err(StateError::Length));
                }
                let longer = [&bytes[..], &[0]].concat();
                assert_eq!(read(&longer, 1807, &lengths), Err(StateError::Length));
                let mut broken = bytes.clone();
                broken[1..5].copy_from_slice(&f32::NAN.to_le_bytes());
                assert_eq!(read(&broken, 1807, &lengths), Err(StateError::NotFinite));
                if lengths.second > 0 {
                    let mut below = bytes.clone();
                    let second = 1 + 4 * 1807 + 12 + 4 * lengths.first;
                    below[second..second + 4].copy_from_slice(&(-1.0_f32).to_le_bytes());
                    assert_eq!(read(&below, 1807, &lengths), Err(StateError::Negative));
                }
                broken[0] = 3;
                assert_eq!(read(&broken, 1807, &lengths), Err(StateError::Length));
            }
        }
    }
    /// As at a beginning: then all that travels are the parameters.
    #[test]
    fn moments_of_zero_take_no_bytes() {
        let layout = ModelLayout::in_order([("model.layers.0.a.weight".to_owned(), vec![6, 300])]);
        let optimizer = Optimizer::new(&OptimizerSpec::default(), &layout);
        let (lengths, moments) = (optimizer.own_lengths(), optimizer.moments());
        let mut state = PartState { parameters: random_values(1800, 1), moments: Some((moments, 0)) };
        let bytes = state.to_bytes();
        assert_eq!((bytes.len(), read(&bytes, 1800, &lengths)), (1 + 4 * 1800, Ok(state.clone())));
        if let Some((moments, _)) = &mut state.moments {
            moments.second[7] = 1e-20;
        }
        assert_eq!(read(&state.to_bytes(), 1800, &lengths), Ok(state));
    }
}

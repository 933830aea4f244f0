//! What an optimizer keeps from step to step, in 32 bits or most of it in 8.

use std::ops::Range;

use super::codes::{self, BLOCK, BlockCodes, CodedMut, Dither};
use super::{Optimizer, Rule, Stepped, take};

/// What an optimizer keeps from step to step. Where it keeps moments in 8 bits, the vectors in 32 have those of embedding, norms
/// and biases alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Moments {
    /// The running mean of the gradient, one value per parameter in the order of the layout: AdamW's first moment, or Muon's
    /// momentum.
    pub(crate) first: Vec<f32>,
    /// The running mean of the gradient's square, of the tensors that AdamW steps, in the order of the layout.
    pub(crate) second: Vec<f32>,
    /// Of the same tensors the short average of gradients whose square is taken, see [`adamw`](super::adamw); empty where each
    /// gradient's is.
    pub(crate) average: Vec<f32>,
    /// How much of that average is gradients rather than the zeros it began with, 0 to 1.
    pub(crate) average_weight: f32,
    /// Of the other tensors; empty where all are in 32 bits.
    pub(crate) coded: CodedMoments,
}

/// The same three of tensors whose moments are kept in 8 bits, in the order of the layout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CodedMoments {
    /// The running mean of the gradient.
    pub first: BlockCodes,
    /// The running mean of the gradient's square.
    pub second: BlockCodes,
    /// The short average of gradients.
    pub average: BlockCodes,
}

impl CodedMoments {
    /// Whether all moments are in 32 bits.
    pub fn is_empty(&self) -> bool {
        self.first.codes.is_empty()
    }

    /// The three, and what they are.
    pub fn named(&self) -> [(&'static str, &BlockCodes); 3] {
        [("first_moment", &self.first), ("second_moment", &self.second), ("gradient_average", &self.average)]
    }

    /// The same to be filled.
    pub fn named_mut(&mut self) -> [(&'static str, &mut BlockCodes); 3] {
        let CodedMoments { first, second, average } = self;
        [("first_moment", first), ("second_moment", second), ("gradient_average", average)]
    }

    /// Whether every value is finite.
    pub fn is_finite(&self) -> bool {
        self.named().iter().all(|(_, codes)| codes.is_finite())
    }
}

/// How long each vector of an optimizer's moments is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MomentLengths {
    /// Of the mean of the gradient in 32 bits.
    pub first: usize,
    /// Of the mean of its square.
    pub second: usize,
    /// Of the short average.
    pub average: usize,
    /// Codes and scales of the same three.
    pub coded: [[usize; 2]; 3],
}

impl MomentLengths {
    /// In memory and on the disk.
    pub fn bytes(&self) -> usize {
        let coded: usize = self.coded.iter().map(|[codes, scales]| codes + 4 * scales).sum();
        4 * (self.first + self.second + self.average) + coded
    }

    /// Whether all are in 32 bits.
    pub(crate) fn is_exact(&self) -> bool {
        self.coded == [[0; 2]; 3]
    }

    /// Of both together.
    pub(crate) fn with(&self, other: &MomentLengths) -> MomentLengths {
        let mut sum = *self;
        sum.first += other.first;
        sum.second += other.second;
        sum.average += other.average;
        for (sum, other) in sum.coded.iter_mut().zip(other.coded) {
            *sum = [sum[0] + other[0], sum[1] + other[1]];
        }
        sum
    }

    /// Moments of these lengths, all zero.
    pub(crate) fn zeros(&self) -> Moments {
        let [first, second, average] = [self.first, self.second, self.average].map(|length| vec![0.0; length]);
        let mut coded = CodedMoments::default();
        for ((_, to), [codes, scales]) in coded.named_mut().into_iter().zip(self.coded) {
            (to.codes, to.scales) = (vec![0; codes], vec![0.0; scales]);
        }
        Moments { first, second, average, average_weight: 0.0, coded }
    }

    /// Of these vectors.
    pub(crate) fn of(moments: &Moments) -> MomentLengths {
        let coded = moments.coded.named().map(|(_, codes)| [codes.codes.len(), codes.scales.len()]);
        let [first, second, average] = [&moments.first, &moments.second, &moments.average].map(Vec::len);
        MomentLengths { first, second, average, coded }
    }
}

/// Moments of which some have been taken.
pub(crate) struct Cursor<'a> {
    moments: &'a Moments,
    done: MomentLengths,
}

impl Cursor<'_> {
    /// A copy of the next ones, of these lengths.
    pub(crate) fn take(&mut self, lengths: &MomentLengths) -> Moments {
        self.moments.copied(&mut self.done, lengths)
    }
}

impl Moments {
    /// A copy of those of these lengths that follow the first ones, `done`; then they are among these.
    pub(crate) fn copied(&self, done: &mut MomentLengths, lengths: &MomentLengths) -> Moments {
        let next = |values: &[f32], done: &mut usize, length: usize| {
            *done += length;
            values[*done - length..*done].to_vec()
        };
        let mut coded = CodedMoments::default();
        let kinds = coded.named_mut().into_iter().zip(self.coded.named());
        for (((_, to), (_, from)), (done, length)) in kinds.zip(done.coded.iter_mut().zip(lengths.coded)) {
            to.codes = from.codes[done[0]..][..length[0]].to_vec();
            to.scales = from.scales[done[1]..][..length[1]].to_vec();
            *done = [done[0] + length[0], done[1] + length[1]];
        }
        Moments {
            first: next(&self.first, &mut done.first, lengths.first),
            second: next(&self.second, &mut done.second, lengths.second),
            average: next(&self.average, &mut done.average, lengths.average),
            average_weight: self.average_weight,
            coded,
        }
    }
}

/// Moments that are being read and replaced, tensor by tensor.
pub(super) struct MomentsMut<'a> {
    first: &'a mut [f32],
    second: &'a mut [f32],
    average: &'a mut [f32],
    coded: [CodedMut<'a>; 3],
}

/// The moments of one tensor; of the second and the average nothing where Muon steps it.
pub(super) enum OfTensor<'a> {
    Exact { first: &'a mut [f32], second: &'a mut [f32], average: &'a mut [f32] },
    Coded { first: CodedMut<'a>, second: CodedMut<'a>, average: CodedMut<'a> },
}

impl Moments {
    /// None, with room for so many.
    pub(crate) fn with_room(lengths: &MomentLengths) -> Moments {
        let [first, second, average] = [lengths.first, lengths.second, lengths.average].map(Vec::with_capacity);
        Moments { first, second, average, ..Moments::default() }
    }

    /// Adds those of the tensors that follow.
    pub(crate) fn append(&mut self, next: &Moments) {
        self.first.extend_from_slice(&next.first);
        self.second.extend_from_slice(&next.second);
        self.average.extend_from_slice(&next.average);
        for ((_, codes), (_, next)) in self.coded.named_mut().into_iter().zip(next.coded.named()) {
            codes.append(next);
        }
        self.average_weight = next.average_weight;
    }

    /// To be cut into those of some tensors after the other.
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { moments: self, done: MomentLengths::default() }
    }

    pub(super) fn parts(&mut self) -> MomentsMut<'_> {
        let CodedMoments { first, second, average } = &mut self.coded;
        let coded = [first.parts(), second.parts(), average.parts()];
        MomentsMut { first: &mut self.first, second: &mut self.second, average: &mut self.average, coded }
    }
}

impl<'a> MomentsMut<'a> {
    /// Cuts the first tensor's off, which has so many values of each.
    pub(super) fn take(&mut self, is_coded: bool, [first, second, average]: [usize; 3]) -> OfTensor<'a> {
        if is_coded {
            let [firsts, seconds, averages] = &mut self.coded;
            let (first, second, average) = (firsts.take(first), seconds.take(second), averages.take(average));
            return OfTensor::Coded { first, second, average };
        }
        let (first, second) = (take(&mut self.first, first), take(&mut self.second, second));
        OfTensor::Exact { first, second, average: take(&mut self.average, average) }
    }
}

impl Optimizer {
    /// How many values of each of the three a tensor has.
    pub(super) fn moments_of(&self, tensor: &Stepped) -> [usize; 3] {
        let second = match &tensor.rule {
            Rule::AdamW { second, .. } => second.len(),
            Rule::Muon(_) => 0,
        };
        [tensor.range.len(), second, if self.spec.match_batch { second } else { 0 }]
    }

    /// Zeros.
    pub(crate) fn moments(&self) -> Moments {
        let of = |kind: usize, is_coded: bool| {
            let those = self.tensors.iter().filter(move |tensor| self.is_coded(tensor) == is_coded);
            those.map(move |tensor| self.moments_of(tensor)[kind])
        };
        let exact = |kind| vec![0.0; of(kind, false).sum()];
        let coded = |kind| BlockCodes::zeros(of(kind, true));
        Moments {
            first: exact(0),
            second: exact(1),
            average: exact(2),
            average_weight: 0.0,
            coded: CodedMoments { first: coded(0), second: coded(1), average: coded(2) },
        }
    }

    /// How long its moments are where most of them are in 8 bits or all in 32.
    pub(crate) fn lengths(&self, in_8_bits: bool) -> MomentLengths {
        self.tensors.iter().fold(MomentLengths::default(), |sum, tensor| sum.with(&self.lengths_of(tensor, in_8_bits)))
    }

    fn lengths_of(&self, tensor: &Stepped, in_8_bits: bool) -> MomentLengths {
        let [first, second, average] = self.moments_of(tensor);
        if in_8_bits && tensor.key.is_some() {
            let coded = [first, second, average].map(|values| [values, values.div_ceil(BLOCK)]);
            return MomentLengths { coded, ..MomentLengths::default() };
        }
        MomentLengths { first, second, average, ..MomentLengths::default() }
    }

    /// Where each tensor lies among the parameters, and how long its moments are.
    pub(crate) fn lengths_by_tensor(&self) -> impl Iterator<Item = (Range<usize>, MomentLengths)> {
        let of = |tensor: &Stepped| (tensor.range.clone(), self.lengths_of(tensor, self.in_8_bits));
        self.tensors.iter().map(of)
    }

    /// How long its moments are.
    pub(crate) fn own_lengths(&self) -> MomentLengths {
        self.lengths(self.in_8_bits)
    }

    /// The same moments in the bits in which this optimizer keeps them: a checkpoint may be of another setting.
    ///
    /// # Panics
    /// When their lengths are those of neither setting.
    pub(crate) fn in_own_bits(&self, mut moments: Moments) -> Moments {
        if MomentLengths::of(&moments) == self.own_lengths() {
            return moments;
        }
        assert_eq!(MomentLengths::of(&moments), self.lengths(!self.in_8_bits), "moments of this optimizer's tensors");
        let mut own = self.moments();
        let (mut before, mut after) = (moments.parts(), own.parts());
        for tensor in &self.tensors {
            let (is_coded, lengths) = (self.is_coded(tensor), self.moments_of(tensor));
            let was_coded = !self.in_8_bits && tensor.key.is_some();
            match (before.take(was_coded, lengths), after.take(is_coded, lengths)) {
                (
                    OfTensor::Exact { first, second, average },
                    OfTensor::Exact { first: to1, second: to2, average: to3 },
                ) => {
                    to1.copy_from_slice(first);
                    to2.copy_from_slice(second);
                    to3.copy_from_slice(average);
                }
                (
                    OfTensor::Coded { first, second, average },
                    OfTensor::Exact { first: to1, second: to2, average: to3 },
                ) => {
                    first.decode(to1, codes::signed);
                    second.decode(to2, |code, scale| codes::root(code, scale).powi(2));
                    average.decode(to3, codes::signed);
                }
                (
                    OfTensor::Exact { first, second, average },
                    OfTensor::Coded { first: to1, second: to2, average: to3 },
                ) => {
                    let dither = Dither::of(tensor.key.unwrap_or_default(), u64::MAX);
                    to1.encode(first, dither, codes::encode_signed);
                    second.iter_mut().for_each(|value| *value = value.max(0.0).sqrt());
                    to2.encode(second, dither, codes::encode_roots);
                    to3.encode(average, dither, codes::encode_signed);
                }
                (OfTensor::Coded { .. }, OfTensor::Coded { .. }) => unreachable!("one of the two is in 32 bits"),
            }
        }
        own.average_weight = moments.average_weight;
        own
    }
}

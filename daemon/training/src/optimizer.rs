//! What turns gradients into steps: AdamW for all tensors, or Muon for hidden matrices and AdamW for the rest, with clipping
//! of the gradient's norm and decoupled weight decay.
//!
//! An [`Optimizer`] says for each tensor of a layout which [`Rule`] steps it and where its part of the state lies; the
//! arithmetic is in [`adamw`] and [`muon`]. Matrices decay, the embedding and the head among them; the scales of norms do not.
//! The state is in 32 bits, or that of matrices, but for the embedding, in [codes of 8](codes).

pub(crate) mod adamw;
mod coded;
mod codes;
mod moments;
pub(crate) mod muon;

use std::ops::Range;

use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::{OptimizerKind, OptimizerSpec};
use rayon::prelude::*;

use crate::model::hidden::hidden_matrix;
use crate::ops::vector::vectorised;

use codes::Dither;
use moments::OfTensor;

pub use codes::BlockCodes;
pub(crate) use moments::Moments;
pub use moments::{CodedMoments, MomentLengths};

/// Values that one task handles, and the unit in which squares are summed: a constant, so that a sum does not depend
/// on the number of threads.
pub(crate) const TASK_VALUES: usize = 16 * 1024;

/// Members beyond which a longer average of gradients would lag behind the model: at 64 its decay is 0.97, and β₂'s usual 0.99.
/// A guess.
const MEMBERS_MAX: f64 = 64.0;

/// How far a step of Muon can bring a singular value beyond its rate: 1.2, above the 1.13 of its polynomials.
const MUON_OVERSHOOT: f64 = 1.2;

/// What steps a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Matrices decay.
    AdamW {
        decays: bool,
        /// Of [`Moments::second`].
        second: Range<usize>,
    },
    /// `[outputs, inputs]`.
    Muon([usize; 2]),
}

/// A tensor, and what steps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stepped {
    /// Of the flat parameters, and of [`Moments::first`].
    pub(crate) range: Range<usize>,
    pub(crate) rule: Rule,
    /// From which the rounding of its moments is drawn, where they may be in 8 bits. Those of vectors and of the embedding are not:
    /// there are few of the former, and of the latter most rows have no gradient in a step, so that a block has little in common
    /// (Dettmers et al., section 2.3).
    key: Option<u32>,
}

/// The optimizer of a run for the tensors of a layout, in its order.
#[derive(Clone, Debug)]
pub(crate) struct Optimizer {
    pub(crate) spec: OptimizerSpec,
    pub(crate) tensors: Vec<Stepped>,
    seconds: usize,
    /// How far a step moves the model at most, as a Euclidean norm, at a learning rate of 1.
    reach: f64,
    /// Whose models this one is averaged with, itself counted: at least 1.
    members: f64,
    /// Whether moments are in codes of 8 bits where they may be.
    in_8_bits: bool,
}

/// The numbers of one step that are equal for all parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepFactors {
    /// Scales the gradient to its largest norm allowed.
    pub(crate) clip: f64,
    /// Learning rate over the first moment's bias correction.
    pub(crate) rate: f64,
    /// Multiplies a matrix: 1 − learning rate · weight decay.
    pub(crate) keep: f64,
    /// One over the second moment's bias correction.
    pub(crate) unbias_second: f64,
    /// β_h, the decay of the short average of gradients.
    pub(crate) average_decay: f32,
    /// One over that average's bias correction.
    pub(crate) unbias_average: f32,
    /// Muon's learning rate, before that of the shape.
    pub(crate) muon_rate: f64,
    /// Multiplies a matrix that Muon steps: 1 − its learning rate · weight decay.
    pub(crate) muon_keep: f64,
    /// Since the moments were zero, this one counted.
    steps: u64,
}

impl StepFactors {
    /// The same for a tensor that decays or not.
    pub(crate) fn decaying(self, decays: bool) -> StepFactors {
        StepFactors { keep: if decays { self.keep } else { 1.0 }, ..self }
    }
}

/// The end of the name of a table of rows, of which a step reads few.
const EMBEDDING: &str = "embed_tokens.weight";

/// Muon's learning rate where AdamW's is this one: both follow one schedule.
fn muon_rate(spec: &OptimizerSpec, learning_rate: f64) -> f64 {
    learning_rate / spec.learning_rate * spec.muon_learning_rate
}

impl Optimizer {
    /// For the tensors of `layout`.
    pub(crate) fn new(spec: &OptimizerSpec, layout: &ModelLayout) -> Optimizer {
        let (mut seconds, mut squares) = (0, 0.0);
        let tensors = layout.tensors().iter().map(|tensor| {
            let matrix = hidden_matrix(layout, tensor).filter(|_| spec.kind == OptimizerKind::Muon);
            let rule = if let Some(shape) = matrix {
                let rate = muon_rate(spec, 1.0) * muon::rate_scale(shape) * MUON_OVERSHOOT;
                squares += rate * rate * shape[0].min(shape[1]) as f64;
                Rule::Muon(shape)
            } else {
                squares += tensor.len() as f64;
                let second = seconds..seconds + tensor.len();
                seconds = second.end;
                Rule::AdamW { decays: tensor.shape.len() > 1, second }
            };
            let may_be_coded = tensor.shape.len() > 1 && !tensor.name.ends_with(EMBEDDING);
            Stepped { range: tensor.range(), rule, key: may_be_coded.then(|| codes::tensor_key(&tensor.name)) }
        });
        let tensors = tensors.collect();
        Optimizer { tensors, spec: spec.clone(), seconds, reach: squares.sqrt(), members: 1.0, in_8_bits: false }
    }

    /// The same with moments in 8 bits where they may be, or all in 32.
    pub(crate) fn with_moments(self, in_8_bits: bool) -> Optimizer {
        Optimizer { in_8_bits, ..self }
    }

    fn is_coded(&self, tensor: &Stepped) -> bool {
        self.in_8_bits && tensor.key.is_some()
    }

    /// Tells with how many members the model is averaged, this one counted; 1 is alone.
    pub(crate) fn set_members(&mut self, members: f64) {
        self.members = members.clamp(1.0, MEMBERS_MAX);
    }

    /// Of the step that makes it `steps` since the moments were zero; `gradient_norm` is finite. `learning_rate` is AdamW's,
    /// and Muon's is as far below its peak. Advances [`Moments::average_weight`].
    pub(crate) fn factors(
        &self,
        steps: u64,
        gradient_norm: f64,
        learning_rate: f64,
        average_weight: &mut f32,
    ) -> StepFactors {
        let (spec, number, steps) = (&self.spec, steps, steps as f64);
        let muon_rate = muon_rate(spec, learning_rate);
        // An average with this decay has as little noise as one of so many gradients.
        let average_decay = ((self.members - 1.0) / (self.members + 1.0)) as f32;
        if spec.match_batch {
            *average_weight = average_decay * *average_weight + (1.0 - average_decay);
        }
        StepFactors {
            clip: (spec.gradient_norm_max / gradient_norm.max(f64::MIN_POSITIVE)).min(1.0),
            rate: learning_rate / (1.0 - spec.beta1.powf(steps)),
            keep: 1.0 - learning_rate * spec.weight_decay,
            unbias_second: 1.0 / (1.0 - spec.beta2.powf(steps)),
            average_decay,
            unbias_average: 1.0 / *average_weight,
            muon_rate,
            muon_keep: 1.0 - muon_rate * spec.weight_decay,
            steps: number,
        }
    }

    /// How many parameters have second moments.
    pub(crate) fn seconds(&self) -> usize {
        self.seconds
    }

    /// How many of them have an average of gradients.
    pub(crate) fn averages(&self) -> usize {
        if self.spec.match_batch { self.seconds } else { 0 }
    }

    /// Values that a step holds beside all this, with so many matrices in work at a time.
    pub(crate) fn scratch_values(&self, at_a_time: usize) -> usize {
        let shapes = self.tensors.iter().filter_map(|tensor| match tensor.rule {
            Rule::Muon(shape) => Some(shape),
            Rule::AdamW { .. } => None,
        });
        let mut sizes: Vec<usize> = shapes.map(muon::scratch_values).collect();
        sizes.sort_unstable_by(|left, right| right.cmp(left));
        sizes.iter().take(at_a_time).sum()
    }

    /// An upper bound on how far a step at this learning rate moves the model, as a Euclidean norm: AdamW moves a coordinate
    /// by about one learning rate, Muon each of a matrix's directions by about one of its own.
    pub(crate) fn travel(&self, learning_rate: f64) -> f64 {
        learning_rate * self.reach
    }

    /// The sum of the squares of each tensor's `gradient`, in `f64` and in a fixed order. Not finite exactly when some value is
    /// not.
    pub(crate) fn squares(&self, gradient: &[f32]) -> Vec<f64> {
        self.tensors.par_iter().map(|tensor| square(&gradient[tensor.range.clone()])).collect()
    }

    /// One step over flat `values` with their flat `gradient`, both in the order of the layout.
    pub(crate) fn step(&self, factors: StepFactors, values: &mut [f32], gradient: &[f32], moments: &mut Moments) {
        let (mut values, mut moments) = (values, moments.parts());
        let mut matrices = Vec::new();
        for tensor in &self.tensors {
            let values = take(&mut values, tensor.range.len());
            let gradient = &gradient[tensor.range.clone()];
            let dither = Dither::of(tensor.key.unwrap_or_default(), factors.steps);
            match (&tensor.rule, moments.take(self.is_coded(tensor), self.moments_of(tensor))) {
                (Rule::AdamW { decays, .. }, OfTensor::Exact { first, second, average }) => {
                    let average = self.spec.match_batch.then_some(average);
                    let slices = adamw::Slices { values, gradient, first, second, average };
                    adamw::step(&self.spec, &factors.decaying(*decays), slices);
                }
                (Rule::AdamW { decays, .. }, OfTensor::Coded { first, second, average }) => {
                    let average = self.spec.match_batch.then_some(average);
                    let slices = coded::Slices { values, gradient, first, second, average };
                    coded::step(&self.spec, &factors.decaying(*decays), dither, slices);
                }
                (Rule::Muon(shape), OfTensor::Exact { first, .. }) => {
                    let momentum = muon::Momentum::Exact(first);
                    matrices.push(muon::Slices { values, gradient, momentum, shape: *shape });
                }
                (Rule::Muon(shape), OfTensor::Coded { first, .. }) => {
                    let momentum = muon::Momentum::Coded(first, dither);
                    matrices.push(muon::Slices { values, gradient, momentum, shape: *shape });
                }
            }
        }
        muon::step(self.spec.muon_momentum, &factors, matrices);
    }
}

/// Cuts the first values off.
fn take<'a, T>(values: &mut &'a mut [T], length: usize) -> &'a mut [T] {
    let (taken, rest) = std::mem::take(values).split_at_mut(length);
    *values = rest;
    taken
}

/// How many of a layout's parameters this optimizer keeps second moments of: those that AdamW steps.
pub fn second_moments(spec: &OptimizerSpec, layout: &ModelLayout) -> usize {
    Optimizer::new(spec, layout).seconds()
}

/// How long the moments of a layout's optimizer are, with most of them in 8 bits or all in 32.
pub fn moment_lengths(spec: &OptimizerSpec, layout: &ModelLayout, in_8_bits: bool) -> MomentLengths {
    Optimizer::new(spec, layout).lengths(in_8_bits)
}

/// The sum of the squares of `values`, in `f64` and in a fixed order. Not finite exactly when some value is not.
pub(crate) fn square(values: &[f32]) -> f64 {
    values.par_chunks(TASK_VALUES).map(sum_of_squares).collect::<Vec<f64>>().iter().sum()
}

/// The Euclidean norm of a gradient whose tensors' [`squares`] are these. Summed tensor by tensor, so that its bits, and those
/// of the factor that clips, do not depend on how a model is cut.
pub(crate) fn norm_of(squares: &[f64]) -> f64 {
    squares.iter().sum::<f64>().sqrt()
}

/// Lanes of a sum in `f64`: the order of summation does not depend on the machine's vector width.
const LANES: usize = 8;

vectorised! {
    fn sum_of_squares(values: &[f32]) -> f64 {
        let mut lanes = [0.0_f64; LANES];
        let chunks = values.chunks_exact(LANES);
        let tail: f64 = chunks.remainder().iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        for chunk in chunks {
            for lane in 0..LANES {
                lanes[lane] += f64::from(chunk[lane]) * f64::from(chunk[lane]);
            }
        }
        lanes.iter().sum::<f64>() + tail
    }
}

#[cfg(test)]
mod tests;

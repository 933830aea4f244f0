//! The vectors of a model in the machine's memory, in pieces that travel to the GPU and back.

use std::ops::Range;
use std::sync::Arc;

use super::slots::{Filling, filling};
use crate::gpu::copies::copy;
use crate::gpu::sizes;
use crate::optimizer::{Moments, Optimizer, Rule};

/// A tensor, or a part of one that AdamW steps.
pub(super) struct Piece {
    /// Index in the optimizer's tensors.
    pub(super) tensor: usize,
    /// Of the flat parameters.
    pub(super) range: Range<usize>,
    /// Parameters, first moment, and where AdamW steps second moment and average, where there is one: one after the other. Replaced,
    /// not changed, where somebody reads it.
    state: Arc<Vec<f32>>,
}

/// Vectors of a piece's state.
#[derive(Clone, Copy)]
enum Of {
    Parameters,
    First,
    Second,
    Average,
}

impl Piece {
    /// One of the state's vectors, where it has that.
    fn vector(&self, of: Of) -> Option<Range<usize>> {
        let (number, length) = (of as usize, self.range.len());
        ((number + 1) * length <= self.state.len()).then_some(number * length..(number + 1) * length)
    }

    fn set(&mut self, of: Of, values: &[f32]) {
        let place = self.vector(of).expect("as many vectors as it has");
        Arc::make_mut(&mut self.state)[place].copy_from_slice(values);
    }
}

/// How many vectors the state of a tensor has.
pub(super) fn states_of(optimizer: &Optimizer, tensor: usize) -> usize {
    match optimizer.tensors[tensor].rule {
        Rule::Muon(_) => 2,
        Rule::AdamW { .. } if optimizer.spec.match_batch => 4,
        Rule::AdamW { .. } => 3,
    }
}

/// Values that pass through the GPU's memory to step a matrix by Muon, the largest.
pub(super) fn muon_values(optimizer: &Optimizer) -> usize {
    let matrices = optimizer.tensors.iter().filter(|tensor| matches!(tensor.rule, Rule::Muon(_)));
    matrices.map(|tensor| 3 * tensor.range.len()).max().unwrap_or(0)
}

/// Values of each vector of a tensor's pieces, of which the GPU's memory has room for so many in all.
fn piece_values(optimizer: &Optimizer, tensor: usize, values: usize) -> usize {
    let whole = optimizer.tensors[tensor].range.len();
    match optimizer.tensors[tensor].rule {
        Rule::Muon(_) => whole,
        // The kernel steps four values at once.
        Rule::AdamW { .. } => {
            (sizes().piece_values.min(values / (1 + states_of(optimizer, tensor))) / 4 * 4).max(1).min(whole)
        }
    }
}

/// Values that leave the GPU's memory once the piece with the most of them was stepped, with room for so many values of a piece.
pub(super) fn leaving_values(optimizer: &Optimizer, values: usize) -> usize {
    let leaving = |tensor| states_of(optimizer, tensor) * piece_values(optimizer, tensor, values);
    (0..optimizer.tensors.len()).map(leaving).max().unwrap_or(0)
}

pub(super) struct Vectors {
    /// Of the flat parameters.
    stages: Vec<Range<usize>>,
    /// In the order of the layout.
    pieces: Vec<Piece>,
    /// Values of the first stage that the last one has, too: the table of a tied head.
    copied: usize,
    /// Of each stage; behind the last one's that of what it has, too.
    gradients: Vec<Arc<Vec<f32>>>,
}

impl Vectors {
    /// Of stages of such lengths, with pieces that take so many values of the GPU's memory at most; so many values of the first one
    /// are the last one's as well.
    pub(super) fn new(
        (lengths, copied): (&[usize], usize),
        optimizer: &Optimizer,
        values: usize,
        parameters: &[f32],
    ) -> Vectors {
        let mut end = 0;
        let stage = |length: &usize| {
            end += length;
            end - length..end
        };
        let stages: Vec<Range<usize>> = lengths.iter().map(stage).collect();
        let gradients = lengths.iter().map(|length| Arc::new(vec![0.0; *length])).collect();
        let mut pieces = Vec::new();
        for (tensor, stepped) in optimizer.tensors.iter().enumerate() {
            let (range, states) = (&stepped.range, states_of(optimizer, tensor));
            let at_once = piece_values(optimizer, tensor, values);
            for first in range.clone().step_by(at_once.max(1)) {
                let range = first..range.end.min(first + at_once);
                let mut state = vec![0.0; states * range.len()];
                state[..range.len()].copy_from_slice(&parameters[range.clone()]);
                pieces.push(Piece { tensor, range, state: Arc::new(state) });
            }
        }
        Vectors { stages, pieces, copied, gradients }
    }

    /// Where each stage lies in the flat parameters.
    pub(super) fn stages(&self) -> &[Range<usize>] {
        &self.stages
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// How many values a stage computes with.
    pub(super) fn held(&self, stage: usize) -> usize {
        self.stages[stage].len() + if stage + 1 == self.stages.len() { self.copied } else { 0 }
    }

    /// What writes the parameters that a stage computes with.
    pub(super) fn filling(&self, stage: usize) -> Filling {
        let (own, copied) = (self.stages[stage].clone(), self.held(stage) - self.stages[stage].len());
        let pieces = |place: Range<usize>| self.pieces.iter().filter(move |piece| place.contains(&piece.range.start));
        let states: Vec<_> =
            pieces(own).chain(pieces(0..copied)).map(|piece| (piece.range.len(), piece.state.clone())).collect();
        filling(self.held(stage), move |mut rest| {
            for (length, state) in states {
                let (values, others) = std::mem::take(&mut rest).split_at_mut(length);
                copy(&state[..length], values);
                rest = others;
            }
        })
    }

    /// What writes the gradient and the state of a piece.
    pub(super) fn filling_of_piece(&self, number: usize) -> Filling {
        let Piece { range, state, .. } = &self.pieces[number];
        let stage = self.stages.iter().position(|stage| stage.contains(&range.start)).expect("stages are the model");
        let place = range.start - self.stages[stage].start..range.end - self.stages[stage].start;
        let (gradient, state) = (self.gradients[stage].clone(), state.clone());
        filling(range.len() + state.len(), move |to| {
            let (to_gradient, to_state) = to.split_at_mut(place.len());
            copy(&gradient[place], to_gradient);
            copy(&state, to_state);
        })
    }

    /// What writes the gradient of a tied table that the last stage has left, if there is one.
    pub(super) fn filling_of_copied(&self) -> Option<Filling> {
        let gradient = self.gradients.last().filter(|_| self.copied > 0)?.clone();
        let own = self.stages.last().map_or(0, Range::len);
        Some(filling(self.copied, move |to| copy(&gradient[own..], to)))
    }

    pub(super) fn set_state(&mut self, number: usize, state: Vec<f32>) {
        let place = &mut self.pieces[number].state;
        assert_eq!(state.len(), place.len(), "the state of a piece");
        *place = Arc::new(state);
    }

    pub(super) fn set_gradient(&mut self, stage: usize, gradient: Vec<f32>) {
        self.gradients[stage] = Arc::new(gradient);
    }

    pub(super) fn gradient(&self) -> Vec<f32> {
        let of_stages = self.gradients.iter().zip(&self.stages);
        of_stages.flat_map(|(gradient, stage)| gradient[..stage.len()].iter().copied()).collect()
    }

    pub(super) fn parameters(&self) -> Vec<f32> {
        self.shared_parameters()()
    }

    /// What gives the parameters as they are now.
    pub(super) fn shared_parameters(&self) -> impl FnOnce() -> Vec<f32> + Send + use<> {
        let states: Vec<_> = self.pieces.iter().map(|piece| (piece.range.len(), piece.state.clone())).collect();
        let all = self.stages.last().map_or(0, |stage| stage.end);
        move || {
            let mut parameters = Vec::with_capacity(all);
            // Each is let go at once: a step may have replaced it.
            states.into_iter().for_each(|(length, state)| parameters.extend_from_slice(&state[..length]));
            parameters
        }
    }

    pub(super) fn set_parameters(&mut self, values: &[f32]) {
        for piece in &mut self.pieces {
            piece.set(Of::Parameters, &values[piece.range.clone()]);
        }
    }

    /// Without the weight of the average.
    pub(super) fn moments(&self) -> Moments {
        let gathered = |of: Of| {
            let places = self.pieces.iter().filter_map(|piece| Some(&piece.state[piece.vector(of)?]));
            places.flatten().copied().collect()
        };
        let (first, second, average) = (gathered(Of::First), gathered(Of::Second), gathered(Of::Average));
        Moments { first, second, average, ..Moments::default() }
    }

    pub(super) fn set_moments(&mut self, moments: &Moments) {
        for (of, mut rest) in
            [(Of::First, &moments.first[..]), (Of::Second, &moments.second), (Of::Average, &moments.average)]
        {
            for piece in self.pieces.iter_mut().filter(|piece| piece.vector(of).is_some()) {
                let (values, others) = rest.split_at(piece.range.len());
                piece.set(of, values);
                rest = others;
            }
        }
    }
}

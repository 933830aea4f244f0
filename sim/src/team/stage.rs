//! What computes on a simulated machine: stages, their activations and gradients, and the mistakes that they are made to make.

use std::collections::VecDeque;

use murmur_protocol::Payload;
use murmur_protocol::team::{LayerRange, Stream, WorkKind};

use super::arithmetic::{Gradient, Layer, backward, forward, square};

/// A mistake of a stage, to see that a law finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Each step is taken twice.
    StepsTwice,
    /// The backward takes the activations of another microbatch that waits.
    SwapsMicrobatches,
    /// What a dropped batch has left is not forgotten.
    ForgetsDrop,
    /// Gradients are computed with the parameters before the last step.
    UsesParametersOfBefore,
    /// Activations are not given back after the backward.
    KeepsActivations,
    /// A step is said to be done and is not.
    SkipsStep,
    /// States that it is asked for are too short, too long or no numbers.
    SendsUnfitStates,
}

/// Bytes of a stream of one number: `[rows, 2]` in 32 bits, the number in the first row.
pub(crate) fn stream(value: u64, rows: u32) -> Stream {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(8 * rows as usize, 0);
    Stream { rows, payload: Payload::from(bytes) }
}

/// The number of a stream.
pub(crate) fn value(stream: &Stream) -> u64 {
    number_at(stream.payload.bytes(), 0)
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"))
}

/// States of layers as bytes.
pub(crate) fn state_bytes(layers: &[Layer]) -> Payload {
    let numbers = layers.iter().flat_map(|layer| [layer.parameters, layer.moments]);
    Payload::from(numbers.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

/// Stands for what is not finite: no layer has it.
const NO_NUMBER: u64 = u64::MAX;

/// The states that bytes hold, where they are of so many layers and are numbers.
pub(crate) fn states_of(payload: &Payload, layers: usize) -> Option<Vec<Layer>> {
    let bytes = payload.bytes();
    let is_number = (0..bytes.len() / 8).all(|at| number_at(bytes, at) != NO_NUMBER);
    let layer = |at| Layer { parameters: number_at(bytes, 2 * at), moments: number_at(bytes, 2 * at + 1) };
    (bytes.len() == 16 * layers && is_number).then(|| (0..layers).map(layer).collect())
}

/// What a liar sends for a state: too short, too long or no numbers, by turns.
pub(crate) fn unfit(state: &Payload, turn: u64) -> Payload {
    let mut bytes = state.bytes().to_vec();
    match turn % 3 {
        0 => bytes.truncate(bytes.len() - 8),
        1 => bytes.extend([0; 8]),
        _ => bytes[..8].copy_from_slice(&NO_NUMBER.to_le_bytes()),
    }
    Payload::from(bytes)
}

/// A stage on a machine.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    /// Of the model with its ends: 0 is the embedding, and the last one the head.
    pub(crate) first: usize,
    pub(crate) layers: Vec<Layer>,
    before: Vec<Layer>,
    gradient: Gradient,
    /// Inputs of the microbatches whose backward is to come.
    pub(crate) held: VecDeque<u64>,
    leaked: usize,
    mistake: Option<Mistake>,
}

impl Stage {
    pub(crate) fn new(first: usize, layers: Vec<Layer>, mistake: Option<Mistake>) -> Stage {
        let (before, gradient, held) = (layers.clone(), Gradient::default(), VecDeque::new());
        Stage { first, layers, before, gradient, held, leaked: 0, mistake }
    }

    /// Of its layers.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.layers.len()
    }

    /// The parameters that it computes with.
    fn used(&self) -> &[Layer] {
        if self.mistake == Some(Mistake::UsesParametersOfBefore) { &self.before } else { &self.layers }
    }

    /// A forward; keeps its input where a backward comes.
    pub(crate) fn forward(&mut self, kind: WorkKind, input: u64) -> u64 {
        if kind == WorkKind::Forward {
            self.held.push_back(input);
        }
        forward(self.used(), input)
    }

    /// The backward of the first microbatch that waits: the gradient of its input. `None` where none waits.
    pub(crate) fn backward(&mut self, to_output: u64, lane: u8, is_first: bool) -> Option<u64> {
        if self.mistake == Some(Mistake::SwapsMicrobatches) && self.held.len() > 1 {
            self.held.swap(0, 1);
        }
        let input = self.held.pop_front()?;
        self.leaked += usize::from(self.mistake == Some(Mistake::KeepsActivations));
        let (to_input, added) = backward(self.used(), input, to_output);
        self.gradient.add(&added, lane, is_first);
        Some(to_input)
    }

    /// Microbatches of which it holds activations.
    pub(crate) fn held(&self) -> usize {
        self.held.len() + self.leaked
    }

    pub(crate) fn sums(&self) -> Vec<u64> {
        self.gradient.sums()
    }

    pub(crate) fn squares(&self) -> Vec<f64> {
        self.sums().into_iter().map(square).collect()
    }

    pub(crate) fn step(&mut self, factors: u64) {
        if self.mistake == Some(Mistake::SkipsStep) {
            return;
        }
        self.before = self.layers.clone();
        let times = if self.mistake == Some(Mistake::StepsTwice) { 2 } else { 1 };
        for _ in 0..times {
            let sums = self.sums();
            self.layers.iter_mut().zip(sums).for_each(|(layer, sum)| *layer = layer.stepped(sum, factors));
        }
        self.gradient.forget_second_lane();
    }

    /// Forgets a batch.
    pub(crate) fn discard(&mut self) {
        if self.mistake != Some(Mistake::ForgetsDrop) {
            self.held.clear();
            self.gradient.forget_second_lane();
        }
    }

    /// Where some of its layers are among those.
    pub(crate) fn places(&self, layers: LayerRange) -> std::ops::Range<usize> {
        let place = |layer: u32| layer as usize + 1 - self.first;
        place(layers.first)..place(layers.end)
    }

    pub(crate) fn replace(&mut self, layers: LayerRange, states: Vec<Layer>) {
        let places = self.places(layers);
        self.before[places.clone()].copy_from_slice(&states);
        self.layers[places].copy_from_slice(&states);
    }
}

//! What a captain keeps of the parts that other machines hold: parameters and moments, cut at layers, so that any cut can begin
//! from them.

use std::ops::Range;

use murmur_protocol::RunManifest;

use super::part::{PartLengths, layouts};
use super::state::{PartState, StateError};
use crate::engine::TrainingError;
use crate::model::lora::initial_adapters;
use crate::model::{Model as _, StageSpec, Transformer};
use crate::ops::base_weights::BaseWeights;
use crate::optimizer::{MomentLengths, Moments, Optimizer};

/// The smallest pieces of a model that a cut can part: the embedding, each layer, the last norm with the head.
pub(super) struct Kept {
    pieces: Vec<Piece>,
}

struct Piece {
    lengths: PartLengths,
    /// `None` where a part of this machine has it.
    state: Option<PartState>,
}

/// The pieces of a part. A part with the embedding begins at piece 0; layer n is piece n + 1.
pub(super) fn pieces(part: &StageSpec) -> Range<usize> {
    let layers = part.layers.start as usize + 1..part.layers.end as usize + 1;
    let first = if part.embeds { 0 } else { layers.start };
    first..layers.end + usize::from(part.predicts)
}

/// One piece as a part.
fn part_of(piece: usize, layers: u32) -> StageSpec {
    let piece = piece as u32;
    let of_layers = |layers| StageSpec { layers, embeds: false, predicts: false };
    match piece {
        0 => StageSpec { embeds: true, ..of_layers(0..0) },
        _ if piece == layers + 1 => StageSpec { predicts: true, ..of_layers(layers..layers) },
        _ => of_layers(piece - 1..piece),
    }
}

impl Kept {
    /// The parameters to begin with, with moments of zero: the base's where all of one is trained, else drawn ones, or zeros.
    pub(super) fn initial(
        manifest: &RunManifest,
        base: Option<&BaseWeights>,
        (moments_in_8_bits, weightless): (bool, bool),
    ) -> Kept {
        let layers = manifest.model.layers;
        let mut first = 0;
        let piece = |piece: usize| {
            let part = part_of(piece, layers);
            let lengths = PartLengths::of(manifest, &part, moments_in_8_bits);
            let range = first..first + lengths.weights;
            first = range.end;
            let parameters = if weightless {
                vec![0.0; lengths.trained]
            } else if manifest.lora.is_on() {
                initial_adapters(&layouts(manifest, &part).1, manifest.run.seed)
            } else if let Some(base) = base {
                base.part(range).into_exact()
            } else {
                Transformer::of_stage(&manifest.model, part.clone()).initial_parameters(manifest.run.seed)
            };
            let (_, trained) = layouts(manifest, &part);
            let optimizer = Optimizer::new(&manifest.optimizer, &trained).with_moments(moments_in_8_bits);
            Piece { lengths, state: Some(PartState { parameters, moments: Some((optimizer.moments(), 0)) }) }
        };
        Kept { pieces: (0..layers as usize + 2).map(piece).collect() }
    }

    /// How long the vectors of these pieces are together.
    pub(super) fn lengths(&self, pieces: Range<usize>) -> PartLengths {
        let mut sum = PartLengths { weights: 0, trained: 0, moments: MomentLengths::default() };
        for Piece { lengths, .. } in &self.pieces[pieces] {
            sum.weights += lengths.weights;
            sum.trained += lengths.trained;
            sum.moments = sum.moments.with(&lengths.moments);
        }
        sum
    }

    /// Those pieces, one after the other; `None` where one is held elsewhere.
    pub(super) fn joined(&self, pieces: Range<usize>) -> Option<PartState> {
        let states = self.pieces[pieces].iter().map(|piece| piece.state.as_ref());
        states.collect::<Option<Vec<_>>>().map(PartState::joined)
    }

    /// As [`Kept::joined`], and they are not kept any more.
    pub(super) fn taken(&mut self, pieces: Range<usize>) -> Option<PartState> {
        let joined = self.joined(pieces.clone())?;
        self.pieces[pieces].iter_mut().for_each(|piece| piece.state = None);
        Some(joined)
    }

    /// Puts a part's state in the place of what was kept of these pieces. Where it has no moments, those that were kept stay.
    pub(super) fn put(&mut self, pieces: Range<usize>, state: &PartState) {
        let mut parameters = &state.parameters[..];
        let mut moments = state.moments.as_ref().map(|(moments, steps)| (moments.cursor(), *steps));
        for Piece { lengths, state } in &mut self.pieces[pieces] {
            let (own, rest) = parameters.split_at(lengths.trained);
            parameters = rest;
            let before = state.take().and_then(|state| state.moments);
            let moments = moments.as_mut().map(|(cursor, steps)| (cursor.take(&lengths.moments), *steps)).or(before);
            *state = Some(PartState { parameters: own.to_vec(), moments });
        }
    }

    /// The same from bytes of another machine.
    ///
    /// # Errors
    /// When they are no state of these pieces; nothing has changed then.
    pub(super) fn put_bytes(&mut self, pieces: Range<usize>, bytes: &[u8]) -> Result<(), StateError> {
        let lengths = self.lengths(pieces.clone());
        let state = PartState::from_bytes(bytes, lengths.trained, &lengths.moments)?;
        self.put(pieces, &state);
        Ok(())
    }

    /// How many pieces there are.
    pub(super) fn count(&self) -> usize {
        self.pieces.len()
    }
}

impl PartState {
    /// Of parts one after the other; with moments where all have some.
    pub(super) fn joined<'a>(states: impl IntoIterator<Item = &'a PartState>) -> PartState {
        let (mut parameters, mut joined) = (Vec::new(), Some((Moments::default(), 0)));
        for state in states {
            parameters.extend_from_slice(&state.parameters);
            joined = joined.zip(state.moments.as_ref()).map(|((mut all, _), (moments, steps))| {
                all.append(moments);
                (all, *steps)
            });
        }
        PartState { parameters, moments: joined }
    }
}

impl From<StateError> for TrainingError {
    fn from(error: StateError) -> TrainingError {
        TrainingError::Team(format!("another machine's state cannot be taken up: {error}"))
    }
}

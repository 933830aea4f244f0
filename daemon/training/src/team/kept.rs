//! What a captain keeps of the parts that other machines hold: parameters and moments, cut at layers, so that any cut can begin
//! from them.

use murmur_protocol::RunManifest;
use murmur_protocol::team::StateKind;

use super::part::{PartLengths, layouts};
use super::state::{PartState, StateError};
use crate::engine::TrainingError;
use crate::model::lora::initial_adapters;
use crate::model::transformer::initial_of_stage;
use crate::model::{StageSpec, transformer_of};
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

/// The pieces of a part, in order. A part with the embedding begins at piece 0; layer n is piece n + 1.
pub(super) fn pieces(part: &StageSpec) -> Vec<usize> {
    let layers = part.layers.start as usize + 1..part.layers.end as usize + 1;
    let embedding = part.embeds.then_some(0);
    embedding.into_iter().chain(layers.start..layers.end + usize::from(part.predicts)).collect()
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
        let layers = transformer_of(manifest).layers;
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
                initial_of_stage(transformer_of(manifest), &part, manifest.run.seed)
            };
            let (_, trained) = layouts(manifest, &part);
            let optimizer = Optimizer::new(&manifest.optimizer, &trained).with_moments(moments_in_8_bits);
            Piece { lengths, state: Some(PartState { parameters, moments: Some((optimizer.moments(), 0)) }) }
        };
        Kept { pieces: (0..layers as usize + 2).map(piece).collect() }
    }

    /// How long the vectors of these pieces are together.
    fn lengths(&self, pieces: &[usize]) -> PartLengths {
        let mut sum = PartLengths { weights: 0, trained: 0, moments: MomentLengths::default() };
        for Piece { lengths, .. } in pieces.iter().map(|piece| &self.pieces[*piece]) {
            sum.weights += lengths.weights;
            sum.trained += lengths.trained;
            sum.moments = sum.moments.with(&lengths.moments);
        }
        sum
    }

    /// Those pieces, one after the other; `None` where one is held elsewhere.
    pub(super) fn joined(&self, pieces: &[usize]) -> Option<PartState> {
        let states = pieces.iter().map(|piece| self.pieces[*piece].state.as_ref());
        states.collect::<Option<Vec<_>>>().map(PartState::joined)
    }

    /// As [`Kept::joined`], and they are not kept any more.
    pub(super) fn taken(&mut self, pieces: &[usize]) -> Option<PartState> {
        let joined = self.joined(pieces)?;
        pieces.iter().for_each(|piece| self.pieces[*piece].state = None);
        Some(joined)
    }

    /// Puts a part's state in the place of what was kept of these pieces. Where it has no moments, those that were kept stay.
    pub(super) fn put(&mut self, pieces: &[usize], state: &PartState) {
        for (piece, PartState { parameters, moments }) in self.cut(pieces, state) {
            let place = &mut self.pieces[piece].state;
            let before = place.take().and_then(|state| state.moments);
            *place = Some(PartState { parameters, moments: moments.or(before) });
        }
    }

    /// The same from bytes of another machine.
    ///
    /// # Errors
    /// When they are no state of these pieces, or the parameters of one are of another size than those that were kept; nothing has
    /// changed then.
    ///
    /// Where its machine is yet to write what is kept, of that kind, what comes is older: it is read, and not put there.
    pub(super) fn put_bytes(
        &mut self,
        pieces: &[usize],
        bytes: &[u8],
        unwritten: Option<StateKind>,
    ) -> Result<(), StateError> {
        let lengths = self.lengths(pieces);
        let state = PartState::from_bytes(bytes, lengths.trained, &lengths.moments)?;
        let mut parameters = &state.parameters[..];
        for Piece { lengths, state: before } in pieces.iter().map(|piece| &self.pieces[*piece]) {
            let (own, rest) = parameters.split_at(lengths.trained);
            parameters = rest;
            if before.as_ref().is_some_and(|before| !are_alike(own, &before.parameters)) {
                return Err(StateError::Unlike);
            }
        }
        match unwritten {
            None => self.put(pieces, &state),
            // Its moments are those of now.
            Some(StateKind::Parameters) => {
                let kept = self.joined(pieces).map_or_else(|| state.parameters.clone(), |kept| kept.parameters);
                self.put(pieces, &PartState { parameters: kept, moments: state.moments });
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.pieces.len()).collect()
    }

    /// All pieces, one after the other, with those of a part of this machine; `None` where one is in neither.
    pub(super) fn with(&self, own: Option<&(Vec<usize>, PartState)>) -> Option<PartState> {
        let Some((places, state)) = own else { return self.joined(&self.all()) };
        let own = self.cut(places, state);
        let states = self.pieces.iter().enumerate().map(|(number, piece)| {
            own.iter().find_map(|(own, state)| (*own == number).then_some(state)).or(piece.state.as_ref())
        });
        states.collect::<Option<Vec<_>>>().map(PartState::joined)
    }

    /// Those pieces of a state of all of the model.
    pub(super) fn part_of(&self, pieces: &[usize], state: &PartState) -> PartState {
        let all = self.cut(&self.all(), state);
        PartState::joined(all.iter().filter(|(piece, _)| pieces.contains(piece)).map(|(_, state)| state))
    }

    /// A part's state in its pieces.
    fn cut(&self, pieces: &[usize], state: &PartState) -> Vec<(usize, PartState)> {
        let mut parameters = &state.parameters[..];
        let mut moments = state.moments.as_ref().map(|(moments, steps)| (moments.cursor(), *steps));
        let mut next = |piece: &usize| {
            let lengths = &self.pieces[*piece].lengths;
            let (own, rest) = parameters.split_at(lengths.trained);
            parameters = rest;
            let moments = moments.as_mut().map(|(cursor, steps)| (cursor.take(&lengths.moments), *steps));
            (*piece, PartState { parameters: own.to_vec(), moments })
        };
        pieces.iter().map(&mut next).collect()
    }
}

/// Parameters are that many times as large as those before, or as small, at most: far beyond what training does from one copy to
/// the next. A guess, as for streams.
const GROWTH_MAX: f64 = 64.0;

/// Whether parameters are of the size of those before, as far as those have one.
fn are_alike(parameters: &[f32], before: &[f32]) -> bool {
    let size = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let (now, before) = (size(parameters), size(before));
    before == 0.0 || (1.0 / GROWTH_MAX..=GROWTH_MAX).contains(&(now / before))
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

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::TransformerModel;

    use super::*;

    #[test]
    fn a_state_that_comes_before_a_correction_is_written_does_not_undo_it() {
        let model =
            TransformerModel { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 8, ..Default::default() };
        let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        let mut kept = Kept::initial(&manifest, None, (false, false));
        let before = kept.joined(&[1, 2]).expect("kept");
        let (moments, _) = before.moments.clone().expect("with moments");
        let stepped = PartState { moments: Some((moments.clone(), 7)), ..before.clone() };
        let bytes = stepped.to_bytes();
        let corrected = PartState {
            parameters: before.parameters.iter().map(|value| value + 0.5).collect(),
            moments: Some((moments, 3)),
        };
        for unwritten in [StateKind::Parameters, StateKind::Training] {
            kept.put(&[1, 2], &corrected);
            kept.put_bytes(&[1, 2], &bytes, Some(unwritten)).expect("a state");
            let now = kept.joined(&[1, 2]).expect("kept");
            assert_eq!(now.parameters, corrected.parameters, "{unwritten:?}");
            // Moments are newer where no other ones are to be written.
            let steps = now.moments.map(|(_, steps)| steps);
            assert_eq!(steps, Some(if unwritten == StateKind::Parameters { 7 } else { 3 }));
        }
        kept.put_bytes(&[1, 2], &bytes, None).expect("a state");
        assert_eq!(kept.joined(&[1, 2]), Some(stepped));
    }

    #[test]
    fn a_state_of_another_size_is_refused_and_changes_nothing() {
        let manifest = RunManifest::default();
        let mut kept = Kept::initial(&manifest, None, (false, false));
        let before = kept.joined(&[1]).expect("kept");
        for factor in [0.0, 0.01, 100.0] {
            let parameters = before.parameters.iter().map(|value| value * factor).collect();
            let bytes = PartState { parameters, ..before.clone() }.to_bytes();
            assert_eq!(kept.put_bytes(&[1], &bytes, None), Err(StateError::Unlike), "{factor}");
        }
        assert_eq!(kept.joined(&[1]), Some(before));
    }
}

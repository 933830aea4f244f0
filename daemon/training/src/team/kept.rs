//! What a captain keeps of the parts that other machines hold: parameters and moments, cut at layers, so that any cut can begin
//! from them.

use murmur_protocol::RunManifest;
use murmur_protocol::team::StateKind;

use super::part::{PartLengths, layouts};
use super::state::{Lying, PartState, StateError, StateView, bytes_of};
use crate::engine::TrainingError;
use crate::model::lora::initial_adapters;
use crate::model::transformer::initial_of_stage;
use crate::model::{StageSpec, transformer_of};
use crate::ops::base_weights::BaseWeights;
use crate::optimizer::{MomentLengths, Moments, Optimizer};
use crate::replica::Resting;

/// The smallest pieces of a model that a cut can part: the embedding, each layer, the last norm with the head.
pub(super) struct Kept {
    pieces: Vec<Piece>,
}

struct Piece {
    lengths: PartLengths,
    optimizer: Optimizer,
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
            let moments = Some((optimizer.moments(), 0));
            Piece { lengths, optimizer, state: Some(PartState { parameters, moments }) }
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

    /// Where the states of those pieces lie, one after the other; `None` where one is held elsewhere.
    fn lying(&self, pieces: &[usize]) -> Option<Vec<Lying<'_>>> {
        pieces.iter().map(|piece| self.pieces[*piece].state.as_ref().map(PartState::lying)).collect()
    }

    /// The bytes of those pieces; `None` where one is held elsewhere.
    pub(super) fn bytes(&self, pieces: &[usize], with_moments: bool) -> Option<Vec<u8>> {
        let mut lying = self.lying(pieces)?;
        lying.iter_mut().filter(|_| !with_moments).for_each(|(_, moments)| *moments = None);
        Some(bytes_of(&lying))
    }

    /// Those pieces, one after the other, which are not kept any more; each is given back as soon as it is copied. `None` where
    /// one is held elsewhere.
    pub(super) fn taken(&mut self, pieces: &[usize]) -> Option<PartState> {
        self.lying(pieces)?;
        let PartLengths { trained, moments: lengths, .. } = self.lengths(pieces);
        let (mut parameters, mut joined) = (Vec::with_capacity(trained), Some((Moments::with_room(&lengths), 0)));
        for state in pieces.iter().filter_map(|piece| self.pieces[*piece].state.take()) {
            parameters.extend_from_slice(&state.parameters);
            joined = joined.zip(state.moments).map(|((mut all, _), (moments, steps))| {
                all.append(&moments);
                (all, steps)
            });
        }
        Some(PartState { parameters, moments: joined })
    }

    /// Puts what a part has, of some of its pieces, in the place of what was kept of those. Where it has no moments, those that were
    /// kept stay.
    pub(super) fn put(&mut self, of_part: &[usize], (mut parameters, moments): Lying<'_>, wanted: &[usize]) {
        let mut moments = moments.map(|(moments, steps)| (moments.cursor(), steps));
        for piece in of_part {
            let Piece { lengths, state, .. } = &mut self.pieces[*piece];
            let (own, rest) = parameters.split_at(lengths.trained);
            parameters = rest;
            let moments = moments.as_mut().map(|(cursor, steps)| (cursor.take(&lengths.moments), *steps));
            if !wanted.contains(piece) {
                continue;
            }
            match state {
                Some(state) => {
                    state.parameters.copy_from_slice(own);
                    state.moments = moments.or(state.moments.take());
                }
                None => *state = Some(PartState { parameters: own.to_vec(), moments }),
            }
        }
    }

    /// The same from bytes of another machine: they are written where what was kept lies, so that nothing of it is held twice.
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
        let whole = StateView::of(bytes, lengths.trained, &lengths.moments)?;
        let mut rest = whole;
        for Piece { lengths, state: before, .. } in pieces.iter().map(|piece| &self.pieces[*piece]) {
            let own = rest.cut_off(lengths.trained, &lengths.moments);
            if before.as_ref().is_some_and(|before| !are_alike(own.parameters(), before.parameters.iter().copied())) {
                return Err(StateError::Unlike);
            }
        }
        if unwritten.is_some_and(|kind| kind != StateKind::Parameters) {
            return Ok(());
        }
        let mut rest = whole;
        for piece in pieces {
            let Piece { lengths, state, .. } = &mut self.pieces[*piece];
            let own = rest.cut_off(lengths.trained, &lengths.moments);
            let Some(state) = state.as_mut() else {
                *state = Some(own.to_state(&lengths.moments));
                continue;
            };
            if unwritten.is_none() {
                own.write_parameters(&mut state.parameters);
            }
            // Its moments are those of now.
            if own.has_moments() {
                let (moments, steps) = state.moments.get_or_insert_with(|| (lengths.moments.zeros(), 0));
                let read = own.write_moments(moments, &MomentLengths::default(), &lengths.moments);
                *steps = read.unwrap_or(*steps);
            }
        }
        Ok(())
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.pieces.len()).collect()
    }

    /// The parameters of all pieces, with those of a part of this machine; `None` where one is in neither.
    pub(super) fn parameters_with(&self, own: Option<(&[usize], &[f32])>) -> Option<Vec<f32>> {
        let mut all = Vec::with_capacity(self.pieces.iter().map(|piece| piece.lengths.trained).sum());
        let (places, mut own) = own.unwrap_or_default();
        for (number, Piece { lengths, state, .. }) in self.pieces.iter().enumerate() {
            if places.contains(&number) {
                let (first, rest) = own.split_at(lengths.trained);
                all.extend_from_slice(first);
                own = rest;
            } else {
                all.extend_from_slice(&state.as_ref()?.parameters);
            }
        }
        Some(all)
    }

    /// As [`Kept::parameters_with`] of the moments, with the steps since they were zero.
    pub(super) fn moments_with(&self, own: Option<(&[usize], (&Moments, u64))>) -> Option<(Moments, u64)> {
        let (mut all, mut steps) = (Moments::with_room(&self.lengths(&self.all()).moments), 0);
        let mut cursor = own.map(|(_, (moments, steps))| (moments.cursor(), steps));
        let places = own.map_or(&[][..], |(places, _)| places);
        for (number, Piece { lengths, state, .. }) in self.pieces.iter().enumerate() {
            if let Some((cursor, of_own)) = cursor.as_mut().filter(|_| places.contains(&number)) {
                all.append(&cursor.take(&lengths.moments));
                steps = *of_own;
            } else {
                let (moments, of_piece) = state.as_ref()?.moments.as_ref()?;
                all.append(moments);
                steps = *of_piece;
            }
        }
        Some((all, steps))
    }

    /// The parameters and moments of those pieces among the model's.
    pub(super) fn part_of(&self, pieces: &[usize], (mut parameters, moments): Lying<'_>) -> PartState {
        let mut part =
            PartState { parameters: Vec::new(), moments: moments.map(|(_, steps)| (Moments::default(), steps)) };
        let mut cursor = moments.map(|(moments, _)| moments.cursor());
        for (number, Piece { lengths, .. }) in self.pieces.iter().enumerate() {
            let is_wanted = pieces.contains(&number);
            // Of some calls moments are all there is.
            let (own, rest) = parameters.split_at(lengths.trained.min(parameters.len()));
            parameters = rest;
            let moments = cursor.as_mut().map(|cursor| cursor.take(&lengths.moments));
            if is_wanted {
                part.parameters.extend_from_slice(own);
                part.moments.iter_mut().zip(moments).for_each(|((all, _), moments)| all.append(&moments));
            }
        }
        part
    }

    /// Has the moments of all pieces but those be these.
    pub(super) fn put_moments(&mut self, moments: &Moments, steps: u64, but: &[usize]) {
        let mut cursor = moments.cursor();
        for (number, Piece { lengths, state, .. }) in self.pieces.iter_mut().enumerate() {
            let of_piece = cursor.take(&lengths.moments);
            if let Some(state) = state.as_mut().filter(|_| !but.contains(&number)) {
                state.moments = Some((of_piece, steps));
            }
        }
    }

    /// All of the model where it lies, in order, with a part of this machine, which rests; `None` where a piece is in neither.
    pub(super) fn resting<'a>(&'a self, own: Option<(&[usize], Resting<'a>)>) -> Option<Vec<Resting<'a>>> {
        let mut first = 0;
        let resting = |(number, piece): (usize, &'a Piece)| {
            let tensors = piece.optimizer.tensors.len();
            if let Some((_, own)) = own.as_ref().filter(|(places, _)| places.contains(&number)) {
                first += tensors;
                return Some(Resting { tensors: first - tensors..first, ..own.clone() });
            }
            let PartState { parameters, moments } = piece.state.as_ref()?;
            let (moments, optimizer) = (&moments.as_ref()?.0, &piece.optimizer);
            Some(Resting { parameters, moments, optimizer, tensors: 0..tensors })
        };
        self.pieces.iter().enumerate().map(resting).collect()
    }

    /// Steps since the moments of the first piece were zero, where it is kept.
    pub(super) fn steps(&self) -> Option<u64> {
        Some(self.pieces[0].state.as_ref()?.moments.as_ref()?.1)
    }
}

/// Parameters are that many times as large as those before, or as small, at most: far beyond what training does from one copy to
/// the next. A guess, as for streams.
const GROWTH_MAX: f64 = 64.0;

/// Whether parameters are of the size of those before, as far as those have one.
fn are_alike(parameters: impl Iterator<Item = f32>, before: impl Iterator<Item = f32>) -> bool {
    let size = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    let (now, before) = (size(&mut { parameters }), size(&mut { before }));
    before == 0.0 || (1.0 / GROWTH_MAX..=GROWTH_MAX).contains(&(now / before))
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

    fn joined(kept: &Kept, pieces: &[usize]) -> Option<PartState> {
        let states: Vec<PartState> =
            pieces.iter().map(|piece| kept.pieces[*piece].state.clone()).collect::<Option<_>>()?;
        let mut all = states[0].clone();
        for state in &states[1..] {
            all.parameters.extend_from_slice(&state.parameters);
            let ((moments, _), (more, _)) = (all.moments.as_mut()?, state.moments.as_ref()?);
            moments.append(more);
        }
        Some(all)
    }

    #[test]
    fn a_state_that_comes_before_a_correction_is_written_does_not_undo_it() {
        let model =
            TransformerModel { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 8, ..Default::default() };
        let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        let mut kept = Kept::initial(&manifest, None, (false, false));
        let before = joined(&kept, &[1, 2]).expect("kept");
        let (moments, _) = before.moments.clone().expect("with moments");
        let stepped = PartState { moments: Some((moments.clone(), 7)), ..before.clone() };
        let bytes = stepped.to_bytes();
        let corrected = PartState {
            parameters: before.parameters.iter().map(|value| value + 0.5).collect(),
            moments: Some((moments, 3)),
        };
        for unwritten in [StateKind::Parameters, StateKind::Training] {
            kept.put(&[1, 2], corrected.lying(), &[1, 2]);
            kept.put_bytes(&[1, 2], &bytes, Some(unwritten)).expect("a state");
            let now = joined(&kept, &[1, 2]).expect("kept");
            assert_eq!(now.parameters, corrected.parameters, "{unwritten:?}");
            // Moments are newer where no other ones are to be written.
            let steps = now.moments.map(|(_, steps)| steps);
            assert_eq!(steps, Some(if unwritten == StateKind::Parameters { 7 } else { 3 }));
        }
        kept.put_bytes(&[1, 2], &bytes, None).expect("a state");
        assert_eq!(joined(&kept, &[1, 2]), Some(stepped));
    }

    /// All weights of a large model are kept once, and a state that comes in is no second copy.
    #[test]
    fn a_state_is_written_where_what_was_kept_lies() {
        let manifest = RunManifest::default();
        let mut kept = Kept::initial(&manifest, None, (false, false));
        let of = |kept: &Kept| {
            let Some(PartState { parameters, moments: Some((moments, _)) }) = &kept.pieces[1].state else {
                panic!("kept")
            };
            [parameters.as_ptr(), moments.first.as_ptr(), moments.second.as_ptr()]
        };
        let places = of(&kept);
        let mut state = joined(&kept, &[1]).expect("kept");
        state.parameters.iter_mut().for_each(|value| *value += 0.25);
        let Some((moments, steps)) = &mut state.moments else { panic!("with moments") };
        (moments.first[3], moments.second[5], *steps) = (0.5, 0.25, 9);
        kept.put_bytes(&[1], &state.to_bytes(), None).expect("a state");
        kept.put(&[1], state.lying(), &[]);
        assert_eq!((of(&kept), joined(&kept, &[1])), (places, Some(state)));
    }

    #[test]
    fn a_state_of_another_size_is_refused_and_changes_nothing() {
        let manifest = RunManifest::default();
        let mut kept = Kept::initial(&manifest, None, (false, false));
        let before = joined(&kept, &[1]).expect("kept");
        for factor in [0.0, 0.01, 100.0] {
            let parameters = before.parameters.iter().map(|value| value * factor).collect();
            let bytes = PartState { parameters, ..before.clone() }.to_bytes();
            assert_eq!(kept.put_bytes(&[1], &bytes, None), Err(StateError::Unlike), "{factor}");
        }
        assert_eq!(joined(&kept, &[1]), Some(before));
    }
}

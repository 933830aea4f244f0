//! A large model is saved piece by piece, so that its state is not held twice.
//!
//! Parameters and moments rest while a gradient is computed. Pieces are copied meanwhile, beside the computation, as fast as
//! whoever takes them is ready for the next one. Where that takes several steps, later pieces are some steps newer than the first:
//! each tensor is saved with its own moments, of one step.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use super::{Counters, Engine, EngineState, GradientAverage};
use crate::data::Batch;
use crate::optimizer::{MomentLengths, Optimizer};
use crate::outer::OuterMomentum;
use crate::replica::{Replica, Resting};

/// Models of at most so many parameters are saved as a whole, as they are at one step.
const WHOLE_MAX: usize = 4 << 20;

/// A piece has at most so many parameters, or one tensor.
const PIECE_MAX: usize = 2 << 20;

/// How long a full receiver is left alone.
const RETRY: Duration = Duration::from_millis(2);

/// Tensors of a stage that follow each other.
struct Piece {
    /// Which of those that rest.
    stage: usize,
    /// Of the stage's flat parameters.
    range: Range<usize>,
    /// Where they are among the parameters of the model.
    place: Range<usize>,
    /// Of the stage's moments before theirs.
    before: MomentLengths,
    /// Of their moments.
    moments: MomentLengths,
}

/// A state that is being saved.
pub(super) struct Saving {
    counters: Counters,
    /// Whether an average of gradients is saved as well.
    has_average: bool,
    /// The last one first.
    left: Vec<Piece>,
    /// Copied, and not taken yet.
    copied: Option<EngineState>,
    receiver: SyncSender<EngineState>,
}

impl Saving {
    /// Copies pieces until all have been taken, or it is over. Returns whether nothing is left to do.
    fn go_on(&mut self, resting: &[Resting<'_>], outer: Option<&OuterMomentum>, is_over: impl Fn() -> bool) -> bool {
        loop {
            let Some(piece) = self.copied.take().or_else(|| self.copy_next(resting, outer)) else { return true };
            match self.receiver.try_send(piece) {
                Ok(()) => {}
                Err(TrySendError::Full(piece)) => {
                    self.copied = Some(piece);
                    if is_over() {
                        return false;
                    }
                    std::thread::sleep(RETRY);
                }
                // Whoever took them has failed, and says so.
                Err(TrySendError::Disconnected(_)) => return true,
            }
        }
    }

    fn copy_next(&mut self, resting: &[Resting<'_>], outer: Option<&OuterMomentum>) -> Option<EngineState> {
        let Piece { stage, range, place, mut before, moments } = self.left.pop()?;
        let Resting { parameters, moments: all, .. } = &resting[stage];
        let copied = all.copied(&mut before, &moments);
        let of = |values: &[f32]| values[place.clone()].to_vec();
        Some(EngineState {
            parameters: parameters[range.clone()].to_vec(),
            first_moment: copied.first,
            second_moment: copied.second,
            gradient_average: (self.has_average)
                .then_some(GradientAverage { values: copied.average, weight: copied.average_weight }),
            coded_moments: copied.coded,
            slow_weights: outer.map(|outer| of(outer.slow_weights())),
            outer_momentum: outer.map(|outer| of(outer.momentum())),
            counters: self.counters,
        })
    }
}

/// The pieces in which these tensors of a stage are saved, in order; `first`: where they begin in the model.
fn pieces(optimizer: &Optimizer, tensors: Range<usize>, (stage, first): (usize, usize)) -> Vec<Piece> {
    let (mut pieces, mut before, mut end) = (Vec::<Piece>::new(), MomentLengths::default(), first);
    for (number, (range, moments)) in optimizer.lengths_by_tensor().enumerate() {
        if tensors.contains(&number) {
            let place = end..end + range.len();
            end = place.end;
            match pieces.last_mut().filter(|last| range.end - last.range.start <= PIECE_MAX) {
                Some(last) => {
                    (last.range.end, last.place.end, last.moments) = (range.end, end, last.moments.with(&moments));
                }
                None => pieces.push(Piece { stage, range, place, before, moments }),
            }
        }
        before = before.with(&moments);
    }
    pieces
}

/// Bytes of the pieces of a state that are in memory at a time, one copied and one being written, where so many parameters are saved
/// piece by piece; `outer`: values beside the moments, for each parameter.
pub(crate) fn bytes_in_pieces(optimizer: &Optimizer, outer: usize) -> Option<usize> {
    let pieces = pieces(optimizer, 0..optimizer.tensors.len(), (0, 0));
    let is_large = pieces.last().is_some_and(|last| last.range.end > WHOLE_MAX);
    let bytes = |piece: &Piece| 4 * (1 + outer) * piece.range.len() + piece.moments.bytes();
    is_large.then(|| 2 * pieces.iter().map(bytes).max().unwrap_or_default())
}

impl Engine {
    /// Whether [`Engine::begin_to_save`] takes it piece by piece: a large model that the CPU trains, its
    /// helpers' part of it as it is kept here.
    pub fn is_saved_in_pieces(&self) -> bool {
        self.layout().parameters() > WHOLE_MAX && self.replica.rests_between()
    }

    /// Begins to hand the state over, as it is now and after the next steps: each piece has some tensors' part of all vectors, in
    /// the order of the layout. They go out while gradients are computed, and in [`Engine::save_on`]. The receiver hears of the end
    /// where nothing more comes; with fewer parameters than the model has, the state is not whole: another model has taken its place.
    /// All pieces have the counters of now.
    ///
    /// # Panics
    /// Where the state is saved as a whole: see [`Engine::is_saved_in_pieces`].
    pub fn begin_to_save(&mut self, receiver: SyncSender<EngineState>) {
        assert!(self.is_saved_in_pieces(), "a state that is saved as a whole");
        let mut left: Vec<Piece> = Vec::new();
        for (stage, Resting { optimizer, tensors, .. }) in
            self.replica.resting_between().into_iter().flatten().enumerate()
        {
            let first = left.last().map_or(0, |last| last.place.end);
            left.extend(pieces(optimizer, tensors, (stage, first)));
        }
        left.reverse();
        let counters = self.counters();
        let has_average = self.manifest.optimizer.match_batch;
        self.saving = Some(Saving { counters, has_average, left, copied: None, receiver });
        if self.replica.resting().is_none() {
            // What others have is as old as its copy: the next step would make parts of the state those of another one.
            self.save_on(None);
        }
    }

    /// Whether most moments are in codes of 8 bits.
    pub fn keeps_moments_in_8_bits(&self) -> bool {
        !self.replica.optimizer().own_lengths().is_exact()
    }

    /// Whether pieces of a state are still to go out.
    pub fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    /// Hands pieces over until the last one, or until then.
    pub fn save_on(&mut self, until: Option<Instant>) {
        let Some(saving) = &mut self.saving else { return };
        let is_over = || until.is_some_and(|until| until <= Instant::now());
        let resting = self.replica.resting_between();
        let Some(resting) = resting else {
            self.saving = None;
            return;
        };
        if saving.go_on(&resting, self.outer.as_ref(), is_over) {
            self.saving = None;
        }
    }

    /// Nothing more of the state is handed over.
    pub fn stop_saving(&mut self) {
        self.saving = None;
    }

    /// Has the replica compute a gradient; pieces of a state that is saved go out meanwhile.
    pub(super) fn gradient_beside_saving(&mut self, batch: &Batch) -> candle_core::Result<f64> {
        gradient_beside(&mut *self.replica, batch, &mut self.saving, self.outer.as_ref())
    }
}

/// The same of an engine's parts, for one batch or one record of it.
pub(super) fn gradient_beside(
    replica: &mut dyn Replica,
    batch: &Batch,
    saved: &mut Option<Saving>,
    outer: Option<&OuterMomentum>,
) -> candle_core::Result<f64> {
    let Some(saving) = saved else { return replica.compute_gradient(batch) };
    let mut is_done = false;
    let loss = replica.compute_gradient_beside(batch, &mut |resting, is_over| {
        is_done = saving.go_on(resting, outer, || is_over.load(Ordering::Relaxed));
    });
    if is_done {
        *saved = None;
    }
    loss
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use candle_core::Device;
    use murmur_protocol::manifest::{DataSource, MlpModel, OptimizerKind, TransformerModel};
    use murmur_protocol::{RunManifest, Snapshot};

    use super::*;
    use crate::optimizer::Moments;
    use crate::privacy::{PrivateSteps, SecretKey};
    use crate::{Corpus, TrainingError, TrainingOptions};

    fn engine(layers: u32, kind: OptimizerKind, moments_in_8_bits: bool) -> Result<Engine, TrainingError> {
        let (width, heads, feed_forward, context) = (512, 4, 1536, 8);
        let model = TransformerModel { layers, width, heads, feed_forward, context, ..TransformerModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        (manifest.optimizer.batch_sequences, manifest.optimizer.kind) = (2, kind);
        manifest.data.validation_sequences = 1;
        manifest.gossip.outer_learning_rate = 0.7;
        let options = TrainingOptions { moments_in_8_bits, ..TrainingOptions::default() };
        Engine::with_options(&manifest, Corpus::grammar(), [1; 32], Device::Cpu, options)
    }

    /// All of a state, of its pieces.
    fn together(pieces: impl IntoIterator<Item = EngineState>) -> EngineState {
        let mut pieces = pieces.into_iter();
        let mut whole = pieces.next().expect("a piece");
        for mut piece in pieces {
            let more = moments_of(&mut piece);
            whole.parameters.extend(piece.parameters);
            let mut moments = moments_of(&mut whole);
            moments.append(&more);
            let Moments { first, second, average, average_weight, coded } = moments;
            (whole.first_moment, whole.second_moment, whole.coded_moments) = (first, second, coded);
            whole.gradient_average =
                whole.gradient_average.map(|_| GradientAverage { values: average, weight: average_weight });
            let extend = |values: &mut Option<Vec<f32>>, more| {
                values.iter_mut().zip(more).for_each(|(v, m)| v.extend::<Vec<f32>>(m))
            };
            extend(&mut whole.slow_weights, piece.slow_weights);
            extend(&mut whole.outer_momentum, piece.outer_momentum);
        }
        whole
    }

    fn moments_of(state: &mut EngineState) -> Moments {
        let average = state.gradient_average.clone().unwrap_or(GradientAverage { values: Vec::new(), weight: 0.0 });
        Moments {
            first: std::mem::take(&mut state.first_moment),
            second: std::mem::take(&mut state.second_moment),
            average: average.values,
            average_weight: average.weight,
            coded: std::mem::take(&mut state.coded_moments),
        }
    }

    #[test]
    fn what_is_taken_between_two_steps_is_the_state() -> Result<(), TrainingError> {
        for (kind, in_8_bits) in
            [(OptimizerKind::AdamW, false), (OptimizerKind::AdamW, true), (OptimizerKind::Muon, true)]
        {
            let mut engine = engine(2, kind, in_8_bits)?;
            assert!(engine.is_saved_in_pieces());
            engine.step(0.0)?;
            let before = engine.save()?;
            let (sender, receiver) = sync_channel(0);
            let taken = std::thread::spawn(move || receiver.iter().collect::<Vec<EngineState>>());
            let counters = engine.counters();
            engine.begin_to_save(sender);
            engine.save_on(None);
            assert!(!engine.is_saving());
            let pieces = taken.join().expect("no panic");
            assert!(pieces.len() > 3, "{}", pieces.len());
            assert!(pieces.iter().all(|piece| piece.parameters.len() <= PIECE_MAX && piece.counters == counters));
            assert!(together(pieces) == before, "{kind:?}, in 8 bits: {in_8_bits}");
        }
        Ok(())
    }

    /// Whoever takes them is slow: one piece in each step. Training is not held up by that, and takes the same steps.
    #[test]
    fn a_slow_receiver_has_each_tensor_as_it_was_at_some_step() -> Result<(), TrainingError> {
        let [mut alone, mut saved] = [engine(2, OptimizerKind::AdamW, false)?, engine(2, OptimizerKind::AdamW, false)?];
        let (sender, receiver) = sync_channel(0);
        let (ask, asked) = sync_channel::<()>(0);
        let taken =
            std::thread::spawn(move || asked.iter().map_while(|()| receiver.recv().ok()).collect::<Vec<EngineState>>());
        saved.begin_to_save(sender);
        let mut states = vec![saved.save()?];
        for step in 0..32 {
            if saved.is_saving() {
                let _ = ask.try_send(());
            }
            saved.step(f64::from(step))?;
            alone.step(f64::from(step))?;
            assert!(saved.parameters()? == alone.parameters()?, "step {step}");
            states.push(saved.save()?);
        }
        assert!(!saved.is_saving());
        drop(ask);
        let pieces = taken.join().expect("no panic");
        let (mut begin, mut seen) = (0, Vec::new());
        for piece in pieces {
            let range = begin..begin + piece.parameters.len();
            begin = range.end;
            let is_of = |state: &EngineState| {
                let parts = [
                    (&state.parameters, &piece.parameters),
                    (&state.first_moment, &piece.first_moment),
                    (&state.second_moment, &piece.second_moment),
                ];
                parts.into_iter().all(|(all, part)| all[range.clone()] == part[..])
            };
            seen.push(states.iter().position(is_of).expect("parameters and moments of one step"));
        }
        assert_eq!(begin, saved.layout().parameters());
        assert!(seen.is_sorted() && seen.last() > seen.first(), "{seen:?}");
        Ok(())
    }

    #[test]
    fn of_a_model_that_another_replaces_nothing_more_is_saved() -> Result<(), TrainingError> {
        let mut engine = engine(2, OptimizerKind::AdamW, false)?;
        let (sender, receiver) = sync_channel(0);
        engine.begin_to_save(sender);
        engine.save_on(Some(Instant::now()));
        assert!(engine.is_saving());
        let values: Vec<f32> = engine.parameters()?;
        engine.load_state(&[Snapshot::from(values).to_payload()])?;
        assert!(!engine.is_saving() && receiver.recv().is_err());
        Ok(())
    }

    #[test]
    fn of_a_replica_that_another_members_replaces_nothing_more_is_saved() -> Result<(), TrainingError> {
        let mut engine = engine(2, OptimizerKind::AdamW, false)?;
        let replica = engine.replica()?.to_payload();
        let (sender, receiver) = sync_channel(0);
        engine.begin_to_save(sender);
        let taken = std::thread::spawn(move || (receiver.recv().is_ok(), receiver));
        while !taken.is_finished() {
            engine.save_on(Some(Instant::now()));
        }
        let (has_begun, receiver) = taken.join().expect("no panic");
        assert!(has_begun && engine.is_saving());
        engine.load_replica(&replica)?;
        assert!(!engine.is_saving() && receiver.recv().is_err());
        Ok(())
    }

    /// Whoever takes the pieces is fast: all go out beside the gradients of one private step's records.
    #[test]
    fn pieces_go_out_beside_a_private_step() -> Result<(), TrainingError> {
        let model = MlpModel { classes: 5, hidden: vec![2048, 2048], ..MlpModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        (manifest.data.source, manifest.data.shift_pixels) = (DataSource::Idx, 0);
        manifest.optimizer.batch_sequences = 10;
        let mut engine = Engine::new(&manifest, Corpus::made_up(&manifest), [1; 32], Device::Cpu)?;
        engine.begin_private(PrivateSteps { clip: 1.0, noise: 1.0 }, SecretKey::new([9; 32])).expect("images");
        engine.permit(1);
        let before = engine.save()?;
        let (sender, receiver) = sync_channel(0);
        let taken = std::thread::spawn(move || receiver.into_iter().collect::<Vec<EngineState>>());
        engine.begin_to_save(sender);
        let report = engine.step(0.0)?;
        assert!(report.loss.is_finite(), "it takes records");
        assert!(!engine.is_saving(), "all pieces are out");
        assert!(together(taken.join().expect("no panic")) == before, "as it was before the step");
        assert!(engine.parameters()? != before.parameters, "the step moves it");
        Ok(())
    }

    #[test]
    fn small_models_are_saved_as_a_whole() -> Result<(), TrainingError> {
        assert!(!engine(1, OptimizerKind::AdamW, false)?.is_saved_in_pieces());
        Ok(())
    }
}

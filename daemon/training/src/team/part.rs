//! One part of a model on one machine of a team: it does what it is ordered to, a microbatch or a step at a time, and decides
//! nothing.

use murmur_protocol::{ModelLayout, RunManifest};

use super::state::{Lying, PartState, StateView, bytes_of};
use crate::data::{Batch, TokenBatch};
use crate::engine::cut::{StageDevice, stage_on_device, why_not_cut};
use crate::engine::{TrainingError, TrainingOptions};
use crate::model::lora::lora_layout;
use crate::model::stage::{BackwardOutput, Evaluated, StageSpec};
use crate::model::transformer::stage_layout;
use crate::model::{self, Evaluation, Transformer, transformer_of};
use crate::ops::base_weights::BaseWeights;
use crate::optimizer::{MomentLengths, Moments, Optimizer};
use crate::replica::Resting;
use crate::replica::stage::{Microbatch, Stage};

/// A part of a batch, as one part of the model sees it: with tokens, or by its size alone.
#[derive(Clone, Debug)]
pub struct Piece(pub(super) Microbatch);

impl Piece {
    /// One of so many sequences of this length whose tokens another machine has. `lane` and `is_first` as the machine with the
    /// tokens says: gradients of lanes are added up at the end, and the first piece of a lane replaces what was there before.
    pub fn of_stream(sequences: usize, length: usize, lane: usize, is_first: bool) -> Piece {
        let tokens = vec![0; sequences * length];
        let batch = Batch::Tokens(TokenBatch { inputs: tokens.clone(), targets: tokens, sequences });
        // Another machine embeds.
        Piece(Microbatch { batch, lane, is_first, is_last: false })
    }

    /// Of which of the two gradients that are added at the end: 0 or 1.
    pub(super) fn lane(&self) -> usize {
        self.0.lane
    }

    fn tokens(&self) -> Result<&TokenBatch, TrainingError> {
        Ok(self.0.batch.tokens()?)
    }
}

/// How long the vectors of a part are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartLengths {
    /// Of the frozen base and all else that is not trained; without adapters the same as `trained`.
    pub weights: usize,
    /// Of what is trained.
    pub trained: usize,
    /// Of the optimizer's moments.
    pub moments: MomentLengths,
}

impl PartLengths {
    /// Of one part of the run's model, whose moments are in 8 bits or all in 32.
    pub fn of(manifest: &RunManifest, part: &StageSpec, moments_in_8_bits: bool) -> PartLengths {
        let (weights, trained) = layouts(manifest, part);
        let optimizer = Optimizer::new(&manifest.optimizer, &trained).with_moments(moments_in_8_bits);
        PartLengths { weights: weights.parameters(), trained: trained.parameters(), moments: optimizer.own_lengths() }
    }
}

/// Of the weights of a part, and of what is trained of it.
pub(super) fn layouts(manifest: &RunManifest, part: &StageSpec) -> (ModelLayout, ModelLayout) {
    let weights = stage_layout(transformer_of(manifest), part);
    let trained = if manifest.lora.is_on() { lora_layout(&weights, &manifest.lora) } else { weights.clone() };
    (weights, trained)
}

/// A part of a model, with gradient and moments.
pub struct TeamPart {
    stage: Box<dyn Stage>,
    spec: StageSpec,
    lengths: PartLengths,
    width: usize,
    /// A GPU has one gradient, to which both lanes add.
    has_lanes: bool,
    /// Whether the batch under way has been begun on the device.
    has_begun: bool,
}

impl TeamPart {
    /// The part of the run's model, with the parameters to begin with; of a run that trains adapters on its `base`, the part's own
    /// weights. On the CPU it computes with so many threads.
    ///
    /// # Errors
    /// When the model cannot be cut, the device has no memory or no kernels for it, or the base is missing or of another size.
    pub fn load(
        manifest: &RunManifest,
        spec: StageSpec,
        base: Option<BaseWeights>,
        (device, threads): (&StageDevice, usize),
        options: &TrainingOptions,
    ) -> Result<TeamPart, TrainingError> {
        if let Some(reason) = why_not_cut(manifest) {
            return Err(TrainingError::NotCut(reason.to_owned()));
        }
        let moments_in_8_bits = options.keeps_8_bits(manifest, device.is_cpu());
        let options = TrainingOptions { moments_in_8_bits, ..*options };
        let lengths = PartLengths::of(manifest, &spec, moments_in_8_bits);
        if let Some(actual) = base.as_ref().map(BaseWeights::len).filter(|actual| *actual != lengths.weights) {
            return Err(TrainingError::WrongLength { what: "the base", expected: lengths.weights, actual });
        }
        let model = Transformer::of_stage(transformer_of(manifest), spec.clone());
        let stage = stage_on_device(manifest, model, base, (device, threads.max(1)), &options)?;
        let (width, has_lanes) = (transformer_of(manifest).width as usize, device.is_cpu());
        Ok(TeamPart { stage, spec, lengths, width, has_lanes, has_begun: false })
    }

    /// Which part it is.
    pub fn spec(&self) -> &StageSpec {
        &self.spec
    }

    /// How long its vectors are.
    pub fn lengths(&self) -> &PartLengths {
        &self.lengths
    }

    /// Forgets what a batch that was given up has left. Parameters and moments are what they were.
    ///
    /// # Errors
    /// When the device fails.
    pub fn discard(&mut self) -> Result<(), TrainingError> {
        self.has_begun = false;
        Ok(self.stage.begin()?)
    }

    /// The output stream `[rows, width]` of a piece, from its input stream where the part does not read tokens; none where it
    /// computes losses. Keeps what the backward needs.
    ///
    /// # Errors
    /// When the stream is of another size, or the device fails.
    pub fn forward(&mut self, piece: &Piece, input: Option<Vec<f32>>) -> Result<Option<Vec<f32>>, TrainingError> {
        self.check(piece, input.as_deref(), self.reads(input.is_some()))?;
        if !std::mem::replace(&mut self.has_begun, true) {
            self.stage.begin()?;
        }
        Ok(self.stage.forward(&piece.0, input)?)
    }

    /// The backward of the piece whose forward was first of those that wait: (the sum of the losses, the gradient of the input
    /// stream). The gradient is that of `share` times the losses' sum; a part that computes no losses does not read it.
    ///
    /// # Errors
    /// As [`TeamPart::forward`].
    ///
    /// # Panics
    /// When no forward waits.
    pub fn backward(
        &mut self,
        piece: &Piece,
        to_output: Option<Vec<f32>>,
        share: f32,
    ) -> Result<(f64, Option<Vec<f32>>), TrainingError> {
        let takes_one = !self.spec.predicts || (self.spec.is_parted() && to_output.is_some());
        self.check(piece, to_output.as_deref(), takes_one)?;
        let alone = || Microbatch { lane: 0, ..piece.0.clone() };
        let in_one = (piece.0.lane > 0 && !self.has_lanes).then(alone);
        let BackwardOutput { loss, to_input } =
            self.stage.backward(in_one.as_ref().unwrap_or(&piece.0), to_output, share)?;
        Ok((loss, to_input))
    }

    /// Ends a batch of so many lanes: the sum of the squares of each tensor of its gradient.
    ///
    /// # Errors
    /// When the device fails.
    pub fn sum(&mut self, lanes: usize) -> Result<Vec<f64>, TrainingError> {
        self.has_begun = false;
        self.stage.end(if self.has_lanes { lanes } else { 1 })?;
        Ok(self.stage.replica().squares()?)
    }

    /// A step with the batch's gradient. The norm is the whole model's; `members` as in [`Engine::set_members`](crate::Engine::set_members).
    ///
    /// # Errors
    /// When the device fails.
    pub fn step(&mut self, gradient_norm: f64, learning_rate: f64, members: f64) -> Result<(), TrainingError> {
        let replica = self.stage.replica_mut();
        replica.set_members(members);
        Ok(replica.step(gradient_norm, learning_rate)?)
    }

    /// A forward alone: the output stream, or how well the part with the head predicts.
    ///
    /// # Errors
    /// As [`TeamPart::forward`].
    pub fn evaluate(&mut self, piece: &Piece, input: Option<Vec<f32>>) -> Result<PartOutput, TrainingError> {
        self.check(piece, input.as_deref(), self.reads(input.is_some()))?;
        Ok(match self.stage.evaluate(&piece.0.batch, input)? {
            Evaluated::Stream(stream) => PartOutput::Stream(stream),
            Evaluated::Evaluation(evaluation) => PartOutput::Evaluation(evaluation),
        })
    }

    /// Parameters and moments, for another machine.
    ///
    /// # Errors
    /// When the device fails.
    pub fn copy(&self) -> Result<Vec<u8>, TrainingError> {
        self.with_state(|state| bytes_of(&[state]))
    }

    /// Takes over what another machine's [`TeamPart::copy`] has given: parameters, and moments where they come along.
    ///
    /// # Errors
    /// When it is of another part, or holds values that are not finite; nothing has changed then.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), TrainingError> {
        let lengths = self.lengths;
        let PartLengths { trained, moments, .. } = lengths;
        let view = StateView::of(bytes, trained, &moments)?;
        match self.write_where_it_lies(&view, &PartLengths::default(), &lengths) {
            true => Ok(()),
            false => self.set_state(view.to_state(&moments)),
        }
    }

    /// Writes a state of some of its tensors, which follow others of those lengths, into the vectors that there are. Returns whether
    /// it could: they have to lie in the machine's memory.
    pub(super) fn write_where_it_lies(
        &mut self,
        view: &StateView<'_>,
        at: &PartLengths,
        lengths: &PartLengths,
    ) -> bool {
        let Some((parameters, moments, steps)) = self.stage.replica_mut().resting_mut() else { return false };
        view.write_parameters(&mut parameters[at.trained..][..lengths.trained]);
        *steps = view.write_moments(moments, &at.moments, &lengths.moments).unwrap_or(*steps);
        true
    }

    /// Its parameters and moments where they lie in the machine's memory, else a copy of them.
    pub(super) fn with_state<T>(&self, read: impl FnOnce(Lying<'_>) -> T) -> Result<T, TrainingError> {
        let replica = self.stage.replica();
        match self.resting() {
            Some(Resting { parameters, moments, .. }) => {
                Ok(read((parameters, Some((moments, replica.steps_of_moments())))))
            }
            None => Ok(read(self.state()?.lying())),
        }
    }

    /// The same, where they lie there.
    pub(super) fn resting(&self) -> Option<Resting<'_>> {
        self.stage.replica().resting()?.into_iter().next()
    }

    pub(super) fn steps_of_moments(&self) -> u64 {
        self.stage.replica().steps_of_moments()
    }

    pub(super) fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<(), TrainingError> {
        Ok(self.stage.replica_mut().set_moments(moments, steps)?)
    }

    pub(super) fn parameters(&self) -> Result<Vec<f32>, TrainingError> {
        Ok(self.stage.replica().parameters()?.into_owned())
    }

    pub(super) fn edit(&mut self, edit: &mut dyn FnMut(&mut [f32])) -> Result<(), TrainingError> {
        Ok(self.stage.replica_mut().edit_parameters(edit)?)
    }

    pub(super) fn forget_moments(&mut self) -> Result<(), TrainingError> {
        let replica = self.stage.replica_mut();
        let moments = replica.optimizer().moments();
        Ok(replica.set_moments(moments, 0)?)
    }

    pub(super) fn travel(&self, learning_rate: f64) -> f64 {
        self.stage.replica().optimizer().travel(learning_rate)
    }

    pub(super) fn state(&self) -> Result<PartState, TrainingError> {
        let replica = self.stage.replica();
        Ok(PartState { parameters: replica.parameters()?.into_owned(), moments: Some(replica.moments()?) })
    }

    pub(super) fn set_state(&mut self, state: PartState) -> Result<(), TrainingError> {
        let replica = self.stage.replica_mut();
        replica.set_parameters(&state.parameters)?;
        if let Some((moments, steps)) = state.moments {
            replica.set_moments(moments, steps)?;
        }
        Ok(())
    }

    /// Whether a forward takes a stream: the layers of a parted part do, its embedding does not.
    fn reads(&self, is_given: bool) -> bool {
        !self.spec.embeds || (self.spec.is_parted() && is_given)
    }

    fn check(&self, piece: &Piece, stream: Option<&[f32]>, takes_one: bool) -> Result<(), TrainingError> {
        let rows = piece.tokens()?.inputs.len();
        let expected = if takes_one { rows * self.width } else { 0 };
        let actual = stream.map_or(0, <[f32]>::len);
        if expected == actual && stream.is_some() == takes_one && rows > 0 {
            return Ok(());
        }
        Err(TrainingError::WrongLength { what: "a stream", expected, actual })
    }
}

/// What a part gives of a piece that is only evaluated.
#[derive(Clone, Debug, PartialEq)]
pub enum PartOutput {
    /// The stream `[rows, width]` for the part after it.
    Stream(Vec<f32>),
    /// The last one's answer.
    Evaluation(Evaluation),
}

/// Which tensors of the base a part holds: for each (its first value in the whole model's flat vector, its length, whether it is a
/// matrix), in order.
pub fn base_tensors(manifest: &RunManifest, part: &StageSpec) -> Vec<(usize, usize, bool)> {
    let whole = model::layout(&manifest.model);
    let of_part = stage_layout(transformer_of(manifest), part);
    let place = |name: &str| whole.tensor(name).expect("a part has tensors of the whole");
    let tensors = of_part.tensors().iter().map(|tensor| place(&tensor.name));
    tensors.map(|tensor| (tensor.offset, tensor.len(), tensor.shape.len() > 1)).collect()
}

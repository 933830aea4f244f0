//! What a helper does: it holds one stage at a time and carries out the orders of its state machine
//! ([`murmur_protocol::team`]).

use std::ops::Range;
use std::time::Instant;

use murmur_protocol::manifest::TransformerModel;
use murmur_protocol::numerics::StreamCodec;
use murmur_protocol::team::bounds::REASON_BYTES_MAX;
use murmur_protocol::team::{
    Assign, HelperEvent, LayerRange, Loading, Outcome, StateKind, StepFactors, Stream, Work, WorkKind,
};
use murmur_protocol::{Payload, RunManifest};

use super::part::{PartLengths, PartOutput, Piece, TeamPart, base_tensors};
use super::state::{Lying, PartState, StateView, bytes_of};
use super::streams::{decoded, encoded};
use crate::engine::{StageDevice, TrainingError, TrainingOptions};
use crate::model::transformer::stage_layout;
use crate::model::{StageSpec, transformer_of};
use crate::ops::base_weights::BaseWeights;

/// A helper's stage, and where it computes.
pub struct HelperStage {
    device: StageDevice,
    threads: usize,
    options: TrainingOptions,
    stage: Option<Held>,
}

/// A stage that was assigned.
struct Held {
    manifest: RunManifest,
    spec: StageSpec,
    codec: (StreamCodec, usize),
    rows_max: u32,
    /// `None` until its base is here.
    part: Option<TeamPart>,
    /// Of a state that goes or comes in parts, where the stage's own vectors are not in the machine's memory: by its request, all of it;
    /// and what has come.
    copied: Option<(u64, PartState)>,
    come: Option<PartState>,
    /// Lanes that the batch under way has, as far as they have been seen.
    lanes: usize,
}

impl HelperStage {
    /// None yet, on this device; on the CPU it is going to be computed by so many threads.
    pub fn new(device: StageDevice, threads: usize, options: TrainingOptions) -> HelperStage {
        HelperStage { device, threads, options: TrainingOptions { weightless: true, ..options }, stage: None }
    }

    /// Builds a stage in place of the one there is. Where the layers and the run are the same, parameters, moments and base
    /// stay.
    pub fn load(&mut self, assign: &Assign) -> HelperEvent {
        let result = self.loaded(assign).map_err(|error| short(&error));
        HelperEvent::Loaded { epoch: assign.epoch, result }
    }

    fn loaded(&mut self, assign: &Assign) -> Result<Loading, TrainingError> {
        let text = &assign.run;
        let manifest = RunManifest::from_text(text).map_err(|error| TrainingError::Team(error.to_string()))?;
        let spec = StageSpec { layers: assign.layers.numbers(), embeds: false, predicts: false };
        let fits = |model: &&TransformerModel| model.width == assign.width && spec.layers.end <= model.layers;
        let Some(&TransformerModel { width, .. }) = manifest.model.transformer().filter(fits) else {
            return Err(TrainingError::Team("the stage does not fit the run".to_owned()));
        };
        let codec = (StreamCodec::new(assign.wire, width as usize), width as usize);
        let same = |held: &Held| held.manifest == manifest && held.spec == spec;
        let part = self.stage.take().filter(same).and_then(|held| held.part);
        let part = match part {
            Some(mut part) => {
                part.discard()?;
                Some(part)
            }
            None if manifest.lora.is_on() => None,
            None => Some(self.built(&manifest, &spec, None)?),
        };
        let loading = if part.is_some() { Loading::Complete } else { Loading::BaseMissing };
        self.stage =
            Some(Held { manifest, spec, codec, rows_max: assign.rows_max, part, copied: None, come: None, lanes: 1 });
        Ok(loading)
    }

    fn built(
        &self,
        manifest: &RunManifest,
        spec: &StageSpec,
        base: Option<BaseWeights>,
    ) -> Result<TeamPart, TrainingError> {
        TeamPart::load(manifest, spec.clone(), base, (&self.device, self.threads), &self.options)
    }

    /// Gives the stage's memory back.
    pub fn unload(&mut self) {
        self.stage = None;
    }

    /// Whether there is one.
    pub fn is_loaded(&self) -> bool {
        self.stage.is_some()
    }

    /// The run of the stage, and its layers; `None` where there is none.
    pub(super) fn of_run(&self) -> Option<(&RunManifest, Range<u32>)> {
        self.stage.as_ref().map(|held| (&held.manifest, held.spec.layers.clone()))
    }

    /// A copy of the stage's parameters.
    ///
    /// # Errors
    /// As [`HelperStage::sum`].
    pub(super) fn parameters(&mut self) -> Result<Vec<f32>, TrainingError> {
        self.part()?.parameters()
    }

    /// Changes the stage's parameters, between two batches.
    ///
    /// # Errors
    /// As [`HelperStage::sum`].
    pub(super) fn edit(&mut self, edit: &mut dyn FnMut(&mut [f32])) -> Result<(), TrainingError> {
        self.part()?.edit(edit)
    }

    /// Has the optimizer's moments begin anew.
    ///
    /// # Errors
    /// As [`HelperStage::sum`].
    pub(super) fn forget_moments(&mut self) -> Result<(), TrainingError> {
        self.part()?.forget_moments()
    }

    /// How far a step at this learning rate moves the stage's parameters, at most: a Euclidean norm.
    pub(super) fn travel(&mut self, learning_rate: f64) -> f64 {
        self.part().map_or(0.0, |part| part.travel(learning_rate))
    }

    /// Carries out a piece of work.
    pub fn compute(&mut self, work: Work, input: &Stream) -> HelperEvent {
        let begin = Instant::now();
        let outcome = self.outcome(work, input).unwrap_or_else(|error| Outcome::Failed(short(&error)));
        HelperEvent::Computed { work, outcome, busy: begin.elapsed() }
    }

    fn outcome(&mut self, work: Work, input: &Stream) -> Result<Outcome, TrainingError> {
        let held = self.stage.as_mut().ok_or_else(missing)?;
        let part = held.part.as_mut().ok_or_else(missing)?;
        let (rows, context) = (input.rows, held.manifest.model.context());
        if rows == 0 || rows > held.rows_max || !rows.is_multiple_of(context) {
            return Ok(Outcome::InputUnfit);
        }
        let Ok(values) = decoded(held.codec, input) else { return Ok(Outcome::InputUnfit) };
        let lane = usize::from(work.lane.min(1));
        let piece = Piece::of_stream((rows / context) as usize, context as usize, lane, work.is_first);
        let output = match work.kind {
            WorkKind::Forward => part.forward(&piece, Some(values))?,
            WorkKind::Backward => {
                held.lanes = if work.is_first && lane == 0 { 1 } else { held.lanes.max(lane + 1) };
                // The share is the loss's, which another machine computes.
                part.backward(&piece, Some(values), 1.0)?.1
            }
            WorkKind::Evaluate => match part.evaluate(&piece, Some(values))? {
                PartOutput::Stream(stream) => Some(stream),
                PartOutput::Evaluation(_) => unreachable!("a helper's stage has no head"),
            },
        };
        Ok(output.map_or(Outcome::Output(None), |output| encoded(held.codec, &output)))
    }

    /// All backwards are done.
    ///
    /// # Errors
    /// When the device fails; the stage is of no use then.
    pub fn sum(&mut self, epoch: u64, batch: u64) -> Result<HelperEvent, TrainingError> {
        let held = self.stage.as_mut().ok_or_else(missing)?;
        let squares = held.part.as_mut().ok_or_else(missing)?.sum(held.lanes)?;
        Ok(HelperEvent::Summed { epoch, batch, squares })
    }

    /// Steps with the gradient.
    ///
    /// # Errors
    /// As [`HelperStage::sum`].
    pub fn step(&mut self, epoch: u64, batch: u64, factors: StepFactors) -> Result<HelperEvent, TrainingError> {
        let StepFactors { gradient_norm, learning_rate, members } = factors;
        self.part()?.step(gradient_norm, learning_rate, members)?;
        Ok(HelperEvent::Stepped { epoch, batch })
    }

    /// Forgets a batch.
    ///
    /// # Errors
    /// As [`HelperStage::sum`].
    pub fn discard(&mut self) -> Result<(), TrainingError> {
        self.part()?.discard()
    }

    /// A copy of the state of some of the stage's layers.
    ///
    /// # Errors
    /// As [`HelperStage::sum`].
    pub fn copy(&mut self, request: u64, kind: StateKind, layers: LayerRange) -> Result<HelperEvent, TrainingError> {
        let held = self.stage.as_mut().ok_or_else(missing)?;
        let (before, own) = held.lengths_of(layers);
        let part = held.part.as_ref().ok_or_else(missing)?;
        if part.resting().is_none() && held.copied.as_ref().is_none_or(|(of, _)| *of != request) {
            held.copied = Some((request, part.state()?));
        }
        let bytes = |(parameters, moments): Lying<'_>| {
            let moments = moments.filter(|_| kind == StateKind::Training);
            let moments =
                moments.map(|(moments, steps)| (moments.copied(&mut before.moments.clone(), &own.moments), steps));
            let moments = moments.as_ref().map(|(moments, steps)| (moments, *steps));
            bytes_of(&[(&parameters[before.trained..][..own.trained], moments)])
        };
        let payload = Payload::from(match &held.copied {
            Some((of, state)) if *of == request => bytes(state.lying()),
            _ => part.with_state(bytes)?,
        });
        held.copied = held.copied.take().filter(|_| layers.end < held.spec.layers.end);
        Ok(HelperEvent::Copied { request, payload })
    }

    /// Takes a state of some layers up, or the base of all.
    pub fn write(&mut self, request: u64, kind: StateKind, layers: LayerRange, payload: &Payload) -> HelperEvent {
        let written = match kind {
            StateKind::Base => self.write_base(payload.bytes()),
            StateKind::Training | StateKind::Parameters => self.write_state(layers, payload.bytes()),
            StateKind::Correction => Err(TrainingError::Team("corrections come as parameters".to_owned())),
        };
        HelperEvent::Written { request, result: written.map_err(|error| short(&error)) }
    }

    fn write_state(&mut self, layers: LayerRange, bytes: &[u8]) -> Result<(), TrainingError> {
        let held = self.stage.as_mut().ok_or_else(missing)?;
        let (before, own) = held.lengths_of(layers);
        let part = held.part.as_mut().ok_or_else(missing)?;
        let view = StateView::of(bytes, own.trained, &own.moments)?;
        if part.write_where_it_lies(&view, &before, &own) {
            return Ok(());
        }
        let state = view.to_state(&own.moments);
        let come = match held.come.take().filter(|_| layers.first > held.spec.layers.start) {
            Some(come) => come.followed_by(&state),
            None => state,
        };
        if layers.end < held.spec.layers.end {
            held.come = Some(come);
            return Ok(());
        }
        part.set_state(come)
    }

    fn write_base(&mut self, bytes: &[u8]) -> Result<(), TrainingError> {
        let held = self.stage.as_ref().ok_or_else(missing)?;
        let base = base_of_bytes(&held.manifest, &held.spec, bytes)
            .ok_or_else(|| TrainingError::Team("the base that was sent is not that of the stage".to_owned()))?;
        let part = self.built(&held.manifest, &held.spec, Some(base))?;
        self.stage.as_mut().ok_or_else(missing)?.part = Some(part);
        Ok(())
    }

    fn part(&mut self) -> Result<&mut TeamPart, TrainingError> {
        self.stage.as_mut().and_then(|held| held.part.as_mut()).ok_or_else(missing)
    }
}

impl Held {
    /// How long the vectors of the layers before these are, and those of these.
    fn lengths_of(&self, layers: LayerRange) -> (PartLengths, PartLengths) {
        let moments_in_8_bits = self.part.as_ref().is_some_and(|part| !part.lengths().moments.is_exact());
        let of = |layers: Range<u32>| {
            let part = StageSpec { layers, embeds: false, predicts: false };
            PartLengths::of(&self.manifest, &part, moments_in_8_bits)
        };
        (of(self.spec.layers.start..layers.first), of(layers.numbers()))
    }
}

/// The weights of a part from what a captain's `base_bytes` has written.
fn base_of_bytes(manifest: &RunManifest, part: &StageSpec, bytes: &[u8]) -> Option<BaseWeights> {
    let mut weights = BaseWeights::with_room(&stage_layout(transformer_of(manifest), part), manifest.lora.base_bits);
    let mut rest = bytes;
    for (_, length, is_matrix) in base_tensors(manifest, part) {
        let (count, later) = rest.split_first_chunk::<8>()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let (own, later) = later.split_at_checked(count)?;
        weights.push_encoded(is_matrix, length, own)?;
        rest = later;
    }
    rest.is_empty().then_some(weights)
}

fn missing() -> TrainingError {
    TrainingError::Team("the stage is not in memory".to_owned())
}

/// Short enough for a message.
fn short(error: &TrainingError) -> String {
    let text = error.to_string();
    let end = (0..=text.len().min(REASON_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

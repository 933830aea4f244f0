//! What a captain does itself: it holds the first and the last stage of a cut, keeps what it has of the others, and carries out the
//! orders of its state machine ([`murmur_protocol::team`]).

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use candle_core::Device;
use murmur_protocol::numerics::StreamCodec;
use murmur_protocol::team::{CaptainEvent, Cut, CutStage, LayerRange, Outcome, StateKind, StepFactors, Stream, Wire};
use murmur_protocol::team::{Work, WorkKind};
use murmur_protocol::{Payload, PeerId, RunManifest};

use super::kept::{Kept, pieces};
use super::part::{PartOutput, Piece, TeamPart, base_tensors};
use super::state::{PartState, StateError};
use super::streams::{decoded, encoded};
use crate::engine::{TrainingError, TrainingOptions};
use crate::model::{Evaluation, StageSpec, transformer_of};
use crate::ops::base_weights::BaseWeights;
use crate::pretrained::PretrainedBase;

/// Where the frozen weights of a base are, of which each machine holds its layers alone.
#[derive(Debug)]
pub enum TeamBase {
    /// There is none: all of the model is trained.
    None,
    /// In memory.
    Held(BaseWeights),
    /// In the files of this folder, which are the run's base; a part is read when it is needed, in so many bits.
    Folder(PathBuf, u32),
}

impl TeamBase {
    /// The weights of a part, in the bits in which the run holds them.
    fn part(&self, manifest: &RunManifest, part: &StageSpec) -> Result<Option<BaseWeights>, TrainingError> {
        if !manifest.lora.is_on() {
            return Ok(None);
        }
        match self {
            TeamBase::None => Err(TrainingError::BaseMissing),
            TeamBase::Held(weights) => {
                let tensors = base_tensors(manifest, part);
                let first = tensors.first().map_or(0, |(first, ..)| *first);
                let end = tensors.last().map_or(0, |(first, length, _)| first + length);
                Ok(Some(weights.part(first..end)))
            }
            TeamBase::Folder(folder, bits) => {
                let read = PretrainedBase::read_part(folder, *bits, part);
                Ok(Some(read.map_err(|error| TrainingError::Team(error.to_string()))?))
            }
        }
    }
}

/// A batch as it passes through a team.
#[derive(Clone, Debug, Default)]
pub(super) struct Passing {
    pub(super) pieces: Vec<Piece>,
    /// The gradient is that of so much of the losses' sum.
    pub(super) share: f32,
    /// The sum of the losses of each lane.
    pub(super) losses: [f64; 2],
    /// Of one that is only evaluated.
    pub(super) evaluation: Evaluation,
}

/// The captain's own stages, and what it keeps of all others.
pub(super) struct CaptainModel {
    manifest: RunManifest,
    base: TeamBase,
    device: Device,
    threads: usize,
    options: TrainingOptions,
    codec: (StreamCodec, usize),
    /// What no own stage has.
    pub(super) kept: Kept,
    /// Own stages with their numbers in the cut; none before the first one.
    own: Vec<(usize, TeamPart)>,
    pub(super) cut: Option<(u64, Cut)>,
    pub(super) passing: Passing,
}

/// An invariant of [`CaptainModel`].
const IS_KEPT: &str = "what no own stage has is kept";

/// The part that a stage is.
fn part_of(stage: &CutStage) -> StageSpec {
    StageSpec { layers: stage.layers.numbers(), embeds: stage.embeds, predicts: stage.predicts }
}

fn of_layers(layers: LayerRange) -> StageSpec {
    StageSpec { layers: layers.numbers(), embeds: false, predicts: false }
}

impl CaptainModel {
    pub(super) fn new(
        manifest: RunManifest,
        base: TeamBase,
        (device, threads): (Device, usize),
        options: TrainingOptions,
        wire: Wire,
    ) -> CaptainModel {
        let moments_in_8_bits = options.keeps_8_bits(&manifest, device.is_cpu());
        let from_base = match &base {
            TeamBase::Held(weights) if !manifest.lora.is_on() => Some(weights),
            _ => None,
        };
        let kept = Kept::initial(&manifest, from_base, (moments_in_8_bits, options.weightless));
        // All of a base that is trained is in what is kept.
        let base = if manifest.lora.is_on() { base } else { TeamBase::None };
        let width = transformer_of(&manifest).width as usize;
        let codec = (StreamCodec::new(wire, width), width);
        let (own, cut, passing) = (Vec::new(), None, Passing::default());
        CaptainModel { manifest, base, device, threads, options, codec, kept, own, cut, passing }
    }

    /// Builds the own stages of a cut from what is kept and from the own stages there are.
    pub(super) fn load(&mut self, epoch: u64, cut: Cut) -> Result<(), TrainingError> {
        self.take_back()?;
        self.cut = None;
        for number in cut.of_captain() {
            let spec = part_of(&cut.stages[number]);
            let base = self.base.part(&self.manifest, &spec)?;
            let place = (&self.device, self.threads);
            let options = TrainingOptions { weightless: true, ..self.options };
            let mut part = TeamPart::load(&self.manifest, spec.clone(), base, place, &options)?;
            let state = self.kept.taken(pieces(&spec));
            part.set_state(state.expect(IS_KEPT))?;
            self.own.push((number, part));
        }
        self.cut = Some((epoch, cut));
        Ok(())
    }

    /// Keeps the own stages' states in their place, and gives their memory back.
    fn take_back(&mut self) -> Result<(), TrainingError> {
        for (_, part) in self.own.drain(..) {
            self.kept.put(pieces(part.spec()), &part.state()?);
        }
        Ok(())
    }

    /// The bytes of some layers for another machine; `None` where they are not here.
    pub(super) fn read_out(&mut self, layers: LayerRange, kind: StateKind) -> Result<Option<Payload>, TrainingError> {
        let part = of_layers(layers);
        if kind == StateKind::Base {
            let Some(base) = self.base.part(&self.manifest, &part)? else { return Ok(None) };
            return Ok(Some(Payload::from(base_bytes(&self.manifest, &part, &base))));
        }
        let range = pieces(&part);
        // Layers of an own stage that move elsewhere.
        for (_, own) in &self.own {
            let of_own = pieces(own.spec());
            if of_own.start < range.end && range.start < of_own.end {
                self.kept.put(of_own, &own.state()?);
            }
        }
        let state = self.kept.joined(range);
        Ok(state
            .map(|state| match kind {
                StateKind::Parameters => PartState { moments: None, ..state },
                _ => state,
            })
            .map(|state| Payload::from(state.to_bytes())))
    }

    /// Keeps the state of another machine's layers.
    ///
    /// # Errors
    /// When it is none, or unlike the one before; nothing has changed then.
    pub(super) fn keep(
        &mut self,
        layers: LayerRange,
        bytes: &Payload,
        unwritten: Option<StateKind>,
    ) -> Result<(), StateError> {
        self.kept.put_bytes(pieces(&of_layers(layers)), bytes.bytes(), unwritten)
    }

    /// Carries out a piece of work on an own stage.
    pub(super) fn compute(&mut self, work: Work, input: Option<Stream>) -> CaptainEvent {
        let begin = Instant::now();
        let outcome = self.outcome(work, input).unwrap_or_else(|error| Outcome::Failed(error.to_string()));
        CaptainEvent::Computed { work, outcome, busy: begin.elapsed() }
    }

    fn outcome(&mut self, work: Work, input: Option<Stream>) -> Result<Outcome, TrainingError> {
        let CaptainModel { own, passing, codec, .. } = self;
        let Some((_, part)) = own.iter_mut().find(|(number, _)| *number == work.stage as usize) else {
            return Ok(Outcome::Failed("the stage is not in memory".to_owned()));
        };
        let Some(piece) = passing.pieces.get(work.microbatch as usize) else {
            return Ok(Outcome::Failed("the batch has no such microbatch".to_owned()));
        };
        let Ok(input) = input.map(|stream| decoded(*codec, &stream)).transpose() else {
            return Ok(Outcome::InputUnfit);
        };
        let output = match work.kind {
            WorkKind::Forward => part.forward(piece, input)?,
            WorkKind::Backward => {
                let (loss, to_input) = part.backward(piece, input, passing.share)?;
                passing.losses[usize::from(work.lane.min(1))] += loss;
                to_input
            }
            WorkKind::Evaluate => match part.evaluate(piece, input)? {
                PartOutput::Stream(stream) => Some(stream),
                PartOutput::Evaluation(evaluation) => {
                    passing.evaluation = passing.evaluation.with(evaluation);
                    None
                }
            },
        };
        Ok(output.map_or(Outcome::Output(None), |output| encoded(*codec, &output)))
    }

    /// Ends a batch: the squares of each own stage's tensors.
    pub(super) fn sum(&mut self) -> Result<Vec<Vec<f64>>, TrainingError> {
        let lanes = 1 + self.passing.pieces.iter().map(Piece::lane).max().unwrap_or_default();
        self.own.iter_mut().map(|(_, part)| part.sum(lanes)).collect()
    }

    pub(super) fn step(&mut self, factors: StepFactors) -> Result<(), TrainingError> {
        let StepFactors { gradient_norm, learning_rate, members } = factors;
        self.own.iter_mut().try_for_each(|(_, part)| part.step(gradient_norm, learning_rate, members))
    }

    pub(super) fn discard(&mut self) -> Result<(), TrainingError> {
        self.own.iter_mut().try_for_each(|(_, part)| part.discard())
    }

    /// All of the model, where what others have counts as it was kept.
    pub(super) fn state(&self) -> Result<PartState, TrainingError> {
        let (mut states, mut next) = (Vec::new(), 0);
        let keep = |states: &mut Vec<PartState>, range: Range<usize>| {
            // Nothing has no count of steps either.
            states.extend((!range.is_empty()).then(|| self.kept.joined(range).expect(IS_KEPT)));
        };
        for (_, part) in &self.own {
            let range = pieces(part.spec());
            keep(&mut states, next..range.start);
            states.push(part.state()?);
            next = range.end;
        }
        keep(&mut states, next..self.kept.count());
        Ok(PartState::joined(&states))
    }

    /// Takes a state of all of the model up: into own stages, and into what is kept.
    pub(super) fn set_state(&mut self, state: &PartState) -> Result<(), TrainingError> {
        let (kept, own) = (&mut self.kept, &mut self.own);
        let owned: Vec<_> = own.iter().map(|(_, part)| pieces(part.spec())).collect();
        // Own stages' moments are to stay where none come.
        for ((_, part), range) in own.iter().zip(&owned) {
            kept.put(range.clone(), &part.state()?);
        }
        kept.put(0..kept.count(), state);
        for ((_, part), range) in own.iter_mut().zip(owned) {
            part.set_state(kept.taken(range).expect(IS_KEPT))?;
        }
        Ok(())
    }

    /// What is kept of each helper's stage, in order, and of which cut that is; `None` before the first one.
    pub(super) fn of_helpers(&self, with_moments: bool) -> Option<(u64, Vec<Payload>)> {
        let (epoch, cut) = self.cut.as_ref()?;
        let payload = |(_, _, stage): (usize, PeerId, &CutStage)| {
            let state = self.kept.joined(pieces(&part_of(stage))).expect(IS_KEPT);
            let moments = state.moments.filter(|_| with_moments);
            Payload::from(PartState { moments, ..state }.to_bytes())
        };
        Some((*epoch, cut.of_helpers().map(payload).collect()))
    }
}

/// The frozen weights of a part as bytes: of each tensor the number of its bytes, and these.
fn base_bytes(manifest: &RunManifest, part: &StageSpec, weights: &BaseWeights) -> Vec<u8> {
    let tensors = base_tensors(manifest, part);
    let first = tensors.first().map_or(0, |(first, ..)| *first);
    let mut bytes = Vec::new();
    for (start, length, _) in tensors {
        let encoded = weights.encoded(start - first, length);
        bytes.extend_from_slice(&(encoded.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&encoded);
    }
    bytes
}

//! What a captain does itself: it holds the first and the last stage of a cut, keeps what it has of the others, and carries out the
//! orders of its state machine ([`murmur_protocol::team`]).

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use murmur_protocol::manifest::TransformerModel;
use murmur_protocol::numerics::StreamCodec;
use murmur_protocol::team::{CaptainEvent, Cut, CutStage, LayerRange, Outcome, StateKind, StepFactors, Stream, Wire};
use murmur_protocol::team::{Work, WorkKind};
use murmur_protocol::{Holding, Payload, PeerId, RunManifest};

use super::kept::{Kept, pieces};
use super::membership::left_for_captain;
use super::part::{PartOutput, Piece, TeamPart, base_tensors, layouts};
use super::state::StateError;
use super::streams::{decoded, encoded};
use crate::engine::{StageDevice, TrainingError, TrainingOptions};
use crate::model::{Evaluation, StageSpec, transformer_of};
use crate::ops::base_weights::BaseWeights;
use crate::optimizer::Moments;
use crate::pretrained::PretrainedBase;
use crate::replica::Resting;

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
                let mut stretches: Vec<Range<usize>> = Vec::new();
                for (first, length, _) in base_tensors(manifest, part) {
                    match stretches.last_mut() {
                        Some(last) if last.end == first => last.end += length,
                        _ => stretches.push(first..first + length),
                    }
                }
                let parts = stretches.into_iter().map(|stretch| weights.part(stretch));
                Ok(parts.reduce(BaseWeights::followed_by))
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
    device: StageDevice,
    threads: usize,
    options: TrainingOptions,
    codec: (StreamCodec, usize),
    /// What no own stage has.
    pub(super) kept: Kept,
    /// All own stages of a cut as one part, which holds a table that is embedding and head but once; none before the first cut.
    own: Option<TeamPart>,
    pub(super) cut: Option<(u64, Cut)>,
    pub(super) passing: Passing,
}

/// An invariant of [`CaptainModel`].
const IS_KEPT: &str = "what no own stage has is kept";

/// The part that a helper's stage is.
fn part_of(stage: &CutStage) -> StageSpec {
    StageSpec { layers: stage.layers.numbers(), embeds: stage.embeds, predicts: stage.predicts }
}

/// The captain's own part of a cut: its first stage is the embedding alone.
fn own_part(spec: &TransformerModel, cut: &Cut) -> Option<StageSpec> {
    let (own, last): (Vec<usize>, _) = (cut.of_captain().collect(), cut.stages.len().checked_sub(1)?);
    let part = StageSpec::ends(spec, cut.stages[last].layers.first);
    let fits = match own[..] {
        [0] => last == 0 && !part.is_parted(),
        [0, end] => end == last && cut.stages[0].layers.is_empty() && part.is_parted(),
        _ => false,
    };
    fits.then_some(part)
}

fn of_layers(layers: LayerRange) -> StageSpec {
    StageSpec { layers: layers.numbers(), embeds: false, predicts: false }
}

impl CaptainModel {
    pub(super) fn new(
        manifest: RunManifest,
        base: TeamBase,
        (device, threads): (StageDevice, usize),
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
        let (own, cut, passing) = (None, None, Passing::default());
        CaptainModel { manifest, base, device, threads, options, codec, kept, own, cut, passing }
    }

    /// What of the model is left for the captain to exchange where helpers of this cut exchange their layers by themselves.
    pub(super) fn left_for_captain(&self, cut: &Cut) -> Holding {
        left_for_captain(&self.manifest, cut)
    }

    /// Builds the own stages of a cut from what is kept and from the own stages there are.
    pub(super) fn load(&mut self, epoch: u64, cut: Cut) -> Result<(), TrainingError> {
        self.take_back()?;
        self.cut = None;
        let spec = own_part(transformer_of(&self.manifest), &cut);
        let spec = spec.ok_or_else(|| TrainingError::Team("a captain has both ends of its model".to_owned()))?;
        let base = self.base.part(&self.manifest, &spec)?;
        let place = (&self.device, self.threads);
        let options = TrainingOptions { weightless: true, ..self.options };
        let mut part = TeamPart::load(&self.manifest, spec.clone(), base, place, &options)?;
        part.set_state(self.kept.taken(&pieces(&spec)).expect(IS_KEPT))?;
        self.own = Some(part);
        self.cut = Some((epoch, cut));
        Ok(())
    }

    /// Keeps the own stages' state in its place, and gives their memory back.
    fn take_back(&mut self) -> Result<(), TrainingError> {
        if let Some(part) = self.own.take() {
            let of_own = pieces(part.spec());
            part.with_state(|state| self.kept.put(&of_own, state, &of_own))?;
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
        let wanted = pieces(&part);
        // Layers of an own stage that move elsewhere.
        if let Some(own) = &self.own {
            let of_own = pieces(own.spec());
            if wanted.iter().any(|piece| of_own.contains(piece)) {
                own.with_state(|state| self.kept.put(&of_own, state, &wanted))?;
            }
        }
        Ok(self.kept.bytes(&wanted, kind != StateKind::Parameters).map(Payload::from))
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
        self.kept.put_bytes(&pieces(&of_layers(layers)), bytes.bytes(), unwritten)
    }

    /// Carries out a piece of work on an own stage.
    pub(super) fn compute(&mut self, work: Work, input: Option<Stream>) -> CaptainEvent {
        let begin = Instant::now();
        let outcome = self.outcome(work, input).unwrap_or_else(|error| Outcome::Failed(error.to_string()));
        CaptainEvent::Computed { work, outcome, busy: begin.elapsed() }
    }

    fn outcome(&mut self, work: Work, input: Option<Stream>) -> Result<Outcome, TrainingError> {
        let CaptainModel { own, passing, codec, cut, .. } = self;
        let stage = cut.as_ref().and_then(|(_, cut)| cut.stages.get(work.stage as usize));
        let (Some(part), Some(CutStage { helper: None, .. })) = (own, stage) else {
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
        let Some(part) = &mut self.own else { return Ok(Vec::new()) };
        let mut squares = part.sum(lanes)?;
        if !part.spec().is_parted() {
            return Ok(vec![squares]);
        }
        let embedding = StageSpec { layers: 0..0, embeds: true, predicts: false };
        let of_last = squares.split_off(layouts(&self.manifest, &embedding).1.tensors().len());
        Ok(vec![squares, of_last])
    }

    pub(super) fn step(&mut self, factors: StepFactors) -> Result<(), TrainingError> {
        let StepFactors { gradient_norm, learning_rate, members } = factors;
        self.own.as_mut().map_or(Ok(()), |part| part.step(gradient_norm, learning_rate, members))
    }

    pub(super) fn discard(&mut self) -> Result<(), TrainingError> {
        self.own.as_mut().map_or(Ok(()), TeamPart::discard)
    }

    /// The parameters of all of the model, where what others have counts as it was kept.
    pub(super) fn parameters(&self) -> Result<Vec<f32>, TrainingError> {
        let Some(part) = &self.own else { return Ok(self.kept.parameters_with(None).expect(IS_KEPT)) };
        let all = part.with_state(|(own, _)| self.kept.parameters_with(Some((&pieces(part.spec()), own))))?;
        Ok(all.expect(IS_KEPT))
    }

    /// The moments of all of the model, and the steps since they were zero.
    pub(super) fn moments(&self) -> Result<(Moments, u64), TrainingError> {
        let Some(part) = &self.own else { return Ok(self.kept.moments_with(None).expect(IS_KEPT)) };
        let of_own = pieces(part.spec());
        let all =
            part.with_state(|(_, moments)| self.kept.moments_with(moments.map(|moments| (&of_own[..], moments))))?;
        Ok(all.expect(IS_KEPT))
    }

    /// All of the model where it lies, in order; `None` where the captain's own part lies on a GPU, or some of the rest is not kept.
    pub(super) fn resting(&self) -> Option<Vec<Resting<'_>>> {
        let Some(part) = &self.own else { return self.kept.resting(None) };
        self.kept.resting(Some((&pieces(part.spec()), part.resting()?)))
    }

    /// Whether that is so but for what is not kept.
    pub(super) fn rests(&self) -> bool {
        self.own.as_ref().map_or(self.device.is_cpu(), |part| part.resting().is_some())
    }

    /// Steps since the moments were zero.
    pub(super) fn steps_of_moments(&self) -> u64 {
        self.own.as_ref().map_or_else(|| self.kept.steps(), |part| Some(part.steps_of_moments())).unwrap_or_default()
    }

    /// Takes parameters of all of the model up: into the own part, and into what is kept.
    pub(super) fn set_parameters(&mut self, values: &[f32]) -> Result<(), TrainingError> {
        let of_own = self.own.as_ref().map(|part| pieces(part.spec())).unwrap_or_default();
        let all = self.kept.all();
        let others: Vec<usize> = all.iter().copied().filter(|piece| !of_own.contains(piece)).collect();
        self.kept.put(&all, (values, None), &others);
        self.set_own_parameters(values)
    }

    /// Takes up what the own part has of the parameters of all of the model; what is kept of others stays as it is.
    pub(super) fn set_own_parameters(&mut self, values: &[f32]) -> Result<(), TrainingError> {
        let Some(part) = &mut self.own else { return Ok(()) };
        let own = self.kept.part_of(&pieces(part.spec()), (values, None)).parameters;
        part.edit(&mut |values| values.copy_from_slice(&own))
    }

    /// The same of moments; `is_all`: also into what is kept of others.
    pub(super) fn set_moments(&mut self, moments: &Moments, steps: u64, is_all: bool) -> Result<(), TrainingError> {
        let of_own = self.own.as_ref().map(|part| pieces(part.spec())).unwrap_or_default();
        if is_all || self.own.is_none() {
            self.kept.put_moments(moments, steps, &of_own);
        }
        let Some(part) = &mut self.own else { return Ok(()) };
        match self.kept.part_of(&of_own, (&[], Some((moments, steps)))).moments {
            Some((moments, steps)) => part.set_moments(moments, steps),
            None => Ok(()),
        }
    }

    /// What is kept of each helper's stage, in order, and of which cut that is; `None` before the first one.
    pub(super) fn of_helpers(&self, with_moments: bool) -> Option<(u64, Vec<Payload>)> {
        let (epoch, cut) = self.cut.as_ref()?;
        let payload = |(_, _, stage): (usize, PeerId, &CutStage)| {
            Payload::from(self.kept.bytes(&pieces(&part_of(stage)), with_moments).expect(IS_KEPT))
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

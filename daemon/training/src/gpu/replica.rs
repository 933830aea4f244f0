//! A replica on a GPU: flat vectors in its memory are the truth.

mod stage;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::manifest::{OptimizerSpec, TransformerModel};
use murmur_protocol::{Correction, ModelLayout};

use super::muon::MuonMemory;
use super::step::{Places, Stepping};
use super::transformer::GpuTransformer;
use super::weights::{Gradient, WeightMemory, Weights};
use super::{Accelerator, BaseInTurns, Frozen, Kind, Memory, SUM_BLOCKS, Span};
use super::{bytes_of, bytes_of_mut, count, launch_for_each, sums};
use crate::data::Batch;
use crate::engine::options::TrainingOptions;
use crate::model::transformer::held_layout;
use crate::model::{Evaluation, StageSpec};
use crate::optimizer::{CodedMoments, Moments, Optimizer, Rule};
use crate::replica::{Replica, Transfer};

pub(crate) use stage::GpuStage;

/// What of a model is trained.
pub(crate) struct Trained {
    /// Which part of the model this is.
    pub(crate) stage: StageSpec,
    pub(crate) layout: Arc<ModelLayout>,
    pub(crate) base: Base,
}

/// The frozen base beside which adapters are trained.
pub(crate) enum Base {
    /// All parameters are trained.
    None,
    Held(Arc<Frozen>),
    InTurns(Box<BaseInTurns>),
}

impl Base {
    fn is_there(&self) -> bool {
        !matches!(self, Base::None)
    }

    /// Of the adapters beside it.
    fn rank(&self) -> usize {
        match self {
            Base::None => 0,
            Base::Held(base) => base.rank(),
            Base::InTurns(base) => base.rank(),
        }
    }
}

impl Trained {
    /// All parameters.
    pub(crate) fn all(spec: &TransformerModel, layout: &Arc<ModelLayout>) -> Trained {
        Trained { stage: StageSpec::whole(spec), layout: layout.clone(), base: Base::None }
    }
}

pub(crate) struct GpuReplica {
    device: Arc<dyn Accelerator>,
    model: GpuTransformer,
    layout: Arc<ModelLayout>,
    /// Behind its own values ([`GpuReplica::own`]) a copy of what another stage has, of which the gradient is here, but no moments.
    parameters: WeightMemory,
    base: Base,
    gradient: Memory,
    first_moment: Memory,
    second_moment: Memory,
    /// Where the second moment is matched to the batch.
    average: Option<Memory>,
    average_weight: f32,
    /// Where some matrices are stepped by it.
    muon: Option<MuonMemory>,
    /// Of sums that are on their way to the host.
    sums: Memory,
    /// What is being uploaded, in order, and where it is to be added.
    additions: VecDeque<(Range<usize>, Arc<Memory>)>,
    /// Since the moments were zero.
    steps: u64,
    optimizer: Optimizer,
    /// Examples computed at once, at most.
    micro_batch: usize,
}

impl GpuReplica {
    /// Of the transformer of `spec`, with these flat parameters of what is trained.
    pub(crate) fn new(
        device: Arc<dyn Accelerator>,
        spec: &TransformerModel,
        trained: Trained,
        parameters: &[f32],
        optimizer: OptimizerSpec,
        micro_batch: usize,
        options: &TrainingOptions,
    ) -> Result<GpuReplica> {
        let kind = options.precision.into();
        let vector = |length| device.allocate(Kind::F32, length);
        let Trained { stage, layout, base } = trained;
        let optimizer = Optimizer::new(&optimizer, &layout);
        let rank = base.rank();
        let held = if base.is_there() { parameters.len() } else { held_layout(spec, &stage).parameters() };
        let mut replica = GpuReplica {
            model: GpuTransformer::new(device.clone(), spec, &stage, (kind, options.recompute, rank))?,
            layout,
            parameters: WeightMemory::new(&*device, kind, held)?,
            base,
            gradient: vector(held)?,
            first_moment: vector(parameters.len())?,
            second_moment: vector(optimizer.seconds())?,
            average: optimizer.spec.match_batch.then(|| vector(optimizer.averages())).transpose()?,
            average_weight: 0.0,
            muon: MuonMemory::new(&*device, &optimizer)?,
            sums: device.allocate(Kind::F64, SUM_BLOCKS * optimizer.tensors.len().max(1))?,
            additions: VecDeque::new(),
            steps: 0,
            optimizer,
            micro_batch,
            device,
        };
        replica.set_parameters(parameters)?;
        Ok(replica)
    }

    /// What the transformer computes with.
    fn weights(&self) -> Weights {
        let trained = self.parameters.weights();
        match &self.base {
            Base::Held(base) => trained.beside(base.clone()),
            Base::None | Base::InTurns(_) => trained,
        }
    }

    /// Where the transformer adds its gradient.
    fn added_to(&self, is_last: bool) -> Gradient {
        Gradient::new(self.gradient.span(), self.base.is_there(), is_last)
    }

    fn clear_gradient(&mut self) -> Result<()> {
        self.model.begin_gradient();
        self.device.clear(self.gradient.span())
    }

    /// Where its own values lie.
    fn own(&self) -> Range<usize> {
        0..self.layout.parameters()
    }

    fn download(&self, from: Span) -> Result<Vec<f32>> {
        let mut values = vec![0.0_f32; from.values];
        self.device.download(from, bytes_of_mut(&mut values))?;
        Ok(values)
    }
}

impl Replica for GpuReplica {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.download(self.parameters.exact().part(self.own()))?))
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.parameters.upload(&*self.device, 0, values)
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        self.clear_gradient()?;
        let trained = (self.weights(), self.gradient.span());
        if let Base::InTurns(base) = &mut self.base {
            return base.compute_gradient(trained, batch, self.sums.span());
        }
        let (mut loss, share) = (0.0, 1.0 / batch.predictions() as f32);
        let (weights, mut parts) = (self.weights(), batch.parts(self.micro_batch).peekable());
        while let Some(part) = parts.next() {
            let gradient = self.added_to(parts.peek().is_none());
            self.model.forward(&weights, part.tokens()?, None)?;
            self.model.backward(&weights, part.tokens()?, None, share, gradient)?;
            loss += self.model.loss_sum(part.predictions(), self.sums.span())?;
        }
        Ok(loss / batch.predictions() as f64)
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.download(self.gradient.span().part(self.own()))?))
    }

    fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        self.device.upload(bytes_of(values), self.gradient.span())
    }

    fn squares(&self) -> Result<Vec<f64>> {
        let tensors: Vec<Span> =
            self.optimizer.tensors.iter().map(|tensor| self.gradient.span().part(tensor.range.clone())).collect();
        sums(&*self.device, "sum_squares", &tensors, self.sums.span())
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        self.steps += 1;
        let factors = self.optimizer.factors(self.steps, gradient_norm, learning_rate, &mut self.average_weight);
        let by = Stepping {
            device: &*self.device,
            spec: &self.optimizer.spec,
            factors,
            muon: self.muon.as_ref(),
            sums: self.sums.span(),
        };
        for tensor in &self.optimizer.tensors {
            let part = |vector: Span| vector.part(tensor.range.clone());
            let of_second = |memory: &Memory| match &tensor.rule {
                Rule::AdamW { second, .. } => Some(memory.span().part(second.clone())),
                Rule::Muon(_) => None,
            };
            let places = Places {
                values: part(self.parameters.exact()),
                rounded: self.parameters.rounded(&tensor.range),
                gradient: part(self.gradient.span()),
                first: part(self.first_moment.span()),
                second: of_second(&self.second_moment),
                average: self.average.as_ref().and_then(of_second),
            };
            by.step(&tensor.rule, &places)?;
        }
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        let trained = (self.weights(), self.gradient.span());
        if let Base::InTurns(base) = &mut self.base {
            return base.evaluate(trained, batch, self.sums.span());
        }
        let (weights, mut evaluation) = (self.weights(), Evaluation::default());
        for part in batch.parts(self.micro_batch) {
            self.model.evaluate(&weights, part.tokens()?, None)?;
            evaluation = evaluation.with(self.model.evaluation(part.predictions(), self.sums.span())?);
        }
        Ok(evaluation)
    }

    fn wait(&self) -> Result<()> {
        self.device.wait()
    }

    fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    fn set_members(&mut self, members: f64) {
        self.optimizer.set_members(members);
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        let average = self.average.as_ref().map(|average| self.download(average.span())).transpose()?;
        let moments = Moments {
            first: self.download(self.first_moment.span())?,
            second: self.download(self.second_moment.span())?,
            average: average.unwrap_or_default(),
            average_weight: self.average_weight,
            coded: CodedMoments::default(),
        };
        Ok((moments, self.steps))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        self.device.upload(bytes_of(&moments.first), self.first_moment.span())?;
        self.device.upload(bytes_of(&moments.second), self.second_moment.span())?;
        if let Some(average) = &self.average {
            self.device.upload(bytes_of(&moments.average), average.span())?;
        }
        (self.average_weight, self.steps) = (moments.average_weight, steps);
        Ok(())
    }

    fn begin_copy(&self) -> Result<Option<Transfer<Vec<f32>>>> {
        self.device.begin_download(self.parameters.exact().part(self.own())).map(Some)
    }

    fn begin_addition(&mut self, range: Range<usize>, correction: &Correction) -> Result<Option<Transfer<Vec<f32>>>> {
        if range.is_empty() {
            return Ok(None);
        }
        let (place, correction) = (Arc::new(self.device.allocate(Kind::F32, range.len())?), correction.clone());
        let write = move |place: &mut [f32]| {
            let values = correction.to_values();
            place.copy_from_slice(&values);
            values
        };
        let upload = self.device.begin_upload(Box::new(write), range.len(), place.clone())?;
        self.additions.push_back((range, place));
        Ok(Some(upload))
    }

    fn finish_addition(&mut self, upload: Transfer<Vec<f32>>) -> Result<Vec<f32>> {
        let (range, added) = self.additions.pop_front().expect("every addition that finishes has begun");
        let values = upload.wait()?;
        let (place, length) = (self.parameters.exact().part(range.clone()), range.len());
        let arguments = [place.into(), added.span().into(), count(length)];
        launch_for_each(&*self.device, "add", length, &arguments)?;
        self.parameters.round(&*self.device, &range)?;
        Ok(values)
    }
}

//! A model that is larger than a GPU's memory and trains there all the same. Parameters, gradient and moments lie in the machine's
//! memory ([`vectors`]); the GPU holds the weights of two stages at a time, embedding, a block, or head, one that computes and
//! one that comes ([`slots`]).
//!
//! The order is by layers (Pudipeddi et al., arXiv 2002.05645): all microbatches of a batch go through a stage before the next
//! one's weights come, forward, and then backward. So each weight travels twice a step, whatever the batch, and each gradient once.
//! Streams between stages wait in the machine's memory ([`streams`]); inside a block the backward computes activations again.
//!
//! Every sum over microbatches has the order of a replica that holds all ([`super::GpuReplica`]), squares are summed on the GPU while
//! it has the gradient, and steps are taken there, a piece at a time: so the bits are that replica's. The processor's AdamW would
//! save 28 of the 40 bytes that then travel for each parameter in a batch, but rounds differently where a GPU fuses
//! multiplications with additions, and its Muon sums in another order.

mod estimate;
mod slots;
mod streams;
mod vectors;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::{OptimizerSpec, TransformerModel};

use super::muon::MuonMemory;
use super::step::{Places, Stepping};
use super::transformer::GpuTurns;
use super::weights::Gradient;
use super::{Accelerator, Kind, Memory, SUM_BLOCKS, bytes_of, sums};
use crate::data::{Batch, TokenBatch};
use crate::model::Evaluation;
use crate::model::transformer::stage_layout;
use crate::optimizer::{Moments, Optimizer, Rule};
use crate::replica::{Replica, Transfer, parts};

use slots::{Slots, slot_values, stages_of};
use streams::{Arrivals, Leaving};
use vectors::{Piece, Vectors, states_of};

pub(crate) use estimate::DeviceValues;

pub(crate) struct Offloaded {
    device: Arc<dyn Accelerator>,
    model: GpuTurns,
    layout: Arc<ModelLayout>,
    vectors: Vectors,
    slots: Slots,
    arrivals: Arrivals,
    /// Of one stage at a time.
    gradient: Memory,
    /// Of each tensor of the gradient kept.
    squares: Vec<f64>,
    average_weight: f32,
    /// Where some matrices are stepped by it.
    muon: Option<MuonMemory>,
    /// Of sums that are on their way to the host.
    sums: Memory,
    /// Since the moments were zero.
    steps: u64,
    optimizer: Optimizer,
    /// Examples computed at once, at most.
    micro_batch: usize,
}

impl Offloaded {
    /// Of the transformer of `spec`, with these flat parameters; products read weights as `kind`.
    pub(crate) fn new(
        device: Arc<dyn Accelerator>,
        spec: &TransformerModel,
        layout: Arc<ModelLayout>,
        parameters: &[f32],
        optimizer: OptimizerSpec,
        (micro_batch, kind): (usize, Kind),
    ) -> Result<Offloaded> {
        assert!(!spec.tied_head, "two stages would share a table");
        let stages = stages_of(spec);
        let optimizer = Optimizer::new(&optimizer, &layout);
        let lengths: Vec<usize> = stages.iter().map(|stage| stage_layout(spec, stage).parameters()).collect();
        let values = slot_values(&lengths, &optimizer);
        let vectors = Vectors::new(&lengths, &optimizer, values[0].min(values[1]), parameters);
        let tensors_in = |stage: &Range<usize>| {
            optimizer.tensors.iter().filter(|tensor| stage.contains(&tensor.range.start)).count()
        };
        let tensors = vectors.stages().iter().map(tensors_in).max().unwrap_or(0);
        Ok(Offloaded {
            model: GpuTurns::new(device.clone(), spec, &stages, kind)?,
            layout,
            slots: Slots::new(device.clone(), kind, values)?,
            arrivals: Arrivals::default(),
            gradient: device.allocate(Kind::F32, lengths.iter().copied().max().unwrap_or(0))?,
            squares: vec![0.0; optimizer.tensors.len()],
            average_weight: 0.0,
            muon: MuonMemory::new(&*device, &optimizer)?,
            sums: device.allocate(Kind::F64, SUM_BLOCKS * tensors.max(1))?,
            steps: 0,
            vectors,
            optimizer,
            micro_batch,
            device,
        })
    }

    /// The number of the head.
    fn head(&self) -> usize {
        self.vectors.stages().len() - 1
    }

    /// All microbatches through a stage that is not the head.
    fn through(&mut self, stage: usize, batches: &[&TokenBatch], mut inputs: Option<&mut Leaving>) -> Result<Leaving> {
        let weights = self.slots.load(stage, &self.vectors)?;
        self.slots.begin_beside(stage, stage + 1, &self.vectors)?;
        let Offloaded { device, model, arrivals, .. } = self;
        let mut outputs = Leaving::default();
        let input = |number| inputs.iter_mut().map(|inputs| inputs.values(number)).collect();
        arrivals.each(&**device, batches.len(), input, |number, places| {
            outputs.push(model.forward(stage, &weights, batches[number], places.first().copied())?)
        })?;
        Ok(outputs)
    }

    /// All microbatches back through a stage: from the gradients of its outputs to those of its inputs, of which the embedding has
    /// none; from the losses where it is the head. Returns the sum of these as well, and leaves the stage's gradient.
    fn back_through(
        &mut self,
        stage: usize,
        batches: &[&TokenBatch],
        mut inputs: Option<Leaving>,
        mut to_outputs: Option<Leaving>,
        share: f32,
    ) -> Result<(Leaving, f64)> {
        let weights = self.slots.load(stage, &self.vectors)?;
        if stage > 0 {
            self.slots.begin_beside(stage, stage - 1, &self.vectors)?;
        }
        let is_head = to_outputs.is_none();
        let Offloaded { device, model, arrivals, sums, gradient, .. } = self;
        device.clear(gradient.span())?;
        let gradient = Gradient::new(gradient.span(), false, true);
        let (mut to_inputs, mut loss) = (Leaving::default(), 0.0);
        let streams = |number| inputs.iter_mut().chain(&mut to_outputs).map(|of| of.values(number)).collect();
        arrivals.each(&**device, batches.len(), streams, |number, places| {
            let batch = batches[number];
            let to_input = match places {
                [input] if is_head => {
                    let to_input = model.backward_of_losses(stage, &weights, batch, *input, (share, gradient))?;
                    loss += model.loss_sum(batch.targets.len(), sums.span())?;
                    Some(to_input)
                }
                [others @ .., to_output] => {
                    model.backward(stage, &weights, batch, others.first().copied(), (*to_output, gradient))?
                }
                [] => unreachable!("every stage reads something on the way back"),
            };
            to_input.map_or(Ok(()), |to_input| to_inputs.push(to_input))
        })?;
        Ok((to_inputs, loss))
    }

    /// Of the tensors of a stage, whose gradient the GPU has.
    fn sum_squares(&mut self, stage: usize) -> Result<()> {
        let place = self.vectors.stages()[stage].clone();
        let tensors = self.optimizer.tensors.iter().enumerate();
        let (numbers, spans): (Vec<usize>, Vec<_>) = tensors
            .filter(|(_, tensor)| place.contains(&tensor.range.start))
            .map(|(number, tensor)| {
                let range = tensor.range.start - place.start..tensor.range.end - place.start;
                (number, self.gradient.span().part(range))
            })
            .unzip();
        let squares = sums(&*self.device, "sum_squares", &spans, self.sums.span())?;
        numbers.into_iter().zip(squares).for_each(|(number, square)| self.squares[number] = square);
        Ok(())
    }

    /// The step of a piece, which has arrived in one of the slots.
    fn step_piece(&self, by: &Stepping<'_>, piece: &Piece, slot: usize) -> Result<()> {
        let (place, length) = (self.slots.place(slot).span(), piece.range.len());
        let vector = |number: usize| place.part(number * length..(number + 1) * length);
        let Piece { tensor, .. } = *piece;
        let rule = &self.optimizer.tensors[tensor].rule;
        let is_adamw = matches!(rule, Rule::AdamW { .. });
        let places = Places {
            gradient: vector(0),
            values: vector(1),
            rounded: None,
            first: vector(2),
            second: is_adamw.then(|| vector(3)),
            average: (is_adamw && self.optimizer.spec.match_batch).then(|| vector(4)),
        };
        by.step(rule, &places)
    }
}

impl Replica for Offloaded {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.vectors.parameters()))
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.slots.forget();
        self.vectors.set_parameters(values);
        Ok(())
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        let microbatches: Vec<Batch> = parts(batch, self.micro_batch).collect();
        let batches = microbatches.iter().map(Batch::tokens).collect::<Result<Vec<_>>>()?;
        let share = 1.0 / batch.predictions() as f32;
        // Of each stage but the embedding, the streams that it reads.
        let mut inputs: Vec<Leaving> = Vec::new();
        for stage in 0..self.head() {
            let outputs = self.through(stage, &batches, inputs.last_mut())?;
            inputs.push(outputs);
        }
        let (mut to_outputs, mut loss_sum) = (None, 0.0);
        let mut leaving: Option<(usize, Transfer<Vec<f32>>)> = None;
        for stage in (0..=self.head()).rev() {
            let (to_inputs, loss) = self.back_through(stage, &batches, inputs.pop(), to_outputs.take(), share)?;
            (to_outputs, loss_sum) = (Some(to_inputs), loss_sum + loss);
            self.sum_squares(stage)?;
            if let Some((before, gradient)) = leaving.take() {
                self.vectors.set_gradient(before, gradient.wait()?);
            }
            let values = self.vectors.stages()[stage].len();
            leaving = Some((stage, self.device.begin_download(self.gradient.span().first(values))?));
        }
        if let Some((stage, gradient)) = leaving {
            self.vectors.set_gradient(stage, gradient.wait()?);
        }
        Ok(loss_sum / batch.predictions() as f64)
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.vectors.gradient()))
    }

    fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        for stage in 0..=self.head() {
            let part = &values[self.vectors.stages()[stage].clone()];
            self.device.upload(bytes_of(part), self.gradient.span())?;
            self.sum_squares(stage)?;
            self.vectors.set_gradient(stage, part.to_vec());
        }
        Ok(())
    }

    fn squares(&self) -> Result<Vec<f64>> {
        Ok(self.squares.clone())
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        self.steps += 1;
        let factors = self.optimizer.factors(self.steps, gradient_norm, learning_rate, &mut self.average_weight);
        self.slots.forget();
        let mut leaving: Option<(usize, Transfer<Vec<f32>>)> = None;
        let pieces = self.vectors.pieces().len();
        self.slots.begin_piece(0, &self.vectors)?;
        for number in 0..pieces {
            let slot = self.slots.finish_piece(number)?;
            if number + 1 < pieces {
                self.slots.begin_piece(number + 1, &self.vectors)?;
            }
            let by = Stepping {
                device: &*self.device,
                spec: &self.optimizer.spec,
                factors,
                muon: self.muon.as_ref(),
                sums: self.sums.span(),
            };
            let piece = &self.vectors.pieces()[number];
            self.step_piece(&by, piece, slot)?;
            let (length, states) = (piece.range.len(), states_of(&self.optimizer, piece.tensor));
            let stepped = self.slots.place(slot).span().part(length..(1 + states) * length);
            if let Some((before, stepped)) = leaving.take() {
                self.vectors.set_state(before, stepped.wait()?);
            }
            leaving = Some((number, self.device.begin_download(stepped)?));
        }
        if let Some((number, stepped)) = leaving {
            self.vectors.set_state(number, stepped.wait()?);
        }
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        let microbatches: Vec<Batch> = parts(batch, self.micro_batch).collect();
        let batches = microbatches.iter().map(Batch::tokens).collect::<Result<Vec<_>>>()?;
        let mut streams = self.through(0, &batches, None)?;
        for stage in 1..self.head() {
            streams = self.through(stage, &batches, Some(&mut streams))?;
        }
        let (head, mut evaluation) = (self.head(), Evaluation::default());
        let weights = self.slots.load(head, &self.vectors)?;
        let Offloaded { device, model, arrivals, sums, .. } = self;
        let input = |number| Ok(vec![streams.values(number)?]);
        arrivals.each(&**device, batches.len(), input, |number, places| {
            model.evaluate(head, &weights, batches[number], places[0])?;
            evaluation = evaluation.with(model.evaluation(batches[number].targets.len(), sums.span())?);
            Ok(())
        })?;
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
        Ok((Moments { average_weight: self.average_weight, ..self.vectors.moments() }, self.steps))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        (self.average_weight, self.steps) = (moments.average_weight, steps);
        self.vectors.set_moments(&moments);
        Ok(())
    }

    /// In a thread of its own: steps that follow replace what it reads, and do not change it.
    fn begin_copy(&self) -> Result<Option<Transfer<Vec<f32>>>> {
        let parameters = self.vectors.shared_parameters();
        Transfer::waiting(move || Ok(parameters())).map(Some)
    }
}

#[cfg(test)]
mod tests;

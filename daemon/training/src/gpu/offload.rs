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

mod base;
mod estimate;
mod passing;
mod slots;
mod streams;
mod vectors;

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::{OptimizerSpec, TransformerModel};

use super::muon::MuonMemory;
use super::step::{Places, Stepping};
use super::weights::{WeightMemory, Weights};
use super::{Accelerator, Kind, Memory, SUM_BLOCKS, Span, bytes_of, sums};
use crate::data::Batch;
use crate::model::transformer::{held_layout, stage_layout};
use crate::model::{Evaluation, StageSpec};
use crate::optimizer::{Moments, Optimizer, Rule};
use crate::replica::{Replica, Transfer};

use passing::{Passing, ToStage, Weighted};
use slots::{Slots, slot_of, slot_values};
use vectors::{Piece, Vectors, muon_values, states_of};

pub(crate) use base::BaseInTurns;
pub(crate) use estimate::{DeviceValues, passing_base_bytes, passing_values};

/// The stages of a model that is offloaded: embedding, each block, head.
fn stages_of(spec: &TransformerModel) -> Vec<StageSpec> {
    let stage = |layers, embeds, predicts| StageSpec { layers, embeds, predicts };
    let blocks = (0..spec.layers).map(|layer| stage(layer..layer + 1, false, false));
    let (first, last) = (stage(0..0, true, false), stage(spec.layers..spec.layers, false, true));
    std::iter::once(first).chain(blocks).chain([last]).collect()
}

pub(crate) struct Offloaded {
    layout: Arc<ModelLayout>,
    passing: Passing,
    travelling: Travelling,
    average_weight: f32,
    /// Where some matrices are stepped by it.
    muon: Option<MuonMemory>,
    /// Since the moments were zero.
    steps: u64,
}

/// What comes to the GPU and goes.
struct Travelling {
    device: Arc<dyn Accelerator>,
    vectors: Vectors,
    slots: Slots,
    /// Of each slot.
    places: [WeightMemory; 2],
    /// Of one stage at a time.
    gradient: Arc<Memory>,
    /// That of the last stage, on its way.
    leaving: Option<(usize, Mutex<Transfer<Vec<f32>>>)>,
    /// Of each tensor of the gradient kept.
    squares: Vec<f64>,
    /// Of sums that are on their way to the host.
    sums: Memory,
    optimizer: Optimizer,
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
        let stages = stages_of(spec);
        let optimizer = Optimizer::new(&optimizer, &layout);
        let lengths: Vec<usize> = stages.iter().map(|stage| stage_layout(spec, stage).parameters()).collect();
        let held: Vec<usize> = stages.iter().map(|stage| held_layout(spec, stage).parameters()).collect();
        let copied = held.iter().sum::<usize>() - layout.parameters();
        let values = slot_values(&held).map(|values| values.max(muon_values(&optimizer)));
        let vectors = Vectors::new((&lengths, copied), &optimizer, values[0].min(values[1]), parameters);
        let tensors_in = |stage: &std::ops::Range<usize>| {
            optimizer.tensors.iter().filter(|tensor| stage.contains(&tensor.range.start)).count()
        };
        let tensors = vectors.stages().iter().map(tensors_in).max().unwrap_or(0);
        let place = |values| WeightMemory::new(&*device, kind, values);
        let places = [place(values[0])?, place(values[1])?];
        Ok(Offloaded {
            layout,
            passing: Passing::new(device.clone(), spec, (micro_batch, kind, 0))?,
            average_weight: 0.0,
            muon: MuonMemory::new(&*device, &optimizer)?,
            steps: 0,
            travelling: Travelling {
                slots: Slots::new(device.clone(), places.each_ref().map(WeightMemory::place), stages.len()),
                places,
                gradient: Arc::new(device.allocate(Kind::F32, held.into_iter().max().unwrap_or(0))?),
                leaving: None,
                squares: vec![0.0; optimizer.tensors.len()],
                sums: device.allocate(Kind::F64, SUM_BLOCKS * tensors.max(1))?,
                vectors,
                optimizer,
                device,
            },
        })
    }

    /// The step of a piece, which has arrived there.
    fn step_piece(&self, by: &Stepping<'_>, piece: &Piece, place: Span) -> Result<()> {
        let length = piece.range.len();
        let vector = |number: usize| place.part(number * length..(number + 1) * length);
        let Travelling { optimizer, .. } = &self.travelling;
        let rule = &optimizer.tensors[piece.tensor].rule;
        let is_adamw = matches!(rule, Rule::AdamW { .. });
        let places = Places {
            gradient: vector(0),
            values: vector(1),
            rounded: None,
            first: vector(2),
            second: is_adamw.then(|| vector(3)),
            average: (is_adamw && optimizer.spec.match_batch).then(|| vector(4)),
        };
        by.step(rule, &places)
    }
}

impl Weighted for Travelling {
    fn load(&mut self, stage: usize) -> Result<Weights> {
        let Travelling { device, vectors, slots, places, .. } = self;
        let place = &places[slot_of(stage, vectors.stages().len())];
        if slots.load(stage, || vectors.filling(stage))? {
            place.round(&**device, &(0..vectors.held(stage)))?;
        }
        Ok(place.weights())
    }

    fn begin_beside(&mut self, stage: usize, other: usize) -> Result<()> {
        self.slots.begin_beside(stage, other, || self.vectors.filling(other))
    }

    fn trains_embedding(&self) -> bool {
        true
    }

    fn begin_gradient(&mut self, stage: usize) -> Result<ToStage> {
        match (stage, self.vectors.filling_of_copied()) {
            (0, Some((write, values))) => {
                self.device.begin_upload(write, values, self.gradient.clone())?.wait()?;
            }
            _ => self.device.clear(self.gradient.span())?,
        }
        Ok(ToStage { values: self.gradient.span(), is_of_adapters: false })
    }

    fn end_gradient(&mut self, stage: usize) -> Result<()> {
        self.sum_squares(stage)?;
        self.finish_gradient()?;
        let gradient = self.gradient.span().first(self.vectors.held(stage));
        self.leaving = Some((stage, Mutex::new(self.device.begin_download(gradient)?)));
        Ok(())
    }
}

impl Travelling {
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

    /// Waits for the gradient that is on its way.
    fn finish_gradient(&mut self) -> Result<()> {
        if let Some((stage, gradient)) = self.leaving.take() {
            let gradient = gradient.into_inner().expect("nobody panics with a transfer");
            self.vectors.set_gradient(stage, gradient.wait()?);
        }
        Ok(())
    }
}

impl Replica for Offloaded {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.travelling.vectors.parameters()))
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.travelling.slots.forget();
        self.travelling.vectors.set_parameters(values);
        Ok(())
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        // Of a batch that failed.
        self.travelling.leaving = None;
        let sums = self.travelling.sums.span();
        let loss = self.passing.compute_gradient(&mut self.travelling, batch, sums)?;
        self.travelling.finish_gradient()?;
        Ok(loss)
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.travelling.vectors.gradient()))
    }

    fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        let travelling = &mut self.travelling;
        for stage in 0..travelling.vectors.stages().len() {
            let part = &values[travelling.vectors.stages()[stage].clone()];
            travelling.device.upload(bytes_of(part), travelling.gradient.span())?;
            travelling.sum_squares(stage)?;
            travelling.vectors.set_gradient(stage, part.to_vec());
        }
        Ok(())
    }

    fn squares(&self) -> Result<Vec<f64>> {
        Ok(self.travelling.squares.clone())
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        self.steps += 1;
        let Travelling { optimizer, slots, vectors, .. } = &mut self.travelling;
        let factors = optimizer.factors(self.steps, gradient_norm, learning_rate, &mut self.average_weight);
        slots.forget();
        let mut leaving: Option<(usize, Transfer<Vec<f32>>)> = None;
        let pieces = vectors.pieces().len();
        slots.begin_piece(0, || vectors.filling_of_piece(0))?;
        for number in 0..pieces {
            let Travelling { slots, vectors, .. } = &mut self.travelling;
            let place = slots.finish_piece(number)?.span();
            if number + 1 < pieces {
                slots.begin_piece(number + 1, || vectors.filling_of_piece(number + 1))?;
            }
            let Travelling { device, optimizer, vectors, sums, .. } = &self.travelling;
            let (spec, muon) = (&optimizer.spec, self.muon.as_ref());
            let by = Stepping { device: &**device, spec, factors, muon, sums: sums.span() };
            let piece = &vectors.pieces()[number];
            self.step_piece(&by, piece, place)?;
            let (length, states) = (piece.range.len(), states_of(optimizer, piece.tensor));
            let stepped = place.part(length..(1 + states) * length);
            let next = device.begin_download(stepped)?;
            if let Some((before, stepped)) = leaving.replace((number, next)) {
                self.travelling.vectors.set_state(before, stepped.wait()?);
            }
        }
        if let Some((number, stepped)) = leaving {
            self.travelling.vectors.set_state(number, stepped.wait()?);
        }
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        let sums = self.travelling.sums.span();
        self.passing.evaluate(&mut self.travelling, batch, sums)
    }

    fn wait(&self) -> Result<()> {
        self.travelling.device.wait()
    }

    fn optimizer(&self) -> &Optimizer {
        &self.travelling.optimizer
    }

    fn set_members(&mut self, members: f64) {
        self.travelling.optimizer.set_members(members);
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        Ok((Moments { average_weight: self.average_weight, ..self.travelling.vectors.moments() }, self.steps))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        (self.average_weight, self.steps) = (moments.average_weight, steps);
        self.travelling.vectors.set_moments(&moments);
        Ok(())
    }

    /// In a thread of its own: steps that follow replace what it reads, and do not change it.
    fn begin_copy(&self) -> Result<Option<Transfer<Vec<f32>>>> {
        let parameters = self.travelling.vectors.shared_parameters();
        Transfer::waiting(move || Ok(parameters())).map(Some)
    }
}

#[cfg(test)]
mod tests;

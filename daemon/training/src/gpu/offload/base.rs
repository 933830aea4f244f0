//! A frozen base that lies in the machine's memory, beside adapters that a GPU holds and trains: only weights travel, twice a batch
//! each, in the bits in which they are held and read.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::manifest::{LoraSpec, TransformerModel};

use super::passing::{Passing, ToStage, Weighted};
use super::slots::{Filling, Slots, filling, slot_of, slot_values};
use super::stages_of;
use crate::data::Batch;
use crate::gpu::adapters::panel_of;
use crate::gpu::packed::Packed;
use crate::gpu::weights::Weights;
use crate::gpu::{Accelerator, Frozen, Kind, Span};
use crate::model::Evaluation;
use crate::model::lora::lora_layout;
use crate::model::transformer::{held_layout, stage_layout, transformer_layout};
use crate::ops::base_weights::BaseWeights;

pub(crate) struct BaseInTurns {
    passing: Passing,
    travelling: Travelling,
    rank: usize,
}

struct Travelling {
    slots: Slots,
    weights: Arc<BaseWeights>,
    stages: Vec<Stage>,
}

struct Stage {
    /// In its slot, where it is while the stage computes.
    frozen: Arc<Frozen>,
    packed: Arc<Packed>,
    /// Of the base, without a copy of the embedding's table.
    own: Range<usize>,
    /// Of what is trained.
    adapters: Range<usize>,
}

impl Stage {
    fn filling(&self, weights: &Arc<BaseWeights>) -> Filling {
        let (weights, packed, own) = (weights.clone(), self.packed.clone(), self.own.clone());
        let position = move |start: usize| if start < own.len() { own.start + start } else { start - own.len() };
        filling(packed.words(), move |to| packed.fill(&weights, position, to))
    }
}

/// Words that each of the two slots has.
pub(super) fn slot_words(spec: &TransformerModel, kind: Kind, lora: &LoraSpec) -> [usize; 2] {
    let words = |stage: &_| Packed::new(&held_layout(spec, stage), kind, lora).words();
    slot_values(&stages_of(spec).iter().map(words).collect::<Vec<_>>())
}

impl BaseInTurns {
    /// Of the transformer of `spec`, with weights in the bits of `lora`, which products read as `kind`.
    pub(crate) fn new(
        device: &Arc<dyn Accelerator>,
        spec: &TransformerModel,
        weights: BaseWeights,
        lora: &LoraSpec,
        (micro_batch, kind): (usize, Kind),
    ) -> Result<BaseInTurns> {
        let (parts, words) = (stages_of(spec), slot_words(spec, kind, lora));
        // As large as for a GPU that holds all, so that sums over panels have one order.
        let panel = Arc::new(device.allocate(kind, panel_of(&transformer_layout(spec), lora))?);
        let place = |words| device.allocate(Kind::F32, words).map(Arc::new);
        let places = [place(words[0])?, place(words[1])?];
        let (mut own, mut adapters) = (0..0, 0..0);
        let stages = parts.iter().enumerate().map(|(number, part)| {
            let (layout, held) = (stage_layout(spec, part), held_layout(spec, part));
            own = own.end..own.end + layout.parameters();
            adapters = adapters.end..adapters.end + lora_layout(&layout, lora).parameters();
            let packed = Packed::new(&held, kind, lora);
            let memory = (kind, places[slot_of(number, parts.len())].clone(), panel.clone());
            let frozen = Arc::new(Frozen::in_memory(&held, lora, &packed, memory));
            Stage { frozen, packed: Arc::new(packed), own: own.clone(), adapters: adapters.clone() }
        });
        let stages: Vec<Stage> = stages.collect();
        let rank = lora.rank as usize;
        Ok(BaseInTurns {
            passing: Passing::new(device.clone(), spec, (micro_batch, kind, rank))?,
            travelling: Travelling {
                slots: Slots::new(device.clone(), places, stages.len()),
                weights: Arc::new(weights),
                stages,
            },
            rank,
        })
    }

    /// Of every adapter.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// The mean loss of a batch with these adapters, to whose gradient its own is added; `sums` is for a sum on its way to the host.
    pub(crate) fn compute_gradient(
        &mut self,
        (adapters, gradient): (Weights, Span),
        batch: &Batch,
        sums: Span,
    ) -> Result<f64> {
        let mut beside = Beside { base: &mut self.travelling, adapters, gradient };
        self.passing.compute_gradient(&mut beside, batch, sums)
    }

    pub(crate) fn evaluate(
        &mut self,
        (adapters, gradient): (Weights, Span),
        batch: &Batch,
        sums: Span,
    ) -> Result<Evaluation> {
        let mut beside = Beside { base: &mut self.travelling, adapters, gradient };
        self.passing.evaluate(&mut beside, batch, sums)
    }
}

/// A base with adapters.
struct Beside<'a> {
    base: &'a mut Travelling,
    adapters: Weights,
    gradient: Span,
}

impl Weighted for Beside<'_> {
    fn load(&mut self, stage: usize) -> Result<Weights> {
        let Travelling { slots, weights, stages } = &mut *self.base;
        let Stage { frozen, adapters, .. } = &stages[stage];
        slots.load(stage, || stages[stage].filling(weights))?;
        Ok(self.adapters.part(adapters).beside(frozen.clone()))
    }

    fn begin_beside(&mut self, stage: usize, other: usize) -> Result<()> {
        let Travelling { slots, weights, stages } = &mut *self.base;
        slots.begin_beside(stage, other, || stages[other].filling(weights))
    }

    fn trains_embedding(&self) -> bool {
        !self.base.stages[0].adapters.is_empty()
    }

    fn begin_gradient(&mut self, stage: usize) -> Result<ToStage> {
        let values = self.gradient.part(self.base.stages[stage].adapters.clone());
        Ok(ToStage { values, is_of_adapters: true })
    }

    fn end_gradient(&mut self, _stage: usize) -> Result<()> {
        Ok(())
    }
}

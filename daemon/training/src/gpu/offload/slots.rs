//! Where weights lie on the GPU while their stage computes: two places, of which one is filled while what is in the other is
//! computed with.

use std::sync::{Arc, Mutex};

use candle_core::Result;
use murmur_protocol::manifest::TransformerModel;

use super::vectors::{Vectors, muon_values};
use crate::gpu::weights::{WeightMemory, Weights};
use crate::gpu::{Accelerator, Kind, Memory};
use crate::model::StageSpec;
use crate::optimizer::Optimizer;
use crate::replica::Transfer;

/// The stages of a model that is offloaded: embedding, each block, head.
pub(super) fn stages_of(spec: &TransformerModel) -> Vec<StageSpec> {
    let stage = |layers, embeds, predicts| StageSpec { layers, embeds, predicts };
    let blocks = (0..spec.layers).map(|layer| stage(layer..layer + 1, false, false));
    let (first, last) = (stage(0..0, true, false), stage(spec.layers..spec.layers, false, true));
    std::iter::once(first).chain(blocks).chain([last]).collect()
}

/// The slot of one of so many stages. Both ends have the same, since they may be much larger than a block; blocks take turns.
fn slot_of(stage: usize, stages: usize) -> usize {
    if stage + 1 == stages { 0 } else { stage % 2 }
}

/// Values of each slot, for stages of such lengths: while steps are taken, their pieces lie there.
pub(super) fn slot_values(lengths: &[usize], optimizer: &Optimizer) -> [usize; 2] {
    let longest = |slot: usize| {
        let of_slot = lengths.iter().enumerate().filter(|(stage, _)| slot_of(*stage, lengths.len()) == slot);
        of_slot.map(|(_, length)| *length).max().unwrap_or(0).max(muon_values(optimizer))
    };
    [longest(0), longest(1)]
}

struct Slot {
    memory: WeightMemory,
    /// A stage whose weights are there, as they are now.
    holds: Option<usize>,
    /// What is on its way there.
    coming: Option<Coming>,
}

struct Coming {
    content: Content,
    /// In a lock because threads share a replica, and the end of a channel cannot be shared; nobody ever waits for the lock.
    transfer: Mutex<Transfer<Vec<f32>>>,
}

impl Coming {
    fn wait(self) -> Result<()> {
        self.transfer.into_inner().expect("nobody panics with a transfer").wait().map(drop)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Stage(usize),
    /// Of the optimizer's step.
    Piece(usize),
}

pub(super) struct Slots {
    device: Arc<dyn Accelerator>,
    slots: [Slot; 2],
}

impl Slots {
    /// Of so many values each, which products read as `kind`.
    pub(super) fn new(device: Arc<dyn Accelerator>, kind: Kind, values: [usize; 2]) -> Result<Slots> {
        let slot = |values| -> Result<Slot> {
            Ok(Slot { memory: WeightMemory::new(&*device, kind, values)?, holds: None, coming: None })
        };
        let slots = [slot(values[0])?, slot(values[1])?];
        Ok(Slots { slots, device })
    }

    /// The weights of a stage: waits for them.
    pub(super) fn load(&mut self, stage: usize, vectors: &Vectors) -> Result<Weights> {
        let number = slot_of(stage, vectors.stages().len());
        self.begin(stage, vectors)?;
        let slot = &mut self.slots[number];
        if let Some(coming) = slot.coming.take() {
            coming.wait()?;
            slot.memory.round(&*self.device, &(0..vectors.stages()[stage].len()))?;
            slot.holds = Some(stage);
        }
        Ok(slot.memory.weights())
    }

    /// Begins to load the weights of another stage while `stage`, which is loaded, computes: unless both have one place. To be called
    /// before anything is computed with those of `stage`, so that no more than the other's own use is waited for.
    pub(super) fn begin_beside(&mut self, stage: usize, other: usize, vectors: &Vectors) -> Result<()> {
        let stages = vectors.stages().len();
        if slot_of(stage, stages) == slot_of(other, stages) { Ok(()) } else { self.begin(other, vectors) }
    }

    fn begin(&mut self, stage: usize, vectors: &Vectors) -> Result<()> {
        let number = slot_of(stage, vectors.stages().len());
        if self.slots[number].holds == Some(stage) {
            return Ok(());
        }
        let (write, values) = (vectors.writer(stage), vectors.stages()[stage].len());
        self.fill(number, Content::Stage(stage), write, values)
    }

    /// Begins to bring a piece to be stepped.
    pub(super) fn begin_piece(&mut self, number: usize, vectors: &Vectors) -> Result<()> {
        let (write, values) = vectors.writer_of_piece(number);
        self.fill(number % 2, Content::Piece(number), write, values)
    }

    /// Waits for it, and returns the slot where it is.
    pub(super) fn finish_piece(&mut self, number: usize) -> Result<usize> {
        let slot = &mut self.slots[number % 2];
        slot.coming.take().expect("every piece that is stepped has begun to come").wait()?;
        Ok(number % 2)
    }

    /// The memory of a slot.
    pub(super) fn place(&self, number: usize) -> Arc<Memory> {
        self.slots[number].memory.place()
    }

    /// Weights that are there are no longer the model's.
    pub(super) fn forget(&mut self) {
        for slot in &mut self.slots {
            slot.holds = None;
            // It may be of weights as they were; what fills the slot next comes after it.
            if let Some(coming) = slot.coming.take() {
                drop(coming.wait());
            }
        }
    }

    /// Fills a slot, unless that has begun already.
    fn fill(
        &mut self,
        number: usize,
        content: Content,
        write: impl FnOnce(&mut [f32]) + Send + 'static,
        values: usize,
    ) -> Result<()> {
        let slot = &mut self.slots[number];
        if slot.coming.as_ref().is_some_and(|coming| coming.content == content) {
            return Ok(());
        }
        if let Some(other) = slot.coming.take() {
            // Of a batch that failed.
            drop(other.wait());
        }
        slot.holds = None;
        let write = Box::new(move |place: &mut [f32]| {
            write(place);
            Vec::new()
        });
        let transfer = Mutex::new(self.device.begin_upload(write, values, slot.memory.place())?);
        slot.coming = Some(Coming { content, transfer });
        Ok(())
    }
}

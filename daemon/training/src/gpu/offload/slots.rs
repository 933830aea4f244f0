//! Where weights lie on the GPU while their stage computes: two places, of which one is filled while what is in the other is
//! computed with.

use std::sync::{Arc, Mutex};

use candle_core::Result;

use crate::gpu::{Accelerator, Memory, Write};
use crate::replica::Transfer;

/// What is to be uploaded, and how many values that are.
pub(super) type Filling = (Write, usize);

/// Of values that nobody wants again.
pub(super) fn filling(values: usize, write: impl FnOnce(&mut [f32]) + Send + 'static) -> Filling {
    let write = move |place: &mut [f32]| {
        write(place);
        Vec::new()
    };
    (Box::new(write), values)
}

/// The slot of one of so many stages. Both ends have the same, since they may be much larger than a block; blocks take turns.
pub(super) fn slot_of(stage: usize, stages: usize) -> usize {
    if stage + 1 == stages { 0 } else { stage % 2 }
}

/// Values of each slot, for stages of such lengths.
pub(super) fn slot_values(lengths: &[usize]) -> [usize; 2] {
    let longest = |slot: usize| {
        let of_slot = lengths.iter().enumerate().filter(|(stage, _)| slot_of(*stage, lengths.len()) == slot);
        of_slot.map(|(_, length)| *length).max().unwrap_or(0)
    };
    [longest(0), longest(1)]
}

struct Slot {
    memory: Arc<Memory>,
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
    stages: usize,
}

impl Slots {
    /// For so many stages, in these places.
    pub(super) fn new(device: Arc<dyn Accelerator>, places: [Arc<Memory>; 2], stages: usize) -> Slots {
        let slots = places.map(|memory| Slot { memory, holds: None, coming: None });
        Slots { device, slots, stages }
    }

    /// Waits for the weights of a stage, and tells whether they have arrived only now.
    pub(super) fn load(&mut self, stage: usize, filling: impl FnOnce() -> Filling) -> Result<bool> {
        self.begin(stage, filling)?;
        let slot = &mut self.slots[slot_of(stage, self.stages)];
        let Some(coming) = slot.coming.take() else { return Ok(false) };
        coming.wait()?;
        slot.holds = Some(stage);
        Ok(true)
    }

    /// Begins to load the weights of another stage while `stage`, which is loaded, computes: unless both have one place. To be called
    /// before anything is computed with those of `stage`, so that no more than the other's own use is waited for.
    pub(super) fn begin_beside(&mut self, stage: usize, other: usize, filling: impl FnOnce() -> Filling) -> Result<()> {
        if slot_of(stage, self.stages) == slot_of(other, self.stages) { Ok(()) } else { self.begin(other, filling) }
    }

    fn begin(&mut self, stage: usize, filling: impl FnOnce() -> Filling) -> Result<()> {
        let number = slot_of(stage, self.stages);
        if self.slots[number].holds == Some(stage) { Ok(()) } else { self.fill(number, Content::Stage(stage), filling) }
    }

    /// Begins to bring a piece to be stepped.
    pub(super) fn begin_piece(&mut self, number: usize, filling: impl FnOnce() -> Filling) -> Result<()> {
        self.fill(number % 2, Content::Piece(number), filling)
    }

    /// Waits for it, and returns the place where it is.
    pub(super) fn finish_piece(&mut self, number: usize) -> Result<Arc<Memory>> {
        let slot = &mut self.slots[number % 2];
        slot.coming.take().expect("every piece that is stepped has begun to come").wait()?;
        Ok(slot.memory.clone())
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
    fn fill(&mut self, number: usize, content: Content, filling: impl FnOnce() -> Filling) -> Result<()> {
        let slot = &mut self.slots[number];
        if slot.coming.as_ref().is_some_and(|coming| coming.content == content) {
            return Ok(());
        }
        if let Some(other) = slot.coming.take() {
            // Of a batch that failed.
            drop(other.wait());
        }
        slot.holds = None;
        let (write, values) = filling();
        let transfer = Mutex::new(self.device.begin_upload(write, values, slot.memory.clone())?);
        slot.coming = Some(Coming { content, transfer });
        Ok(())
    }
}

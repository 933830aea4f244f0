//! What the engine gives and takes at step boundaries: copies of the model, and corrections.
//!
//! On a GPU both travel while steps go on, so each has a beginning and an end. On the CPU the beginning does all of a copy,
//! and the end all of a correction.

use std::ops::Range;

use murmur_protocol::{Correction, Part, Selection, Snapshot, Vector};

use super::{Engine, TrainingError};
use crate::local_progress::LocalProgress;
use crate::replica::Transfer;

/// A copy made at a step boundary.
#[derive(Clone, Debug)]
pub struct Taken {
    /// What was selected.
    pub values: Snapshot,
    /// For the model: how far own training has moved it since the last such copy, estimated as a Euclidean norm.
    pub local_progress: f64,
}

/// A copy of the model as it was when the copy began.
pub struct SnapshotUnderWay(Copying);

enum Copying {
    Here(Taken),
    Coming { selection: Selection, model: Transfer<Vec<f32>> },
}

impl SnapshotUnderWay {
    /// Whether [`Engine::finish_snapshot`] returns at once.
    pub fn is_here(&mut self) -> bool {
        match &mut self.0 {
            Copying::Here(_) => true,
            Copying::Coming { model, .. } => model.is_here(),
        }
    }
}

/// A correction on its way to the device.
pub struct CorrectionUnderWay {
    part: Part,
    correction: Correction,
    /// Where the device is not the CPU.
    upload: Option<Transfer<Vec<f32>>>,
}

impl CorrectionUnderWay {
    /// Whether [`Engine::finish_correction`] returns at once.
    pub fn is_here(&mut self) -> bool {
        self.upload.as_mut().is_none_or(Transfer::is_here)
    }
}

impl Engine {
    /// A copy of what is selected.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// As [`Engine::begin_snapshot`].
    pub fn snapshot(&mut self, selection: Selection) -> Result<Taken, TrainingError> {
        let snapshot = self.begin_snapshot(selection)?;
        self.finish_snapshot(snapshot)
    }

    /// Begins a copy of what is selected, as it is now: without corrections that have not been finished. What has begun is to
    /// be finished in the same order, and corrections before the next copy begins: local progress is what lies between two
    /// copies without them.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When a correction has begun and not been finished.
    pub fn begin_snapshot(&mut self, selection: Selection) -> Result<SnapshotUnderWay, TrainingError> {
        assert_eq!(self.corrections_under_way, 0, "a copy has every correction that was ordered before it");
        if let Selection::Part(Part { vector: Vector::Momentum, fragment }) = selection {
            let outer = self.outer.as_ref().ok_or(TrainingError::NoOuterMomentum)?;
            let values = outer.momentum()[self.fragments.range(fragment)].to_vec();
            let taken = Taken { values: Snapshot::from(values), local_progress: 0.0 };
            return Ok(SnapshotUnderWay(Copying::Here(taken)));
        }
        if selection == Selection::Replica {
            let taken = Taken { values: self.replica()?, local_progress: 0.0 };
            return Ok(SnapshotUnderWay(Copying::Here(taken)));
        }
        if let Some(model) = self.replica.begin_copy()? {
            return Ok(SnapshotUnderWay(Copying::Coming { selection, model }));
        }
        let values = self.unless_others_lack(self.replica.parameters())?;
        let taken = match selection {
            Selection::Part(part) => {
                let range = self.fragments.range(part.fragment);
                let taken = taken(&mut self.local_progress, &mut self.last_copy, &values, range);
                Taken { local_progress: self.of_all(taken.local_progress), ..taken }
            }
            Selection::Values { first, end } => taken_of(&self.of_held(values), first..end)?,
            Selection::State | Selection::Replica => {
                Taken { values: Snapshot::from(self.of_held(values).into_owned()), local_progress: 0.0 }
            }
        };
        Ok(SnapshotUnderWay(Copying::Here(taken)))
    }

    /// The copy that was begun; waits for it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn finish_snapshot(&mut self, snapshot: SnapshotUnderWay) -> Result<Taken, TrainingError> {
        let (selection, model) = match snapshot.0 {
            Copying::Here(taken) => return Ok(taken),
            Copying::Coming { selection, model } => (selection, model),
        };
        let values = model.wait()?;
        Ok(match selection {
            Selection::Part(part) => {
                let range = self.fragments.range(part.fragment);
                taken(&mut self.local_progress, &mut self.last_copy, &values, range)
            }
            Selection::Values { first, end } => taken_of(&values, first..end)?,
            Selection::State | Selection::Replica => Taken { values: Snapshot::from(values), local_progress: 0.0 },
        })
    }

    /// Adds what an exchange decided. For the model: `θ += c`, and `φ += c` with the outer momentum on, so that the
    /// correction stays out of the momentum (ρ = 0). For the momentum: `u += c`.
    ///
    /// # Errors
    /// When it is for another model.
    pub fn apply(&mut self, part: Part, correction: &Correction) -> Result<(), TrainingError> {
        let correction = self.begin_correction(part, correction)?;
        self.finish_correction(correction)
    }

    /// Begins to bring a correction to the device. Nothing changes before [`Engine::finish_correction`].
    ///
    /// # Errors
    /// When it is for another model.
    pub fn begin_correction(
        &mut self,
        part: Part,
        correction: &Correction,
    ) -> Result<CorrectionUnderWay, TrainingError> {
        let range = self.fragments.range(part.fragment);
        if correction.len() != range.len() {
            let (expected, actual) = (range.len(), correction.len());
            return Err(TrainingError::WrongLength { what: "a correction", expected, actual });
        }
        let upload = match part.vector {
            Vector::Momentum => None,
            Vector::Model => self.replica.begin_addition(range, correction)?,
        };
        self.corrections_under_way += 1;
        Ok(CorrectionUnderWay { part, correction: correction.clone(), upload })
    }

    /// Adds a correction that was begun; waits for it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn finish_correction(&mut self, correction: CorrectionUnderWay) -> Result<(), TrainingError> {
        let CorrectionUnderWay { part, correction, upload } = correction;
        self.corrections_under_way -= 1;
        let range = self.fragments.range(part.fragment);
        if part.vector == Vector::Momentum {
            let outer = self.outer.as_mut().ok_or(TrainingError::NoOuterMomentum)?;
            outer.apply_to_momentum(range, &correction);
            return Ok(());
        }
        let local_progress = &mut self.local_progress;
        match upload {
            Some(upload) => local_progress.leave_out_added(range.start, &self.replica.finish_addition(upload)?),
            None => {
                let edited = self.replica.edit_parameters(&mut |parameters| {
                    let before = local_progress.sample(parameters);
                    correction.add_to(&mut parameters[range.clone()]);
                    local_progress.leave_out(&before, parameters);
                });
                self.unless_others_lack(edited)?;
            }
        }
        if let Some(outer) = &mut self.outer {
            outer.apply(range, &correction);
        }
        Ok(())
    }
}

/// Some values of a state.
fn taken_of(state: &[f32], values: Range<usize>) -> Result<Taken, TrainingError> {
    let (expected, actual) = (values.end, state.len());
    let values = state.get(values).ok_or(TrainingError::WrongLength { what: "the state", expected, actual })?;
    Ok(Taken { values: Snapshot::from(values.to_vec()), local_progress: 0.0 })
}

/// Longer copies are not kept for their memory: 64 MiB that a member holds between exchanges.
const COPY_KEPT_MAX: usize = 16 << 20;

fn taken(
    local_progress: &mut LocalProgress,
    last_copy: &mut Option<Snapshot>,
    model: &[f32],
    range: Range<usize>,
) -> Taken {
    let local_progress = local_progress.measure(model);
    let values = Snapshot::copied(&model[range], last_copy.take());
    *last_copy = (values.values().len() <= COPY_KEPT_MAX).then(|| values.clone());
    Taken { values, local_progress }
}

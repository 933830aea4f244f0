//! One copy of a model on one device, with what training it needs: parameters, their gradient, the optimizer's moments.
//!
//! [`host`] keeps flat vectors in memory and uses the model's own backward, and so does [`crate::gpu`] in the memory of a GPU;
//! [`device`] keeps tensors on any device and uses candle's autograd; [`replicated`] is several of them that train as one,
//! and [`pipeline`] one whose parts lie on several devices.

pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod pipeline;
pub(crate) mod replicated;
mod resting;
pub(crate) mod stage;
mod transfer;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use candle_core::Result;
use murmur_protocol::{Correction, Holding, ModelLayout};

use crate::data::Batch;
use crate::model::Evaluation;
use crate::optimizer::{Moments, Optimizer, norm_of};

pub(crate) use device::DeviceReplica;
pub(crate) use host::{HostReplica, has_two_lanes};
pub(crate) use pipeline::{InParts, Pipeline};
pub(crate) use replicated::Replicated;
pub(crate) use resting::Resting;
pub(crate) use stage::Stage;
pub(crate) use transfer::Transfer;

/// What the engine asks of either kind. All vectors are flat in the order of the layout; errors are those of the device.
pub(crate) trait Replica: Send + Sync {
    fn layout(&self) -> &Arc<ModelLayout>;

    /// θ.
    fn parameters(&self) -> Result<Cow<'_, [f32]>>;

    /// Replaces θ.
    fn set_parameters(&mut self, values: &[f32]) -> Result<()>;

    /// Changes θ where it lies, or a copy of it that then takes its place.
    fn edit_parameters(&mut self, edit: &mut dyn FnMut(&mut [f32])) -> Result<()> {
        let mut values = self.parameters()?.into_owned();
        edit(&mut values);
        self.set_parameters(&values)
    }

    /// All of θ that is exchanged from here is about to be replaced: what other machines have of it need not be fetched.
    fn on_replaced(&mut self) {}

    /// Computes the gradient of the mean loss of `batch`, some examples at a time, keeps it and returns that mean.
    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64>;

    /// What rests while a gradient is computed, where it lies in vectors in the machine's memory: of one stage after the other.
    fn resting(&self) -> Option<Vec<Resting<'_>>> {
        None
    }

    /// The same of a replica whose vectors lie in several places, or are fetched: between two calls, where it is lent out alone.
    fn resting_between(&mut self) -> Option<Vec<Resting<'_>>> {
        self.resting()
    }

    /// Whether that is there.
    fn rests_between(&self) -> bool {
        self.resting().is_some()
    }

    /// θ, moments and their steps, to be written where they lie: in the machine's memory, in one place.
    fn resting_mut(&mut self) -> Option<(&mut [f32], &mut Moments, &mut u64)> {
        None
    }

    /// Fetches what other machines have, so that θ and the moments are those of now until the next step.
    fn gather(&mut self) -> Result<()> {
        Ok(())
    }

    /// Computes the gradient, and runs the other on a thread of its own with what rests meanwhile, where this can be lent out. It is
    /// told when to end.
    fn compute_gradient_beside(
        &mut self,
        batch: &Batch,
        _other: &mut (dyn FnMut(&[Resting<'_>], &AtomicBool) + Send),
    ) -> Result<f64> {
        self.compute_gradient(batch)
    }

    /// The gradient kept.
    fn gradient(&self) -> Result<Cow<'_, [f32]>>;

    /// Replaces the gradient kept.
    fn set_gradient(&mut self, values: &[f32]) -> Result<()>;

    /// The sum of the squares of each tensor of the gradient kept, in the order of the layout.
    fn squares(&self) -> Result<Vec<f64>>;

    /// Of the gradient kept: not finite exactly when some value is not.
    fn gradient_norm(&self) -> Result<f64> {
        Ok(norm_of(&self.squares()?))
    }

    /// An optimizer step with the gradient kept, whose norm is finite.
    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()>;

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation>;

    /// Where the last call came to nothing only because another machine is missing: which, in words. The same is to be tried
    /// again.
    fn waits(&self) -> Option<String> {
        None
    }

    /// Which fragments of the model are exchanged from here; other machines exchange the others, and have the newer values of those.
    fn holding(&self) -> Holding {
        Holding::ALL
    }

    /// The next step is at this progress of the swarm, in steps.
    fn on_progress(&mut self, _progress: f64) {}

    /// Whether values of θ have come back since the last call that are older than those that other machines have exchanged.
    fn take_outdated(&mut self) -> bool {
        false
    }

    /// No step follows: what other machines exchanged comes back here, as far as they can be reached.
    fn end_training(&mut self) -> Result<()> {
        Ok(())
    }

    /// For what the device has not done yet.
    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn optimizer(&self) -> &Optimizer;

    /// Tells with how many members θ is averaged, this one counted.
    fn set_members(&mut self, members: f64);

    /// Steps since the moments were zero, where parameters and moments [rest](Replica::resting).
    fn steps_of_moments(&self) -> u64 {
        0
    }

    /// The optimizer's moments, and the steps since they were zero.
    fn moments(&self) -> Result<(Moments, u64)>;

    /// Replaces the optimizer's moments.
    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()>;

    /// Begins a copy of θ as it is now, while training goes on. `None` where reading θ takes no such care.
    fn begin_copy(&self) -> Result<Option<Transfer<Vec<f32>>>> {
        Ok(None)
    }

    /// Begins to bring a correction to the device, while training goes on. `None` where [`Replica::edit_parameters`] is
    /// the way.
    fn begin_addition(&mut self, _range: Range<usize>, _correction: &Correction) -> Result<Option<Transfer<Vec<f32>>>> {
        Ok(None)
    }

    /// Adds to θ what the first addition begun has brought, and returns it.
    fn finish_addition(&mut self, upload: Transfer<Vec<f32>>) -> Result<Vec<f32>> {
        upload.wait()
    }
}

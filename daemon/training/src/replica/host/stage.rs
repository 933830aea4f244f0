//! A stage in the machine's memory, computed by threads of its own.

use candle_core::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{HostReplica, add};
use crate::data::Batch;
use crate::model::stage::{BackwardOutput, Evaluated, Staged};
use crate::model::{Task, Write};
use crate::replica::Replica;
use crate::replica::stage::{Microbatch, Stage};

pub(crate) struct HostStage {
    /// Whose model is one stage.
    replica: HostReplica,
    /// Of the second lane, from its first microbatch on.
    second_gradient: Vec<f32>,
    threads: ThreadPool,
}

impl HostStage {
    /// Of a replica whose model is cut.
    ///
    /// # Errors
    /// When the system has no more threads.
    ///
    /// # Panics
    /// When the model is none that can be cut.
    pub(crate) fn new(mut replica: HostReplica, threads: usize) -> Result<HostStage> {
        assert!(replica.model.staged().is_some(), "only a model that can be cut has stages");
        let threads = ThreadPoolBuilder::new().num_threads(threads).build().map_err(Error::wrap)?;
        Ok(HostStage { replica, second_gradient: Vec::new(), threads })
    }

    /// The model and its parameters.
    fn parts(&mut self) -> (&mut dyn Staged, &[f32]) {
        let HostReplica { model, parameters, .. } = &mut self.replica;
        (model.staged().expect("checked at the beginning"), parameters)
    }
}

impl Stage for HostStage {
    fn replica(&self) -> &dyn Replica {
        &self.replica
    }

    fn replica_mut(&mut self) -> &mut dyn Replica {
        &mut self.replica
    }

    fn begin(&mut self) -> Result<()> {
        self.parts().0.abandon();
        Ok(())
    }

    fn forward(&mut self, microbatch: &Microbatch, input: Option<Vec<f32>>) -> Result<Option<Vec<f32>>> {
        let HostStage { replica: HostReplica { model, parameters, .. }, threads, .. } = self;
        let model = model.staged().expect("checked at the beginning");
        let batch = microbatch.batch.tokens()?;
        threads.install(|| model.forward(parameters, batch, input, threads.current_num_threads()))
    }

    fn backward(&mut self, microbatch: &Microbatch, to_output: Option<Vec<f32>>, share: f32) -> Result<BackwardOutput> {
        let HostStage { replica: HostReplica { model, parameters, gradient, .. }, threads, second_gradient } = self;
        let model = model.staged().expect("checked at the beginning");
        let gradient = if microbatch.lane == 0 { gradient } else { second_gradient };
        gradient.resize(parameters.len(), 0.0);
        let write = if microbatch.is_first { Write::Replace } else { Write::Add };
        let task = Task { share, write, is_last: microbatch.is_last, threads: threads.current_num_threads() };
        let batch = microbatch.batch.tokens()?;
        threads.install(|| model.backward(parameters, batch, to_output, &task, gradient))
    }

    fn end(&mut self, lanes: usize) -> Result<()> {
        if lanes > 1 {
            let HostStage { replica, second_gradient, threads } = self;
            threads.install(|| add(&mut replica.gradient, second_gradient));
        }
        Ok(())
    }

    /// On the threads of who calls: nothing else is computed meanwhile.
    fn evaluate(&mut self, batch: &Batch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        let (model, parameters) = self.parts();
        model.evaluate_stage(parameters, batch.tokens()?, input)
    }
}

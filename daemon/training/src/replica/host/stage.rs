//! A stage in the machine's memory, computed by threads of its own.

use std::borrow::Cow;

use candle_core::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{HostReplica, add};
use crate::data::Batch;
use crate::model::stage::{BackwardOutput, Evaluated};
use crate::model::{Task, Transformer, Write};
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

    /// Of a lane, with that of the copy of what another stage has.
    fn gradient_of(&mut self, lane: usize) -> &mut [f32] {
        let HostStage { replica: HostReplica { parameters, gradient, .. }, second_gradient, .. } = self;
        of_lane(lane, [gradient, second_gradient], parameters.len())
    }

    /// The model and its parameters.
    fn parts(&mut self) -> (&mut Transformer, &[f32]) {
        let HostReplica { model, parameters, .. } = &mut self.replica;
        (model.staged().expect("checked at the beginning"), parameters)
    }
}

fn of_lane(lane: usize, gradients: [&mut Vec<f32>; 2], length: usize) -> &mut [f32] {
    let [first, second] = gradients;
    let gradient = if lane == 0 { first } else { second };
    gradient.resize(length, 0.0);
    gradient
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
        let gradient = of_lane(microbatch.lane, [gradient, second_gradient], parameters.len());
        let write = if microbatch.is_first { Write::Replace } else { Write::Add };
        let task = Task { share, write, is_last: microbatch.is_last, threads: threads.current_num_threads() };
        let batch = microbatch.batch.tokens()?;
        threads.install(|| model.backward(parameters, batch, to_output, &task, gradient))
    }

    fn end(&mut self, lanes: usize) -> Result<()> {
        if lanes > 1 {
            let own = self.replica.own();
            let HostStage { replica, second_gradient, threads } = self;
            threads.install(|| add(&mut replica.gradient[own.clone()], &second_gradient[own]));
        }
        Ok(())
    }

    fn copied(&self) -> usize {
        self.replica.model.copied()
    }

    fn set_copy(&mut self, table: &[f32]) -> Result<()> {
        let first = self.replica.own().end;
        self.replica.parameters[first..].copy_from_slice(table);
        Ok(())
    }

    fn copy_gradient(&mut self, lane: usize) -> Result<Vec<f32>> {
        let first = self.replica.own().end;
        Ok(self.gradient_of(lane)[first..].to_vec())
    }

    fn table(&self, values: usize) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(&self.replica.parameters[..values]))
    }

    fn set_table_gradient(&mut self, lane: usize, values: &[f32]) -> Result<()> {
        self.gradient_of(lane)[..values.len()].copy_from_slice(values);
        Ok(())
    }

    /// On the threads of who calls: nothing else is computed meanwhile.
    fn evaluate(&mut self, batch: &Batch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        self.replica.model.release();
        let (model, parameters) = self.parts();
        model.evaluate_stage(parameters, batch.tokens()?, input)
    }
}

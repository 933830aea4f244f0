//! A stage in a GPU's memory. Streams come and go through the machine's memory: consumer cards cannot read each other's, and
//! two kinds of devices never can.

use std::borrow::Cow;

use candle_core::Result;

use super::{GpuReplica, Replica, bytes_of};
use crate::data::Batch;
use crate::model::stage::{BackwardOutput, Evaluated};
use crate::replica::stage::{Microbatch, Stage};

pub(crate) struct GpuStage {
    /// Whose model is one stage.
    replica: GpuReplica,
}

impl GpuStage {
    /// Of a replica of one stage.
    pub(crate) fn new(replica: GpuReplica) -> GpuStage {
        GpuStage { replica }
    }
}

impl Stage for GpuStage {
    fn replica(&self) -> &dyn Replica {
        &self.replica
    }

    fn replica_mut(&mut self) -> &mut dyn Replica {
        &mut self.replica
    }

    fn begin(&mut self) -> Result<()> {
        self.replica.model.abandon();
        self.replica.clear_gradient()
    }

    fn forward(&mut self, microbatch: &Microbatch, input: Option<Vec<f32>>) -> Result<Option<Vec<f32>>> {
        let weights = self.replica.weights();
        self.replica.model.forward(&weights, microbatch.batch.tokens()?, input)
    }

    fn backward(&mut self, microbatch: &Microbatch, to_output: Option<Vec<f32>>, share: f32) -> Result<BackwardOutput> {
        assert_eq!(microbatch.lane, 0, "a GPU has one gradient");
        let (batch, predicts) = (microbatch.batch.tokens()?, to_output.is_none());
        let (weights, gradient) = (self.replica.weights(), self.replica.added_to(microbatch.is_last));
        let to_input = self.replica.model.backward(&weights, batch, to_output, share, gradient)?;
        let GpuReplica { model, sums, .. } = &self.replica;
        let loss = || model.loss_sum(microbatch.batch.predictions(), sums.span());
        Ok(BackwardOutput { loss: if predicts { loss()? } else { 0.0 }, to_input })
    }

    fn end(&mut self, lanes: usize) -> Result<()> {
        assert_eq!(lanes, 1, "a GPU has one gradient");
        Ok(())
    }

    fn copied(&self) -> usize {
        self.replica.parameters.exact().values - self.replica.own().end
    }

    fn set_copy(&mut self, table: &[f32]) -> Result<()> {
        let GpuReplica { device, parameters, .. } = &self.replica;
        parameters.upload(&**device, self.replica.own().end, table)
    }

    fn copy_gradient(&mut self, lane: usize) -> Result<Vec<f32>> {
        assert_eq!(lane, 0, "a GPU has one gradient");
        let gradient = self.replica.gradient.span();
        self.replica.download(gradient.part(self.replica.own().end..gradient.values))
    }

    fn table(&self, values: usize) -> Result<Cow<'_, [f32]>> {
        self.replica.download(self.replica.parameters.exact().first(values)).map(Cow::Owned)
    }

    fn set_table_gradient(&mut self, lane: usize, values: &[f32]) -> Result<()> {
        assert_eq!(lane, 0, "a GPU has one gradient");
        self.replica.device.upload(bytes_of(values), self.replica.gradient.span().first(values.len()))
    }

    fn evaluate(&mut self, batch: &Batch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        let weights = self.replica.weights();
        match self.replica.model.evaluate(&weights, batch.tokens()?, input)? {
            Some(stream) => Ok(Evaluated::Stream(stream)),
            None => {
                let GpuReplica { model, sums, .. } = &self.replica;
                Ok(Evaluated::Evaluation(model.evaluation(batch.predictions(), sums.span())?))
            }
        }
    }
}

//! What one device holds of a model that is cut: the vectors of its stage, and the stage's forward and backward.

use std::borrow::Cow;

use candle_core::Result;

use super::Replica;
use crate::data::Batch;
use crate::model::stage::{BackwardOutput, Evaluated};

/// A part of a batch that is computed at once.
#[derive(Clone, Debug)]
pub(crate) struct Microbatch {
    pub(crate) batch: Batch,
    /// Of the two gradients that are added at the end, as a whole model's replica has them: 0 or 1.
    pub(crate) lane: usize,
    /// Whether it is the first of its lane, which replaces what the lane's gradient was before.
    pub(crate) is_first: bool,
    /// Whether it is the last of its lane.
    pub(crate) is_last: bool,
}

/// One stage of a pipeline. Streams and their gradients are `[rows, width]`, in the machine's memory.
pub(crate) trait Stage: Send + Sync {
    /// Its vectors, with a layout of their own.
    fn replica(&self) -> &dyn Replica;

    fn replica_mut(&mut self) -> &mut dyn Replica;

    /// Forgets what a batch that failed has left.
    fn begin(&mut self) -> Result<()>;

    /// The output stream; none where the stage predicts.
    fn forward(&mut self, microbatch: &Microbatch, input: Option<Vec<f32>>) -> Result<Option<Vec<f32>>>;

    /// Of the microbatch whose forward was first of those that wait. The gradient is that of `share` times the losses' sum.
    fn backward(&mut self, microbatch: &Microbatch, to_output: Option<Vec<f32>>, share: f32) -> Result<BackwardOutput>;

    /// Adds up the gradients of so many lanes.
    fn end(&mut self, lanes: usize) -> Result<()>;

    /// How many values its copy of a tied table has that is trained (`StageSpec::copies_table`); else 0. They are no part of its
    /// replica's vectors.
    fn copied(&self) -> usize;

    /// Replaces that copy.
    fn set_copy(&mut self, table: &[f32]) -> Result<()>;

    /// The gradient of that copy in a lane whose microbatches have all been back.
    fn copy_gradient(&mut self, lane: usize) -> Result<Vec<f32>>;

    /// Of the stage that embeds: the table, of so many values.
    fn table(&self, values: usize) -> Result<Cow<'_, [f32]>>;

    /// Of the stage that embeds: replaces the gradient of the table in a lane, before its last microbatch comes back, with which
    /// the embedding's own part is added.
    fn set_table_gradient(&mut self, lane: usize, values: &[f32]) -> Result<()>;

    /// A forward alone.
    fn evaluate(&mut self, batch: &Batch, input: Option<Vec<f32>>) -> Result<Evaluated>;
}

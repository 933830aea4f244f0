//! One model over several devices: each holds a stage, and a batch goes through them in microbatches (pipeline parallelism).
//! Gradients, norms and parameters have the bits of a replica that holds the whole model and computes the same parts.
//!
//! Where the head is the embedding's table, the last stage has a copy of it that nobody else sees, as in Megatron-LM
//! (`finalize_model_grads.py`).

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use candle_core::{Error, Result};
use murmur_protocol::team::schedule::{Action, Schedule, in_flight};
use murmur_protocol::{ModelLayout, RunManifest};
use rayon::prelude::*;

use super::stage::{Microbatch, Stage};
use super::{Replica, Resting, Transfer, has_two_lanes};
use crate::data::Batch;
use crate::engine::options::TrainingOptions;
use crate::model::stage::Evaluated;
use crate::model::{self, Evaluation};
use crate::ops::Kernels;
use crate::optimizer::{Moments, Optimizer};

pub(crate) struct Pipeline {
    /// At least one, in the order of the model.
    stages: Vec<Box<dyn Stage>>,
    layout: Arc<ModelLayout>,
    /// Values of a tied table that is trained, of which the last stage has a copy; else 0. The copy's gradient goes to the first
    /// stage in every batch, and the table to the last one after every step.
    copied: usize,
    /// Of the whole model; each stage has its own.
    optimizer: Optimizer,
    parts: InParts,
}

/// How a batch is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InParts {
    /// Examples computed at once, at most.
    pub(crate) micro_batch: usize,
    /// Whether a replica of the whole model would compute a batch of several examples in two lanes.
    pub(crate) has_lanes: bool,
}

impl InParts {
    /// As one replica would compute the batches of a run: on the CPU, where all stages are there, else on a GPU.
    pub(crate) fn of(manifest: &RunManifest, options: &TrainingOptions, all_on_cpu: bool) -> InParts {
        let micro_batch = options.examples_at_once(&manifest.model, Kernels::Fused);
        let parameters = model::trained_layout(manifest).parameters();
        let has_another = all_on_cpu && !options.recompute;
        InParts { micro_batch, has_lanes: has_another && has_two_lanes(parameters, usize::MAX, micro_batch) }
    }

    /// Microbatches of a batch of so many examples.
    pub(crate) fn count(&self, examples: usize) -> usize {
        self.microbatches_of(examples).iter().sum()
    }

    /// The same of each lane.
    pub(crate) fn microbatches_of(&self, examples: usize) -> Vec<usize> {
        let in_lane = |examples: usize, micro_batch: usize| examples.div_ceil(micro_batch.max(1));
        if self.is_in_lanes(examples) {
            let (half, at_once) = (examples.div_ceil(2), self.micro_batch / 2);
            vec![in_lane(half, at_once), in_lane(examples - half, at_once)]
        } else {
            vec![in_lane(examples, self.micro_batch)]
        }
    }

    /// In the order in which they are computed, and the number of lanes: as [`super::HostReplica`] has them.
    pub(crate) fn microbatches(&self, batch: &Batch) -> (Vec<Microbatch>, usize) {
        let examples = batch.examples();
        let in_lane = |batch: &Batch, lane: usize, micro_batch: usize| {
            let microbatch = |(number, batch)| Microbatch { batch, lane, is_first: number == 0, is_last: false };
            let mut all: Vec<Microbatch> = batch.parts(micro_batch).enumerate().map(microbatch).collect();
            all.last_mut().into_iter().for_each(|last| last.is_last = true);
            all
        };
        let micro_batch = self.micro_batch;
        if !self.is_in_lanes(examples) {
            return (in_lane(batch, 0, micro_batch), 1);
        }
        let middle = examples.div_ceil(2);
        let half = |lane: usize, range| in_lane(&batch.part(range), lane, micro_batch / 2);
        ([half(0, 0..middle), half(1, middle..examples)].concat(), 2)
    }

    fn is_in_lanes(&self, examples: usize) -> bool {
        self.has_lanes && examples.min(self.micro_batch) > 1
    }
}

impl Pipeline {
    /// Of stages whose layouts make this one together.
    ///
    /// # Errors
    /// When a device fails.
    ///
    /// # Panics
    /// When they do not.
    pub(crate) fn new(
        stages: Vec<Box<dyn Stage>>,
        layout: Arc<ModelLayout>,
        optimizer: Optimizer,
        parts: InParts,
    ) -> Result<Pipeline> {
        let tensors = stages.iter().flat_map(|stage| stage.replica().layout().tensors());
        let same = tensors.map(|tensor| (&tensor.name, &tensor.shape));
        assert!(same.eq(layout.tensors().iter().map(|tensor| (&tensor.name, &tensor.shape))), "stages make the model");
        let copied = stages.last().map_or(0, |last| last.copied());
        let mut pipeline = Pipeline { stages, layout, copied, optimizer, parts };
        pipeline.copy_table()?;
        Ok(pipeline)
    }

    /// Gives the last stage the table of the first, where it predicts with a copy of it.
    fn copy_table(&mut self) -> Result<()> {
        match &mut self.stages[..] {
            [first, .., last] if self.copied > 0 => last.set_copy(&first.table(self.copied)?),
            _ => Ok(()),
        }
    }

    /// What belongs to each stage of a vector in which they have such lengths, one after the other.
    fn cut<'a>(&self, values: &'a [f32], length: impl Fn(&dyn Replica) -> usize) -> Vec<&'a [f32]> {
        let (mut rest, mut parts) = (values, Vec::new());
        for stage in &self.stages {
            let (part, others) = rest.split_at(length(stage.replica()));
            parts.push(part);
            rest = others;
        }
        parts
    }

    /// The same of each stage, side by side, with its part of a vector in the order of the layout.
    fn on_parts(&mut self, values: &[f32], act: impl Fn(&mut dyn Replica, &[f32]) -> Result<()> + Sync) -> Result<()> {
        let parts = self.cut(values, |replica| replica.layout().parameters());
        let stages = self.stages.par_iter_mut().zip(parts);
        stages.try_for_each(|(stage, part)| act(stage.replica_mut(), part))
    }

    fn joined<'a>(&'a self, values: impl Fn(&'a dyn Replica) -> Result<Cow<'a, [f32]>>) -> Result<Vec<f32>> {
        let mut joined = Vec::with_capacity(self.layout.parameters());
        for stage in &self.stages {
            joined.extend_from_slice(&values(stage.replica())?);
        }
        Ok(joined)
    }
}

/// Why a stage ended before the batch did.
enum Ended {
    /// Another one did, whose reason is told.
    WithAnother,
    Failed(Error),
}

type UntilEnd<T> = std::result::Result<T, Ended>;

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::Failed(error)
    }
}

/// What a stage hears from its neighbours and tells them; none at the ends of the pipeline.
#[derive(Default)]
struct Ends {
    input: Option<Receiver<Vec<f32>>>,
    output: Option<SyncSender<Vec<f32>>>,
    to_output: Option<Receiver<Vec<f32>>>,
    to_input: Option<SyncSender<Vec<f32>>>,
    /// Of a copied table: the head's part of its gradient in each lane, which the last stage has and the first one adds to.
    table_gradients: Option<Receiver<Vec<f32>>>,
    table_gradient: Option<SyncSender<Vec<f32>>>,
}

impl Ends {
    /// Of so many stages, and of so many lanes where a table is copied.
    fn of(stages: usize, lanes: Option<usize>) -> Vec<Ends> {
        let mut all: Vec<Ends> = (0..stages).map(|_| Ends::default()).collect();
        for next in 1..stages {
            // No stage is further ahead than this.
            let ((output, input), (to_input, to_output)) = (sync_channel(stages), sync_channel(stages));
            (all[next].input, all[next - 1].output) = (Some(input), Some(output));
            (all[next - 1].to_output, all[next].to_input) = (Some(to_output), Some(to_input));
        }
        if let Some(lanes) = lanes {
            let (gradient, gradients) = sync_channel(lanes);
            (all[0].table_gradients, all[stages - 1].table_gradient) = (Some(gradients), Some(gradient));
        }
        all
    }
}

fn receive(from: Option<&Receiver<Vec<f32>>>) -> UntilEnd<Option<Vec<f32>>> {
    from.map(|from| from.recv().map_err(|_| Ended::WithAnother)).transpose()
}

fn send(to: Option<&SyncSender<Vec<f32>>>, stream: Option<Vec<f32>>) -> UntilEnd<()> {
    match (to, stream) {
        (Some(to), Some(stream)) => to.send(stream).map_err(|_| Ended::WithAnother),
        (None, None) => Ok(()),
        _ => unreachable!("the first stage embeds, the last one predicts, and no other does"),
    }
}

/// All that one stage does for a batch; the sums of the losses of each lane, of the stage that predicts.
fn run(
    stage: &mut dyn Stage,
    order: &[Action],
    (microbatches, lanes): (&[Microbatch], usize),
    share: f32,
    ends: &Ends,
) -> UntilEnd<Vec<f64>> {
    let mut losses = vec![0.0; lanes];
    stage.begin()?;
    for action in order {
        match *action {
            Action::Forward(number) => {
                let input = receive(ends.input.as_ref())?;
                send(ends.output.as_ref(), stage.forward(&microbatches[number], input)?)?;
            }
            Action::Backward(number) => {
                let (microbatch, to_output) = (&microbatches[number], receive(ends.to_output.as_ref())?);
                if let Some(gradient) = receive(ends.table_gradients.as_ref().filter(|_| microbatch.is_last))? {
                    stage.set_table_gradient(microbatch.lane, &gradient)?;
                }
                let output = stage.backward(microbatch, to_output, share)?;
                losses[microbatch.lane] += output.loss;
                send(ends.to_input.as_ref(), output.to_input)?;
                if let Some(to) = ends.table_gradient.as_ref().filter(|_| microbatch.is_last) {
                    send(Some(to), Some(stage.copy_gradient(microbatch.lane)?))?;
                }
            }
        }
    }
    stage.end(lanes)?;
    Ok(losses)
}

impl Replica for Pipeline {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        self.joined(Replica::parameters).map(Cow::Owned)
    }

    fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        self.on_parts(values, |replica, part| replica.set_parameters(part))?;
        self.copy_table()
    }

    fn compute_gradient(&mut self, batch: &Batch) -> Result<f64> {
        let (microbatches, lanes) = self.parts.microbatches(batch);
        let (count, share) = (self.stages.len(), 1.0 / batch.predictions() as f32);
        let microbatches = &microbatches;
        let ends = Ends::of(count, (self.copied > 0).then_some(lanes));
        let ended: Vec<UntilEnd<Vec<f64>>> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, (stage, ends)) in self.stages.iter_mut().zip(ends).enumerate() {
                let held = in_flight(number, count, microbatches.len());
                let order: Vec<Action> = Schedule::new(held, microbatches.len()).collect();
                // The channels close with the thread, so that its neighbours end as well.
                threads.push(scope.spawn(move || run(&mut **stage, &order, (microbatches, lanes), share, &ends)));
            }
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut loss = 0.0;
        let mut lost = false;
        for ended in ended {
            match ended {
                Ok(losses) => loss += losses.iter().sum::<f64>(),
                Err(Ended::Failed(error)) => return Err(error),
                Err(Ended::WithAnother) => lost = true,
            }
        }
        assert!(!lost, "a stage ends early only where one fails");
        Ok(loss / batch.predictions() as f64)
    }

    fn gradient(&self) -> Result<Cow<'_, [f32]>> {
        self.joined(Replica::gradient).map(Cow::Owned)
    }

    fn set_gradient(&mut self, values: &[f32]) -> Result<()> {
        self.on_parts(values, |replica, part| replica.set_gradient(part))
    }

    fn squares(&self) -> Result<Vec<f64>> {
        let squares = self.stages.iter().map(|stage| stage.replica().squares()).collect::<Result<Vec<_>>>()?;
        Ok(squares.concat())
    }

    fn step(&mut self, gradient_norm: f64, learning_rate: f64) -> Result<()> {
        let stages = self.stages.par_iter_mut();
        stages.try_for_each(|stage| stage.replica_mut().step(gradient_norm, learning_rate))?;
        self.copy_table()
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Evaluation> {
        let mut evaluation = Evaluation::default();
        for part in batch.parts(self.parts.micro_batch) {
            let mut handed = None;
            for stage in &mut self.stages {
                match stage.evaluate(&part, handed.take())? {
                    Evaluated::Stream(stream) => handed = Some(stream),
                    Evaluated::Evaluation(of_part) => evaluation = evaluation.with(of_part),
                }
            }
        }
        Ok(evaluation)
    }

    fn wait(&self) -> Result<()> {
        self.stages.iter().try_for_each(|stage| stage.replica().wait())
    }

    fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    fn set_members(&mut self, members: f64) {
        self.optimizer.set_members(members);
        self.stages.iter_mut().for_each(|stage| stage.replica_mut().set_members(members));
    }

    fn moments(&self) -> Result<(Moments, u64)> {
        let (mut joined, mut steps) = (Moments::default(), 0);
        for stage in &self.stages {
            let (moments, its_steps) = stage.replica().moments()?;
            joined.append(&moments);
            steps = its_steps;
        }
        Ok((joined, steps))
    }

    fn set_moments(&mut self, moments: Moments, steps: u64) -> Result<()> {
        let mut rest = moments.cursor();
        self.stages.iter_mut().try_for_each(|stage| {
            let replica = stage.replica_mut();
            let moments = rest.take(&replica.optimizer().own_lengths());
            replica.set_moments(moments, steps)
        })
    }

    /// Where all stages are on the CPU.
    fn resting(&self) -> Option<Vec<Resting<'_>>> {
        let of_stages = self.stages.iter().map(|stage| stage.replica().resting());
        Some(of_stages.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn steps_of_moments(&self) -> u64 {
        self.stages[0].replica().steps_of_moments()
    }

    /// Where all stages are on devices that copy while they compute.
    fn begin_copy(&self) -> Result<Option<Transfer<Vec<f32>>>> {
        let copies = self.stages.iter().map(|stage| stage.replica().begin_copy()).collect::<Result<Vec<_>>>()?;
        let Some(copies) = copies.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let wait = || Ok(copies.into_iter().map(Transfer::wait).collect::<Result<Vec<_>>>()?.concat());
        Transfer::waiting(wait).map(Some)
    }
}

#[cfg(test)]
mod tests;

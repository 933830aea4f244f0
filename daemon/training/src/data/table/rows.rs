//! Rows of tables as a model reads them: to train on, held out, and to be predicted.

use std::path::PathBuf;

use murmur_protocol::manifest::{DataSource, RunManifest, TableTask};
use murmur_protocol::random::{Rng, stream};

use super::cells::{columns_of, each_row};
use super::encoding::{Encoder, Expected, Unknown};
use super::error::{CellFault, TableError};
use crate::data::batch::{RowBatch, RowTargets};
use crate::data::folders::list_files;
use crate::data::held_out::{HeldOut, mark_of};
use crate::data::{Batch, CorpusError};

/// All rows of a run that are here.
pub(crate) struct RowSet {
    /// Inputs of a row.
    width: usize,
    /// `[rows, width]` row-major.
    inputs: Vec<f32>,
    targets: Targets,
    /// The weight of each class in the loss.
    class_weights: Vec<f32>,
    /// Numbers of the rows that are trained on, in order.
    training: Vec<usize>,
    /// Numbers of the rows that are held out, in the order in which they are evaluated.
    held_out: Vec<usize>,
}

enum Targets {
    Classes(Vec<u32>),
    Numbers(Vec<f32>),
}

impl Targets {
    fn none(task: TableTask) -> Targets {
        match task {
            TableTask::Classification => Targets::Classes(Vec::new()),
            TableTask::Regression => Targets::Numbers(Vec::new()),
        }
    }

    fn push(&mut self, expected: Expected) {
        match (self, expected) {
            (Targets::Classes(labels), Expected::Class(label)) => labels.push(label),
            (Targets::Numbers(numbers), Expected::Number(number)) => numbers.push(number),
            _ => unreachable!("a run has one task"),
        }
    }

    fn len(&self) -> usize {
        match self {
            Targets::Classes(labels) => labels.len(),
            Targets::Numbers(numbers) => numbers.len(),
        }
    }
}

impl RowSet {
    /// The run's rows at `paths`.
    ///
    /// # Errors
    /// When they are not what the run reads, or too few.
    pub(in crate::data) fn open(manifest: &RunManifest, paths: &[PathBuf]) -> Result<RowSet, CorpusError> {
        let encoder = Encoder::new(manifest)?;
        let target = &manifest.table.target;
        let columns: Vec<String> = encoder.columns().iter().chain([target]).cloned().collect();
        let (mut inputs, mut targets) = (Vec::new(), Targets::none(manifest.table.task));
        let mut draw = HeldOut::new(manifest, "held-out rows");
        for path in list_files(DataSource::Table, paths)? {
            each_row(&path, &columns, &mut |place, cells| {
                let (of_target, of_inputs) = cells.split_last().expect("the target is the last column");
                let first = inputs.len();
                encoder.encode(&place, of_inputs, Unknown::Refused, &mut inputs)?;
                let expected = encoder.expected(of_target).and_then(|expected| expected.ok_or(CellFault::NoTarget));
                let expected = expected.map_err(|fault| TableError::cell(&place, target, fault))?;
                // The same row marks the same in each format.
                let row: Vec<u8> = inputs[first..].iter().flat_map(|input| input.to_le_bytes()).collect();
                draw.push(mark_of(&[&row, &expected.to_bytes()]));
                targets.push(expected);
                Ok(())
            })?;
        }
        let rows = targets.len();
        let (training, held_out) = draw.finish();
        for (part, numbers) in [("training", &training), ("validation", &held_out)] {
            if numbers.is_empty() {
                return Err(TableError::TooFewRows(part, rows).into());
            }
        }
        let class_weights = class_weights(manifest);
        Ok(RowSet { width: manifest.model.inputs() as usize, inputs, targets, class_weights, training, held_out })
    }

    /// Noise: as many rows as a batch holds, and one that is held out.
    pub(in crate::data) fn made_up(manifest: &RunManifest) -> RowSet {
        let (width, count) = (manifest.model.inputs() as usize, manifest.optimizer.batch_sequences as usize + 1);
        let mut generator = stream(manifest.run.seed, "made-up rows", &[]);
        let mut draw = || generator.next_u32() as f32 / 2_f32.powi(31) - 1.0;
        let inputs = (0..count * width).map(|_| draw()).collect();
        let targets = match manifest.model.classes() {
            1 => Targets::Numbers((0..count).map(|_| draw()).collect()),
            classes => Targets::Classes((0..count as u32).map(|number| number % classes).collect()),
        };
        let class_weights = class_weights(manifest);
        RowSet { width, inputs, targets, class_weights, training: (0..count - 1).collect(), held_out: vec![count - 1] }
    }

    /// Numbers of the rows that are trained on, in order.
    pub(crate) fn training(&self) -> &[usize] {
        &self.training
    }

    pub(in crate::data) fn held_out(&self) -> &[usize] {
        &self.held_out
    }

    /// Keeps one of `count` equal shares of the rows to train on.
    pub(in crate::data) fn keep_share(&mut self, index: usize, count: usize) -> Result<(), CorpusError> {
        let rows = self.training.len();
        let length = rows / count;
        if length == 0 {
            return Err(TableError::TooFewRows("training", rows).into());
        }
        self.training = self.training[index * length..][..length].to_vec();
        Ok(())
    }

    /// The batch of these rows.
    ///
    /// # Panics
    /// When there is no such row.
    pub(crate) fn batch(&self, numbers: &[usize]) -> Batch {
        let inputs = numbers.iter().flat_map(|number| &self.inputs[number * self.width..][..self.width]).copied();
        let targets = match &self.targets {
            Targets::Numbers(values) => RowTargets::Numbers(numbers.iter().map(|number| values[*number]).collect()),
            Targets::Classes(labels) => {
                let labels: Vec<u32> = numbers.iter().map(|number| labels[*number]).collect();
                let weight = |label: &u32| self.class_weights.get(*label as usize).copied().unwrap_or(1.0);
                RowTargets::Classes { weights: labels.iter().map(weight).collect(), labels }
            }
        };
        Batch::Rows(RowBatch { inputs: inputs.collect(), width: self.width, targets })
    }
}

fn class_weights(manifest: &RunManifest) -> Vec<f32> {
    manifest.table.class_weights.iter().map(|weight| *weight as f32).collect()
}

/// Rows that are to be predicted.
pub struct NewRows {
    /// The rows, with those of their targets that there are; others are 0.
    pub batch: RowBatch,
    /// Which rows have a target.
    pub has_target: Vec<bool>,
    /// Rows with a category that the run does not know, and where the first of them is.
    pub unknown: Option<(usize, String)>,
}

impl NewRows {
    /// The rows of tables that a run can predict; they need no target.
    ///
    /// # Errors
    /// When they cannot be read, or lack a column.
    pub fn open(manifest: &RunManifest, paths: &[PathBuf]) -> Result<NewRows, CorpusError> {
        let encoder = Encoder::new(manifest)?;
        let target = &manifest.table.target;
        let (mut inputs, mut has_target, mut targets) = (Vec::new(), Vec::new(), Targets::none(manifest.table.task));
        let mut unknown: Option<(usize, String)> = None;
        let paths = list_files(DataSource::Table, paths)?;
        for path in &paths {
            let mut columns = encoder.columns().to_vec();
            if columns_of(path)?.contains(target) {
                columns.push(target.clone());
            }
            each_row(path, &columns, &mut |place, cells| {
                let (of_inputs, of_target) = cells.split_at(encoder.columns().len());
                if encoder.encode(&place, of_inputs, Unknown::Ignored, &mut inputs)? {
                    unknown.get_or_insert_with(|| (0, place.to_string())).0 += 1;
                }
                let expected = of_target.first().map_or(Ok(None), |cell| encoder.expected(cell));
                let expected = expected.map_err(|fault| TableError::cell(&place, target, fault))?;
                has_target.push(expected.is_some());
                targets.push(expected.unwrap_or(match manifest.table.task {
                    TableTask::Classification => Expected::Class(0),
                    TableTask::Regression => Expected::Number(0.0),
                }));
                Ok(())
            })?;
        }
        if has_target.is_empty() {
            return Err(TableError::NoRows(paths.last().cloned().unwrap_or_default()).into());
        }
        let targets = match targets {
            Targets::Classes(labels) => RowTargets::Classes { weights: vec![1.0; labels.len()], labels },
            Targets::Numbers(numbers) => RowTargets::Numbers(numbers),
        };
        Ok(NewRows {
            batch: RowBatch { inputs, width: manifest.model.inputs() as usize, targets },
            has_target,
            unknown,
        })
    }
}

//! Statistics with noise: what they tell of any single row is bounded (the Gaussian mechanism, Dwork and Roth 2014, A.1).
//!
//! Each number is clipped to its range and moved to −1 … 1. A row adds to each number column at most (1, v, v²), of norm √3, and
//! to the counts of classes at most 1. All sums together get Gaussian noise of σ times the norm that a row has at most; σ is the
//! least by which one step of the accountant that takes every row stays within ε at δ. The number of rows is not protected, as in
//! training.

use std::collections::BTreeMap;
use std::path::PathBuf;

use murmur_protocol::manifest::{DataSource, RunManifest, TableTask};

use super::cells::{Cell, each_row};
use super::encoding::Encoder;
use super::error::{CellFault, TableError};
use super::statistics::{ColumnStatistics, Moments, StatisticsPrivacy, TableStatistics, Values};
use crate::data::CorpusError;
use crate::data::folders::list_files;
use crate::privacy::{Budget, Mechanism, SecretKey};

/// Of a range: a standard deviation is not taken for smaller, since noise could make it nothing.
const DEVIATION_MIN: f64 = 0.02;

/// Fewer missing values than so many standard deviations of the noise are taken for none.
const MISSING_DEVIATIONS: f64 = 3.0;

/// A number column between bounds.
struct Ranged {
    name: String,
    low: f64,
    high: f64,
}

impl Ranged {
    fn of(manifest: &RunManifest, name: &str) -> Result<Ranged, TableError> {
        let range = manifest.table.ranges.iter().find(|(column, ..)| column == name);
        let (_, low, high) = range.ok_or_else(|| TableError::NoRange(name.to_owned()))?;
        Ok(Ranged { name: name.to_owned(), low: *low, high: *high })
    }

    fn middle(&self) -> f64 {
        (self.low + self.high) / 2.0
    }

    fn half(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Of noised sums (1, v, v²).
    fn statistics(&self, sums: &[f64], rows: f64, deviation: f64) -> ColumnStatistics {
        let count = sums[0].clamp(1.0, rows.max(1.0));
        let mean = (sums[1] / count).clamp(-1.0, 1.0);
        let variance = (sums[2] / count - mean * mean).clamp(4.0 * DEVIATION_MIN * DEVIATION_MIN, 1.0);
        let missing = rows - sums[0];
        ColumnStatistics {
            name: self.name.clone(),
            missing: if missing > MISSING_DEVIATIONS * deviation { missing } else { 0.0 },
            values: Values::Numbers(Moments {
                count,
                mean: self.middle() + self.half() * mean,
                squares: count * variance * self.half() * self.half(),
            }),
        }
    }
}

impl TableStatistics {
    /// Of the tables at these paths, with as much noise as keeps what they tell of a row within the budget. Returns them with the
    /// standard deviation of the noise of each count.
    ///
    /// # Errors
    /// When the run file does not say which columns, categories, classes and ranges there are; and as
    /// [`TableStatistics::gather`].
    pub fn gather_privately(
        manifest: &RunManifest,
        paths: &[PathBuf],
        budget: Budget,
        key: &SecretKey,
    ) -> Result<(TableStatistics, f64), CorpusError> {
        let table = &manifest.table;
        let paths = list_files(DataSource::Table, paths)?;
        let open = table.categories.iter().find(|column| column.len() < 2).and_then(|column| column.first());
        if let Some(column) = open {
            return Err(TableError::OpenCategories(column.clone()).into());
        }
        if table.numbers.is_empty() && table.categories.is_empty() {
            return Err(TableError::NoInputs(table.target.clone()).into());
        }
        let ranged = table.numbers.iter().map(|name| Ranged::of(manifest, name));
        let mut ranged = ranged.collect::<Result<Vec<_>, TableError>>()?;
        let classes = &manifest.data.class_names;
        match table.task {
            TableTask::Regression => ranged.push(Ranged::of(manifest, &table.target)?),
            TableTask::Classification if classes.len() < 2 => {
                return Err(TableError::OpenCategories(table.target.clone()).into());
            }
            TableTask::Classification => {}
        }
        let (sums, rows) = sums(manifest, &paths, &ranged)?;
        if rows == 0 {
            return Err(TableError::NoRows(paths.last().cloned().unwrap_or_default()).into());
        }
        let mechanism = Mechanism { records: rows, batch: rows, noise: 1.0 };
        let noise = mechanism.noise_for(1, budget).ok_or(TableError::NoNoise(budget.epsilon))?;
        let of_target = if table.task == TableTask::Classification { 1.0 } else { 0.0 };
        let deviation = noise * (3.0 * ranged.len() as f64 + of_target).sqrt();
        let mut noised: Vec<f32> = sums.iter().map(|sum| *sum as f32).collect();
        key.noise(0, deviation, 1.0, &mut noised);
        let noised: Vec<f64> = noised.into_iter().map(f64::from).collect();
        let numbers = ranged.iter().zip(noised.chunks(3));
        let mut columns: Vec<ColumnStatistics> =
            numbers.map(|(column, sums)| column.statistics(sums, rows as f64, deviation)).collect();
        let target = match table.task {
            TableTask::Regression => columns.pop().expect("the target is the last number"),
            TableTask::Classification => {
                let counts = noised[3 * ranged.len()..].iter().map(|count| count.max(1.0));
                let counts: BTreeMap<String, f64> = classes.iter().cloned().zip(counts).collect();
                ColumnStatistics { name: table.target.clone(), missing: 0.0, values: Values::Classes(counts) }
            }
        };
        columns.extend(table.categories.iter().map(|column| ColumnStatistics {
            name: column[0].clone(),
            missing: 0.0,
            values: Values::Categories(column[1..].iter().cloned().collect()),
        }));
        let privacy = StatisticsPrivacy { epsilon: budget.epsilon, delta: budget.delta };
        Ok((TableStatistics::noised(rows, privacy, target, columns), deviation))
    }
}

/// (1, v, v²) summed over the rows for each number column, then the rows of each class; and the number of rows.
fn sums(manifest: &RunManifest, paths: &[PathBuf], ranged: &[Ranged]) -> Result<(Vec<f64>, u64), CorpusError> {
    let (table, classes) = (&manifest.table, &manifest.data.class_names);
    let is_classification = table.task == TableTask::Classification;
    let mut names: Vec<String> = ranged.iter().map(|column| column.name.clone()).collect();
    if is_classification {
        names.push(table.target.clone());
    }
    let counted = if is_classification { classes.len() } else { 0 };
    let (mut sums, mut rows) = (vec![0.0; 3 * ranged.len() + counted], 0);
    for path in paths {
        each_row(path, &names, &mut |place, cells| {
            rows += 1;
            let fault = |column: &str, fault| TableError::cell(&place, column, fault);
            for (number, (column, cell)) in ranged.iter().zip(cells).enumerate() {
                let value = cell.number().map_err(|found| fault(&column.name, CellFault::NotANumber(found)))?;
                let Some(value) = value else { continue };
                if !value.is_finite() {
                    return Err(fault(&column.name, CellFault::NotFinite));
                }
                let value = (value.clamp(column.low, column.high) - column.middle()) / column.half();
                for (sum, power) in sums[3 * number..].iter_mut().zip([1.0, value, value * value]) {
                    *sum += power;
                }
            }
            if let Some(target) = cells.get(ranged.len()) {
                let class =
                    if *target == Cell::Missing { Err(CellFault::NoTarget) } else { Encoder::class(classes, target) };
                let class = class.map_err(|wrong| fault(&table.target, wrong))?;
                sums[3 * ranged.len() + class as usize] += 1.0;
            }
            Ok(())
        })?;
    }
    Ok((sums, rows))
}

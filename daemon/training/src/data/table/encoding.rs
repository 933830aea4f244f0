//! From the cells of a row to the inputs of a model: numbers standardised by the run's statistics, categories one by one.
//!
//! A missing number is the mean, which is 0 once standardised; where the run knows its column to have missing values, an input
//! is 1 where there was none. A category column has an input for each of its values, and one for none.

use murmur_protocol::manifest::{RunManifest, TableTask};

use super::cells::{Cell, place_among, quoted};
use super::error::{CellFault, Place, TableError};

/// How rows of a run become inputs.
pub(super) struct Encoder {
    /// In the order in which cells are taken: numbers, categories.
    columns: Vec<String>,
    numbers: Vec<Number>,
    /// The values of each.
    categories: Vec<Vec<String>>,
    target: Target,
}

struct Number {
    mean: f64,
    deviation: f64,
    has_indicator: bool,
}

enum Target {
    Classes(Vec<String>),
    Number { mean: f64, deviation: f64 },
}

/// What becomes of a category that the run does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// An error.
    Refused,
    /// None of the inputs of its column is 1.
    Ignored,
}

/// A number that is more standard deviations than this from the founder's mean is no measurement: some programs write −3.4e38 where
/// nothing was measured, and one such row ends training. (A guess; of a founder's own N rows none is further than the root of N.)
const DEVIATIONS_MAX: f64 = 1e6;

/// What a row is to be predicted as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Expected {
    Class(u32),
    /// Standardised.
    Number(f32),
}

impl Expected {
    pub(super) fn to_bytes(self) -> [u8; 4] {
        match self {
            Expected::Class(class) => class.to_le_bytes(),
            Expected::Number(number) => number.to_le_bytes(),
        }
    }
}

fn standardised(value: f64, mean: f64, deviation: f64) -> Result<f32, CellFault> {
    let standardised = (value - mean) / deviation;
    match value.is_finite() {
        true if standardised.abs() <= DEVIATIONS_MAX => Ok(standardised as f32),
        true => Err(CellFault::FarOff(format!("{value:e}"))),
        false => Err(CellFault::NotFinite),
    }
}

impl Encoder {
    /// # Errors
    /// When the run has not been founded.
    pub(super) fn new(manifest: &RunManifest) -> Result<Encoder, TableError> {
        let table = &manifest.table;
        if manifest.model.inputs() == 0 {
            return Err(TableError::NotFounded);
        }
        let named = table.categories.iter().filter_map(|column| column.first());
        let number = |(name, (mean, deviation)): (&String, (&f64, &f64))| Number {
            mean: *mean,
            deviation: *deviation,
            has_indicator: table.indicators.contains(name),
        };
        let target = match table.task {
            TableTask::Classification => Target::Classes(manifest.data.class_names.clone()),
            TableTask::Regression => Target::Number { mean: table.target_mean, deviation: table.target_deviation },
        };
        Ok(Encoder {
            columns: table.numbers.iter().chain(named).cloned().collect(),
            numbers: table.numbers.iter().zip(table.means.iter().zip(&table.deviations)).map(number).collect(),
            categories: table.categories.iter().map(|column| column[1..].to_vec()).collect(),
            target,
        })
    }

    /// The columns that a row is read from, without the target.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Adds the inputs of a row; `cells` are those of the columns. Returns whether a category was unknown.
    ///
    /// # Errors
    /// The first value that does not fit its column.
    pub(super) fn encode(
        &self,
        place: &Place,
        cells: &[Cell<'_>],
        unknown: Unknown,
        inputs: &mut Vec<f32>,
    ) -> Result<bool, TableError> {
        let fault = |column: usize, fault| TableError::cell(place, &self.columns[column], fault);
        let (numbers, categories) = cells.split_at(self.numbers.len());
        let mut indicators = Vec::new();
        for (column, (number, cell)) in self.numbers.iter().zip(numbers).enumerate() {
            let value = cell.number().map_err(|found| fault(column, CellFault::NotANumber(found)))?;
            let input = value.map(|value| standardised(value, number.mean, number.deviation)).transpose();
            inputs.push(input.map_err(|wrong| fault(column, wrong))?.unwrap_or(0.0));
            if number.has_indicator {
                indicators.push(if value.is_none() { 1.0 } else { 0.0 });
            }
        }
        inputs.extend(indicators);
        let mut has_unknown = false;
        for (number, (known, cell)) in self.categories.iter().zip(categories).enumerate() {
            let first = inputs.len();
            inputs.resize(first + known.len() + 1, 0.0);
            let Some(found) = cell.category() else {
                inputs[first + known.len()] = 1.0;
                continue;
            };
            match place_among(known, &found) {
                Some(place) => inputs[first + place] = 1.0,
                None if unknown == Unknown::Ignored => has_unknown = true,
                None => {
                    let known = quoted(known);
                    return Err(fault(self.numbers.len() + number, CellFault::UnknownCategory { found, known }));
                }
            }
        }
        Ok(has_unknown)
    }

    /// What the row's target is, where it has one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn expected(&self, cell: &Cell<'_>) -> Result<Option<Expected>, CellFault> {
        if *cell == Cell::Missing {
            return Ok(None);
        }
        match &self.target {
            Target::Classes(classes) => Encoder::class(classes, cell).map(|class| Some(Expected::Class(class))),
            Target::Number { mean, deviation } => {
                let value = cell.number().map_err(CellFault::NotANumber)?;
                value.map(|value| standardised(value, *mean, *deviation).map(Expected::Number)).transpose()
            }
        }
    }

    /// Which class a cell names, from 0.
    ///
    /// # Errors
    /// When it is none of them.
    pub(super) fn class(classes: &[String], cell: &Cell<'_>) -> Result<u32, CellFault> {
        let found = cell.category().unwrap_or_default();
        match place_among(classes, &found) {
            Some(class) => Ok(class as u32),
            None => Err(CellFault::UnknownClass { found, known: quoted(classes) }),
        }
    }
}

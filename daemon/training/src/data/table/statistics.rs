//! What members tell each other of their tables before a run is founded: for each column counts, mean and squares, or which
//! categories there are. No row is in it.
//!
//! Why files and not messages of the swarm: inputs are standardised by these numbers, so they are part of what the model is, and
//! have to be agreed before the first member trains. A swarm whose members come and go has no such moment; its founder has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use murmur_protocol::manifest::{CATEGORIES_MAX, DataSource, RunManifest, TableSpec, TableTask};
use serde::{Deserialize, Serialize};

use super::cells::{Cell, columns_of, each_row, place_among};
use super::error::{CellFault, Place, TableError};
use crate::data::CorpusError;
use crate::data::folders::list_files;

/// Changes with the format of the file.
const VERSION: u32 = 1;

/// Classes of a target, at most. A guess: as many names as a run file has room for.
const CLASSES_MAX: usize = 256;

/// Statistics of the columns of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableStatistics {
    pub(super) version: u32,
    /// Rows they are of.
    pub rows: u64,
    /// What of single rows they tell, where they have noise.
    pub privacy: Option<StatisticsPrivacy>,
    /// What is predicted.
    pub(super) target: ColumnStatistics,
    /// What it is predicted from, in the order of the table.
    pub(super) columns: Vec<ColumnStatistics>,
    /// The last file that was read.
    #[serde(skip)]
    pub(super) source: PathBuf,
}

/// How much statistics with noise tell of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatisticsPrivacy {
    /// ε, to be added to that of training.
    pub epsilon: f64,
    /// δ of it.
    pub delta: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ColumnStatistics {
    pub(super) name: String,
    /// Rows without a value.
    pub(super) missing: f64,
    pub(super) values: Values,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Values {
    /// All are missing.
    None,
    Numbers(Moments),
    /// Without how many of each.
    Categories(BTreeSet<String>),
    /// Of a target, with how many rows of each.
    Classes(BTreeMap<String, f64>),
}

/// Sums of numbers, in a form that loses no digits where the mean is large: count, mean and `Σ (x − mean)²`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: f64,
    pub(super) squares: f64,
}

impl Moments {
    /// Welford 1962.
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    /// Of both together (Chan, Golub and LeVeque 1979).
    fn with(self, other: Moments) -> Moments {
        let count = self.count + other.count;
        if count <= 0.0 {
            return self;
        }
        let apart = other.mean - self.mean;
        Moments {
            count,
            mean: self.mean + apart * other.count / count,
            squares: self.squares + other.squares + apart * apart * self.count * other.count / count,
        }
    }

    /// Of the population, as scikit-learn's StandardScaler has it; 1 where all values are equal.
    pub(super) fn deviation(&self) -> f64 {
        let variance = self.squares / self.count;
        if variance > 0.0 { variance.sqrt() } else { 1.0 }
    }
}

/// What a column may hold.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wanted {
    Numbers,
    Categories,
    Classes,
    /// Numbers if all values are.
    Either,
}

/// The columns that a run reads of the tables at `paths`, the target last, with what each may hold.
pub(super) fn wanted(table: &TableSpec, paths: &[PathBuf]) -> Result<Vec<(String, Wanted)>, CorpusError> {
    let numbers = table.numbers.iter().map(|name| (name.clone(), Wanted::Numbers));
    let categories = table.categories.iter().filter_map(|column| Some((column.first()?.clone(), Wanted::Categories)));
    let mut columns: Vec<(String, Wanted)> = numbers.chain(categories).collect();
    if columns.is_empty() {
        let all = columns_of(&paths[0])?;
        // A column without a name is the number of the row, as pandas writes it.
        let is_read = |name: &String| !name.is_empty() && *name != table.target && !table.ignore.contains(name);
        let inputs = all.into_iter().filter(is_read);
        columns = inputs.map(|name| (name, Wanted::Either)).collect();
    }
    let target = match table.task {
        TableTask::Classification => Wanted::Classes,
        TableTask::Regression => Wanted::Numbers,
    };
    columns.push((table.target.clone(), target));
    Ok(columns)
}

/// One column while it is read.
struct Gathered {
    name: String,
    wanted: Wanted,
    missing: u64,
    numbers: Moments,
    words: BTreeMap<String, f64>,
    /// The first value that is no number, and what is wrong with it as one.
    first_word: Option<(Place, CellFault)>,
    values: u64,
}

impl Gathered {
    fn most(&self) -> usize {
        if self.wanted == Wanted::Classes { CLASSES_MAX } else { CATEGORIES_MAX }
    }

    fn take(&mut self, place: &Place, cell: &Cell<'_>) -> Result<(), TableError> {
        let fault = |fault| TableError::cell(place, &self.name, fault);
        if *cell == Cell::Missing {
            self.missing += 1;
            return if self.wanted == Wanted::Classes { Err(fault(CellFault::NoTarget)) } else { Ok(()) };
        }
        self.values += 1;
        if matches!(self.wanted, Wanted::Numbers | Wanted::Either) {
            match cell.number() {
                Ok(None) => self.missing += 1,
                Ok(Some(number)) if number.is_finite() => self.numbers.add(number),
                no_number => {
                    let wrong = no_number.map_or_else(CellFault::NotANumber, |_| CellFault::NotFinite);
                    // Among words a text such as `Infinity` is one.
                    if self.wanted == Wanted::Numbers || !matches!(cell, Cell::Text(_)) {
                        return Err(fault(wrong));
                    }
                    self.first_word.get_or_insert_with(|| (place.clone(), wrong));
                }
            }
        }
        // One more than may be tells that there are too many.
        if self.wanted != Wanted::Numbers && self.words.len() <= self.most() {
            *self.words.entry(cell.category().unwrap_or_default()).or_default() += 1.0;
        }
        Ok(())
    }

    fn finish(self, source: &Path) -> Result<ColumnStatistics, TableError> {
        let (name, most) = (self.name.clone(), self.most());
        let too_many = self.words.len() > most;
        let values = match (self.wanted, self.first_word) {
            _ if self.values == 0 => Values::None,
            // All stand for no number, in another spelling of it.
            (Wanted::Numbers, _) | (Wanted::Either, None) if self.numbers.count == 0.0 => Values::None,
            (Wanted::Numbers, _) | (Wanted::Either, None) => Values::Numbers(self.numbers),
            // Words among numbers are rather mistakes than categories.
            (Wanted::Either, Some((place, wrong))) if 2.0 * self.numbers.count >= self.values as f64 => {
                return Err(TableError::cell(&place, &name, wrong));
            }
            _ if too_many => {
                return Err(TableError::TooManyCategories { path: source.to_owned(), column: name, most });
            }
            (Wanted::Classes, _) => Values::Classes(self.words),
            _ => Values::Categories(self.words.into_keys().collect()),
        };
        Ok(ColumnStatistics { name, missing: self.missing as f64, values })
    }
}

impl TableStatistics {
    /// Of the tables at these paths, as a run reads them.
    ///
    /// # Errors
    /// When they cannot be read, or a value does not fit its column.
    pub fn gather(manifest: &RunManifest, paths: &[PathBuf]) -> Result<TableStatistics, CorpusError> {
        let paths = list_files(DataSource::Table, paths)?;
        let columns = wanted(&manifest.table, &paths)?;
        let names: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
        let gathered = columns.into_iter().map(|(name, wanted)| Gathered {
            name,
            wanted,
            missing: 0,
            numbers: Moments::default(),
            words: BTreeMap::new(),
            first_word: None,
            values: 0,
        });
        let (mut gathered, mut rows): (Vec<Gathered>, u64) = (gathered.collect(), 0);
        for path in &paths {
            each_row(path, &names, &mut |place, cells| {
                rows += 1;
                gathered.iter_mut().zip(cells).try_for_each(|(column, cell)| column.take(&place, cell))
            })?;
        }
        let source = paths.last().cloned().unwrap_or_default();
        if rows == 0 {
            return Err(TableError::NoRows(source).into());
        }
        let columns = gathered.into_iter().map(|column| column.finish(&source));
        let mut columns = columns.collect::<Result<Vec<_>, TableError>>()?;
        let target = columns.pop().expect("the target is the last column");
        Ok(TableStatistics { version: VERSION, rows, privacy: None, target, columns, source })
    }

    /// Of these columns, with noise.
    pub(super) fn noised(
        rows: u64,
        privacy: StatisticsPrivacy,
        target: ColumnStatistics,
        columns: Vec<ColumnStatistics>,
    ) -> TableStatistics {
        let source = PathBuf::new();
        TableStatistics { version: VERSION, rows, privacy: Some(privacy), target, columns, source }
    }

    /// As `murmur statistics` has written them.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn read(path: &Path) -> Result<TableStatistics, CorpusError> {
        let unreadable = |source| CorpusError::Unreadable(path.to_owned(), source);
        let text = std::fs::read(path).map_err(unreadable)?;
        let wrong = |reason: String| TableError::NotStatistics(path.to_owned(), reason);
        let mut read: TableStatistics = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if read.version != VERSION {
            return Err(wrong(format!("version {}, and {VERSION} is read here", read.version)).into());
        }
        if read.rows == 0 {
            return Err(TableError::NoRows(path.to_owned()).into());
        }
        let is_number = |column: &ColumnStatistics| match &column.values {
            Values::Numbers(Moments { count, mean, squares }) => {
                *count > 0.0 && count.is_finite() && mean.is_finite() && squares.is_finite() && *squares >= 0.0
            }
            Values::Classes(counts) => counts.values().all(|count| count.is_finite() && *count >= 0.0),
            Values::None | Values::Categories(_) => true,
        };
        if !read.columns.iter().chain([&read.target]).all(is_number) {
            return Err(wrong("a count or a sum is out of range".to_owned()).into());
        }
        path.clone_into(&mut read.source);
        Ok(read)
    }

    /// As text for a file.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and texts") + "\n"
    }

    /// Of both tables together.
    ///
    /// # Errors
    /// When they are of other columns, or a column is of another kind.
    pub fn with(&self, other: &TableStatistics) -> Result<TableStatistics, TableError> {
        let lacks = |statistics: &TableStatistics, column: &ColumnStatistics| {
            TableError::NotInStatistics(statistics.source.clone(), column.name.clone())
        };
        let is_in = |all: &[ColumnStatistics], name: &str| all.iter().any(|column| column.name == name);
        if let Some(unknown) = other.columns.iter().find(|column| !is_in(&self.columns, &column.name)) {
            return Err(lacks(self, unknown));
        }
        if self.target.name != other.target.name {
            return Err(lacks(other, &self.target));
        }
        let columns = self.columns.iter().map(|column| {
            let theirs = other.columns.iter().find(|theirs| theirs.name == column.name);
            column.with(theirs.ok_or_else(|| lacks(other, column))?, &other.source)
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let target = self.target.with(&other.target, &other.source)?;
        let (rows, source) = (self.rows.saturating_add(other.rows), other.source.clone());
        Ok(TableStatistics { rows, target, columns, source, ..self.clone() })
    }
}

impl ColumnStatistics {
    fn with(&self, other: &ColumnStatistics, source: &Path) -> Result<ColumnStatistics, TableError> {
        let name = self.name.clone();
        let values = match (&self.values, &other.values) {
            (Values::None, values) | (values, Values::None) => values.clone(),
            (Values::Numbers(ours), Values::Numbers(theirs)) => Values::Numbers(ours.with(*theirs)),
            // What means the same has the name that it has here.
            (Values::Categories(ours), Values::Categories(theirs)) => {
                let known: Vec<String> = ours.iter().cloned().collect();
                let new = theirs.iter().filter(|name| place_among(&known, name).is_none());
                Values::Categories(ours.iter().chain(new).cloned().collect())
            }
            (Values::Classes(ours), Values::Classes(theirs)) => {
                let known: Vec<String> = ours.keys().cloned().collect();
                let mut counts = ours.clone();
                for (class, count) in theirs {
                    let name = place_among(&known, class).map_or(class, |place| &known[place]);
                    *counts.entry(name.clone()).or_default() += count;
                }
                Values::Classes(counts)
            }
            _ => return Err(TableError::OtherKind(name, source.to_owned())),
        };
        let (count, most) = match &values {
            Values::Categories(names) => (names.len(), CATEGORIES_MAX),
            Values::Classes(counts) => (counts.len(), CLASSES_MAX),
            Values::None | Values::Numbers(_) => (0, 0),
        };
        if count > most {
            return Err(TableError::TooManyCategories { path: source.to_owned(), column: name, most });
        }
        Ok(ColumnStatistics { name, missing: self.missing + other.missing, values })
    }
}

//! What can be wrong with a table: each error names the file, the row and the column, and has a remedy.

use std::fmt;
use std::path::{Path, PathBuf};

use murmur_protocol::manifest::ManifestError;

/// A row of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// From 1, without a header.
    pub row: usize,
    /// Of a text file, from 1.
    pub line: Option<usize>,
}

impl Place {
    pub(super) fn new(path: &Path, row: usize, line: Option<usize>) -> Place {
        Place { path: path.to_owned(), row, line }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { path, row, line } = self;
        write!(formatter, "{}: row {row}", path.display())?;
        line.map_or(Ok(()), |line| write!(formatter, " (line {line})"))
    }
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CellFault {
    /// A number column holds something else.
    #[error("{0:?} is not a number")]
    NotANumber(String),
    /// The number is infinite.
    #[error("the number is not finite")]
    NotFinite,
    /// The number is no measurement.
    #[error("{0} is over a million standard deviations from the run's mean")]
    FarOff(String),
    /// A value that is none of a category column's.
    #[error("{found:?} is none of the run's categories: {known}")]
    UnknownCategory {
        /// What is there.
        found: String,
        /// The run's.
        known: String,
    },
    /// A target that is none of the classes.
    #[error("{found:?} is none of the run's classes: {known}")]
    UnknownClass {
        /// What is there.
        found: String,
        /// The run's.
        known: String,
    },
    /// A row without a target.
    #[error("the target is missing")]
    NoTarget,
}

/// Why a table is not read, or a run on it not founded.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A file that holds no table.
    #[error("data file {0} cannot be read as a table: {1}")]
    NotATable(PathBuf, String),
    /// No row in all of the files, of which this is the last, or statistics of none.
    #[error("{0} holds no row")]
    NoRows(PathBuf),
    /// A row that cannot be read.
    #[error("{0}: {1}")]
    BadRow(Place, String),
    /// A column that the run reads is not there.
    #[error("{path} has no column {column:?}; its columns: {columns}")]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column's name.
        column: String,
        /// Those it has.
        columns: String,
    },
    /// Two columns have one name.
    #[error("{0} has two columns {1:?}")]
    TwoColumns(PathBuf, String),
    /// A value that does not fit its column.
    #[error("{place}, column {column:?}: {fault}")]
    BadCell {
        /// The row.
        place: Place,
        /// The column's name.
        column: String,
        /// What is wrong.
        fault: Box<CellFault>,
    },
    /// A column of names or numbers of its own for each row.
    #[error("{path}: column {column:?} has more than {most} different values")]
    TooManyCategories {
        /// The last file that was read.
        path: PathBuf,
        /// The column's name.
        column: String,
        /// As many as there may be.
        most: usize,
    },
    /// A part of the rows is empty.
    #[error("the table is too small: none of {1} rows is left for its {0} part")]
    TooFewRows(&'static str, usize),
    /// The founder has not completed the run.
    #[error("this run file does not say yet how its table is read: a founder fills that in")]
    NotFounded,
    /// The target has one value, or none.
    #[error("column {0:?} is to be predicted, but has {1} different values")]
    TooFewClasses(String, usize),
    /// More columns than a run file names.
    #[error("{columns} columns are read, and {most} are the most")]
    TooManyColumns {
        /// How many there are.
        columns: usize,
        /// The limit.
        most: usize,
    },
    /// Nothing to predict from.
    #[error("no column is left to predict {0:?} from")]
    NoInputs(String),
    /// A manifest has to stay small.
    #[error("the columns and categories of this table take {bytes} bytes of a run file, which may have {most}")]
    TooLarge {
        /// Of the canonical text.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The table does not fit into a run file.
    #[error("this table does not fit into a run file: {0}")]
    NoRun(#[from] ManifestError),
    /// One table has numbers where another has categories.
    #[error("column {0:?} holds numbers in one table and other values in another ({1})")]
    OtherKind(String, PathBuf),
    /// Statistics of another table.
    #[error("{0} has no statistics of column {1:?}")]
    NotInStatistics(PathBuf, String),
    /// A file that holds no statistics.
    #[error("{0} holds no statistics of a table: {1}")]
    NotStatistics(PathBuf, String),
    /// Statistics without noise would tell of rows.
    #[error("private training founds a run on statistics with noise alone, of its own rows as well")]
    NoPrivateStatistics,
    /// Noise needs bounds that do not come from the data.
    #[error("statistics of column {0:?} with noise need its range")]
    NoRange(String),
    /// Which values occur is told by rows.
    #[error("which values column {0:?} has would be told of single rows")]
    OpenCategories(String),
    /// Nothing can be told at so small an ε.
    #[error("no noise is enough for epsilon = {0}")]
    NoNoise(f64),
}

impl TableError {
    pub(super) fn cell(place: &Place, column: &str, fault: CellFault) -> TableError {
        TableError::BadCell { place: place.clone(), column: column.to_owned(), fault: Box::new(fault) }
    }

    /// What to do about it, in one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            TableError::NotATable(..) => {
                "CSV with a header, JSON Lines and Parquet are read; the first two also compressed with gzip"
            }
            TableError::NoRows(_) => "give a table with rows below its header, or statistics of one",
            TableError::BadRow(..) => "correct or remove the row",
            TableError::NoColumn { .. } => {
                "every table of a run has the same columns: [table] in the run file names them"
            }
            TableError::TwoColumns(..) => "give each column a name of its own",
            TableError::BadCell { fault, .. } => match &**fault {
                CellFault::NotANumber(_) => {
                    "correct the value, or leave it empty; a column of words belongs into table.categories"
                }
                CellFault::NotFinite => "correct the value, or leave it empty",
                CellFault::FarOff(_) => {
                    "leave the cell empty where it stands for nothing; a target has to be filled in"
                }
                CellFault::UnknownCategory { .. } => {
                    "correct the value, or leave it empty; a run knows categories of its founder and of the --statistics given to it"
                }
                CellFault::UnknownClass { .. } => {
                    "correct the value; a run knows classes of its founder and of the --statistics given to it"
                }
                CellFault::NoTarget => "fill it in, or remove the row",
            },
            TableError::TooManyCategories { .. } => "name the column in table.ignore, or group its values",
            TableError::TooFewRows(..) => "give more rows, or another data.validation_fraction",
            TableError::NotFounded => {
                "found the run with `murmur start RUN.toml --data FILE…`, and join it from elsewhere"
            }
            TableError::TooFewClasses(..) => {
                "give data with all classes, or statistics of other members with --statistics; a number is predicted with \
                 table.task = \"regression\""
            }
            TableError::NoInputs(..) => {
                "name fewer columns in table.ignore, or some in table.numbers or table.categories, which private statistics need"
            }
            TableError::NoRun(_) | TableError::TooManyColumns { .. } | TableError::TooLarge { .. } => {
                "name columns that are not needed in table.ignore, or group categories"
            }
            TableError::OtherKind(..) => "name it in table.numbers or table.categories, and correct what does not fit",
            TableError::NotInStatistics(..) => "make them again with `murmur statistics` and the same run file",
            TableError::NotStatistics(..) => "`murmur statistics RUN.toml --data FILE… > FILE` writes them",
            TableError::NoPrivateStatistics => {
                "make them with `murmur statistics RUN.toml --data FILE… --epsilon E > FILE`, and give --statistics FILE"
            }
            TableError::NoRange(..) => "give it in table.ranges: [[\"age\", 0.0, 120.0]]",
            TableError::OpenCategories(..) => "write them into table.categories, classes into data.class_names",
            TableError::NoNoise(..) => "give a larger --epsilon",
        }
    }
}

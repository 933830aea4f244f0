//! Tables: rows of numbers and categories, of which a model predicts one column from the others.
//!
//! [`cells`] reads files, [`encoding`] makes inputs of rows by what the run says, [`statistics`] is what members tell each other
//! beforehand, [`founding`] what a founder makes of it.

mod cells;
mod comma_separated;
mod encoding;
mod error;
mod founding;
mod json_objects;
mod parquet_columns;
mod private;
mod rows;
mod statistics;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use murmur_protocol::RunManifest;

pub use error::{CellFault, Place, TableError};
pub use rows::NewRows;
pub(crate) use rows::RowSet;
pub use statistics::{StatisticsPrivacy, TableStatistics};

use super::CorpusError;

/// Fills in what a founder's tables and the statistics of others say about its run. With `private` only statistics
/// with noise count, and the founder's own rows by such ones.
///
/// # Errors
/// When a table or statistics cannot be read, or do not fit together.
pub(super) fn complete(
    manifest: RunManifest,
    files: &[PathBuf],
    statistics: &[PathBuf],
    private: bool,
) -> Result<RunManifest, CorpusError> {
    if manifest.model.inputs() > 0 {
        return Ok(manifest);
    }
    let mut all = Vec::new();
    if !private {
        all.push(TableStatistics::gather(&manifest, files)?);
    }
    for path in statistics {
        all.push(TableStatistics::read(path)?);
    }
    // Which of them are of the founder's own rows is not known, so none may be without noise.
    if private && all.iter().any(|statistics| statistics.privacy.is_none()) {
        return Err(TableError::NoPrivateStatistics.into());
    }
    let members = all.len();
    let mut all = all.into_iter();
    let first = all.next().ok_or(TableError::NoPrivateStatistics)?;
    let together = all.try_fold(first, |sum, statistics| sum.with(&statistics))?;
    Ok(founding::found(manifest, &together, members)?)
}

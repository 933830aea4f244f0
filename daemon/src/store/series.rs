//! `series`: which comparison of `murmur local --against alone` the folder of a swarm belongs to.
//!
//! Such a series has two folders for each seed. The daemons in one of them train each for itself: they found a run each, so that
//! commands which take the run used last leave that folder out.

use std::io;
use std::path::Path;

use super::write_atomically;

/// The file in a swarm's folder: the name of the series' first folder, and how the daemons in this one trained, a line each.
pub(crate) const FILE: &str = "series";

/// Where a swarm's folder holds what it was compared with.
pub(crate) const COMPARISON_FILE: &str = "against-alone.json";

const ALONE: &str = "alone";
const TOGETHER: &str = "together";

/// A folder's part in a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    /// The name of the series' first folder.
    pub(crate) name: String,
    /// Whether each daemon trains for itself.
    pub(crate) alone: bool,
}

impl Series {
    /// Marks a folder.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn mark(&self, folder: &Path) -> io::Result<()> {
        let how = if self.alone { ALONE } else { TOGETHER };
        write_atomically(&folder.join(FILE), format!("{}\n{how}\n", self.name).as_bytes())
    }

    /// What a folder is marked with; none where it belongs to no series.
    pub(crate) fn of(folder: &Path) -> Option<Series> {
        let text = std::fs::read_to_string(folder.join(FILE)).ok()?;
        let (name, how) = text.trim_end().split_once('\n')?;
        Some(Series { name: name.to_owned(), alone: how == ALONE })
    }
}

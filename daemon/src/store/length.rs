//! `length.json`: how long the founder wishes its run to be, so that a restart goes on counting.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{read_json, write_atomically};
use crate::failure::Failure;

const FILE: &str = "length.json";

/// A run's length as its founder wishes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "unit", rename_all = "snake_case")]
pub enum Length {
    /// By the clock.
    Hours {
        /// From the beginning to the end, in hours.
        hours: f64,
        /// When the run is to be complete, in seconds since 1970.
        until: f64,
    },
    /// By what the swarm trains on.
    Tokens {
        /// Of the whole swarm (images for models of images), while this founder counts.
        tokens: f64,
        /// Those counted so far.
        counted: f64,
    },
}

impl Length {
    /// Keeps it in a data directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, root: &Path) -> std::io::Result<()> {
        write_atomically(&root.join(FILE), &serde_json::to_vec_pretty(self).expect("numbers"))
    }

    /// What a data directory holds.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn known(root: &Path) -> Result<Option<Length>, Failure> {
        read_json(&root.join(FILE), "the run then has no length: give --hours or --tokens again", Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ExitCode;

    #[test]
    fn a_damaged_length_is_not_taken_for_none() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(Length::known(folder.path()).expect("none"), None);
        let length = Length::Hours { hours: 1.5, until: 2e9 };
        length.keep(folder.path()).expect("written");
        assert_eq!(Length::known(folder.path()).expect("sound"), Some(length));
        std::fs::write(folder.path().join(FILE), "{\"unit\": \"hours\"").expect("written");
        let failure = Length::known(folder.path()).expect_err("damaged");
        assert!(failure.code() == ExitCode::Files && failure.to_string().contains(FILE), "{failure}");
    }
}

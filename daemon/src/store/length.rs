//! `length.json`: how long the founder wishes its run to be, so that a restart goes on counting.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::write_atomically;

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
    pub fn known(root: &Path) -> Option<Length> {
        serde_json::from_slice(&std::fs::read(root.join(FILE)).ok()?).ok()
    }
}

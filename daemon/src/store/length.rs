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

/// A length as it is written.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    length: Length,
    /// Of hours: seconds that were left then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<f64>,
}

impl Length {
    /// Keeps it in a data directory. `now`: by the clock, in seconds since 1970.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, root: &Path, now: f64) -> std::io::Result<()> {
        let left = match self {
            Length::Hours { until, .. } => Some(until - now),
            Length::Tokens { .. } => None,
        };
        let kept = Kept { length: *self, left };
        write_atomically(&root.join(FILE), &serde_json::to_vec_pretty(&kept).expect("numbers"))
    }

    /// What a data directory holds. The time that the node was off counts, and a clock that is behind by now, as that of a machine
    /// that keeps no time while it is off, makes no length longer.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn known(root: &Path, now: f64) -> Result<Option<Length>, Failure> {
        let without = "the run then has no length: give --hours or --tokens again";
        read_json(&root.join(FILE), without, |kept: Kept| {
            Ok(match (kept.length, kept.left) {
                (Length::Hours { hours, until }, Some(left)) => Length::Hours { hours, until: until.min(now + left) },
                (length, _) => length,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ExitCode;

    #[test]
    fn a_damaged_length_is_not_taken_for_none() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(Length::known(folder.path(), 1e9).expect("none"), None);
        let length = Length::Hours { hours: 1.5, until: 2e9 };
        length.keep(folder.path(), 1e9).expect("written");
        assert_eq!(Length::known(folder.path(), 1e9).expect("sound"), Some(length));
        std::fs::write(folder.path().join(FILE), "{\"unit\": \"hours\"").expect("written");
        let failure = Length::known(folder.path(), 1e9).expect_err("damaged");
        assert!(failure.code() == ExitCode::Files && failure.to_string().contains(FILE), "{failure}");
    }

    #[test]
    fn a_clock_that_is_behind_after_a_restart_makes_no_run_longer() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let hours = |until| Length::Hours { hours: 1.0, until };
        let known = |now| Length::known(folder.path(), now).expect("sound").expect("kept");
        hours(2e9).keep(folder.path(), 2e9 - 1800.0).expect("written");
        assert_eq!(known(2e9 - 600.0), hours(2e9), "it was off for twenty minutes, which count");
        assert_eq!(known(0.0), hours(1800.0), "half an hour, as was left");
        let tokens = Length::Tokens { tokens: 1e9, counted: 7.0 };
        tokens.keep(folder.path(), 2e9).expect("written");
        assert_eq!(known(0.0), tokens);
        let before = r#"{"unit": "hours", "hours": 1.0, "until": 2e9}"#;
        std::fs::write(folder.path().join(FILE), before).expect("written");
        assert_eq!(known(0.0), hours(2e9), "a file of before does not say what was left");
    }
}

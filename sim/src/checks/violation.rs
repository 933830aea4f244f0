//! What a check finds against a run.

use std::fmt;

/// Which check a run failed, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {finding}")]
pub struct Violation {
    /// The check's name.
    pub check: &'static str,
    /// What it found, for people.
    pub finding: String,
}

impl Violation {
    pub(crate) fn new(check: &'static str, finding: impl fmt::Display) -> Violation {
        Violation { check, finding: finding.to_string() }
    }
}

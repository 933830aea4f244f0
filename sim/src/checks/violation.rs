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

/// Returns a violation of a check from a function where a condition does not hold. Conditions say what is right, not
/// what is wrong: with a value that is not a number no comparison holds.
macro_rules! ensure {
    ($holds:expr, $check:expr, $($finding:tt)+) => {
        let holds: bool = $holds;
        if !holds {
            return Err(Violation::new($check, format_args!($($finding)+)));
        }
    };
}
pub(super) use ensure;

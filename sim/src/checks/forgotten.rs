//! Law: "the dead are forgotten": no node remembers a member for longer than `AGE_MAX` after its end.

use std::time::Duration;

use murmur_protocol::bounds::AGE_MAX;

use super::Violation;
use crate::record::Record;

/// Clocks that run slow, and how far news of a member's last sign of life may lag behind: a share of the bound.
const SLACK: f64 = 0.1;

/// After so long everybody has forgotten.
fn limit() -> Duration {
    AGE_MAX.mul_f64(1.0 + SLACK)
}

/// Whether somebody could be remembered for too long: somebody ended that long ago.
pub fn can_be_remembered_too_long(record: &Record) -> bool {
    record.longest_dead > limit()
}

/// Checks the views at the end of a run.
///
/// # Errors
/// When somebody still knows a member that ended longer ago.
pub fn forgotten(record: &Record) -> Result<(), Violation> {
    let limit = limit();
    if record.longest_remembered <= limit {
        return Ok(());
    }
    let seconds = |duration: Duration| duration.as_secs();
    let (after, limit) = (seconds(record.longest_remembered), seconds(limit));
    Err(Violation::new("forgotten", format!("a member is known {after} s after its end; the limit is {limit} s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_remembered_for_too_long_is_found() {
        let remembered = |longest_remembered| Record { longest_remembered, ..Record::default() };
        assert_eq!(forgotten(&remembered(AGE_MAX)), Ok(()));
        assert!(forgotten(&remembered(AGE_MAX.mul_f64(1.2))).is_err());
        let dead = |longest_dead| Record { longest_dead, ..Record::default() };
        assert!(!can_be_remembered_too_long(&dead(AGE_MAX)) && can_be_remembered_too_long(&dead(AGE_MAX * 2)));
    }
}

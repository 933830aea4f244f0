//! Law: invariant 3 of ten, "exactly once under duplication, reordering and retransmission".
//!
//! In each life a side merges an exchange at most once, never after both sides are done with it, and the correction
//! becomes part of the model at most once.

use super::{Violation, first_found};
use crate::record::{MergeRecord, Record};

const CHECK: &str = "exactly once";

/// Checks every exchange of a run.
///
/// # Errors
/// The first exchange that one side merged or added twice.
pub fn exactly_once(record: &Record) -> Result<(), Violation> {
    first_found(record, CHECK)
}

/// Checks one side's merge, of which `is_known` tells whether it has merged that exchange before.
pub(crate) fn merged_once(merge: &MergeRecord, is_known: bool) -> Result<(), Violation> {
    if !is_known {
        return Ok(());
    }
    let MergeRecord { exchange, side, host, at, .. } = merge;
    Err(Violation::new(CHECK, format!("{side:?} {host} merged exchange {exchange:x} again at {at:?}")))
}

/// Checks a correction that has become part of a model.
pub(crate) fn landed_once(merge: &MergeRecord) -> Result<(), Violation> {
    if merge.landings <= 1 {
        return Ok(());
    }
    let MergeRecord { exchange, host, landings, .. } = merge;
    Err(Violation::new(CHECK, format!("host {host} added the correction of exchange {exchange:x} {landings} times")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged;
    use crate::record::Side;

    #[test]
    fn an_exchange_merged_or_added_twice_is_refused() {
        let (mut merge, _) = forged::merge(1, Side::Responder, [3, -2]);
        assert_eq!(merged_once(&merge, false), Ok(()));
        let again = merged_once(&merge, true).expect_err("a second merge");
        merge.landings = 1;
        assert_eq!(landed_once(&merge), Ok(()));
        merge.landings = 2;
        assert!(landed_once(&merge).is_err());
        assert!(exactly_once(&Record { found: vec![again], ..Record::default() }).is_err());
    }
}

//! Law: "views are bounded": no node knows, or is connected to, more members than the core's `bounds` allow.

use murmur_protocol::bounds::{CONNECTIONS_MAX, VIEW_MAX};

use super::Violation;
use crate::record::Record;

/// Checks the largest views of a run.
///
/// # Errors
/// The first bound that was passed.
pub fn bounded_views(record: &Record) -> Result<(), Violation> {
    let peaks = &record.peaks;
    let limits = [
        ("members known", peaks.known, VIEW_MAX),
        ("members connected", peaks.connected, CONNECTIONS_MAX),
        ("peers counted for misbehaviour", peaks.misbehaving, VIEW_MAX),
    ];
    match limits.iter().find(|(_, peak, limit)| peak > limit) {
        None => Ok(()),
        Some((what, peak, limit)) => {
            Err(Violation::new("bounded views", format!("{peak} {what}, the bound is {limit}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_member_too_many_is_refused() {
        let mut record = Record::default();
        record.peaks.known = VIEW_MAX;
        assert_eq!(bounded_views(&record), Ok(()));
        record.peaks.known += 1;
        assert!(bounded_views(&record).is_err());
    }
}

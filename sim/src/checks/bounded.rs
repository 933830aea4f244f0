//! Law: "memory is bounded": nothing that a node has under way grows beyond the core's `bounds`.

use murmur_protocol::bounds::*;

use super::Violation;
use crate::record::Record;

/// Effects of one event: messages to a newcomer and introductions, a repeat for every open exchange, farewells to all.
const EFFECTS_MAX: usize = CONNECTIONS_MAX + PENDING_MAX;

/// Checks all peaks, and that no node asked to be woken over and over in one instant.
///
/// # Errors
/// The first bound that was passed.
pub fn bounded(record: &Record, parameters: usize) -> Result<(), Violation> {
    let peaks = &record.peaks;
    let limits = [
        ("effects that await a reply", peaks.awaited, PENDING_MAX),
        ("merges under way", peaks.merging, RESPONDING_MAX + 1),
        ("states on their way", peaks.giving, STATE_TRANSFERS_MAX * STATE_PARTS_SENT_MAX),
        ("bytes of a payload", peaks.payload_bytes, payload_bytes_max(parameters) as usize),
        ("links", peaks.links, LINKS_MAX),
        ("effects of one event", peaks.effects, EFFECTS_MAX),
        ("wakes for nothing", record.busy_wakes as usize, 0),
    ];
    match limits.iter().find(|(_, peak, limit)| peak > limit) {
        None => Ok(()),
        Some((what, peak, limit)) => Err(Violation::new("bounded", format!("{peak} {what}, the bound is {limit}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_merge_too_many_is_refused() {
        let mut record = Record::default();
        record.peaks.merging = RESPONDING_MAX + 1;
        assert_eq!(bounded(&record, 2), Ok(()));
        record.peaks.merging += 1;
        assert!(bounded(&record, 2).is_err());
    }

    #[test]
    fn a_node_that_never_sleeps_is_refused() {
        assert!(bounded(&Record { busy_wakes: 1, ..Record::default() }, 2).is_err());
    }
}

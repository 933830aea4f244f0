//! Laws of what a node keeps: bounded, not for too long, and long enough.

use std::time::Duration;

use murmur_protocol::bounds::*;

use super::Violation;
use super::violation::ensure;
use crate::record::Record;

/// Law: "memory is bounded": nothing that a node has under way grows beyond the core's `bounds`, and none asks to be
/// woken over and over in one instant.
pub fn bounded(record: &Record, parameters: usize) -> Result<(), Violation> {
    /// Effects of one event: messages to a newcomer and introductions, a repeat for every open exchange, farewells to all.
    const EFFECTS_MAX: usize = CONNECTIONS_MAX + PENDING_MAX;
    let peaks = &record.peaks;
    let limits = [
        ("effects that await a reply", peaks.awaited, PENDING_MAX),
        ("merges under way", peaks.merging, RESPONDING_MAX + 1),
        ("states on their way", peaks.giving, STATE_PARTS_ON_THEIR_WAY_MAX),
        ("bytes of a payload", peaks.payload_bytes, payload_bytes_max(parameters) as usize),
        ("links", peaks.links, LINKS_MAX),
        ("effects of one event", peaks.effects, EFFECTS_MAX),
        ("wakes for nothing", record.busy_wakes as usize, 0),
    ];
    within("bounded", &limits)
}

/// Law: "views are bounded": no node knows, or is connected to, more members than the core's `bounds` allow.
pub fn bounded_views(record: &Record) -> Result<(), Violation> {
    let peaks = &record.peaks;
    let limits = [
        ("members known", peaks.known, VIEW_MAX),
        ("members connected", peaks.connected, CONNECTIONS_MAX),
        ("peers counted for misbehaviour", peaks.misbehaving, VIEW_MAX),
    ];
    within("bounded views", &limits)
}

/// Each limit: of what, its peak, and the bound.
fn within(check: &'static str, limits: &[(&str, usize, usize)]) -> Result<(), Violation> {
    for (what, peak, limit) in limits {
        ensure!(peak <= limit, check, "{peak} {what}, the bound is {limit}");
    }
    Ok(())
}

/// After so long everybody has forgotten a member that ended. A tenth is for clocks that run slow, and for how far news
/// of a member's last sign of life may lag behind.
fn remembered_max() -> Duration {
    AGE_MAX.mul_f64(1.1)
}

/// Whether somebody could be remembered for too long: somebody ended that long ago.
pub fn can_be_remembered_too_long(record: &Record) -> bool {
    record.longest_dead > remembered_max()
}

/// Law: "the dead are forgotten": no node remembers a member for longer than `AGE_MAX` after its end.
pub fn forgotten(record: &Record) -> Result<(), Violation> {
    ensure!(
        record.longest_remembered <= remembered_max(),
        "forgotten",
        "a member is known {} s after its end; the limit is {} s",
        record.longest_remembered.as_secs(),
        remembered_max().as_secs()
    );
    Ok(())
}

/// Law: "links last": both ends of a link keep the same reference, so that few merges need a new one: one of ten, those of
/// the links of all lives, and those in liars' exchanges. (What a liar sends is not what it believes to have sent.)
pub fn links_last(record: &Record) -> Result<(), Violation> {
    /// Exchanges may fail, and then one side alone has merged: new references in at most one of so many merges.
    const MERGES_OF_A_REFERENCE: u64 = 10;
    /// A life begins links, and its partners begin others when it ends.
    const REFERENCES_OF_A_LIFE: u64 = 2 * LINKS_MAX as u64;
    let (begun, on_links) = (record.exchanges.begun_anew, record.exchanges.on_links);
    let of_lives = record.lives.len() as u64 * record.fragments * REFERENCES_OF_A_LIFE;
    let liars = record.lives.iter().filter(|life| !life.is_honest).count() as u64;
    // Of what a liar starts and answers: both ends of an exchange are in the number of merges.
    let of_liars = 2 * on_links * liars / record.lives.len().max(1) as u64;
    ensure!(
        begun <= of_lives + on_links / MERGES_OF_A_REFERENCE + of_liars,
        "links last",
        "{begun} of {on_links} merges on links were with a new reference"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::{life, of_lives};

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

    #[test]
    fn one_member_too_many_is_refused() {
        let mut record = Record::default();
        record.peaks.known = VIEW_MAX;
        assert_eq!(bounded_views(&record), Ok(()));
        record.peaks.known += 1;
        assert!(bounded_views(&record).is_err());
    }

    #[test]
    fn one_remembered_for_too_long_is_found() {
        let remembered = |longest_remembered| Record { longest_remembered, ..Record::default() };
        assert_eq!(forgotten(&remembered(AGE_MAX)), Ok(()));
        assert!(forgotten(&remembered(AGE_MAX.mul_f64(1.2))).is_err());
        let dead = |longest_dead| Record { longest_dead, ..Record::default() };
        assert!(!can_be_remembered_too_long(&dead(AGE_MAX)) && can_be_remembered_too_long(&dead(AGE_MAX * 2)));
    }

    #[test]
    fn references_that_do_not_last_are_found() {
        let mut record = of_lives(vec![life(0, [0.0; 2]); 10]);
        record.fragments = 2;
        (record.exchanges.on_links, record.exchanges.begun_anew) = (10_000, 1200);
        assert_eq!(links_last(&record), Ok(()));
        record.exchanges.begun_anew += 1;
        assert!(links_last(&record).is_err());
        record.lives[0].is_honest = false;
        record.exchanges.begun_anew = 3200;
        assert_eq!(links_last(&record), Ok(()), "one of ten takes part in a fifth of the exchanges");
        record.exchanges.begun_anew += 1;
        assert!(links_last(&record).is_err());
    }
}

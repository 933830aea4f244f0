//! Each side of an exchange merges at most once, and the two corrections are each other's opposites.
//!
//! With equal weights they are so bit by bit; with others up to the rounding of one multiplication.

use std::collections::BTreeMap;

use super::Violation;
use crate::record::{MergeRecord, Record, Side};

const CHECK: &str = "exactly once";

/// Roundings of the scaled step, relative: two multiplications in `f32` on each side.
const ROUNDING: f64 = 4.0 * f32::EPSILON as f64;

/// Checks every exchange of a run.
///
/// # Errors
/// The first exchange that one side merged twice, or whose sides do not cancel.
pub fn exactly_once(record: &Record) -> Result<(), Violation> {
    let mut seen: BTreeMap<(u64, Side, u64), &MergeRecord> = BTreeMap::new();
    for merge in &record.merges {
        if let Some(first) = seen.insert((merge.exchange, merge.side, merge.life), merge) {
            let MergeRecord { exchange, side, host, at, .. } = merge;
            let finding = format!("{side:?} {host} merged exchange {exchange:x} at {:?} and {at:?}", first.at);
            return Err(Violation::new(CHECK, finding));
        }
        if merge.side == Side::Starter
            && let Some(responder) = record.twin(merge)
        {
            opposite(merge, responder)?;
        }
    }
    Ok(())
}

fn opposite(starter: &MergeRecord, responder: &MergeRecord) -> Result<(), Violation> {
    let pairs = starter.correction.to_values().into_iter().zip(responder.correction.to_values());
    for (index, (at_starter, at_responder)) in pairs.enumerate() {
        let (one, other) = (f64::from(at_starter) * responder.factor, f64::from(at_responder) * starter.factor);
        let holds = if starter.factor == responder.factor {
            at_starter == -at_responder
        } else {
            (one + other).abs() <= ROUNDING * one.abs().max(other.abs())
        };
        if !holds {
            let finding = format!(
                "exchange {:x} at {:?}, parameter {index}: hosts {} and {} move by {at_starter} and {at_responder}",
                starter.exchange, starter.at, starter.host, responder.host
            );
            return Err(Violation::new(CHECK, finding));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::merge;

    fn record(merges: Vec<MergeRecord>) -> Record {
        Record { merges, ..Record::default() }
    }

    #[test]
    fn a_pair_of_opposites_passes() {
        let sound = record(vec![merge(1, Side::Responder, [3, -2]), merge(1, Side::Starter, [-3, 2])]);
        assert_eq!(exactly_once(&sound), Ok(()));
    }

    #[test]
    fn an_exchange_merged_twice_is_refused() {
        let twice = record(vec![merge(1, Side::Responder, [3, -2]), merge(1, Side::Responder, [3, -2])]);
        assert!(exactly_once(&twice).is_err());
    }

    #[test]
    fn sides_that_do_not_cancel_are_refused() {
        let lopsided = record(vec![merge(1, Side::Responder, [3, -2]), merge(1, Side::Starter, [-3, 1])]);
        assert!(exactly_once(&lopsided).is_err());
    }
}

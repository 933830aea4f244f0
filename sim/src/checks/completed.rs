//! Law: "a run that its founder ends is over for everybody": in the end nobody trains, and nobody is short of the end or
//! beyond it.

use super::Violation;
use crate::record::Record;

/// Averages of progress round, and the last step before the end may go beyond it, as may corrections that are late by an
/// exchange: in steps (a guess).
const SHORT_MAX: f64 = 0.5;
const BEYOND_MAX: f64 = 100.0;

/// Checks every honest node that takes part in a run whose end was ordered.
///
/// # Errors
/// The first for which the run is not over, or that stands somewhere else.
pub fn completed(record: &Record) -> Result<(), Violation> {
    let Some(end) = record.end else { return Ok(()) };
    for life in record.lives.iter().filter(|life| life.active && life.is_honest) {
        let is_there = (end.until - SHORT_MAX..=end.until + BEYOND_MAX).contains(&life.progress);
        if !life.is_completed || !is_there {
            let what = if life.is_completed { "has completed the run" } else { "goes on" };
            let finding = format!("host {} {what} at {:.1}; it ends at {:.1}", life.host, life.progress, end.until);
            return Err(Violation::new("completed", finding));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::life;
    use crate::record::OrderedEnd;

    #[test]
    fn who_trains_on_or_stops_too_early_is_refused() {
        let mut record = Record { lives: vec![life(0, [0.0; 2])], ..Record::default() };
        assert_eq!(completed(&record), Ok(()), "nobody has ended it");
        record.end = Some(OrderedEnd { until: 10.0, disagreement: 1.0 });
        assert!(completed(&record).is_err(), "it goes on");
        record.lives[0].is_completed = true;
        assert_eq!(completed(&record), Ok(()));
        record.lives[0].progress = 8.0;
        assert!(completed(&record).is_err(), "too early");
        record.lives[0].progress = f64::NAN;
        assert!(completed(&record).is_err());
    }
}

//! Laws that hold after a calm phase that was long enough: all who take part are together, and nobody is left behind.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Violation;
use super::violation::ensure;
use crate::record::{LifeRecord, Record};
use crate::scenario::HostIndex;

fn active(record: &Record) -> impl Iterator<Item = &LifeRecord> {
    record.lives.iter().filter(|life| life.active)
}

/// Law: "after calm, one model": once nobody learns any more, averaging brings all who take part together: the `expected`
/// honest nodes, none further than `limit` from the mean of all of them.
pub fn converged(record: &Record, expected: usize, limit: f64) -> Result<(), Violation> {
    const CHECK: &str = "converged";
    let count = record.active_models().len();
    ensure!(count == expected, CHECK, "{count} nodes take part instead of {expected}");
    let disagreement = record.disagreement();
    ensure!(disagreement <= limit, CHECK, "a model is {disagreement:.3e} from the mean, the limit is {limit:.1e}");
    Ok(())
}

/// Law: "after calm, nobody is left isolated": everybody who takes part is connected to somebody, where there is somebody.
pub fn nobody_isolated(record: &Record) -> Result<(), Violation> {
    let is_alone = active(record).count() < 2;
    for life in active(record) {
        ensure!(is_alone || life.connected > 0, "nobody isolated", "host {} is connected to nobody", life.host);
    }
    Ok(())
}

/// A node that still trains has exchanged within this, and within so many steps where those take longer, up to the moment from which
/// nobody begins an exchange: a few intervals, and the deadline of one that was lost at the end of the faults.
const SINCE_LAST_MAX: Duration = Duration::from_secs(50);
const STEPS_SINCE_LAST_MAX: u32 = 30;

/// Law: "after calm, everybody exchanges": no honest node waits for ever for something that will not come, where there is
/// somebody to exchange with. Liars are shut out, and rightly; and where the run is over there is nothing to exchange.
pub fn everybody_exchanges(record: &Record) -> Result<(), Violation> {
    let is_alone = active(record).count() < 2;
    for life in active(record).filter(|life| life.is_honest && !life.is_completed) {
        let most = SINCE_LAST_MAX.max(life.step_time.saturating_mul(STEPS_SINCE_LAST_MAX));
        ensure!(
            is_alone || life.last_exchange_ago <= most,
            "everybody exchanges",
            "host {} has exchanged last {:?} ago",
            life.host,
            life.last_exchange_ago
        );
    }
    Ok(())
}

/// Law: "no honest node diverges", whatever its peers tell it.
///
/// After calm its model is no worse than where the run began, and its progress no further than anybody's steps. (A node
/// that has just begun may be led astray for a while: its first exchanges are clipped by its own travel alone.)
pub fn clear_of_liars(record: &Record) -> Result<(), Violation> {
    const CHECK: &str = "clear of liars";
    /// The run's first loss is that of a model that knows nothing, unless optima lie further apart than it is from them; this much
    /// more is allowed for noise.
    const LOSS_FACTOR_MAX: f64 = 1.05;
    /// Corrections to the progress are late by an exchange, so it may run ahead a little: a guess.
    const AHEAD_MAX: f64 = 1.25;
    const AHEAD_STEPS_MAX: f64 = 100.0;
    // Averages stay below the largest of what is averaged: the steps of one host, over all its lives.
    let mut steps: BTreeMap<HostIndex, u64> = BTreeMap::new();
    for life in record.lives.iter().filter(|life| life.is_honest) {
        *steps.entry(life.host).or_default() += life.steps;
    }
    let furthest = steps.into_values().max().unwrap_or_default();
    for LifeRecord { host, loss, progress, .. } in active(record).filter(|life| life.is_honest) {
        let most = LOSS_FACTOR_MAX * record.first_loss.max(record.alone_loss);
        ensure!(*loss <= most, CHECK, "host {host} has a loss of {loss:.3e}; {most:.3e} is the most without liars");
        ensure!(
            *progress <= AHEAD_MAX * furthest as f64 + AHEAD_STEPS_MAX,
            CHECK,
            "host {host} has a progress of {progress:.3e} steps"
        );
    }
    Ok(())
}

/// Law: "a run that its founder ends is over for everybody": in the end no honest node trains, and none is short of the
/// end or beyond it.
pub fn completed(record: &Record) -> Result<(), Violation> {
    /// Averages of progress round, and the last step before the end may go beyond it, as may corrections that are late by
    /// an exchange: in steps (a guess).
    const SHORT_MAX: f64 = 0.5;
    const BEYOND_MAX: f64 = 100.0;
    let Some(end) = record.end else { return Ok(()) };
    for LifeRecord { host, progress, is_completed, .. } in active(record).filter(|life| life.is_honest) {
        let what = if *is_completed { "has completed the run" } else { "goes on" };
        ensure!(
            *is_completed && (end.until - SHORT_MAX..=end.until + BEYOND_MAX).contains(progress),
            "completed",
            "host {host} {what} at {progress:.1}; it ends at {:.1}",
            end.until
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::{life, of_lives};
    use crate::record::OrderedEnd;

    #[test]
    fn models_apart_and_nodes_missing_are_refused() {
        let record = of_lives([life(0, [1.0, 0.0]), life(1, [1.0, 0.2])]);
        assert_eq!(converged(&record, 2, 0.11), Ok(()));
        assert!(converged(&record, 2, 0.09).is_err());
        assert!(converged(&record, 3, 0.11).is_err());
    }

    #[test]
    fn a_lonely_node_is_refused() {
        let mut record = of_lives([life(0, [0.0; 2]), life(1, [0.0; 2])]);
        assert_eq!(nobody_isolated(&record), Ok(()));
        record.lives[1].connected = 0;
        assert!(nobody_isolated(&record).is_err());
        record.lives.remove(0);
        assert_eq!(nobody_isolated(&record), Ok(()), "there is nobody else");
    }

    #[test]
    fn a_node_that_has_fallen_silent_is_refused() {
        let mut record = of_lives([life(0, [0.0; 2]), life(1, [0.0; 2])]);
        assert_eq!(everybody_exchanges(&record), Ok(()));
        record.lives[1].last_exchange_ago = SINCE_LAST_MAX * 2;
        assert!(everybody_exchanges(&record).is_err());
        record.lives[1].is_completed = true;
        assert_eq!(everybody_exchanges(&record), Ok(()));
        (record.lives[1].is_completed, record.lives[1].is_honest) = (false, false);
        assert_eq!(everybody_exchanges(&record), Ok(()));
    }

    #[test]
    fn models_and_progress_beyond_reason_are_refused() {
        let mut record = Record { first_loss: 0.6, ..of_lives([life(0, [0.0; 2])]) };
        assert_eq!(clear_of_liars(&record), Ok(()));
        record.lives[0].loss = f64::NAN;
        assert!(clear_of_liars(&record).is_err());
        record.lives[0].loss = 2.0;
        assert!(clear_of_liars(&record).is_err());
        record.alone_loss = 2.0;
        assert_eq!(clear_of_liars(&record), Ok(()), "optima are as far apart");
        (record.lives[0].loss, record.lives[0].progress) = (0.1, 1e8);
        assert!(clear_of_liars(&record).is_err());
        record.lives[0].is_honest = false;
        assert_eq!(clear_of_liars(&record), Ok(()), "liars may go where they like");
    }

    #[test]
    fn who_trains_on_or_stops_too_early_is_refused() {
        let mut record = of_lives([life(0, [0.0; 2])]);
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

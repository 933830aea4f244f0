//! Law: "no honest node diverges", whatever its peers tell it.
//!
//! After calm its model is no worse than where the run began, and its progress no further than anybody's steps. (A node
//! that has just begun may be led astray for a while: its first exchanges are clipped by its own travel alone.)

use std::collections::BTreeMap;

use super::Violation;
use crate::record::{LifeRecord, Record};
use crate::scenario::HostIndex;

const CHECK: &str = "clear of liars";

/// The run's first loss is that of a model that knows nothing; this much more is allowed for noise.
const LOSS_FACTOR_MAX: f64 = 1.05;

/// Corrections to the progress are late by an exchange, so it may run ahead a little: a guess.
const AHEAD_MAX: f64 = 1.25;
const AHEAD_STEPS_MAX: f64 = 100.0;

/// Checks every honest life that takes part.
///
/// # Errors
/// The first that has diverged.
pub fn clear_of_liars(record: &Record) -> Result<(), Violation> {
    let honest = || record.lives.iter().filter(|life| life.is_honest);
    // Averages stay below the largest of what is averaged: the steps of one host, over all its lives.
    let mut steps: BTreeMap<HostIndex, u64> = BTreeMap::new();
    for life in honest() {
        *steps.entry(life.host).or_default() += life.steps;
    }
    let furthest = steps.into_values().max().unwrap_or_default();
    let limits = (LOSS_FACTOR_MAX * record.first_loss, AHEAD_MAX * furthest as f64 + AHEAD_STEPS_MAX);
    for LifeRecord { host, loss, progress, .. } in honest().filter(|life| life.active) {
        // A value that is not a number must not pass, and it is not below anything.
        let (loss_holds, progress_holds) = (*loss <= limits.0, *progress <= limits.1);
        if !loss_holds {
            let finding = format!("host {host} has a loss of {loss:.3e}; the run began at {:.3e}", record.first_loss);
            return Err(Violation::new(CHECK, finding));
        }
        if !progress_holds {
            return Err(Violation::new(CHECK, format!("host {host} has a progress of {progress:.3e} steps")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn models_and_progress_beyond_reason_are_refused() {
        let mut record = Record { lives: vec![life(0, [0.0; 2])], first_loss: 0.6, ..Record::default() };
        assert_eq!(clear_of_liars(&record), Ok(()));
        record.lives[0].loss = f64::NAN;
        assert!(clear_of_liars(&record).is_err());
        (record.lives[0].loss, record.lives[0].progress) = (0.1, 1e8);
        assert!(clear_of_liars(&record).is_err());
        record.lives[0].is_honest = false;
        assert_eq!(clear_of_liars(&record), Ok(()), "liars may go where they like");
    }
}

//! Law: invariant 7 of ten, "the local loop never waits for a message"; the first promise.
//!
//! A trainer's steps follow its own clock alone, whatever its peers and the network do, and whatever its node orders: the
//! steps expected are those that the time since the first beginning of training holds. Only pauses of the process are
//! taken off, and what follows the end of the run, a leave, or the turn of a synchronous run to averaging at once.

use super::Violation;
use crate::record::Record;

/// Checks the steps of every life.
///
/// # Errors
/// The first life with more or fewer steps than its training time holds.
pub fn training_never_waits(record: &Record) -> Result<(), Violation> {
    for life in &record.lives {
        // The step that is under way does not count yet.
        let allowed = life.interruptions as f64 + 1.001;
        let surplus = life.steps as f64 - life.steps_expected;
        if surplus.abs() > allowed {
            let finding =
                format!("host {} did {} steps in the time of {:.1}", life.host, life.steps, life.steps_expected);
            return Err(Violation::new("training never waits", finding));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn two_steps_too_few_are_refused() {
        let mut record = Record { lives: vec![life(0, [0.0; 2])], ..Record::default() };
        assert_eq!(training_never_waits(&record), Ok(()));
        record.lives[0].steps -= 2;
        assert!(training_never_waits(&record).is_err());
        record.lives[0].interruptions = 1;
        assert_eq!(training_never_waits(&record), Ok(()));
    }
}

//! The first promise: a trainer's steps follow its clock alone, whatever its peers and the network do.

use super::Violation;
use crate::record::Record;

/// Checks the steps of every life.
///
/// # Errors
/// The first life with more or fewer steps than its training time holds.
pub fn training_never_waits(record: &Record) -> Result<(), Violation> {
    for life in &record.lives {
        let steps = life.training_time.as_nanos() / life.step_time.as_nanos();
        let allowed = (steps - u128::from(life.interruptions).min(steps))..=(steps + u128::from(life.interruptions));
        if !allowed.contains(&u128::from(life.steps)) {
            let finding = format!("host {} did {} steps in the time of {steps}", life.host, life.steps);
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
    fn one_step_too_few_is_refused() {
        let mut record = Record { lives: vec![life(0, [0.0; 2], [0.0; 2])], ..Record::default() };
        assert_eq!(training_never_waits(&record), Ok(()));
        record.lives[0].steps -= 1;
        assert!(training_never_waits(&record).is_err());
    }
}

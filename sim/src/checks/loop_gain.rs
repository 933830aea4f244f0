//! Law: invariant 10 of ten, "the loop-gain guard holds on every schedule".
//!
//! g, the sum of all γ in a round, stays below 2 · sin(π / (2(2τ + 1))) for a mean delay of τ rounds between a model
//! and its correction. Corrections stay out of the outer momentum (ρ = 0), so the other factor of the law is 1.

use std::f64::consts::PI;

use super::Violation;
use crate::record::Record;

/// Rounds before a life's averages mean anything.
const ROUNDS_MIN: f64 = 10.0;

/// Checks every life that was long enough.
///
/// # Errors
/// The first whose gain is over the bound.
pub fn loop_gain(record: &Record) -> Result<(), Violation> {
    for life in &record.lives {
        let steps_in_round = life.interval_steps.max(1.0);
        let rounds = life.steps as f64 / steps_in_round;
        if rounds < ROUNDS_MIN || life.corrections == 0 {
            continue;
        }
        let gain = life.gain / rounds;
        let round = steps_in_round * life.step_time.as_secs_f64();
        let delay_rounds = life.delay.as_secs_f64() / life.corrections as f64 / round;
        let bound = 2.0 * (PI / (2.0 * (2.0 * delay_rounds + 1.0))).sin();
        if gain > bound {
            let host = life.host;
            let finding = format!(
                "host {host} averages with a gain of {gain:.3} at a delay of {delay_rounds:.2} rounds; {bound:.3} is stable"
            );
            return Err(Violation::new("loop gain", finding));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn late_corrections_at_full_gain_are_refused() {
        let mut record = Record { lives: vec![life(0, [0.0; 2], [0.0; 2])], ..Record::default() };
        let long = &mut record.lives[0];
        // Two exchanges a round, each a round late: g = 1 is the bound.
        (long.steps, long.corrections, long.gain, long.delay) = (1000, 198, 99.0, Duration::from_secs(198));
        assert_eq!(loop_gain(&record), Ok(()));
        record.lives[0].delay *= 2;
        assert!(loop_gain(&record).is_err());
    }
}

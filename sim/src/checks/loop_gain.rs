//! Law: invariant 10 of ten, "the loop-gain guard holds on every schedule".
//!
//! g, the sum of all γ in a round, stays below 2 · sin(π / (2(2τ + 1))) for a mean delay of τ rounds between a model
//! and its correction. Corrections stay out of the outer momentum (ρ = 0), so the other factor of the law is 1.
//!
//! A slow node may answer many exchanges in one of its own rounds, one after the other, each from a fresh model: that
//! is a loop whose round is the time between two corrections. A life violates the law when it does in both units.

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
    for life in record.lives.iter().filter(|life| life.rounds >= ROUNDS_MIN && life.corrections > 0) {
        let corrections = life.corrections as f64;
        let (gain, delay) = (life.gain / life.rounds, life.delay_rounds / corrections);
        let delay_corrections = life.delay.as_secs_f64() / life.trained.as_secs_f64();
        let holds = gain <= bound(delay) || life.gain / corrections <= bound(delay_corrections);
        if !holds {
            let finding = format!(
                "host {} averages with a gain of {gain:.3} at a delay of {delay:.2} rounds; {:.3} is stable",
                life.host,
                bound(delay)
            );
            return Err(Violation::new("loop gain", finding));
        }
    }
    Ok(())
}

/// The gain at which a loop with a delay of so many rounds begins to swing.
fn bound(delay_rounds: f64) -> f64 {
    2.0 * (PI / (2.0 * (2.0 * delay_rounds + 1.0))).sin()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn late_corrections_at_full_gain_are_refused() {
        let mut record = Record { lives: vec![life(0, [0.0; 2])], ..Record::default() };
        let long = &mut record.lives[0];
        // 100 rounds of a second, two exchanges in each, half a round late.
        (long.rounds, long.trained, long.corrections, long.gain) = (100.0, Duration::from_secs(100), 200, 100.0);
        (long.delay, long.delay_rounds) = (Duration::from_secs(100), 100.0);
        assert_eq!(loop_gain(&record), Ok(()));
        let long = &mut record.lives[0];
        (long.delay, long.delay_rounds) = (Duration::from_secs(600), 600.0);
        assert!(loop_gain(&record).is_err());
    }

    #[test]
    fn many_quick_exchanges_in_a_slow_round_are_no_loop() {
        let mut record = Record { lives: vec![life(0, [0.0; 2])], ..Record::default() };
        let slow = &mut record.lives[0];
        // 20 rounds of 20 s, ten exchanges in each, two seconds late.
        (slow.rounds, slow.trained, slow.corrections, slow.gain) = (20.0, Duration::from_secs(400), 200, 100.0);
        (slow.delay, slow.delay_rounds) = (Duration::from_secs(400), 20.0);
        assert_eq!(loop_gain(&record), Ok(()));
    }
}

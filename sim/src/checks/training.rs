//! Laws of training: what the network does neither holds it up nor upsets it.

use std::f64::consts::PI;

use super::Violation;
use super::violation::ensure;
use crate::record::Record;

/// Law: invariant 7 of ten, "the local loop never waits for a message"; the first promise.
///
/// A trainer's steps follow its own clock alone, whatever its peers and the network do, and whatever its node orders: the
/// steps expected are those that the time since the first beginning of training holds. Only pauses of the process are
/// taken off, and what follows the end of the run, a leave, or the turn of a synchronous run to averaging at once.
pub fn training_never_waits(record: &Record) -> Result<(), Violation> {
    for life in &record.lives {
        // The step that is under way does not count yet.
        let allowed = life.interruptions as f64 + 1.001;
        ensure!(
            (life.steps as f64 - life.steps_expected).abs() <= allowed,
            "training never waits",
            "host {} did {} steps in the time of {:.1}",
            life.host,
            life.steps,
            life.steps_expected
        );
    }
    Ok(())
}

/// Law: invariant 8 of ten, "N = 1 equals plain local training": a node without peers ends, bit by bit, where its trainer
/// ends without any node.
pub fn local_alone(record: &Record, trained_locally: &[f32]) -> Result<(), Violation> {
    const CHECK: &str = "local alone";
    ensure!(record.lives.len() == 1, CHECK, "{} lives instead of one", record.lives.len());
    let life = &record.lives[0];
    let bits = |model: &[f32]| model.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    ensure!(
        bits(&life.model) == bits(trained_locally),
        CHECK,
        "after {} steps the model is not that of plain training",
        life.steps
    );
    Ok(())
}

/// Law: invariant 9 of ten, "same seed, same hash". Each fingerprint is a run's hash and number of entries.
pub fn repeatable(first: ([u8; 32], u64), second: ([u8; 32], u64)) -> Result<(), Violation> {
    ensure!(
        first == second,
        "repeatable",
        "two runs of one seed took {} and {} events and effects, or other ones",
        first.1,
        second.1
    );
    Ok(())
}

/// Law: invariant 10 of ten, "the loop-gain guard holds on every schedule".
///
/// g, the sum of all γ in a round, stays below 2 · sin(π / (2(2τ + 1))) for a mean delay of τ rounds between a model
/// and its correction. Corrections stay out of the outer momentum (ρ = 0), so the other factor of the law is 1.
///
/// A slow node may answer many exchanges in one of its own rounds, one after the other, each from a fresh model: that
/// is a loop whose round is the time between two corrections. A life violates the law when it does in both units.
pub fn loop_gain(record: &Record) -> Result<(), Violation> {
    /// Rounds before a life's averages mean anything.
    const ROUNDS_MIN: f64 = 10.0;
    for life in record.lives.iter().filter(|life| life.rounds >= ROUNDS_MIN && life.corrections > 0) {
        let corrections = life.corrections as f64;
        let (gain, delay) = (life.gain / life.rounds, life.delay_rounds / corrections);
        let delay_corrections = life.delay.as_secs_f64() / life.trained.as_secs_f64();
        ensure!(
            gain <= gain_max(delay) || life.gain / corrections <= gain_max(delay_corrections),
            "loop gain",
            "host {} averages with a gain of {gain:.3} at a delay of {delay:.2} rounds; {:.3} is stable",
            life.host,
            gain_max(delay)
        );
    }
    Ok(())
}

/// The gain at which a loop with a delay of so many rounds begins to swing.
fn gain_max(delay_rounds: f64) -> f64 {
    2.0 * (PI / (2.0 * (2.0 * delay_rounds + 1.0))).sin()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::checks::forged::{life, of_lives};

    #[test]
    fn two_steps_too_few_are_refused() {
        let mut record = of_lives([life(0, [0.0; 2])]);
        assert_eq!(training_never_waits(&record), Ok(()));
        record.lives[0].steps -= 2;
        assert!(training_never_waits(&record).is_err());
        record.lives[0].interruptions = 1;
        assert_eq!(training_never_waits(&record), Ok(()));
    }

    #[test]
    fn a_model_that_something_else_moved_is_refused() {
        let record = of_lives([life(0, [1.0, 2.0])]);
        assert_eq!(local_alone(&record, &[1.0, 2.0]), Ok(()));
        assert!(local_alone(&record, &[1.0, 2.0 + 1e-6]).is_err());
        assert!(local_alone(&record, &[1.0]).is_err());
    }

    #[test]
    fn another_hash_is_refused() {
        assert_eq!(repeatable(([1; 32], 5), ([1; 32], 5)), Ok(()));
        assert!(repeatable(([1; 32], 5), ([2; 32], 5)).is_err());
    }

    #[test]
    fn late_corrections_at_full_gain_are_refused() {
        let mut record = of_lives([life(0, [0.0; 2])]);
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
        let mut record = of_lives([life(0, [0.0; 2])]);
        let slow = &mut record.lives[0];
        // 20 rounds of 20 s, ten exchanges in each, two seconds late.
        (slow.rounds, slow.trained, slow.corrections, slow.gain) = (20.0, Duration::from_secs(400), 200, 100.0);
        (slow.delay, slow.delay_rounds) = (Duration::from_secs(400), 20.0);
        assert_eq!(loop_gain(&record), Ok(()));
    }
}

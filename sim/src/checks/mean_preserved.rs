//! Averaging moves no mass: the sum of all models changes only by their own training, but for one-sided exchanges.
//!
//! An exchange of which one side never learned the outcome moves that side by at most 2γ · share · κ‖s·d‖, which with
//! equal weights is γ‖d‖, or γ‖d‖/N for the mean. The models of the dead count as they were when they died.

use super::Violation;
use crate::record::{Record, Side};

/// Rounding of one `f32` addition, relative; an element is added to once per step and once per exchange.
const ADDITION: f64 = f32::EPSILON as f64;

/// Checks the sum of all models.
///
/// # Errors
/// When it has moved further than local training, one-sided exchanges and rounding explain.
pub fn mean_preserved(record: &Record) -> Result<(), Violation> {
    let Some(first) = record.lives.first() else { return Ok(()) };
    let mut unexplained = vec![0.0f64; first.model.len()];
    let mut rounding = 0.0;
    for life in &record.lives {
        let mut squares = 0.0;
        for (index, sum) in unexplained.iter_mut().enumerate() {
            let moved = f64::from(life.model[index]) - f64::from(life.first_model[index]);
            *sum += moved - life.local_movement[index];
            squares += f64::from(life.model[index]).powi(2);
        }
        let additions = record.merges.iter().filter(|merge| merge.host == life.host).count();
        rounding += ADDITION * squares.sqrt().max(1.0) * (additions as f64 + 2.0);
    }
    // With unequal weights the partners' corrections do not cancel: what keeps is the weighted sum, whose weights differ
    // from exchange to exchange. That they are opposites up to their shares is another check's law.
    for merge in record.merges.iter().filter(|merge| merge.landed) {
        let Some(twin) = record.twin(merge).filter(|twin| twin.landed && twin.factor != merge.factor) else { continue };
        debug_assert_eq!(twin.exchange, merge.exchange);
        for (sum, value) in unexplained.iter_mut().zip(merge.correction.to_values()) {
            *sum -= f64::from(value);
        }
    }
    let shift = unexplained.iter().map(|sum| sum * sum).sum::<f64>().sqrt();
    let one_sided: f64 = record.one_sided().iter().map(|merge| merge.factor * merge.clipped_distance).sum();
    let allowed = one_sided * (1.0 + 1e-5) + rounding;
    if shift <= allowed {
        Ok(())
    } else {
        let finding = format!("the sum of all models moved by {shift:.3e}; explained are {allowed:.3e}");
        Err(Violation::new("mean preserved", finding))
    }
}

/// Checks, for a run in which nothing is lost, that both sides of every exchange landed.
///
/// # Errors
/// The first exchange that moved only one of its sides.
pub fn nothing_one_sided(record: &Record) -> Result<(), Violation> {
    match record.one_sided().first() {
        None => Ok(()),
        Some(merge) => {
            let side = if merge.side == Side::Starter { "starter" } else { "responder" };
            let finding =
                format!("exchange {:x} moved only its {side}, {} at {:?}", merge.exchange, merge.host, merge.at);
            Err(Violation::new("nothing one-sided", finding))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::{life, merge};

    fn sound() -> Record {
        let lives = vec![life(0, [5.0, 1.0], [-3.0, 2.0]), life(1, [2.0, 2.0], [3.0, -2.0])];
        let merges = vec![merge(1, Side::Starter, [-3, 2]), merge(1, Side::Responder, [3, -2])];
        Record { lives, merges, ..Record::default() }
    }

    #[test]
    fn opposite_corrections_pass() {
        assert_eq!(mean_preserved(&sound()), Ok(()));
        assert_eq!(nothing_one_sided(&sound()), Ok(()));
    }

    #[test]
    fn a_correction_that_is_lost_on_one_side_is_one_sided() {
        let mut record = sound();
        record.merges[1].landed = false;
        assert!(nothing_one_sided(&record).is_err());
    }

    #[test]
    fn an_overwritten_model_is_refused() {
        let mut record = sound();
        record.lives[0].model[1] += 0.1;
        assert!(mean_preserved(&record).is_err());
    }

    #[test]
    fn one_lost_side_explains_no_more_than_its_own_length() {
        let mut record = sound();
        record.merges.pop();
        record.lives[1] = life(1, [2.0, 2.0], [0.0, 0.0]);
        assert_eq!(mean_preserved(&record), Ok(()), "moved by one correction");
        record.lives[0].model[0] -= 3.0;
        assert!(mean_preserved(&record).is_err(), "moved by more than it");
    }
}

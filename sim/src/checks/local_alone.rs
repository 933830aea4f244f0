//! Law: invariant 8 of ten, "N = 1 equals plain local training".
//!
//! A node without peers ends, bit by bit, where its trainer ends without any node.

use super::Violation;
use crate::record::Record;

const CHECK: &str = "local alone";

/// Checks a run of one node against the model of plain local training.
///
/// # Errors
/// When there is not one life, or its model is another one.
pub fn local_alone(record: &Record, trained_locally: &[f32]) -> Result<(), Violation> {
    let [life] = &record.lives[..] else {
        return Err(Violation::new(CHECK, format!("{} lives instead of one", record.lives.len())));
    };
    let same_bits = |(one, other): (&f32, &f32)| one.to_bits() == other.to_bits();
    if life.model.len() == trained_locally.len() && life.model.iter().zip(trained_locally).all(same_bits) {
        return Ok(());
    }
    Err(Violation::new(CHECK, format!("after {} steps the model is not that of plain training", life.steps)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn a_model_that_something_else_moved_is_refused() {
        let record = Record { lives: vec![life(0, [1.0, 2.0], [0.0; 2])], ..Record::default() };
        assert_eq!(local_alone(&record, &[1.0, 2.0]), Ok(()));
        assert!(local_alone(&record, &[1.0, 2.0 + 1e-6]).is_err());
        assert!(local_alone(&record, &[1.0]).is_err());
    }
}

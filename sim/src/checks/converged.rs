//! Law: "after calm, one model": once nobody learns any more, averaging brings all who take part together.

use super::Violation;
use crate::record::Record;

/// Checks that no honest model is further than `limit` from the mean of all of them.
///
/// # Errors
/// When one is, or when not `expected` honest nodes take part.
pub fn converged(record: &Record, expected: usize, limit: f64) -> Result<(), Violation> {
    let count = record.active_models().len();
    if count != expected {
        return Err(Violation::new("converged", format!("{count} nodes take part instead of {expected}")));
    }
    let disagreement = record.disagreement();
    if disagreement <= limit {
        Ok(())
    } else {
        Err(Violation::new(
            "converged",
            format!("a model is {disagreement:.3e} from the mean, the limit is {limit:.1e}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn models_apart_and_nodes_missing_are_refused() {
        let lives = vec![life(0, [1.0, 0.0], [0.0; 2]), life(1, [1.0, 0.2], [0.0; 2])];
        let record = Record { lives, ..Record::default() };
        assert_eq!(converged(&record, 2, 0.11), Ok(()));
        assert!(converged(&record, 2, 0.09).is_err());
        assert!(converged(&record, 3, 0.11).is_err());
    }
}

//! Law: invariant 6 of ten, "a crash at any event shifts the mean by at most γ‖d‖/N".
//!
//! What a crash leaves behind is an exchange of which one side alone has moved, by no more than its share of the clipped
//! difference. (That nothing but one-sided exchanges shifts the mean is the law of `mean_preserved`.)

use super::Violation;
use crate::record::Record;

/// The factor, the scale and every step are rounded to `f32`.
const ROUNDING: f64 = 1e-5;

/// Checks every one-sided exchange.
///
/// # Errors
/// The first that moved its side by more than its share of the difference.
pub fn crash_shift(record: &Record) -> Result<(), Violation> {
    for merge in &record.exchanges.one_sided {
        let allowed = merge.factor * merge.clip_scale.min(1.0) * merge.distance * (1.0 + ROUNDING);
        let holds = merge.length <= allowed;
        if !holds {
            let finding = format!(
                "exchange {:x} at {:?} moved host {} alone by {:.3e}; its share of the difference is {allowed:.3e}",
                merge.exchange, merge.at, merge.host, merge.length
            );
            return Err(Violation::new("crash shift", finding));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged;
    use crate::record::Side;

    #[test]
    fn a_side_that_moved_too_far_alone_is_refused() {
        let (mut merge, _) = forged::merge(1, Side::Responder, [3, 4]);
        let mut record = Record::default();
        record.exchanges.one_sided.push(merge.clone());
        assert_eq!(crash_shift(&record), Ok(()));
        merge.length *= 1.01;
        record.exchanges.one_sided.push(merge);
        assert!(crash_shift(&record).is_err());
    }
}

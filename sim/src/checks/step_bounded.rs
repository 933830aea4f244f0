//! Law: invariant 4 of ten, "one exchange moves a node by at most 2γ · partner's share · τ".
//!
//! τ is what the node itself has declared for the exchange: its own guard against whatever the partner sends.

use super::Violation;
use crate::record::MergeRecord;

/// τ travels as an `f32`, and the factor is rounded to one.
const ROUNDING: f64 = 1e-5;

/// Below the smallest normal `f32` the steps between codes have few bits or one.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

/// Checks one side's correction.
///
/// # Errors
/// When it is longer than its node lets in.
pub fn step_bounded(merge: &MergeRecord) -> Result<(), Violation> {
    let allowed = merge.factor * merge.clip * (1.0 + ROUNDING) + SMALLEST;
    // Not `length > allowed`: a length that is not a number must not pass.
    if merge.length <= allowed {
        return Ok(());
    }
    let finding = format!(
        "exchange {:x} at {:?} moves host {} by {:.3e}; its clip norm allows {allowed:.3e}",
        merge.exchange, merge.at, merge.host, merge.length
    );
    Err(Violation::new("step bounded", finding))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged;
    use crate::record::Side;

    #[test]
    fn a_step_beyond_the_clip_norm_is_refused() {
        let (mut merge, _) = forged::merge(1, Side::Starter, [3, 4]);
        assert_eq!(step_bounded(&merge), Ok(()));
        merge.clip = 9.0;
        assert!(step_bounded(&merge).is_err());
        (merge.clip, merge.length) = (10.0, f64::NAN);
        assert!(step_bounded(&merge).is_err());
    }
}

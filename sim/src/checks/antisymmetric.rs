//! Law: invariant 1 of ten, "the two corrections are each other's opposites, bit by bit".
//!
//! With equal weights they are so exactly, wrapped codes included; with others each is the same difference times its
//! own factor, up to the rounding of that multiplication.

use super::Violation;
use crate::record::ExchangeRecord;

/// Roundings of the scaled step, relative: two multiplications in `f32` on each side.
const ROUNDING: f64 = 4.0 * f32::EPSILON as f64;

/// Below the smallest normal `f32` products are rounded to few bits.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

/// Checks one exchange of which both sides have merged.
///
/// # Errors
/// When the sides do not cancel.
pub fn antisymmetric(exchange: &ExchangeRecord) -> Result<(), Violation> {
    let (starter, responder) = (&exchange.starter, &exchange.responder);
    let [to_starter, to_responder] = &exchange.corrections;
    let pairs = to_starter.to_values().into_iter().zip(to_responder.to_values());
    for (index, (at_starter, at_responder)) in pairs.enumerate() {
        let (one, other) = (f64::from(at_starter) * responder.factor, f64::from(at_responder) * starter.factor);
        let holds = if starter.factor == responder.factor {
            at_starter == -at_responder
        } else {
            (one + other).abs() <= ROUNDING * one.abs().max(other.abs()) + SMALLEST
        };
        if !holds {
            let finding = format!(
                "exchange {:x} at {:?}, parameter {index}: hosts {} and {} move by {at_starter} and {at_responder}",
                starter.exchange, starter.at, starter.host, responder.host
            );
            return Err(Violation::new("antisymmetric", finding));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::exchange;

    #[test]
    fn sides_that_do_not_cancel_are_refused() {
        assert_eq!(antisymmetric(&exchange([[-3, 2], [3, -2]])), Ok(()));
        assert!(antisymmetric(&exchange([[-3, 1], [3, -2]])).is_err());
    }

    #[test]
    fn with_unequal_weights_the_factors_decide() {
        let mut lopsided = exchange([[-3, 3], [1, -1]]);
        assert!(antisymmetric(&lopsided).is_err());
        (lopsided.starter.factor, lopsided.responder.factor) = (0.75, 0.25);
        assert_eq!(antisymmetric(&lopsided), Ok(()));
    }
}

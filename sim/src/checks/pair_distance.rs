//! Law: invariant 5 of ten, "an exchange without wraps never drives a pair apart".
//!
//! Both models are compared as they were when they were encoded, so local steps on the way do not count. The distance
//! may grow by the quantization error, at most one step in each coordinate.

use murmur_protocol::bulk::BLOCK;

use super::Violation;
use crate::record::ExchangeRecord;

/// Rounding of the corrections and of the models, relative to the models' length.
const ROUNDING: f64 = 8.0 * f32::EPSILON as f64;

/// What is read from codes that have not wrapped is the distance but for the quantization, far below this.
const UNWRAPPED_SHARE: f64 = 0.9;

/// Checks one exchange of which both sides have merged.
///
/// # Errors
/// When the pair is further apart after it.
pub fn pair_distance(exchange: &ExchangeRecord) -> Result<(), Violation> {
    let [starter, responder] = &exchange.snapshots;
    let [to_starter, to_responder] = exchange.corrections.each_ref().map(|correction| correction.to_values());
    // A correction may cover a part of its model only, or be of a vector of another length.
    if starter.values().len() != to_starter.len() || responder.values().len() != to_responder.len() {
        return Ok(());
    }
    let (mut before, mut after, mut length) = (0.0, 0.0, 0.0);
    let models = starter.values().iter().zip(responder.values());
    for ((one, other), (to_one, to_other)) in models.zip(to_starter.iter().zip(&to_responder)) {
        let (one, other) = (f64::from(*one), f64::from(*other));
        before += (one - other).powi(2);
        after += (one + f64::from(*to_one) - other - f64::from(*to_other)).powi(2);
        length += one.powi(2) + other.powi(2);
    }
    // Codes have wrapped where the distance that was read from them is too short. The check on a block has 16 bits, so one
    // in 65,536 blocks that wrap many times slips through it; the law is about exchanges without wraps.
    if exchange.starter.distance < UNWRAPPED_SHARE * before.sqrt() && exchange.starter.masked_blocks == 0 {
        return Ok(());
    }
    // The two corrections together close this share of the difference, and with it of its error.
    let share = (exchange.starter.factor + exchange.responder.factor) * exchange.starter.clip_scale;
    let error = share * quantum(&to_starter, exchange.starter.factor * exchange.starter.clip_scale);
    let allowed = before.sqrt() + error + ROUNDING * length.sqrt();
    if after.sqrt() <= allowed {
        return Ok(());
    }
    let finding = format!(
        "exchange {:x} at {:?}: hosts {} and {} were {:.3e} apart, are {:.3e} now; allowed are {allowed:.3e}",
        exchange.starter.exchange,
        exchange.starter.at,
        exchange.starter.host,
        exchange.responder.host,
        before.sqrt(),
        after.sqrt()
    );
    Err(Violation::new("pair distance", finding))
}

/// An upper bound on the quantization error of a correction's difference, as a Euclidean norm: a block's step is at
/// most its smallest movement.
fn quantum(correction: &[f32], factor: f64) -> f64 {
    let squares = correction.chunks(BLOCK).map(|block| {
        let moved = block.iter().filter(|value| **value != 0.0).map(|value| f64::from(value.abs()));
        let smallest = moved.fold(f64::INFINITY, f64::min);
        if smallest.is_finite() { block.len() as f64 * (smallest / factor).powi(2) } else { 0.0 }
    });
    squares.sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::exchange;

    #[test]
    fn a_pair_that_moves_apart_is_refused() {
        assert_eq!(pair_distance(&exchange([[-3, 2], [3, -2]])), Ok(()));
        assert!(pair_distance(&exchange([[3, -2], [-3, 2]])).is_err());
    }
}

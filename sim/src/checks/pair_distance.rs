//! Law: invariant 5 of ten, "an exchange without wraps never drives a pair apart".
//!
//! Both models are compared as they were when they were encoded, so local steps on the way do not count. The distance
//! may grow by the quantization error, at most one step in each coordinate. Exchanges on links are not asked: of a
//! difference they tell a sign alone, so that a pair may be further apart for a while. See
//! [`toward_partner`](super::toward_partner) for theirs.

use murmur_protocol::bulk::BLOCK;
use murmur_protocol::numerics::CodeWidth;

use super::Violation;
use crate::record::ExchangeRecord;

/// Rounding of the corrections and of the models, relative to the models' length.
const ROUNDING: f64 = 8.0 * f32::EPSILON as f64;

/// Rounding of a difference that was read from codes, in steps: half a step on each side, and that of its factors.
const READING_ERROR: f64 = 1.5;

/// Checks one exchange of which both sides have merged; those on links are passed over.
///
/// # Errors
/// When the pair is further apart after it.
pub fn pair_distance(exchange: &ExchangeRecord) -> Result<(), Violation> {
    if exchange.starter.width == CodeWidth::One {
        return Ok(());
    }
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
    // The two corrections together close this share of the difference, and with it of its error.
    let share = (exchange.starter.factor + exchange.responder.factor) * exchange.starter.clip_scale;
    let error = share * quantum(&to_starter, exchange.starter.factor * exchange.starter.clip_scale);
    let allowed = before.sqrt() + error + ROUNDING * length.sqrt();
    // The check on a block has 16 bits, so one in 65,536 blocks that wrap slips through it; the law is about exchanges
    // without wraps.
    if after.sqrt() <= allowed || has_wrapped(exchange) {
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

/// Whether some difference was read wrong by a whole turn of the codes, as only wraps do it.
fn has_wrapped(exchange: &ExchangeRecord) -> bool {
    let turn = f64::from(1u32 << exchange.starter.width.bits());
    let reading = exchange.starter.factor * exchange.starter.clip_scale;
    let [starter, responder] = exchange.snapshots.each_ref().map(|snapshot| snapshot.values().chunks(BLOCK));
    let correction = &exchange.corrections[0];
    let read = correction.to_values();
    let blocks = read.chunks(BLOCK).zip(starter.zip(responder)).zip(correction.scales());
    reading > 0.0
        && blocks.into_iter().any(|((read, (one, other)), scaled_step)| {
            let step = f64::from(scaled_step.abs()) / reading;
            let differences = one.iter().zip(other).map(|(one, other)| f64::from(*other) - f64::from(*one));
            read.iter().zip(differences).any(|(read, difference)| {
                let missed = (difference - f64::from(*read) / reading) / step;
                let turns = (missed / turn).round();
                turns != 0.0 && (missed - turns * turn).abs() <= READING_ERROR
            })
        })
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
    use murmur_protocol::Snapshot;

    use super::*;
    use crate::checks::forged::exchange;

    #[test]
    fn a_pair_that_moves_apart_is_refused() {
        assert_eq!(pair_distance(&exchange([[-3, 2], [3, -2]])), Ok(()));
        assert!(pair_distance(&exchange([[3, -2], [-3, 2]])).is_err());
    }

    #[test]
    fn a_difference_that_is_wrong_by_a_turn_of_the_codes_has_wrapped() {
        let mut wrapped = exchange([[-3, 2], [3, -2]]);
        assert!(!has_wrapped(&wrapped));
        // Half of a difference is moved, so the step is 2; the models were 6 apart, and are a turn more now.
        wrapped.snapshots[1] = Snapshot::from(vec![4.0 - 6.0 + 2.0 * 64.0, 3.0]);
        assert!(has_wrapped(&wrapped));
        assert_eq!(pair_distance(&wrapped), Ok(()));
    }
}

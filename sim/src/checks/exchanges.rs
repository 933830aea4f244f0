//! Laws of single exchanges, checked as soon as their sides have merged.

use murmur_protocol::bulk::BLOCK;
use murmur_protocol::numerics::CodeWidth;

use super::violation::ensure;
use super::{Violation, first_found};
use crate::record::{ExchangeRecord, MergeRecord, Record};

/// Below the smallest normal `f32` products and the steps between codes are rounded to few bits.
pub(super) const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

const EXACTLY_ONCE: &str = "exactly once";

/// Law: invariant 1 of ten, "the two corrections are each other's opposites, bit by bit".
///
/// With equal weights they are so exactly, wrapped codes included; with others each is the same difference times its
/// own factor, up to the rounding of that multiplication.
pub fn antisymmetric(exchange: &ExchangeRecord) -> Result<(), Violation> {
    /// Roundings of the scaled step, relative: two multiplications in `f32` on each side.
    const ROUNDING: f64 = 4.0 * f32::EPSILON as f64;
    let (starter, responder) = (&exchange.starter, &exchange.responder);
    let [to_starter, to_responder] = &exchange.corrections;
    let pairs = to_starter.to_values().into_iter().zip(to_responder.to_values());
    for (index, (at_starter, at_responder)) in pairs.enumerate() {
        let (one, other) = (f64::from(at_starter) * responder.factor, f64::from(at_responder) * starter.factor);
        let cancels = if starter.factor == responder.factor {
            at_starter == -at_responder
        } else {
            (one + other).abs() <= ROUNDING * one.abs().max(other.abs()) + SMALLEST
        };
        ensure!(
            cancels,
            "antisymmetric",
            "exchange {:x} at {:?}, parameter {index}: hosts {} and {} move by {at_starter} and {at_responder}",
            starter.exchange,
            starter.at,
            starter.host,
            responder.host
        );
    }
    Ok(())
}

/// Law: invariant 3 of ten, "exactly once under duplication, reordering and retransmission".
///
/// In each life a side merges an exchange at most once, never after both sides are done with it, and the correction
/// becomes part of the model at most once.
pub fn exactly_once(record: &Record) -> Result<(), Violation> {
    first_found(record, EXACTLY_ONCE)
}

/// Checks one side's merge, of which `is_known` tells whether it has merged that exchange before.
pub(crate) fn merged_once(merge: &MergeRecord, is_known: bool) -> Result<(), Violation> {
    let MergeRecord { exchange, side, host, at, .. } = merge;
    ensure!(!is_known, EXACTLY_ONCE, "{side:?} {host} merged exchange {exchange:x} again at {at:?}");
    Ok(())
}

/// Checks a correction that has become part of a model.
pub(crate) fn landed_once(merge: &MergeRecord) -> Result<(), Violation> {
    let MergeRecord { exchange, host, landings, .. } = merge;
    ensure!(*landings <= 1, EXACTLY_ONCE, "host {host} added the correction of exchange {exchange:x} {landings} times");
    Ok(())
}

/// Law: invariant 4 of ten, "one exchange moves a node by at most 2γ · partner's share · τ".
///
/// τ is what the node itself has declared for the exchange: its own guard against whatever the partner sends.
pub fn step_bounded(merge: &MergeRecord) -> Result<(), Violation> {
    /// τ travels as an `f32`, and the factor is rounded to one.
    const ROUNDING: f64 = 1e-5;
    let MergeRecord { exchange, host, at, length, .. } = merge;
    let allowed = merge.factor * merge.clip * (1.0 + ROUNDING) + SMALLEST;
    ensure!(
        *length <= allowed,
        "step bounded",
        "exchange {exchange:x} at {at:?} moves host {host} by {length:.3e}; its clip norm allows {allowed:.3e}"
    );
    Ok(())
}

/// Law: invariant 5 of ten, "an exchange without wraps never drives a pair apart".
///
/// Both models are compared as they were when they were encoded, so local steps on the way do not count. The distance
/// may grow by the quantization error, at most one step in each coordinate. Exchanges on links are passed over: of a
/// difference they tell a sign alone, so that a pair may be further apart for a while. [`toward_partner`] is for these.
pub fn pair_distance(exchange: &ExchangeRecord) -> Result<(), Violation> {
    /// Rounding of the corrections and of the models, relative to the models' length.
    const ROUNDING: f64 = 8.0 * f32::EPSILON as f64;
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
    ensure!(
        after.sqrt() <= allowed || has_wrapped(exchange),
        "pair distance",
        "exchange {:x} at {:?}: hosts {} and {} were {:.3e} apart, are {:.3e} now; allowed are {allowed:.3e}",
        exchange.starter.exchange,
        exchange.starter.at,
        exchange.starter.host,
        exchange.responder.host,
        before.sqrt(),
        after.sqrt()
    );
    Ok(())
}

/// Whether some difference was read wrong by a whole turn of the codes, as only wraps do it.
fn has_wrapped(exchange: &ExchangeRecord) -> bool {
    /// Rounding of a difference that was read from codes, in steps: half a step on each side, and that of its factors.
    const READING_ERROR: f64 = 1.5;
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

/// Law: "toward the partner": an exchange on a link moves no block of a model away from the partner's. Exchanges on no
/// link are passed over. Looked at is the starter: what moves the responder is opposite.
///
/// For a sign and a mean magnitude, the distance of a pair may grow where one exchange moves too far, which is why
/// invariant 5 is not asked on links. Their direction is right all the same. With θ − r for what both sides tell of, s
/// for its mean magnitude in a block of n parameters and c for s times its signs, c · (θ − r) is n · s², and at most
/// n · s · s' with the partner's θ' − r: so the correction c' − c times the difference θ' − θ is at least n · (s' − s)².
/// Both need the same r, and so does the law.
pub fn toward_partner(exchange: &ExchangeRecord) -> Result<(), Violation> {
    /// Rounding of a correction's codes, in steps of its block.
    const CODE_ROUNDING: f64 = 0.5;
    /// Steps of a block in the sum of both sides' magnitudes, the largest that a code tells.
    const STEPS_MAX: f64 = 127.0;
    /// Rounding of mean magnitudes, relative: a row of sums of a block in `f32`.
    const ROUNDING: f64 = 64.0 * f32::EPSILON as f64;
    let [starter, responder] = exchange.snapshots.each_ref().map(|snapshot| snapshot.values());
    let correction = &exchange.corrections[0];
    let moves = correction.to_values();
    let reading = exchange.starter.factor * exchange.starter.clip_scale;
    let is_one_part = starter.len() == moves.len() && responder.len() == moves.len();
    if exchange.starter.width != CodeWidth::One || !is_one_part || reading <= 0.0 {
        return Ok(());
    }
    let blocks = moves.chunks(BLOCK).zip(starter.chunks(BLOCK).zip(responder.chunks(BLOCK))).zip(correction.scales());
    for (number, ((moves, (own, partner)), step)) in blocks.enumerate() {
        let step = f64::from(step.abs());
        let (mut along, mut slack) = (0.0, ROUNDING * moves.len() as f64 * (STEPS_MAX * step).powi(2) / reading);
        for (moved, (own, partner)) in moves.iter().zip(own.iter().zip(partner)) {
            let (moved, own, partner) = (f64::from(*moved), f64::from(*own), f64::from(*partner));
            along += moved * (partner - own);
            slack += CODE_ROUNDING * step * (partner - own).abs();
            slack += 2.0 * f64::from(f32::EPSILON) * moved.abs() * (own.abs() + partner.abs());
        }
        ensure!(
            along >= -slack,
            "toward the partner",
            "exchange {:x} at {:?} moves block {number} of host {} away from host {}",
            exchange.starter.exchange,
            exchange.starter.at,
            exchange.starter.host,
            exchange.responder.host
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use murmur_protocol::Snapshot;

    use super::*;
    use crate::checks::forged::{self, exchange};
    use crate::record::Side;

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

    #[test]
    fn an_exchange_merged_or_added_twice_is_refused() {
        let (mut merge, _) = forged::merge(1, Side::Responder, [3, -2]);
        assert_eq!(merged_once(&merge, false), Ok(()));
        let again = merged_once(&merge, true).expect_err("a second merge");
        merge.landings = 1;
        assert_eq!(landed_once(&merge), Ok(()));
        merge.landings = 2;
        assert!(landed_once(&merge).is_err());
        assert!(exactly_once(&Record { found: vec![again], ..Record::default() }).is_err());
    }

    #[test]
    fn a_step_beyond_the_clip_norm_is_refused() {
        let (mut merge, _) = forged::merge(1, Side::Starter, [3, 4]);
        assert_eq!(step_bounded(&merge), Ok(()));
        merge.clip = 9.0;
        assert!(step_bounded(&merge).is_err());
        (merge.clip, merge.length) = (10.0, f64::NAN);
        assert!(step_bounded(&merge).is_err());
    }

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

    #[test]
    fn a_move_away_from_the_partner_is_refused_on_a_link() {
        let on_link = |codes| {
            let mut forged = exchange(codes);
            (forged.starter.width, forged.responder.width) = (CodeWidth::One, CodeWidth::One);
            forged
        };
        assert_eq!(toward_partner(&on_link([[-3, 2], [3, -2]])), Ok(()));
        assert!(toward_partner(&on_link([[3, -2], [-3, 2]])).is_err());
        assert_eq!(toward_partner(&exchange([[3, -2], [-3, 2]])), Ok(()), "on no link");
    }
}

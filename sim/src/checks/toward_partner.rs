//! Law: "toward the partner": an exchange on a link moves no block of a model away from the partner's.
//!
//! For a sign and a mean magnitude, the distance of a pair may grow where one exchange moves too far, which is why invariant 5
//! is not asked on links. Their direction is right all the same. With θ − r for what both sides tell of, s for its mean
//! magnitude in a block of n parameters and c for s times its signs, c · (θ − r) is n · s², and at most n · s · s' with the
//! partner's θ' − r: so the correction c' − c times the difference θ' − θ is at least n · (s' − s)². Both need the same r,
//! and so does the law.

use murmur_protocol::bulk::BLOCK;
use murmur_protocol::numerics::CodeWidth;

use super::Violation;
use crate::record::ExchangeRecord;

/// Rounding of a correction's codes, in steps of its block.
const CODE_ROUNDING: f64 = 0.5;

/// Steps of a block in the sum of both sides' magnitudes, the largest that a code tells.
const STEPS_MAX: f64 = 127.0;

/// Rounding of mean magnitudes, relative: a row of sums of a block in `f32`.
const ROUNDING: f64 = 64.0 * f32::EPSILON as f64;

/// Checks one exchange of which both sides have merged; those on no link are passed over.
///
/// # Errors
/// When it moves a block of the starter's model away from the responder's. What moves the responder is opposite.
pub fn toward_partner(exchange: &ExchangeRecord) -> Result<(), Violation> {
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
        // Not `along < -slack`: what is not a number must not pass.
        let holds = along >= -slack;
        if !holds {
            let (name, at) = (exchange.starter.exchange, exchange.starter.at);
            let (one, other) = (exchange.starter.host, exchange.responder.host);
            let finding =
                format!("exchange {name:x} at {at:?} moves block {number} of host {one} away from host {other}");
            return Err(Violation::new("toward the partner", finding));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::exchange;

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

//! Whether a synchronous run would pay here: an all-reduce beside a step of the run's model.

use super::{Finding, Measured};
use crate::console::figures::count;
use crate::limits::daily_traffic::ALL_REDUCE_BYTES;

/// An all-reduce may take this share of a step: then waiting costs less than gossip's models lose by being apart (5 to 12 % of
/// the loss at equal tokens, see BENCHMARKS.md). A guess.
const SHARE: f64 = 0.25;

/// `megabits`: of the link to a member, where it was measured.
pub fn judge_averaging(measured: &Measured, megabits: Option<f64>) -> Finding {
    let bits = 8.0 * (ALL_REDUCE_BYTES * measured.parameters) as f64;
    let needed = 1e-6 * bits / (SHARE * measured.step_seconds.max(1e-6));
    let pays = format!(
        "a synchronous run averages every step without much waiting from {} Mbit/s on, each way",
        whole(needed)
    );
    let text = match megabits {
        None => {
            format!("{pays}; gossip runs on any link; with synchronous.auto = true members measure which is better")
        }
        Some(rate) if rate >= needed => {
            format!(
                "{pays}: this link has {}, and it pays among machines of like speed; with synchronous.auto = true members \
                 measure that",
                whole(rate)
            )
        }
        Some(rate) => {
            let every = (needed / rate.max(1e-3)).ceil();
            format!(
                "{pays}: this link has {}, so gossip is the better choice, or synchronous.every_steps = {every:.0}",
                whole(rate)
            )
        }
    };
    Finding::good("averaging", text)
}

fn whole(rate: f64) -> String {
    count(rate.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_link_pays_and_a_slow_one_does_not() {
        let measured = Measured { parameters: 10_000_000, step_seconds: 0.8, tokens_per_second: 1000.0 };
        let text = |megabits| judge_averaging(&measured, megabits).text;
        assert!(
            text(None).contains("from 3,200 Mbit/s on")
                && text(None).contains("any link; with synchronous.auto = true"),
            "{}",
            text(None)
        );
        assert!(text(Some(9000.0)).contains("it pays among machines of like speed; with synchronous.auto"));
        assert!(text(Some(100.0)).ends_with("synchronous.every_steps = 32"), "{}", text(Some(100.0)));
    }
}

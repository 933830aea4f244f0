//! The loop-gain guard: averaging that acts on old models must act gently.
//!
//! A correction made from a model of τ rounds ago is a feedback loop with delay. It is stable while its gain, the sum of
//! all γ in a round, stays below 2 · sin(π / (2 (2τ + 1))): 2 without delay, 1 for one round, 0.618 for two (the
//! root condition of x[t+1] = x[t] − g · x[t−τ]; Levin and May 1976). Corrections stay out of the outer momentum, so
//! that it adds nothing to the gain.

use std::f64::consts::PI;

/// The gain stays below this share of the bound: noise needs room as well (a guess).
const GAIN_SHARE: f64 = 0.8;

/// Weight of the newest round and the newest delay in their running means: about the last eight count.
const NEWEST: f64 = 0.125;

/// Measures delays and exchanges per round, and limits γ.
#[derive(Clone, Debug)]
pub(crate) struct LoopGain {
    gamma_max: f64,
    /// τ, in rounds.
    delay: f64,
    /// Exchanges in a round, own and answered ones. With everybody starting one a round, each takes part in two.
    exchanges: f64,
    exchanges_this_round: u32,
}

impl LoopGain {
    /// `gamma_max`: the run's γ.
    pub(crate) fn new(gamma_max: f64) -> LoopGain {
        LoopGain { gamma_max, delay: 0.0, exchanges: 2.0, exchanges_this_round: 0 }
    }

    /// A correction was applied `steps` own steps after its snapshot, `interval` steps being a round.
    pub(crate) fn on_applied(&mut self, steps: u64, interval: f64) {
        self.delay += NEWEST * (steps as f64 / interval.max(1.0) - self.delay);
    }

    /// An exchange covered this share of the model.
    pub(crate) fn on_exchange(&mut self) {
        self.exchanges_this_round += 1;
    }

    /// An own round is over.
    pub(crate) fn on_round(&mut self, fragments: u16) {
        let share = f64::from(self.exchanges_this_round) / f64::from(fragments.max(1));
        self.exchanges += NEWEST * (share - self.exchanges);
        self.exchanges_this_round = 0;
    }

    /// τ, in rounds.
    pub(crate) fn delay(&self) -> f64 {
        self.delay
    }

    /// Σγ of a round at the present [`gamma`](Self::gamma).
    pub(crate) fn gain(&self) -> f64 {
        self.gamma() * self.exchanges.max(1.0)
    }

    /// The γ to take part with: the run's, or less where delays have grown.
    pub(crate) fn gamma(&self) -> f64 {
        self.gamma_max.min(GAIN_SHARE * stability_bound(self.delay) / self.exchanges.max(1.0))
    }
}

/// The gain at which a loop with a delay of `rounds` begins to swing.
pub fn stability_bound(rounds: f64) -> f64 {
    let angle = PI / (2.0 * (2.0 * rounds + 1.0));
    // The sine's series, since libraries differ in its last bits and the core must not; five terms give five digits.
    let square = angle * angle;
    let series = 1.0 - square / 6.0 * (1.0 - square / 20.0 * (1.0 - square / 42.0 * (1.0 - square / 72.0)));
    2.0 * angle * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_that_of_the_literature() {
        for (rounds, bound) in [(0.0, 2.0), (1.0, 1.0), (2.0, 0.618), (3.0, 0.445), (4.0, 0.3473)] {
            assert!((stability_bound(rounds) - bound).abs() < 1e-3, "{rounds}");
        }
    }

    #[test]
    fn a_loop_at_the_bound_neither_grows_nor_dies() {
        for (delay, gain) in [(1usize, 0.98), (1, 1.02), (3, 0.43), (3, 0.46)] {
            let mut values = vec![1.0; delay + 1];
            for time in delay..2000 {
                values.push(values[time] - gain * values[time - delay]);
            }
            let grows = values[1900..].iter().any(|value: &f64| value.abs() > 10.0);
            assert_eq!(grows, gain > stability_bound(delay as f64), "delay {delay}, gain {gain}");
        }
    }

    #[test]
    fn gamma_stays_at_the_runs_without_delay_and_falls_with_it() {
        let mut gain = LoopGain::new(0.5);
        assert_eq!(gain.gamma(), 0.5);
        for _ in 0..100 {
            gain.on_applied(20, 10.0);
            gain.on_exchange();
            gain.on_exchange();
            gain.on_exchange();
            gain.on_round(1);
        }
        assert!(gain.gain() < stability_bound(2.0) && gain.gamma() < 0.2, "{gain:?}");
    }
}

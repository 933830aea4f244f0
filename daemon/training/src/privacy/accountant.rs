//! How much private steps tell: Rényi differential privacy (RDP) of the Poisson-subsampled Gaussian mechanism, and what it is as
//! (ε, δ). Arithmetic alone, without I/O.
//!
//! Of one step with sampling probability q and noise multiplier σ (Mironov, Talwar and Zhang, arXiv 1908.10530, section 3.3), at an
//! integer order α:
//!
//! RDP(α) = 1/(α−1) · ln Σₖ C(α,k) (1−q)^(α−k) q^k · exp((k²−k) / 2σ²)
//!
//! Steps add up order by order. ε is the least over all orders of RDP(α) + ln(1 − 1/α) − (ln δ + ln α)/(α−1) (Canonne, Kamath and
//! Steinke, arXiv 2004.00010, proposition 12).
//!
//! Neighbours are data with a record, and the same data with that record blank, so that it gives no gradient.

use serde::{Deserialize, Serialize};

/// Orders from 2 to this one, as 1908.10530 and its implementations use them.
const ORDER_MAX: usize = 256;

/// Steps that are looked at, at most: more than a run takes.
const STEPS_MAX: u64 = 1 << 40;

/// The largest noise multiplier that is looked for.
const NOISE_MAX: f64 = 1000.0;

/// Kinds of steps that one node keeps apart: a new one for each change of its data or settings.
const KINDS_MAX: usize = 1000;

/// RDP at the orders 2, 3, …, 256.
type Curve = Vec<f64>;

/// Steps of one kind: each of `records` is taken with probability `batch / records`, and the noise has `noise` times the clip
/// norm as its standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mechanism {
    /// Records that could be taken, at least `batch`.
    pub records: u64,
    /// Records that are taken on average, at least 1.
    pub batch: u64,
    /// σ, above 0.
    pub noise: f64,
}

/// What a node may tell of its records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// ε, above 0.
    pub epsilon: f64,
    /// δ, above 0 and below 1.
    pub delta: f64,
}

/// Steps that were taken, or are about to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spending {
    /// Each kind once.
    spent: Vec<Spent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Spent {
    #[serde(flatten)]
    mechanism: Mechanism,
    steps: u64,
}

impl Mechanism {
    /// q, the probability with which each record is taken.
    pub fn probability(&self) -> f64 {
        (self.batch as f64 / self.records as f64).min(1.0)
    }

    /// Whether the numbers are those of a mechanism.
    pub fn is_sound(&self) -> bool {
        (1..=self.records).contains(&self.batch) && self.noise > 0.0 && self.noise.is_finite()
    }

    /// RDP of one step.
    fn curve(&self) -> Curve {
        let (probability, variance) = (self.probability(), self.noise * self.noise);
        if probability >= 1.0 {
            return (2..=ORDER_MAX).map(|order| order as f64 / (2.0 * variance)).collect();
        }
        let factorials = ln_factorials();
        (2..=ORDER_MAX).map(|order| subsampled(order, probability, variance, &factorials)).collect()
    }

    /// ε of so many steps at δ.
    pub fn epsilon(&self, steps: u64, delta: f64) -> f64 {
        epsilon_of(&scaled(&self.curve(), steps), delta)
    }

    /// The least noise multiplier, rounded up to hundredths, with which so many steps stay within a budget. `None` where a
    /// thousand is too little.
    pub fn noise_for(&self, steps: u64, budget: Budget) -> Option<f64> {
        let holds = |hundredths: u64| {
            let mechanism = Mechanism { noise: hundredths as f64 / 100.0, ..*self };
            mechanism.epsilon(steps, budget.delta) <= budget.epsilon
        };
        let last = (NOISE_MAX * 100.0) as u64;
        holds(last)
            .then(|| largest(1, last, |hundredths| !holds(hundredths)).map_or(1, |least| least + 1) as f64 / 100.0)
    }
}

impl Spending {
    /// Counts steps; `false`, and nothing is counted, where a node has changed its data or settings a thousand times.
    #[must_use]
    pub fn add(&mut self, mechanism: Mechanism, steps: u64) -> bool {
        if let Some(spent) = self.spent.iter_mut().find(|spent| is_same(&spent.mechanism, &mechanism)) {
            spent.steps = spent.steps.saturating_add(steps);
            return true;
        }
        let has_room = self.spent.len() < KINDS_MAX;
        if has_room {
            self.spent.push(Spent { mechanism, steps });
        }
        has_room
    }

    /// Whether what was read from a file can be counted.
    pub fn is_sound(&self) -> bool {
        self.spent.len() <= KINDS_MAX && self.spent.iter().all(|spent| spent.mechanism.is_sound())
    }

    /// Steps in all.
    pub fn steps(&self) -> u64 {
        self.spent.iter().fold(0, |sum, spent| sum.saturating_add(spent.steps))
    }

    /// ε of all steps at δ, at least 0.
    pub fn epsilon(&self, delta: f64) -> f64 {
        epsilon_of(&self.curve(), delta)
    }

    /// How many more steps of a kind stay within a budget.
    pub fn steps_left(&self, mechanism: Mechanism, budget: Budget) -> u64 {
        let (spent, step) = (self.curve(), mechanism.curve());
        let holds = |steps: u64| {
            let sum: Curve = spent.iter().zip(scaled(&step, steps)).map(|(spent, more)| spent + more).collect();
            epsilon_of(&sum, budget.delta) <= budget.epsilon
        };
        largest(1, STEPS_MAX, holds).unwrap_or(0)
    }

    fn curve(&self) -> Curve {
        let mut sum = vec![0.0; ORDER_MAX - 1];
        for Spent { mechanism, steps } in &self.spent {
            sum.iter_mut().zip(scaled(&mechanism.curve(), *steps)).for_each(|(sum, more)| *sum += more);
        }
        sum
    }
}

/// A noise multiplier may lose its last bit on its way through a file.
fn is_same(one: &Mechanism, other: &Mechanism) -> bool {
    let noise = (one.noise - other.noise).abs() <= 1e-12 * one.noise;
    noise && (one.records, one.batch) == (other.records, other.batch)
}

fn scaled(curve: &Curve, steps: u64) -> Curve {
    curve.iter().map(|value| value * steps as f64).collect()
}

/// The last number for which `holds`, which holds up to some number and for none above it; `None` where it holds for none.
fn largest(first: u64, last: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (first - 1, last + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle }
    }
    (low >= first).then_some(low)
}

fn ln_factorials() -> Vec<f64> {
    let mut sums = vec![0.0];
    for number in 1..=ORDER_MAX {
        sums.push(sums[number - 1] + (number as f64).ln());
    }
    sums
}

/// RDP at one order. The sum is 1 + Σₖ≥₂ P(k) · (exp((k²−k)/2σ²) − 1), where P are the probabilities of a binomial
/// distribution, which add up to 1: so nothing is lost where it is close to 1.
fn subsampled(order: usize, probability: f64, variance: f64, ln_factorials: &[f64]) -> f64 {
    let (ln_taken, ln_left) = (probability.ln(), (-probability).ln_1p());
    let term = |taken: usize| {
        let left = order - taken;
        let ln_ways = ln_factorials[order] - ln_factorials[taken] - ln_factorials[left];
        let gain = (taken * (taken - 1)) as f64 / (2.0 * variance);
        ln_ways + left as f64 * ln_left + taken as f64 * ln_taken + gain + (-(-gain).exp_m1()).ln()
    };
    let terms: Vec<f64> = (2..=order).map(term).collect();
    let most = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ln_sum = most + terms.iter().map(|term| (term - most).exp()).sum::<f64>().ln();
    // ln(1 + exp(x)) without overflow.
    let ln_moment = if ln_sum > 0.0 { ln_sum + (-ln_sum).exp().ln_1p() } else { ln_sum.exp().ln_1p() };
    ln_moment / (order - 1) as f64
}

/// At least 0: nothing spent is nothing told.
fn epsilon_of(curve: &Curve, delta: f64) -> f64 {
    if curve.iter().all(|rdp| *rdp == 0.0) {
        return 0.0;
    }
    let at = |(index, rdp): (usize, &f64)| {
        let order = (index + 2) as f64;
        rdp + (-1.0 / order).ln_1p() - (delta.ln() + order.ln()) / (order - 1.0)
    };
    curve.iter().enumerate().map(at).fold(f64::INFINITY, f64::min).max(0.0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// (records, batch, σ, steps, δ, ε). Written by `python3 daemon/training/src/privacy/reference.py` with dp-accounting 0.6.0,
    /// whose accountant also looks at orders that are no integers: at a noise of 0.7 and q of 0.0003 its ε is 4 % below the one here.
    const REFERENCE: [(u64, u64, f64, u64, f64, f64); 10] = [
        (60_000, 256, 1.1, 14_062, 1e-5, 2.59656),
        (10_000, 256, 1.0, 1_200, 1e-5, 6.20836),
        (10_000, 64, 1.0, 1_200, 1e-5, 1.50866),
        (10_000, 256, 2.0, 1_200, 1e-5, 2.10597),
        (1_000, 64, 2.0, 600, 1e-5, 4.02118),
        (100_000, 1_024, 1.0, 2_000, 1e-6, 3.32770),
        (500, 500, 8.0, 100, 1e-4, 5.43908),
        (1_000_000, 256, 0.9, 10_000, 1e-7, 1.07131),
        (2_000, 32, 1.5, 5_000, 1e-5, 4.00524),
        (50_000, 512, 4.0, 20_000, 1e-6, 1.74006),
    ];

    #[test]
    fn epsilons_are_those_of_dp_accounting() {
        for (records, batch, noise, steps, delta, expected) in REFERENCE {
            let mechanism = Mechanism { records, batch, noise };
            let (actual, mut spending) = (mechanism.epsilon(steps, delta), Spending::default());
            assert!((actual / expected - 1.0).abs() < 0.01, "{mechanism:?} {steps}: {actual}, expected {expected}");
            assert!(spending.add(mechanism, steps - 1) && spending.add(mechanism, 1));
            assert_eq!((spending.steps(), spending.epsilon(delta)), (steps, actual));
        }
    }

    #[test]
    fn the_reference_is_what_dp_accounting_computes_today() {
        let Some(python) = std::env::var_os("MURMUR_TEST_PYTHON") else {
            println!("skipped: MURMUR_TEST_PYTHON names no Python with dp-accounting");
            return;
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/privacy/reference.py");
        let output = Command::new(python).arg(script).output().expect("the Python of MURMUR_TEST_PYTHON runs");
        let text = String::from_utf8_lossy(&output.stdout);
        if text.starts_with("skipped") {
            println!("{text}");
            return;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let computed: Vec<f64> =
            text.lines().map(|line| line.rsplit(' ').next().unwrap_or("").parse().expect(line)).collect();
        assert_eq!(computed.len(), REFERENCE.len());
        for (computed, (.., expected)) in computed.iter().zip(REFERENCE) {
            assert!((computed / expected - 1.0).abs() < 1e-4, "{computed}, expected {expected}");
        }
    }

    #[test]
    fn a_budget_lasts_for_so_many_steps_and_not_one_more() {
        let mechanism = Mechanism { records: 10_000, batch: 64, noise: 1.0 };
        let budget = Budget { epsilon: 3.0, delta: 1e-5 };
        let (mut spending, other) = (Spending::default(), Mechanism { noise: 2.0, ..mechanism });
        assert_eq!(spending.epsilon(1e-5), 0.0);
        let alone = spending.steps_left(mechanism, budget);
        assert!(spending.add(other, 1000));
        let left = spending.steps_left(mechanism, budget);
        assert!(left > 0 && left < alone, "{left} of {alone}");
        assert!(spending.add(mechanism, left) && spending.epsilon(1e-5) <= 3.0);
        assert_eq!(spending.steps_left(mechanism, budget), 0);
        assert!(spending.add(mechanism, 1) && spending.epsilon(1e-5) > 3.0);
    }

    #[test]
    fn the_noise_for_a_budget_is_just_enough() {
        let mechanism = Mechanism { records: 1000, batch: 64, noise: 1.0 };
        let budget = Budget { epsilon: 3.0, delta: 1e-5 };
        let noise = mechanism.noise_for(600, budget).expect("enough");
        let epsilon = |noise: f64| Mechanism { noise, ..mechanism }.epsilon(600, 1e-5);
        assert!(epsilon(noise) <= 3.0 && epsilon(noise - 0.01) > 3.0, "{noise}");
        assert_eq!(mechanism.noise_for(1 << 40, budget), None);
    }

    #[test]
    fn kinds_are_bounded_and_small_or_large_noise_gives_numbers() {
        let mut spending = Spending::default();
        let kind = |records| Mechanism { records, batch: 1, noise: 1.0 };
        assert!((1..=KINDS_MAX as u64).all(|records| spending.add(kind(records), 1)));
        assert!(!spending.add(kind(5000), 1) && spending.add(kind(7), 1));
        for noise in [0.01, 0.3, 1000.0] {
            for (records, batch) in [(2, 1), (1, 1), (1_000_000_000, 1)] {
                let mechanism = Mechanism { records, batch, noise };
                let few = mechanism.epsilon(1, 1e-5);
                assert!(few.is_finite() && mechanism.epsilon(1_000_000, 1e-5) > few, "{mechanism:?} {few}");
            }
        }
    }
}

//! Which token comes next, given the logits of all.

use murmur_protocol::random::{Generator, RngExt, stream};

/// How tokens are drawn.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// 0 always takes the likeliest token; 1 draws from the model's distribution; above 1 is wilder.
    pub temperature: f64,
    /// Draws only among the likeliest tokens that together have this probability (nucleus sampling, Holtzman et al.,
    /// arXiv 1904.09751); above 0, at most 1, which leaves none out.
    pub top_p: f64,
    /// Equal seeds give equal texts.
    pub seed: u64,
}

/// Draws tokens one after the other.
pub(super) struct Chooser {
    temperature: f64,
    top_p: f64,
    generator: Generator,
}

impl Chooser {
    pub(super) fn new(sampling: &Sampling) -> Chooser {
        let Sampling { temperature, top_p, seed } = *sampling;
        Chooser { temperature, top_p, generator: stream(seed, "generation", &[]) }
    }

    /// The index of one of `logits`, all finite.
    pub(super) fn choose(&mut self, logits: &[f32]) -> usize {
        let likeliest = (0..logits.len()).fold(0, |best, next| if logits[next] > logits[best] { next } else { best });
        if self.temperature <= 0.0 {
            return likeliest;
        }
        let maximum = f64::from(logits[likeliest]);
        let weight = |logit: &f32| ((f64::from(*logit) - maximum) / self.temperature).exp();
        let weights: Vec<f64> = logits.iter().map(weight).collect();
        let candidates = self.candidates(&weights);
        let total: f64 = candidates.iter().map(|token| weights[*token]).sum();
        let mut rest = self.generator.random::<f64>() * total;
        let drawn = candidates.into_iter().find(|token| {
            rest -= weights[*token];
            rest < 0.0
        });
        drawn.unwrap_or(likeliest)
    }

    /// The tokens that may be drawn.
    fn candidates(&self, weights: &[f64]) -> Vec<usize> {
        let mut tokens: Vec<usize> = (0..weights.len()).collect();
        if self.top_p >= 1.0 {
            return tokens;
        }
        // Equal weights keep their order: the sort is stable.
        tokens.sort_by(|one, other| weights[*other].total_cmp(&weights[*one]));
        let enough = self.top_p * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let inside = tokens.iter().take_while(|token| {
            let wanted = sum < enough;
            sum += weights[**token];
            wanted
        });
        let count = inside.count().max(1);
        tokens.truncate(count);
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities 0.3, 0.5, 0.05, 0.15: their logarithms plus one.
    const LOGITS: [f32; 4] = [-0.203_973, 0.306_853, -1.995_732, -0.897_12];

    fn shares(temperature: f64, top_p: f64) -> [f64; 4] {
        let mut chooser = Chooser::new(&Sampling { temperature, top_p, seed: 3 });
        let mut counts = [0.0; 4];
        (0..10_000).for_each(|_| counts[chooser.choose(&LOGITS)] += 1.0 / 10_000.0);
        counts
    }

    fn assert_near(found: [f64; 4], expected: [f64; 4]) {
        let near = found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 0.02);
        assert!(near, "{found:?}, expected {expected:?}");
    }

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        assert_near(shares(1.0, 1.0), [0.3, 0.5, 0.05, 0.15]);
        assert_near(shares(0.0, 1.0), [0.0, 1.0, 0.0, 0.0]);
        // Squared probabilities: 0.25, 0.09, 0.0225, 0.0025 of 0.365.
        assert_near(shares(0.5, 1.0), [0.247, 0.685, 0.007, 0.062]);
    }

    #[test]
    fn top_p_leaves_the_unlikely_out() {
        assert_near(shares(1.0, 0.79), [0.375, 0.625, 0.0, 0.0]);
        assert_near(shares(1.0, 0.81), [0.3 / 0.95, 0.5 / 0.95, 0.0, 0.15 / 0.95]);
        assert_near(shares(1.0, 1e-9), [0.0, 1.0, 0.0, 0.0]);
    }
}

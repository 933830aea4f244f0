//! Did joining help, measured: the same daemons with and without each other, over several seeds.

use serde::{Deserialize, Serialize};

use super::NodeHistory;
use crate::console::figures::{count, counted};

/// Fewer seeds say nothing of chance, whatever their signs: one has always one sign.
const SEEDS_MIN: usize = 3;

/// What one daemon did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Side {
    /// Seconds since the first daemon began, and the loss on the held-out slice; in order.
    pub(crate) losses: Vec<(f64, f64)>,
    /// Own steps at its end.
    pub(crate) steps: u64,
    /// As the table of its run tells it.
    pub(crate) tokens_per_second: f64,
}

/// One seed: its daemons as a swarm, and each for itself, in the same order.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    pub(crate) together: Vec<Side>,
    pub(crate) alone: Vec<Side>,
}

/// A comparison over seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Compared {
    pub(crate) seeds: usize,
    pub(crate) nodes: usize,
    /// Own steps of the daemons of a swarm: least and most. Who came late has taken over others' steps, and made fewer.
    #[serde(default)]
    pub(crate) steps_together: (u64, u64),
    /// Own steps of those that trained alone: least and most.
    #[serde(default)]
    pub(crate) steps_alone: (u64, u64),
    /// The loss that every daemon reached.
    pub(crate) target: f64,
    /// Mean loss at the end, which comes at the same swarm progress.
    pub(crate) at_equal_steps: Measure,
    /// Mean loss when the faster kind had ended; none where a daemon had not been evaluated by then.
    pub(crate) at_equal_time: Option<Measure>,
    /// Mean seconds until the target.
    pub(crate) seconds_to_target: Measure,
    /// Of all daemons together.
    pub(crate) tokens_per_second: Measure,
}

/// Means over seeds, and the least and the greatest difference of a seed: together less alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measure {
    pub(crate) together: f64,
    pub(crate) alone: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Side {
    /// From the journal of the daemon's one process, when the first daemon of its run began, and its speed.
    pub(crate) fn of(node: &NodeHistory, begin: f64, tokens_per_second: f64) -> Side {
        let losses = node.evaluations.iter().map(|found| (found.place.time - begin, found.loss)).collect();
        Side { losses, steps: node.place.steps, tokens_per_second }
    }

    fn end(&self) -> Option<(f64, f64)> {
        self.losses.last().copied()
    }

    /// The loss at a time, between two evaluations in proportion; none before the first.
    fn at(&self, seconds: f64) -> Option<f64> {
        let next = self.losses.iter().position(|(time, _)| *time >= seconds);
        match next {
            None => Some(self.end()?.1),
            Some(0) => Some(self.losses[0]).filter(|(time, _)| *time == seconds).map(|(_, loss)| loss),
            Some(next) => {
                let ((from, before), (to, after)) = (self.losses[next - 1], self.losses[next]);
                Some(before + (after - before) * (seconds - from) / (to - from).max(1e-9))
            }
        }
    }

    /// The first time at which a loss was reached, between two evaluations in proportion.
    fn time_to(&self, target: f64) -> Option<f64> {
        let next = self.losses.iter().position(|(_, loss)| *loss <= target)?;
        if next == 0 {
            return Some(self.losses[0].0);
        }
        let ((from, before), (to, after)) = (self.losses[next - 1], self.losses[next]);
        Some(from + (to - from) * (before - target) / (before - after).max(1e-9))
    }
}

impl Compared {
    /// The comparison; none where a daemon was never evaluated.
    pub(crate) fn new(trained: &[Trained]) -> Option<Compared> {
        let sides = || trained.iter().flat_map(|seed| seed.together.iter().chain(&seed.alone));
        let ends: Vec<(f64, f64)> = sides().map(Side::end).collect::<Option<_>>()?;
        let target = ends.iter().map(|(_, loss)| *loss).fold(f64::NEG_INFINITY, f64::max);
        let steps = |sides: fn(&Trained) -> &Vec<Side>| -> Option<(u64, u64)> {
            let steps = || trained.iter().flat_map(sides).map(|side| side.steps);
            Some((steps().min()?, steps().max()?))
        };
        let last = |sides: &[Side]| sides.iter().filter_map(Side::end).map(|(time, _)| time).fold(0.0, f64::max);
        let over = |value: &dyn Fn(&Trained, &[Side]) -> f64| {
            let pairs: Vec<(f64, f64)> =
                trained.iter().map(|seed| (value(seed, &seed.together), value(seed, &seed.alone))).collect();
            Measure::of(&pairs)
        };
        let ended = |seed: &Trained| last(&seed.together).min(last(&seed.alone));
        let is_known =
            |seed: &Trained| seed.together.iter().chain(&seed.alone).all(|side| side.at(ended(seed)).is_some());
        let at_equal_time = || over(&|seed, sides| mean(sides, |side| side.at(ended(seed))));
        Some(Compared {
            seeds: trained.len(),
            nodes: trained.first()?.together.len(),
            steps_together: steps(|seed| &seed.together)?,
            steps_alone: steps(|seed| &seed.alone)?,
            target,
            at_equal_steps: over(&|_, sides| mean(sides, |side| side.end().map(|(_, loss)| loss))),
            at_equal_time: trained.iter().all(is_known).then(at_equal_time),
            seconds_to_target: over(&|_, sides| mean(sides, |side| side.time_to(target))),
            tokens_per_second: over(&|_, sides| sides.iter().map(|side| side.tokens_per_second).sum()),
        })
    }

    /// What came of it, in a sentence.
    pub(crate) fn sentence(&self) -> String {
        let measure = self.at_equal_steps;
        let what = match self.sign(measure) {
            Some(true) => format!(
                "training together was worse: at equal swarm progress the loss was {:.3} higher ({:.3} to {:.3} over the seeds)",
                measure.difference(),
                measure.least,
                measure.most
            ),
            Some(false) => format!(
                "training together helped: at equal swarm progress the loss was {:.3} lower ({:.3} to {:.3} over the seeds)",
                -measure.difference(),
                -measure.most,
                -measure.least
            ),
            None if self.seeds < SEEDS_MIN => {
                "a difference in loss at equal swarm progress is not measurable: fewer than three seeds say nothing of chance"
                    .to_owned()
            }
            None => {
                "a difference in loss at equal swarm progress is not measurable: it has not the same sign in all seeds"
                    .to_owned()
            }
        };
        let (seeds, nodes) = (counted(self.seeds as u64, "seed"), counted(self.nodes as u64, "node"));
        let range = |(least, most): (u64, u64)| match least == most {
            true => count(least),
            false => format!("{} to {}", count(least), count(most)),
        };
        let steps = match (self.steps_together, self.steps_alone) {
            (_, (_, 0)) => String::new(), // told by an earlier version
            (together, alone) => format!(" Own steps: {} together, {} alone.", range(together), range(alone)),
        };
        format!("Of {seeds} with {nodes}, {what}.{steps}")
    }

    /// The sign of a difference, where it can be measured. Seeds may have been left out.
    fn sign(&self, measure: Measure) -> Option<bool> {
        measure.sign().filter(|_| self.seeds >= SEEDS_MIN)
    }

    /// Name, together, alone, difference, least, most, and whether it can be measured.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: String, measure: Measure, digits: usize| {
            let measurable = if self.sign(measure).is_some() { "yes" } else { "no" };
            let Measure { together, alone, least, most } = measure;
            let numbers = [together, alone, measure.difference(), least, most].map(|value| decimal(value, digits));
            [vec![name], numbers.to_vec(), vec![measurable.to_owned()]].concat()
        };
        let unknown = || {
            let cells = ["loss at equal time", "unknown", "unknown", "unknown", "unknown", "unknown", "no"];
            cells.map(str::to_owned).to_vec()
        };
        vec![
            row("loss at equal swarm progress".to_owned(), self.at_equal_steps, 4),
            self.at_equal_time.map_or_else(unknown, |measure| row("loss at equal time".to_owned(), measure, 4)),
            row(format!("s to loss {:.3}", self.target), self.seconds_to_target, 1),
            row("tokens/s, all nodes".to_owned(), self.tokens_per_second, 0),
        ]
    }
}

impl Measure {
    /// Of the values together and alone of each seed.
    fn of(pairs: &[(f64, f64)]) -> Measure {
        let count = pairs.len() as f64;
        let differences = || pairs.iter().map(|(together, alone)| together - alone);
        Measure {
            together: pairs.iter().map(|pair| pair.0).sum::<f64>() / count,
            alone: pairs.iter().map(|pair| pair.1).sum::<f64>() / count,
            least: differences().fold(f64::INFINITY, f64::min),
            most: differences().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn difference(&self) -> f64 {
        self.together - self.alone
    }

    /// Whether together is more in every seed (true) or less in every one (false); none where it cannot be told.
    fn sign(&self) -> Option<bool> {
        match (self.least > 0.0, self.most < 0.0) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// With so many digits, a comma between thousands, and no sign of a zero.
fn decimal(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "unknown".to_owned();
    }
    let shown = format!("{:.digits$}", value.abs());
    let (whole, rest) = shown.split_once('.').map_or((shown.as_str(), ""), |(whole, _)| (whole, &shown[whole.len()..]));
    let sign = if value < 0.0 && shown.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) { "-" } else { "" };
    format!("{sign}{}{rest}", whole.parse().map_or(whole.to_owned(), count))
}

/// Over the daemons for which it is known.
fn mean(sides: &[Side], value: impl Fn(&Side) -> Option<f64>) -> f64 {
    let known: Vec<f64> = sides.iter().filter_map(value).collect();
    known.iter().sum::<f64>() / known.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon whose loss falls from 4 by so much a second for ten seconds.
    fn side(slope: f64) -> Side {
        let losses = (0..=10).map(|second| (f64::from(second), 4.0 - slope * f64::from(second))).collect();
        Side { losses, steps: 100, tokens_per_second: 50.0 }
    }

    fn seed(together: f64, alone: f64) -> Trained {
        Trained { together: vec![side(together); 2], alone: vec![side(alone); 2] }
    }

    #[test]
    fn a_gain_in_every_seed_is_measured() {
        let compared = Compared::new(&[seed(0.3, 0.2), seed(0.32, 0.2), seed(0.28, 0.2)]).expect("evaluated");
        let measure = compared.at_equal_steps;
        assert!((measure.difference() + 1.0).abs() < 1e-9 && measure.sign() == Some(false), "{measure:?}");
        assert!((measure.least + 1.2).abs() < 1e-9 && (measure.most + 0.8).abs() < 1e-9, "{measure:?}");
        assert_eq!(compared.target, 2.0);
        let time = compared.seconds_to_target;
        assert!((time.alone - 10.0).abs() < 1e-9 && (6.0..7.2).contains(&time.together), "{time:?}");
        assert_eq!((compared.tokens_per_second.together, compared.tokens_per_second.sign()), (100.0, None));
        let sentence = compared.sentence();
        assert!(
            sentence.contains("helped: at equal swarm progress the loss was 1.000 lower (0.800 to 1.200"),
            "{sentence}"
        );
    }

    #[test]
    fn own_steps_are_told_of_both_kinds() {
        let mut trained = seed(0.3, 0.2);
        (trained.together[0].steps, trained.together[1].steps) = (736, 788);
        let compared = Compared::new(&[trained.clone(), trained.clone(), trained]).expect("evaluated");
        let sentence = compared.sentence();
        assert!(sentence.ends_with(" Own steps: 736 to 788 together, 100 alone."), "{sentence}");
        let mut earlier = serde_json::to_value(&compared).expect("JSON");
        earlier.as_object_mut().expect("an object").retain(|key, _| !key.starts_with("steps_"));
        let earlier: Compared = serde_json::from_value(earlier).expect("as an earlier version has written it");
        assert!(earlier.sentence().ends_with(" over the seeds)."), "{}", earlier.sentence());
    }

    #[test]
    fn what_has_not_one_sign_is_not_measurable() {
        let compared = Compared::new(&[seed(0.3, 0.2), seed(0.19, 0.2), seed(0.3, 0.2)]).expect("evaluated");
        assert!(compared.sentence().contains("not measurable"), "{}", compared.sentence());
        assert_eq!(compared.rows()[0].last().map(String::as_str), Some("no"));
        let worse = Compared::new(&[seed(0.1, 0.2), seed(0.1, 0.2), seed(0.15, 0.2)]).expect("evaluated");
        assert!(worse.sentence().contains("was worse"), "{}", worse.sentence());
        assert!(Compared::new(&[Trained { together: vec![side(0.1)], alone: vec![Side::default()] }]).is_none());
    }

    /// Seeds in which a daemon died are left out, so that one or two may be all.
    #[test]
    fn of_fewer_than_three_seeds_nothing_is_measurable() {
        let gain = || seed(0.3, 0.2);
        for (trained, is_measured) in [(vec![gain()], false), (vec![gain(); 2], false), (vec![gain(); 3], true)] {
            let compared = Compared::new(&trained).expect("evaluated");
            let (sentence, expected) = (compared.sentence(), if is_measured { "yes" } else { "no" });
            assert_eq!(compared.rows()[0].last().map(String::as_str), Some(expected), "{sentence}");
            assert_eq!(sentence.contains("helped"), is_measured, "{sentence}");
            let reason = "is not measurable: fewer than three seeds say nothing of chance.";
            assert_eq!(sentence.contains(reason), !is_measured, "{sentence}");
        }
    }

    #[test]
    fn numbers_have_commas_and_a_zero_no_sign() {
        let shown = |value, digits| decimal(value, digits);
        assert_eq!([shown(151_669.4, 0), shown(-35_464.0, 0)], ["151,669", "-35,464"]);
        assert_eq!([shown(-0.02, 1), shown(-0.06, 1), shown(1.25, 4)], ["0.0", "-0.1", "1.2500"]);
        assert_eq!(shown(f64::NAN, 1), "unknown");
    }

    #[test]
    fn at_equal_time_the_slower_kind_is_read_where_it_was() {
        let mut slow = side(0.2);
        slow.losses.iter_mut().for_each(|(time, _)| *time *= 2.0);
        let trained = vec![Trained { together: vec![slow], alone: vec![side(0.2)] }];
        let measure = Compared::new(&trained).expect("evaluated").at_equal_time.expect("evaluated by then");
        assert!((measure.together - 3.0).abs() < 1e-9 && (measure.alone - 2.0).abs() < 1e-9, "{measure:?}");
    }

    #[test]
    fn who_was_not_evaluated_by_then_has_no_loss_at_equal_time() {
        let once = |seconds: f64, loss: f64| Side { losses: vec![(seconds, loss)], steps: 9, tokens_per_second: 5.0 };
        let trained = vec![Trained { together: vec![once(12.0, 2.5)], alone: vec![once(10.0, 3.0)] }];
        let compared = Compared::new(&trained).expect("evaluated");
        assert_eq!(compared.at_equal_time, None, "its loss at ten seconds is not known");
        assert_eq!(compared.rows()[1][1..3], ["unknown", "unknown"]);
        assert_eq!(compared.rows()[1].last().map(String::as_str), Some("no"));
        let text = serde_json::to_string(&compared).expect("JSON");
        assert_eq!(serde_json::from_str::<Compared>(&text).expect("as it was written"), compared);
    }
}

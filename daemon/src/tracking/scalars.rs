//! Which numbers of a [`Sample`] are drawn over time, under which names, and how often.

use serde::{Deserialize, Serialize};

use crate::observe::record::Sample;

/// So long after its process began a node is drawn to the second, in seconds: short runs have fine curves.
const FINE_SECONDS: f64 = 600.0;

/// Seconds between two points later on. With one for each second a year would be thirty million.
const COARSE_SECONDS: f64 = 10.0;

/// Seconds between two points of a node that makes no steps.
const QUIET_SECONDS: f64 = 60.0;

/// The numbers of a sample by name. Units: losses in nats per prediction, traffic in bytes since the process began, memory and
/// disk in bytes, the rest as the name says. What is not known is left out.
pub fn scalars(sample: &Sample) -> Vec<(&'static str, f64)> {
    let all = [
        ("loss/train", sample.loss),
        ("loss/validation", sample.validation_loss),
        ("score/accuracy", sample.accuracy),
        ("score/roc_auc", sample.roc_auc),
        ("score/rmse", sample.rmse),
        ("score/r_squared", sample.r_squared),
        ("run/swarm_progress_steps", Some(sample.progress)),
        ("run/share_done", sample.share),
        ("speed/tokens_per_second", Some(sample.tokens_per_second)),
        ("speed/swarm_tokens_per_second", Some(sample.swarm_tokens_per_second)),
        ("speed/step_seconds", Some(sample.step_seconds)),
        ("gossip/peers", Some(sample.peers as f64)),
        ("gossip/exchanges", Some(sample.exchanges as f64)),
        ("gossip/exchanges_failed", Some(sample.exchanges_failed as f64)),
        ("gossip/interval_steps", Some(sample.interval_steps)),
        ("gossip/disagreement", sample.disagreement),
        ("gossip/disagreement_ratio", sample.ratio),
        ("traffic/sent_bytes", Some(sample.sent as f64)),
        ("traffic/received_bytes", Some(sample.received as f64)),
        ("system/cpu_seconds", sample.cpu_seconds),
        ("system/memory_bytes", sample.memory.map(|bytes| bytes as f64)),
        ("system/disk_free_bytes", sample.disk_free.map(|bytes| bytes as f64)),
    ];
    let known = |(name, value): (&'static str, Option<f64>)| Some((name, value.filter(|value| value.is_finite())?));
    all.into_iter().filter_map(known).collect()
}

/// Chooses the samples that are drawn. The same samples in the same order give the same choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thinning {
    /// Of the last one that was chosen: seconds since its process began, and own steps.
    last: Option<(f64, u64)>,
    /// Of the last one: what ends a run happens without steps.
    phase: String,
    /// Own steps of the last sample, and what the last evaluation gave.
    validation_loss: Option<f64>,
}

impl Thinning {
    /// A process begins: its first sample is drawn.
    pub fn begin(&mut self) {
        *self = Thinning::default();
    }

    /// The numbers of a sample that are drawn, told `up` seconds after its process began; none where it is left out. The
    /// validation loss and the scores are drawn where they are new, whatever else is left out.
    pub fn choose(&mut self, up: f64, sample: &Sample) -> Vec<(&'static str, f64)> {
        let is_chosen = self.last.is_none_or(|(last_up, last_steps)| {
            let since = up - last_up;
            let has_moved = sample.steps != last_steps;
            let is_due = since >= QUIET_SECONDS || has_moved && (up < FINE_SECONDS || since >= COARSE_SECONDS);
            is_due || sample.phase != self.phase
        });
        self.phase.clone_from(&sample.phase);
        let is_evaluated = sample.validation_loss != self.validation_loss;
        self.validation_loss = sample.validation_loss;
        if is_chosen {
            self.last = Some((up, sample.steps));
        }
        let mut chosen = scalars(sample);
        let is_of_evaluation = |name: &str| name == "loss/validation" || name.starts_with("score/");
        chosen.retain(|(name, _)| if is_of_evaluation(name) { is_evaluated } else { is_chosen });
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_are_left_out_and_none_is_infinite() {
        let sample = Sample { loss: None, ratio: Some(f64::NAN), progress: f64::INFINITY, ..Sample::default() };
        let chosen = scalars(&sample);
        assert!(chosen.iter().all(|(name, value)| value.is_finite() && !name.contains("loss")), "{chosen:?}");
        assert!(!chosen.iter().any(|(name, _)| *name == "run/swarm_progress_steps" || name.ends_with("ratio")));
        let named = scalars(&Sample { loss: Some(2.5), ..Sample::default() });
        assert!(named.contains(&("loss/train", 2.5)), "{named:?}");
    }

    #[test]
    fn points_are_a_second_apart_then_ten_and_a_minute_where_nothing_moves() {
        let mut thinning = Thinning::default();
        let mut count = |from: u64, to: u64, steps: &dyn Fn(u64) -> u64| {
            let chosen = |up: &u64| {
                let sample = Sample { steps: steps(*up), ..Sample::default() };
                !thinning.choose(*up as f64, &sample).is_empty()
            };
            (from..to).filter(chosen).count()
        };
        assert_eq!(count(0, 600, &|up| up), 600);
        assert_eq!(count(600, 1600, &|up| up), 100);
        assert!((9..=11).contains(&count(1600, 2200, &|_| 1600)), "it makes no steps");
        thinning.begin();
        assert!(!thinning.choose(3000.0, &Sample::default()).is_empty(), "another process");
    }

    #[test]
    fn what_the_last_exchanges_have_brought_is_drawn_however_soon_the_process_ends() {
        let mut thinning = Thinning::default();
        let mut drawn = |up: f64, phase: &str| {
            let sample = Sample { steps: 300, phase: phase.to_owned(), ..Sample::default() };
            !thinning.choose(up, &sample).is_empty()
        };
        assert_eq!(["training", "training"].map(|phase| drawn(700.0, phase)), [true, false]);
        assert_eq!(["settling", "settling", "completed"].map(|phase| drawn(701.0, phase)), [true, false, true]);
    }

    #[test]
    fn each_evaluation_is_drawn_once() {
        let mut thinning = Thinning::default();
        let drawn: Vec<u64> = (0..2000_u64)
            .filter(|up| {
                let validation_loss = Some((up / 105) as f64);
                let sample = Sample { steps: *up, validation_loss, accuracy: Some(0.5), ..Sample::default() };
                let chosen = thinning.choose(*up as f64, &sample);
                let has = |wanted: &str| chosen.iter().any(|(name, _)| *name == wanted);
                assert_eq!(has("score/accuracy"), has("loss/validation"), "they are of the same evaluation");
                has("loss/validation")
            })
            .collect();
        assert_eq!(drawn, (0..=19).map(|number| number * 105).collect::<Vec<u64>>());
    }
}

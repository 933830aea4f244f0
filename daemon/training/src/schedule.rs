//! The learning rate as a function of swarm progress.
//!
//! Progress is each node's step count averaged along with the models, so all nodes of a swarm walk down the same curve
//! whatever their speeds, and a joiner enters at the swarm's place on it.

use murmur_protocol::Ending;
use murmur_protocol::manifest::{OptimizerSpec, ScheduleSpec};

/// The most own steps over which a node warms up again: enough for AdamW's moments at β₂ = 0.999. A guess.
const WARM_UP_AGAIN_STEPS_MAX: u64 = 500;

/// Linear warm-up to the peak, a stable part, half a cosine down to the final rate, then constant (Hu et al., arXiv
/// 2404.06395).
#[derive(Clone, Debug)]
pub struct LearningRate {
    peak: f64,
    warmup_steps: f64,
    /// Where the rate falls by the run's length; `None` without one.
    decay: Option<Ending>,
    /// Where the founder has ordered that it fall.
    ordered: Option<Ending>,
    final_fraction: f64,
}

impl LearningRate {
    /// The curve of a run.
    pub fn new(optimizer: &OptimizerSpec, schedule: &ScheduleSpec) -> LearningRate {
        LearningRate {
            peak: optimizer.learning_rate,
            warmup_steps: schedule.warmup_steps as f64,
            decay: decay(schedule),
            ordered: None,
            final_fraction: schedule.final_fraction,
        }
    }

    /// The founder has ordered the final decay: it begins at the rate that holds there, and takes the place of what the
    /// schedule says for later steps.
    pub fn finish(&mut self, ending: Ending) {
        self.ordered = Some(ending);
    }

    /// The rate at `progress` steps; below zero counts as zero.
    pub fn at(&self, progress: f64) -> f64 {
        let progress = progress.max(0.0);
        match self.ordered {
            Some(ending) if progress >= ending.from => self.fallen(self.planned(ending.from), ending, progress),
            _ => self.planned(progress),
        }
    }

    /// By the schedule alone.
    fn planned(&self, progress: f64) -> f64 {
        if progress < self.warmup_steps {
            // The first step moves already.
            return self.peak * (progress + 1.0).min(self.warmup_steps) / self.warmup_steps;
        }
        match self.decay {
            Some(decay) if progress >= decay.from => self.fallen(self.peak, decay, progress),
            _ => self.peak,
        }
    }

    /// On half a cosine from `start` at the decay's beginning to the final rate at its end.
    fn fallen(&self, start: f64, decay: Ending, progress: f64) -> f64 {
        let last = start.min(self.peak * self.final_fraction);
        if progress >= decay.until {
            return last;
        }
        let share = (progress - decay.from) / (decay.until - decay.from);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
        last + (start - last) * cosine
    }
}

/// The last `decay_fraction` of the steps between warm-up and end.
fn decay(schedule: &ScheduleSpec) -> Option<Ending> {
    let until = schedule.total_steps as f64;
    let length = schedule.decay_fraction * (until - schedule.warmup_steps as f64);
    (schedule.total_steps > 0).then_some(Ending { from: until - length, until })
}

/// The factor that lets a node with empty moments start gently in a running swarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUpAgain {
    /// Own steps of the ramp; 0: no ramp.
    pub steps: u64,
    /// Own steps taken on it.
    pub taken: u64,
}

impl WarmUpAgain {
    /// A ramp over half of the run's warm-up, at most 500 steps.
    pub fn begin(schedule: &ScheduleSpec) -> WarmUpAgain {
        WarmUpAgain { steps: (schedule.warmup_steps / 2).min(WARM_UP_AGAIN_STEPS_MAX), taken: 0 }
    }

    /// The factor for the next step, above 0, at most 1.
    pub fn factor(&self) -> f64 {
        if self.taken >= self.steps { 1.0 } else { (self.taken + 1) as f64 / self.steps as f64 }
    }

    /// Counts a step.
    pub fn advance(&mut self) {
        self.taken = self.steps.min(self.taken + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(warmup_steps: u64, total_steps: u64) -> LearningRate {
        let optimizer = OptimizerSpec { learning_rate: 1.0, ..OptimizerSpec::default() };
        LearningRate::new(
            &optimizer,
            &ScheduleSpec { total_steps, warmup_steps, decay_fraction: 1.0, final_fraction: 0.1 },
        )
    }

    #[test]
    fn the_rate_warms_up_and_follows_a_cosine_to_its_final_value() {
        let rate = curve(10, 110);
        let near = |progress: f64, expected: f64| {
            assert!((rate.at(progress) - expected).abs() < 1e-9, "{progress}: {}", rate.at(progress));
        };
        near(-3.0, 0.1);
        near(0.0, 0.1);
        near(4.0, 0.5);
        near(10.0, 1.0);
        near(60.0, 0.55);
        near(110.0, 0.1);
        near(1e9, 0.1);
    }

    #[test]
    fn without_a_length_the_rate_stays_until_the_founder_asks_for_the_decay() {
        let mut rate = curve(10, 0);
        assert_eq!((rate.at(10.0), rate.at(1e6)), (1.0, 1.0));
        rate.finish(Ending { from: 1000.0, until: 1200.0 });
        assert_eq!((rate.at(4.0), rate.at(999.0), rate.at(1000.0)), (0.5, 1.0, 1.0));
        assert!((rate.at(1100.0) - 0.55).abs() < 1e-9, "{}", rate.at(1100.0));
        assert_eq!((rate.at(1200.0), rate.at(1e9)), (0.1, 0.1));
    }

    #[test]
    fn an_ordered_decay_begins_at_the_rate_that_holds_there() {
        let mut rate = curve(10, 110);
        rate.finish(Ending { from: 60.0, until: 80.0 });
        assert!((rate.at(60.0) - 0.55).abs() < 1e-9 && (rate.at(59.0) - 0.55).abs() < 0.02, "{}", rate.at(60.0));
        assert!((rate.at(80.0) - 0.1).abs() < 1e-9);
        let mut warming = curve(100, 0);
        warming.finish(Ending { from: 0.0, until: 50.0 });
        assert!((0..60).all(|step| warming.at(f64::from(step)) <= 0.01), "it does not warm up any more");
    }

    #[test]
    fn the_stable_part_ends_where_the_decay_begins() {
        let optimizer = OptimizerSpec { learning_rate: 1.0, ..OptimizerSpec::default() };
        let schedule = ScheduleSpec { total_steps: 110, warmup_steps: 10, decay_fraction: 0.2, final_fraction: 0.1 };
        let rate = LearningRate::new(&optimizer, &schedule);
        assert_eq!((rate.at(10.0), rate.at(90.0), rate.at(110.0)), (1.0, 1.0, 0.1));
        assert!((rate.at(100.0) - 0.55).abs() < 1e-9);
    }

    #[test]
    fn the_rate_never_jumps() {
        for (warmup, total) in [(0, 50), (50, 50), (7, 100), (1, 1)] {
            let rate = curve(warmup, total);
            for step in 0..2 * total {
                let rate = rate.at(step as f64);
                assert!((0.1 - 1e-9..=1.0).contains(&rate) || (step < warmup && rate > 0.0), "{step}: {rate}");
            }
        }
    }

    #[test]
    fn warming_up_again_ends() {
        let schedule = ScheduleSpec { warmup_steps: 8, ..ScheduleSpec::default() };
        let mut ramp = WarmUpAgain::begin(&schedule);
        let factors: Vec<f64> = (0..6).map(|_| (ramp.factor(), ramp.advance()).0).collect();
        assert_eq!(factors, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
        assert_eq!(WarmUpAgain::default().factor(), 1.0);
    }
}

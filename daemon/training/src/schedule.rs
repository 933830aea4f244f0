//! The learning rate as a function of swarm progress.
//!
//! Progress is each node's step count averaged along with the models, so all nodes of a swarm walk down the same curve
//! whatever their speeds, and a joiner enters at the swarm's place on it.

use murmur_protocol::manifest::{OptimizerSpec, ScheduleSpec};

/// The most own steps over which a node warms up again: enough for AdamW's moments at β₂ = 0.999. A guess.
const WARM_UP_AGAIN_STEPS_MAX: u64 = 500;

/// Linear warm-up to the peak, a cosine down to the final rate, then constant.
#[derive(Clone, Debug)]
pub struct LearningRate {
    peak: f64,
    warmup_steps: f64,
    total_steps: f64,
    final_fraction: f64,
}

impl LearningRate {
    /// The curve of a run.
    pub fn new(optimizer: &OptimizerSpec, schedule: &ScheduleSpec) -> LearningRate {
        LearningRate {
            peak: optimizer.learning_rate,
            warmup_steps: schedule.warmup_steps as f64,
            total_steps: schedule.total_steps as f64,
            final_fraction: schedule.final_fraction,
        }
    }

    /// The rate at `progress` steps; below zero counts as zero.
    pub fn at(&self, progress: f64) -> f64 {
        let progress = progress.max(0.0);
        if progress < self.warmup_steps {
            // The first step moves already.
            return self.peak * (progress + 1.0).min(self.warmup_steps) / self.warmup_steps;
        }
        if progress >= self.total_steps {
            return self.peak * self.final_fraction;
        }
        let share = (progress - self.warmup_steps) / (self.total_steps - self.warmup_steps);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
        self.peak * (self.final_fraction + (1.0 - self.final_fraction) * cosine)
    }
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
        LearningRate::new(&optimizer, &ScheduleSpec { total_steps, warmup_steps, final_fraction: 0.1 })
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

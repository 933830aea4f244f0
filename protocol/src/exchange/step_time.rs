//! How long a step of own training takes.

use std::time::Duration;

use crate::bounds::STEP_TIME_MAX;
use crate::time::Time;

/// Weight of the newest report in the running mean.
const NEWEST: f64 = 0.125;

/// The running mean of the time of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTime {
    /// When so many steps were reported.
    last: Option<(Time, u64)>,
    seconds: f64,
    /// Of the last two reports; 0 before they are known. A standstill is in one of them alone.
    last_two: [f64; 2],
    /// When the end of the step under way is near, where that is waited for.
    pub(super) near_end_at: Option<Time>,
}

impl StepTime {
    /// As told, before any report.
    pub(super) fn of(seconds: f64) -> StepTime {
        StepTime { seconds, ..StepTime::default() }
    }

    /// 0 before it is known.
    pub(super) fn seconds(self) -> f64 {
        self.seconds
    }

    /// What is left of the step under way, as steps have taken of late; nothing before that is known.
    pub(super) fn left(self, now: Time) -> Duration {
        let seconds = self.last_two.into_iter().fold(STEP_TIME_MAX.as_secs_f64(), f64::min);
        let last = self.last.filter(|_| seconds > 0.0);
        last.map_or(Duration::ZERO, |(last, _)| (last + Duration::from_secs_f64(seconds)).saturating_since(now))
    }

    /// Whether it ends before so much time has passed; where it does not, that is waited for.
    pub(super) fn is_near_end(&mut self, now: Time, within: Duration) -> bool {
        let left = self.left(now);
        self.near_end_at = (left > within).then(|| now + (left - within));
        left <= within
    }

    pub(super) fn on_report(&mut self, now: Time, steps: u64) {
        if let Some((then, before)) = self.last
            && steps > before
        {
            let seconds = (now - then).as_secs_f64() / (steps - before) as f64;
            self.last_two = [self.last_two[1], seconds];
            self.seconds += if self.seconds == 0.0 { seconds } else { NEWEST * (seconds - self.seconds) };
        }
        if self.last.is_none_or(|(_, before)| steps > before) {
            self.last = Some((now, steps));
        }
    }
}

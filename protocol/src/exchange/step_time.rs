//! How long a step of own training takes.

use crate::time::Time;

/// Weight of the newest report in the running mean.
const NEWEST: f64 = 0.125;

/// The running mean of the time of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTime {
    /// When so many steps were reported.
    last: Option<(Time, u64)>,
    seconds: f64,
}

impl StepTime {
    /// As told, before any report.
    pub(super) fn of(seconds: f64) -> StepTime {
        StepTime { last: None, seconds }
    }

    /// 0 before it is known.
    pub(super) fn seconds(self) -> f64 {
        self.seconds
    }

    pub(super) fn on_report(&mut self, now: Time, steps: u64) {
        if let Some((then, before)) = self.last
            && steps > before
        {
            let seconds = (now - then).as_secs_f64() / (steps - before) as f64;
            self.seconds += if self.seconds == 0.0 { seconds } else { NEWEST * (seconds - self.seconds) };
        }
        if self.last.is_none_or(|(_, before)| steps > before) {
            self.last = Some((now, steps));
        }
    }
}

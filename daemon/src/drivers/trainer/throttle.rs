//! `limits.training_percent`: pauses between steps, so that steps take no more than a share of the time.

use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::{IDLE_PERIOD, TrainerThread};

/// How often a trainer that pauses looks whether a transfer has ended.
const TRANSFER_PERIOD: Duration = Duration::from_millis(1);

/// Says how long to pause after a step.
#[derive(Debug)]
pub(super) struct Throttle {
    /// Seconds of pause for each second of a step.
    pause_of_step: f64,
    /// The pause under way: when it began, and how long it is.
    pause: Option<(Instant, Duration)>,
    /// What pauses have taken since the last step.
    taken: Duration,
    /// The step before.
    last: Option<Duration>,
}

/// A step that took longer than this and so many times the one before had stood still, with the process or the machine: what was not
/// computed is not paid for with a pause.
const LONG: Duration = Duration::from_secs(2);
const LONGER: u32 = 10;

impl Throttle {
    /// Steps take at most `percent` of the time, above 0, at most 100.
    pub(super) fn new(percent: f64) -> Throttle {
        Throttle { pause_of_step: 100.0 / percent - 1.0, pause: None, taken: Duration::ZERO, last: None }
    }

    /// A step has taken so long, and a pause begins `now`.
    pub(super) fn stepped(&mut self, step: Duration, now: Instant) {
        let usual = self.last.replace(step).filter(|last| step > LONG && step > *last * LONGER);
        let pause = usual.unwrap_or(step).mul_f64(self.pause_of_step);
        self.pause = (!pause.is_zero()).then_some((now, pause));
    }

    /// What is left of the pause.
    pub(super) fn left(&mut self, now: Instant) -> Option<Duration> {
        let (begin, pause) = self.pause?;
        let left = (begin + pause).saturating_duration_since(now);
        if left.is_zero() {
            self.taken += now - begin;
            self.pause = None;
        }
        (!left.is_zero()).then_some(left)
    }

    /// What pauses have taken since this was last asked.
    pub(super) fn taken(&mut self) -> Duration {
        std::mem::take(&mut self.taken)
    }
}

impl TrainerThread {
    /// Pauses, at most until the next order. `false` once nobody orders any more.
    pub(super) fn pause(&mut self, pause: Duration) -> bool {
        self.send_kept();
        self.finish_arrived();
        let order = match self.next_order() {
            Err(TryRecvError::Empty) if self.under_way.is_empty() => self.inbox.recv_timeout(pause.min(IDLE_PERIOD)),
            Err(TryRecvError::Empty) => {
                std::thread::sleep(pause.min(TRANSFER_PERIOD));
                return true;
            }
            order => order.map_err(|_| RecvTimeoutError::Disconnected),
        };
        match order {
            Ok(order) => self.carry_out(order),
            Err(error) => return error == RecvTimeoutError::Timeout,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(40);

    #[test]
    fn at_a_quarter_of_the_time_a_pause_is_three_times_as_long_as_a_step() {
        let begin = Instant::now();
        let after = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut throttle = Throttle::new(25.0);
        throttle.stepped(STEP, begin);
        assert_eq!(throttle.left(after(50)), Some(Duration::from_millis(70)));
        assert_eq!(throttle.taken(), Duration::ZERO, "it is not over");
        assert_eq!(throttle.left(after(121)), None);
        assert_eq!(throttle.taken(), Duration::from_millis(121), "as it was, not as it was planned");
        assert_eq!((throttle.left(after(130)), throttle.taken()), (None, Duration::ZERO), "it does not begin again");
    }

    #[test]
    fn a_step_in_which_the_process_was_stopped_is_paid_for_as_one_like_the_others() {
        let begin = Instant::now();
        let mut throttle = Throttle::new(25.0);
        throttle.stepped(STEP, begin);
        throttle.stepped(Duration::from_secs(32), begin);
        assert_eq!(throttle.left(begin), Some(STEP * 3));
        throttle.stepped(Duration::from_secs(32), begin);
        assert_eq!(throttle.left(begin), Some(Duration::from_secs(96)), "steps that take so long are no accident");
    }

    #[test]
    fn at_all_of_the_time_there_is_none() {
        let now = Instant::now();
        let mut throttle = Throttle::new(100.0);
        throttle.stepped(STEP, now);
        assert_eq!((throttle.left(now), throttle.taken()), (None, Duration::ZERO));
    }
}

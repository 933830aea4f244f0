//! When a host's trainer ends its steps: by its own clock, whatever else happens.
//!
//! Steps are not happenings: between two moments at which something is due their times follow from the last one, so they
//! are caught up with when somebody looks.

use std::time::Duration;

use murmur_protocol::Time;

/// The clockwork of a trainer.
#[derive(Clone, Debug)]
pub(crate) struct StepClock {
    planned: Duration,
    step_time: Duration,
    /// When the step under way ends; `None` while the trainer stands still.
    next_end: Option<Time>,
    /// Whether the trainer owes steps: it has begun, and nothing that may end its training has come. It still does while it
    /// stands still for no good reason.
    owes: bool,
    /// Steps that the time in which it owed some held, up to `counted_until`.
    expected: f64,
    trained: Duration,
    counted_until: Time,
    /// Pauses, and ends of training with a reason.
    pub(crate) interruptions: u64,
}

impl StepClock {
    pub(crate) fn new(planned: Duration) -> StepClock {
        StepClock {
            planned,
            step_time: planned,
            next_end: None,
            owes: false,
            expected: 0.0,
            trained: Duration::ZERO,
            counted_until: Time::ZERO,
            interruptions: 0,
        }
    }

    pub(crate) fn is_training(&self) -> bool {
        self.next_end.is_some()
    }

    pub(crate) fn step_time(&self) -> Duration {
        self.step_time
    }

    /// When the step under way ends.
    pub(crate) fn next_end(&self) -> Option<Time> {
        self.next_end
    }

    pub(crate) fn begin(&mut self, now: Time) {
        if self.next_end.is_none() {
            self.count(now);
            self.owes = true;
            self.next_end = Some(now + self.step_time);
        }
    }

    /// Ends training; the step under way counts for nothing. Steps up to `now` must have been taken.
    pub(crate) fn end(&mut self, now: Time) {
        self.stop(now);
        if self.owes {
            self.owes = false;
            self.interruptions += 1;
        }
    }

    /// The trainer stands still though nothing ends its training: the steps that it misses are still expected. Steps up to
    /// `now` must have been taken.
    pub(crate) fn stop(&mut self, now: Time) {
        self.count(now);
        self.next_end = None;
    }

    /// Takes the steps that have ended by `now` off; returns their number.
    pub(crate) fn take_ended(&mut self, now: Time) -> u64 {
        let Some(next_end) = &mut self.next_end else { return 0 };
        let mut count = 0;
        while *next_end <= now {
            *next_end = *next_end + self.step_time;
            count += 1;
        }
        count
    }

    /// The process stands still until `until`. Steps up to `now` must have been taken.
    pub(crate) fn pause(&mut self, now: Time, until: Time) {
        if self.owes {
            self.count(now);
            self.counted_until = self.counted_until.max(until);
            self.next_end = self.next_end.map(|next_end| next_end.max(until));
            self.interruptions += 1;
        }
    }

    /// From now on, steps take `factor` times as long as planned. Steps up to `now` must have been taken.
    pub(crate) fn slow_down(&mut self, now: Time, factor: f64) {
        self.count(now);
        let before = self.step_time;
        self.step_time = self.planned.mul_f64(factor).max(Duration::from_nanos(1));
        let change = self.step_time.as_secs_f64() / before.as_secs_f64();
        // The rest of the step under way goes on at the new clock; a pause before it does not count.
        let begin = now.max(self.counted_until);
        self.next_end = self.next_end.map(|end| begin + end.saturating_since(begin).mul_f64(change));
    }

    /// The time up to `now` in which it owed steps, pauses taken off.
    pub(crate) fn trained(&self, now: Time) -> Duration {
        self.trained + self.running(now)
    }

    fn running(&self, now: Time) -> Duration {
        if self.owes { now.saturating_since(self.counted_until) } else { Duration::ZERO }
    }

    /// Steps that the time up to `now` held in which it owed some.
    pub(crate) fn expected(&self, now: Time) -> f64 {
        self.expected + self.running(now).as_secs_f64() / self.step_time.as_secs_f64()
    }

    fn count(&mut self, now: Time) {
        self.expected = self.expected(now);
        self.trained = self.trained(now);
        self.counted_until = self.counted_until.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn steps_follow_the_clock_through_pauses_and_slow_times() {
        let mut clock = StepClock::new(Duration::from_millis(100));
        assert_eq!(clock.take_ended(at(1000)), 0, "it has not begun");
        clock.begin(at(1000));
        assert_eq!(clock.take_ended(at(1350)), 3);
        clock.pause(at(1350), at(2000));
        assert_eq!((clock.take_ended(at(1999)), clock.take_ended(at(2100))), (0, 2));
        clock.slow_down(at(2150), 2.0);
        assert_eq!(clock.take_ended(at(2650)), 3, "at 2250, 2450 and 2650");
        clock.end(at(2650));
        assert_eq!(clock.take_ended(at(9000)), 0);
        assert_eq!(clock.trained(at(9000)), Duration::from_millis(350 + 150 + 500));
        let expected = 3.5 + 1.5 + 2.5;
        assert!((clock.expected(at(9000)) - expected).abs() < 1e-9, "{}", clock.expected(at(9000)));
        assert_eq!(clock.interruptions, 2);
    }

    #[test]
    fn a_stop_without_a_reason_is_no_excuse() {
        let mut clock = StepClock::new(Duration::from_millis(100));
        clock.begin(at(0));
        assert_eq!(clock.take_ended(at(250)), 2);
        clock.stop(at(250));
        assert_eq!(clock.take_ended(at(700)), 0);
        clock.begin(at(700));
        assert_eq!(clock.take_ended(at(1000)), 3);
        assert!((clock.expected(at(1000)) - 10.0).abs() < 1e-9, "{}", clock.expected(at(1000)));
        assert_eq!(clock.interruptions, 0);
        clock.stop(at(1000));
        clock.end(at(1200));
        assert!((clock.expected(at(9000)) - 12.0).abs() < 1e-9, "its time goes on until there is a reason");
        assert_eq!(clock.interruptions, 1);
    }
}

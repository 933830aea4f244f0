//! Where the training thread's time goes: steps, the gaps between them, and what was asked of it in between.
//!
//! A gap is all the time from the end of one step to the begin of the next, whatever it went to: orders carried out, a
//! lock, a call that waits for a peer. Only evaluations, checkpoints and pauses are told apart, because this node's own
//! settings ask for them. So a wait for the network shows wherever in the loop it is.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use murmur_training::median;
use serde::{Deserialize, Serialize};

/// Steps that the median is taken over.
const RECENT_MAX: usize = 255;

/// What was measured since the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// From the begin of the first step to the end of the last one, in seconds: steps, gaps, and what was aside.
    pub seconds_in_training: f64,
    /// In gaps between two steps, in seconds.
    pub seconds_at_boundaries: f64,
    /// The longest gap between two steps, in seconds.
    pub longest_gap_seconds: f64,
    /// Median time from the begin of a step to the begin of the next one over the last 255, without evaluations and
    /// checkpoints, in seconds; 0 before the second step.
    pub median_step_seconds: f64,
    /// In evaluations, copies for checkpoints, and the pauses that `limits.training_percent` asks for, in seconds.
    pub seconds_aside: f64,
    /// Tokens (bytes of text), images or rows of those steps.
    #[serde(default)]
    pub tokens_trained: u64,
}

impl StepTimes {
    /// Tokens, images or rows a second over all the time in training; 0 before the first step.
    pub fn mean_tokens_per_second(&self) -> f64 {
        if self.seconds_in_training > 0.0 { self.tokens_trained as f64 / self.seconds_in_training } else { 0.0 }
    }
}

/// Measures them.
#[derive(Debug, Default)]
pub(super) struct StepClock {
    times: StepTimes,
    /// When the last step began, and when it ended.
    last: Option<(Instant, Instant)>,
    /// Since the end of the last step.
    aside: Duration,
    /// From begin to begin, in seconds, the oldest first.
    recent: VecDeque<f64>,
}

impl StepClock {
    /// A step on so many tokens has taken from `begin` to `end`, with pauses of this length before it.
    pub(super) fn stepped(&mut self, tokens: usize, (begin, end): (Instant, Instant), pause: Duration) {
        self.times.tokens_trained += tokens as u64;
        self.times.seconds_in_training += (end - begin).as_secs_f64();
        if let Some((last_begin, last_end)) = self.last {
            let between = begin - last_end;
            let gap = between.saturating_sub(self.aside + pause).as_secs_f64();
            self.times.seconds_in_training += between.as_secs_f64();
            self.times.seconds_at_boundaries += gap;
            self.times.longest_gap_seconds = self.times.longest_gap_seconds.max(gap);
            self.times.seconds_aside += (self.aside + pause).as_secs_f64();
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back((last_end - last_begin + pause).as_secs_f64() + gap);
        }
        self.last = Some((begin, end));
        self.aside = Duration::ZERO;
    }

    /// So long was spent since the last step on an evaluation or a checkpoint.
    pub(super) fn spent_aside(&mut self, time: Duration) {
        self.aside += time;
    }

    /// What was measured so far.
    pub(super) fn times(&self) -> StepTimes {
        StepTimes { median_step_seconds: median(self.recent.iter().copied()).unwrap_or(0.0), ..self.times }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(40);

    /// Steps of 40 ms, each after such a gap, and what they come to.
    fn after_gaps(gaps: &[Duration]) -> StepTimes {
        let mut clock = StepClock::default();
        let mut now = Instant::now();
        for gap in gaps {
            now += *gap;
            clock.stepped(500, (now, now + STEP), Duration::ZERO);
            now += STEP;
        }
        clock.times()
    }

    fn assert_near(measured: f64, expected: f64) {
        assert!((measured - expected).abs() < 1e-6, "{measured}, not {expected}");
    }

    #[test]
    fn one_long_gap_shows_beside_the_median_and_many_short_ones_in_the_share() {
        let mut gaps = vec![Duration::from_millis(1); 101];
        gaps[50] = Duration::from_millis(100);
        let times = after_gaps(&gaps);
        assert_near(times.longest_gap_seconds, 0.1);
        assert_near(times.median_step_seconds, 0.041);
        assert_near(times.seconds_at_boundaries, 0.199);
        // What came before the first step is no gap.
        assert_near(times.seconds_in_training, 101.0 * 0.04 + 0.199);
    }

    #[test]
    fn evaluations_and_checkpoints_are_no_gaps() {
        let mut clock = StepClock::default();
        let begin = Instant::now();
        clock.stepped(500, (begin, begin + STEP), Duration::ZERO);
        clock.spent_aside(Duration::from_secs(2));
        let next = begin + STEP + Duration::from_millis(2003);
        clock.stepped(500, (next, next + STEP), Duration::ZERO);
        let times = clock.times();
        assert_near(times.longest_gap_seconds, 0.003);
        assert_near(times.seconds_at_boundaries, 0.003);
        assert_near(times.seconds_aside, 2.0);
        assert_near(times.seconds_in_training, 2.083);
        assert_near(times.median_step_seconds, 0.043);
    }

    #[test]
    fn a_pause_is_no_gap_and_counts_in_the_pace() {
        let mut clock = StepClock::default();
        let begin = Instant::now();
        clock.stepped(500, (begin, begin + STEP), Duration::ZERO);
        let pause = 3 * STEP;
        let next = begin + STEP + pause + Duration::from_millis(1);
        clock.stepped(500, (next, next + STEP), pause);
        let times = clock.times();
        assert_near(times.seconds_at_boundaries, 0.001);
        assert_near(times.seconds_aside, 0.12);
        assert_near(times.median_step_seconds, 0.161);
    }

    #[test]
    fn the_mean_speed_counts_all_the_time_in_training() {
        assert_eq!(StepTimes::default().mean_tokens_per_second(), 0.0);
        let times = after_gaps(&[Duration::from_millis(60); 10]);
        assert_eq!(times.tokens_trained, 5000);
        assert_near(times.mean_tokens_per_second(), 5000.0 / (10.0 * 0.04 + 9.0 * 0.06));
    }

    #[test]
    fn the_median_is_that_of_the_last_steps() {
        let mut gaps = vec![Duration::from_millis(10); 2 * RECENT_MAX];
        gaps[..RECENT_MAX].fill(Duration::from_secs(1));
        assert_near(after_gaps(&gaps).median_step_seconds, 0.05);
        assert_near(after_gaps(&gaps).longest_gap_seconds, 1.0);
        assert_eq!(after_gaps(&gaps[..1]).median_step_seconds, 0.0);
    }
}

//! How often to exchange: as often as link and processor allow, and more where the models drift apart.
//!
//! Smaller intervals learn better at the price of traffic, so the interval is a budget, not a constant: what a line
//! carries belongs to others as well, and exchanges take a quarter of it unless the owner says how much. Every exchange
//! measures for free how far apart two models are; set against what own training did meanwhile this tells whether
//! averaging keeps up (consensus control: Kong et al., ICML 2021).

use std::collections::VecDeque;
use std::time::Duration;

use super::uplink::Uplink;
use crate::bounds::CLIP_HISTORY;
use crate::manifest::GossipSpec;
use crate::numerics::round_bytes;

/// An interval is at least this many times as long as an exchange takes: the network rests half of the time.
const DUTY: f64 = 2.0;

/// Exchanges take at most this share of the measured uplink, where its owner has set no cap: the rest is for calls, and for
/// whoever else lives there (a guess).
const UPLINK_SHARE: f64 = 0.25;

/// Encoding and merging take at most this share of the time: on a machine without a spare core it is training's.
const WORKER_SHARE: f64 = 0.05;

/// Ξ̂ ÷ local progress above which models drift apart (transformer study: best between 0.4 and 0.8).
const RATIO_HIGH: f64 = 1.5;

/// Exchanges after which a ratio tells of the run, not of how it began: models that have just met, or were copied, are
/// apart for other reasons.
const TELLING_EXCHANGES: u32 = 50;

/// How fast the interval follows, each way, per exchange: slower down than up, so that a busy link rests at once.
const SHRINK: f64 = 0.9;
const GROW: f64 = 1.25;

/// Weight of the newest exchange in the running means.
const NEWEST: f64 = 0.125;

/// A ratio counts as at most so many times the median of the last ones: a single partner says how far its model is, and may lie. As
/// with distances that are odd.
const RATIO_OVER_MEDIAN_MAX: f64 = 2.5;

/// The interval between own exchanges, in steps.
#[derive(Clone, Debug)]
pub(crate) struct Cadence {
    interval: f64,
    range: (f64, f64),
    /// Steps from an own proposal to its merge.
    exchange_steps: Option<f64>,
    /// Seconds of worker time for one exchange, and of one step.
    worker_seconds: f64,
    uplink: Uplink,
    /// The owner's cap, in bytes a second: exchanges may take all of it.
    upload_cap: Option<f64>,
    /// What this node sends in an interval: its own exchange and one that it answers.
    round_bytes: f64,
    /// Ξ̂ ÷ local progress of the last exchanges, the oldest first; at most [`CLIP_HISTORY`].
    ratios: VecDeque<f64>,
    /// Distances measured, up to [`TELLING_EXCHANGES`].
    distances: u32,
    /// The ratio above which models drift apart so far that it is told.
    alarming: f64,
    is_limited: bool,
}

impl Cadence {
    /// `parameters`: of the whole model. `upload_cap`: the owner's, in bytes a second.
    pub(crate) fn new(gossip: &GossipSpec, parameters: usize, upload_cap: Option<f64>) -> Cadence {
        let start = f64::from(gossip.interval_steps);
        let range = (f64::from(gossip.interval_steps_min).min(start), f64::from(gossip.interval_steps_max).max(start));
        Cadence {
            interval: start,
            range,
            exchange_steps: None,
            worker_seconds: 0.0,
            uplink: Uplink::default(),
            upload_cap,
            round_bytes: round_bytes(parameters, gossip) as f64,
            ratios: VecDeque::new(),
            distances: 0,
            alarming: gossip.kind.ratio_band().drifting,
            is_limited: false,
        }
    }

    /// Steps between two own exchanges.
    pub(crate) fn interval(&self) -> f64 {
        self.interval
    }

    /// Ξ̂ ÷ local progress, once measured: the mean of the last exchanges, of which none counts as much more than their median.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.ratios.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let most = RATIO_OVER_MEDIAN_MAX * sorted.get(sorted.len().checked_sub(1)? / 2)?;
        Some(sorted.iter().map(|ratio| ratio.min(most)).sum::<f64>() / sorted.len() as f64)
    }

    /// A merge found models `distance` apart, after own training had moved ours by `local_progress`.
    pub(crate) fn on_distance(&mut self, distance: f64, local_progress: f64) {
        if local_progress > 0.0 {
            let ratio = distance / std::f64::consts::SQRT_2 / local_progress;
            if self.ratios.len() == CLIP_HISTORY {
                self.ratios.pop_front();
            }
            self.ratios.push_back(ratio);
            self.distances = TELLING_EXCHANGES.min(self.distances + 1);
        }
    }

    /// A transfer of so many bytes was confirmed after this time.
    pub(crate) fn on_sent(&mut self, bytes: usize, taken: Duration) {
        self.uplink.on_sent(bytes, taken);
    }

    /// The uplink as measured, in bytes a second.
    pub(crate) fn uplink_bytes_per_second(&self) -> Option<f64> {
        self.uplink.bytes_per_second()
    }

    /// What this node may send in bytes a second, as far as is known: all of the owner's cap, or the least that the line
    /// carries.
    pub(crate) fn sends_at_most(&self) -> Option<f64> {
        let line = self.uplink.bytes_per_second_at_least();
        line.map(|line| self.upload_cap.map_or(line, |cap| cap.min(line)))
    }

    /// How long so many bytes are on their way out at most, as far as transfers have shown.
    pub(crate) fn sending_time(&self, bytes: usize) -> Option<Duration> {
        self.sends_at_most().and_then(|rate| Duration::try_from_secs_f64(bytes as f64 / rate).ok())
    }

    /// Seconds of the way to others and back, once known.
    pub(crate) fn round_trip_seconds(&self) -> Option<f64> {
        self.uplink.round_trip_seconds()
    }

    /// Whether the models drift apart, and the budget forbids to exchange more often.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// A worker took this long for an encoding or a merge.
    pub(crate) fn on_work(&mut self, taken: Duration) {
        self.worker_seconds += NEWEST * (taken.as_secs_f64() - self.worker_seconds);
    }

    /// An own exchange took `steps` own steps, each of `step_seconds`. Returns whether the models drift apart and the
    /// budget forbids to exchange more often, where that is news.
    pub(crate) fn on_exchange(&mut self, steps: u64, step_seconds: f64) -> bool {
        // One step more: an exchange begins and ends at boundaries.
        let steps = running_mean(self.exchange_steps, steps as f64 + 1.0);
        self.exchange_steps = Some(steps);
        let is_drifting = self.ratio().is_some_and(|ratio| ratio > RATIO_HIGH);
        // Two jobs for an own exchange and two for an answered one; models that drift apart may cost more.
        let work = if step_seconds > 0.0 { 4.0 * self.worker_seconds / (WORKER_SHARE * step_seconds) } else { 0.0 };
        let duty = if is_drifting { 1.0 } else { DUTY };
        let budget = (duty * steps).max(work / if is_drifting { DUTY } else { 1.0 });
        let budget = budget.max(self.line_steps(step_seconds));
        let target = budget.clamp(self.range.0, self.range.1);
        self.interval = if target > self.interval {
            (self.interval * GROW).min(target)
        } else {
            (self.interval * SHRINK).max(target)
        };
        let was_limited = self.is_limited;
        let is_alarming =
            self.distances == TELLING_EXCHANGES && self.ratio().is_some_and(|ratio| ratio > self.alarming);
        self.is_limited = is_alarming && self.interval <= target && self.interval > self.range.0;
        self.is_limited && !was_limited
    }

    /// Steps between own exchanges with which this node sends no more than its line may carry of them; 0 where that is not
    /// known. Drifting models get no more of it: it is the owner's.
    fn line_steps(&self, step_seconds: f64) -> f64 {
        let measured = self.uplink.bytes_per_second().map(|rate| UPLINK_SHARE * rate);
        match self.upload_cap.or(measured) {
            Some(rate) if step_seconds > 0.0 => self.round_bytes / rate / step_seconds,
            _ => 0.0,
        }
    }

    /// An own exchange came to nothing: the link is worse than thought.
    pub(crate) fn on_failure(&mut self) {
        self.interval = (self.interval * GROW).min(self.range.1);
    }
}

fn running_mean(mean: Option<f64>, newest: f64) -> f64 {
    mean.map_or(newest, |mean| mean + NEWEST * (newest - mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::GossipKind;

    fn gossip() -> GossipSpec {
        GossipSpec {
            kind: GossipKind::Pairs,
            interval_steps: 10,
            interval_steps_min: 5,
            interval_steps_max: 100,
            ..GossipSpec::default()
        }
    }

    fn cadence() -> Cadence {
        Cadence::new(&gossip(), 1_000_000, None)
    }

    /// Where the interval of a model of a million parameters settles with steps of 0.1 s and exchanges that take no time,
    /// and the bytes a second that it then sends.
    fn settled(mut cadence: Cadence, bytes_per_second: f64) -> (f64, f64) {
        for _ in 0..50 {
            cadence.on_sent(1_000_000, Duration::from_secs_f64(1e6 / bytes_per_second));
            cadence.on_exchange(0, 0.1);
        }
        (cadence.interval(), cadence.round_bytes / (0.1 * cadence.interval()))
    }

    #[test]
    fn exchanges_take_a_quarter_of_a_slow_uplink_and_all_of_a_cap() {
        let (interval, sent) = settled(cadence(), 2e6);
        assert!(interval > 30.0 && (sent / 0.5e6 - 1.0).abs() < 0.01, "every {interval} steps, {sent} bytes a second");
        let capped = Cadence::new(&gossip(), 1_000_000, Some(1e6));
        let (interval, sent) = settled(capped, 2e6);
        assert!((sent / 1e6 - 1.0).abs() < 0.01, "every {interval} steps, {sent} bytes a second");
    }

    #[test]
    fn a_fast_uplink_and_an_unknown_one_change_nothing() {
        assert_eq!(settled(cadence(), 100e6).0, 5.0);
        let mut unknown = cadence();
        (0..50).for_each(|_| {
            unknown.on_exchange(0, 0.1);
        });
        assert_eq!(unknown.interval(), 5.0);
    }

    #[test]
    fn a_fast_link_shortens_the_interval_and_a_slow_one_lengthens_it() {
        let mut fast = cadence();
        (0..50).for_each(|_| {
            fast.on_exchange(0, 0.1);
        });
        assert_eq!(fast.interval(), 5.0);
        let mut slow = cadence();
        (0..50).for_each(|_| {
            slow.on_exchange(30, 0.1);
        });
        assert_eq!(slow.interval(), 62.0);
        (0..50).for_each(|_| {
            slow.on_exchange(3000, 0.1);
        });
        assert_eq!(slow.interval(), 100.0, "never beyond the user's limit");
    }

    #[test]
    fn a_busy_worker_lengthens_the_interval() {
        let mut cadence = cadence();
        (0..100).for_each(|_| cadence.on_work(Duration::from_millis(25)));
        (0..50).for_each(|_| {
            cadence.on_exchange(0, 0.1);
        });
        // 4 · 25 ms is 5 % of 20 steps of 100 ms.
        assert!((cadence.interval() - 20.0).abs() < 0.1, "{}", cadence.interval());
    }

    #[test]
    fn drifting_models_are_averaged_more_often_and_the_limit_is_told_once() {
        let mut cadence = cadence();
        (0..50).for_each(|_| {
            cadence.on_exchange(29, 0.1);
        });
        assert_eq!(cadence.interval(), 60.0);
        (0..49).for_each(|_| cadence.on_distance(30.0, 1.0));
        assert!((0..50).all(|_| !cadence.on_exchange(29, 0.1)), "too few distances are known");
        cadence.on_distance(30.0, 1.0);
        let told = (0..50).filter(|_| cadence.on_exchange(29, 0.1)).count();
        assert_eq!((cadence.interval(), told), (30.0, 1));
    }

    #[test]
    fn one_distance_that_is_a_lie_hardly_moves_the_ratio_and_ones_that_alternate_do() {
        for at in 0..20 {
            let mut cadence = cadence();
            (0..20).for_each(|number| cadence.on_distance(if number == at { 1e30 } else { 1.0 }, 1.0));
            let usual = 1.0 / std::f64::consts::SQRT_2;
            let ratio = cadence.ratio().expect("measured");
            assert!((usual * 0.999..usual * 1.2).contains(&ratio), "{ratio}, the lie being the one at {at}");
        }
        let mut cadence = cadence();
        (0..20).for_each(|number| cadence.on_distance([2.0, 4.0][number % 2], std::f64::consts::FRAC_1_SQRT_2));
        let ratio = cadence.ratio().expect("measured");
        assert!((2.9..3.1).contains(&ratio), "{ratio}: some partners are further than others");
    }

    #[test]
    fn a_range_of_one_value_is_a_fixed_interval() {
        let gossip =
            GossipSpec { interval_steps: 25, interval_steps_min: 25, interval_steps_max: 25, ..GossipSpec::default() };
        let mut cadence = Cadence::new(&gossip, 1_000_000, Some(1.0));
        (0..50).for_each(|_| {
            cadence.on_exchange(300, 0.1);
        });
        cadence.on_failure();
        assert_eq!(cadence.interval(), 25.0);
    }
}

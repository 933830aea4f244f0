//! How far a run has come, and how long it will still take.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The pace is that of this many seconds.
const WINDOW_SECONDS: f64 = 60.0;

/// Seconds between two looks that are kept.
const LOOK_SECONDS: f64 = 1.0;

/// The pace is believed after this many seconds.
const BELIEVED_AFTER_SECONDS: f64 = 3.0;

/// Where training ends; both `None` where no end is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Length {
    /// Own steps.
    pub(crate) own: Option<u64>,
    /// Swarm progress, in steps.
    pub(crate) swarm: Option<u64>,
}

/// How far a run has come. Absent values: no end is set, or the pace is not known yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutlookReport {
    /// What is done, 0 to 1.
    pub share: Option<f64>,
    /// Own steps after which this node ends training.
    pub own_steps: Option<u64>,
    /// Swarm progress, in steps, at which training ends.
    pub swarm_steps: Option<u64>,
    /// Seconds until then, at the pace of the last minute.
    pub seconds_left: Option<f64>,
    /// That pace.
    #[serde(skip)]
    pub pace: Option<Pace>,
}

/// How fast steps are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Own steps a second.
    pub own: f64,
    /// Swarm progress, in steps a second.
    pub swarm: f64,
}

impl OutlookReport {
    /// Where training ends first after so many own steps and so much swarm progress; the other end is left out.
    pub(crate) fn nearer(&self, own: u64, swarm: f64) -> Length {
        let (Some(own_end), Some(swarm_end)) = (self.own_steps, self.swarm_steps) else {
            return Length { own: self.own_steps, swarm: self.swarm_steps };
        };
        let is_own = own as f64 / own_end.max(1) as f64 >= swarm / swarm_end.max(1) as f64;
        Length { own: Some(own_end).filter(|_| is_own), swarm: Some(swarm_end).filter(|_| !is_own) }
    }
}

/// What is remembered of the last minute: (seconds, own steps, swarm progress).
#[derive(Clone, Debug, Default)]
pub(crate) struct Outlook {
    looks: VecDeque<(f64, u64, f64)>,
    /// Models copied before them.
    copies: u64,
}

impl Length {
    /// What is done, 0 to 1, after so many own steps and so much swarm progress.
    fn share(self, own: u64, swarm: f64) -> Option<f64> {
        let of = |done: f64, length: Option<u64>| length.map(|length| done / length.max(1) as f64);
        let shares = [of(own as f64, self.own), of(swarm, self.swarm)];
        shares.into_iter().flatten().reduce(f64::max).map(|share| share.clamp(0.0, 1.0))
    }
}

impl Outlook {
    /// Looks at a node that has run for `seconds` and has copied so many models; `None` while it joins, copies one or waits for
    /// members: what is done then is no pace of its own, nor is what a copy lifts or lowers.
    pub(crate) fn look(
        &mut self,
        length: Length,
        seconds: Option<f64>,
        (own, swarm): (u64, f64),
        copies: u64,
    ) -> OutlookReport {
        let share = length.share(own, swarm);
        let report =
            OutlookReport { share, own_steps: length.own, swarm_steps: length.swarm, ..OutlookReport::default() };
        let Some(seconds) = seconds else {
            self.looks.clear();
            return report;
        };
        if std::mem::replace(&mut self.copies, copies) != copies {
            self.looks.clear();
        }
        if self.looks.back().is_none_or(|(last, ..)| seconds - last >= LOOK_SECONDS) {
            self.looks.push_back((seconds, own, swarm));
        }
        while self.looks.len() > 2 && self.looks.front().is_some_and(|(first, ..)| seconds - first > WINDOW_SECONDS) {
            self.looks.pop_front();
        }
        let first = self.looks.front().filter(|(begun, ..)| seconds - begun >= BELIEVED_AFTER_SECONDS);
        let Some((took, before)) = first.map(|(begun, own, swarm)| (seconds - begun, (*own, *swarm))) else {
            return OutlookReport { seconds_left: share.filter(|share| *share >= 1.0).map(|_| 0.0), ..report };
        };
        let pace = Pace { own: own.saturating_sub(before.0) as f64 / took, swarm: (swarm - before.1) / took };
        let seconds_left = share.and_then(|share| {
            let done = share - length.share(before.0, before.1)?;
            let left = if share >= 1.0 { 0.0 } else { took * (1.0 - share) / done };
            Some(left).filter(|_| share >= 1.0 || done > 0.0)
        });
        OutlookReport { seconds_left, pace: Some(pace), ..report }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_present_pace() {
        let mut outlook = Outlook::default();
        let length = Length { own: None, swarm: Some(1000) };
        assert_eq!(outlook.look(length, Some(0.0), (0, 0.0), 0).seconds_left, None);
        let mut last = OutlookReport::default();
        for second in 1..=200 {
            // Ten steps a second at first, then one.
            let swarm = if second <= 50 { 10 * second } else { 450 + second };
            last = outlook.look(length, Some(second as f64), (0, swarm as f64), 0);
        }
        assert_eq!(last.share, Some(0.65));
        assert!((last.seconds_left.expect("known") - 350.0).abs() < 5.0, "{last:?}");
    }

    #[test]
    fn what_a_copy_lifts_is_no_pace() {
        let mut outlook = Outlook::default();
        let length = Length { own: None, swarm: Some(1000) };
        // It trains from 5 s to 8 s on its own model, copies one at step 400 until 13 s, and makes ten steps a second.
        let mut left = |second: u32| {
            let is_copying = (8..13).contains(&second) || second < 5;
            let swarm = if second < 13 { 0.0 } else { 400.0 + 10.0 * f64::from(second - 13) };
            outlook.look(length, (!is_copying).then_some(f64::from(second)), (0, swarm), 0).seconds_left
        };
        let told: Vec<Option<f64>> = (0..20).map(&mut left).collect();
        assert_eq!(told[..16], [None; 16], "no pace is known before three seconds of training");
        let rounded = |second: usize| told[second].map(f64::round);
        assert_eq!((rounded(16), rounded(19)), (Some(57.0), Some(54.0)));
    }

    /// Of a member that came back with an old checkpoint: it trains at once, and the newer model comes between two looks.
    #[test]
    fn a_copy_that_comes_between_two_looks_is_no_pace_and_a_slower_partner_hides_none() {
        let mut outlook = Outlook::default();
        let length = Length { own: None, swarm: Some(3000) };
        let mut left = |second: u32| {
            let copies = u64::from(second >= 10);
            // A step a second; every fifth one is half taken back by an exchange.
            let made = f64::from(second) - 1.5 * f64::from(second / 5);
            let swarm = if copies == 0 { made } else { 1959.0 + made };
            outlook.look(length, Some(f64::from(second)), (0, swarm), copies).seconds_left
        };
        let told: Vec<Option<f64>> = (0..120).map(&mut left).collect();
        assert_eq!(told[10..13], [None; 3], "a new pace is measured");
        for (second, left) in told.iter().enumerate().skip(20) {
            assert!(left.is_some_and(|left| (800.0..2400.0).contains(&left)), "{left:?} after {second} s");
        }
    }

    #[test]
    fn the_nearer_end_counts() {
        let length = Length { own: Some(400), swarm: Some(10_000) };
        let report = Outlook::default().look(length, Some(1.0), (100, 1000.0), 0);
        assert_eq!((report.share, report.own_steps, report.swarm_steps), (Some(0.25), Some(400), Some(10_000)));
        assert_eq!(report.nearer(100, 1000.0), Length { own: Some(400), swarm: None });
        // The founder has finished the run.
        let length = Length { own: Some(1200), swarm: Some(118) };
        let report = Outlook::default().look(length, Some(1.0), (116, 118.0), 0);
        assert_eq!(report.nearer(116, 118.0), Length { own: None, swarm: Some(118) });
    }

    #[test]
    fn without_an_end_nothing_is_left() {
        let report = Outlook::default().look(Length::default(), Some(10.0), (100, 1000.0), 0);
        assert_eq!(report, OutlookReport::default());
    }

    #[test]
    fn at_the_end_no_time_is_left() {
        let mut outlook = Outlook::default();
        let length = Length { own: Some(10), swarm: None };
        outlook.look(length, Some(0.0), (5, 5.0), 0);
        assert_eq!(outlook.look(length, Some(9.0), (12, 5.0), 0).seconds_left, Some(0.0));
    }
}

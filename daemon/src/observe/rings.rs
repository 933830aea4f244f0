//! A measured value over time, in bounded memory for ever: the last minutes to the second, the last hours to ten seconds,
//! the last days to five minutes, each with the least, the mean and the greatest.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Seconds of a bucket, and how many buckets are kept: ten minutes, two hours, five days.
const RESOLUTIONS: [(f64, usize); 3] = [(1.0, 600), (10.0, 720), (300.0, 1500)];

/// Values of one bucket of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u64, f32, f32, f32, u32)", into = "(u64, f32, f32, f32, u32)")]
pub struct Bucket {
    /// Its number: when it begins, over its length.
    index: u64,
    /// The least value.
    pub min: f32,
    /// Their mean.
    pub mean: f32,
    /// The greatest value.
    pub max: f32,
    /// How many there were; at least 1.
    count: u32,
}

/// A value over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    rings: [VecDeque<Bucket>; 3],
}

/// A bucket with its place in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The middle of the bucket, in seconds.
    pub time: f64,
    /// The least value in it.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The greatest.
    pub max: f64,
}

impl Series {
    /// Takes in a value at a time in seconds, which is 0 or later and never before the last one. What is no number is left
    /// out.
    pub fn push(&mut self, time: f64, value: f64) {
        let value = value as f32;
        if !value.is_finite() {
            return;
        }
        for ((period, capacity), ring) in RESOLUTIONS.into_iter().zip(&mut self.rings) {
            let index = (time / period) as u64;
            match ring.back_mut() {
                // Time that has gone back belongs to the newest bucket.
                Some(last) if last.index >= index => last.take_in(value),
                _ => ring.push_back(Bucket { index, min: value, mean: value, max: value, count: 1 }),
            }
            let oldest = index.saturating_sub(capacity as u64 - 1);
            while ring.front().is_some_and(|first| first.index < oldest) {
                ring.pop_front();
            }
        }
    }

    /// The last value's bucket.
    pub fn last(&self) -> Option<Bucket> {
        self.rings[0].back().copied()
    }

    /// When the oldest value that is kept was taken in, in seconds; up to five minutes early.
    pub fn first_time(&self) -> Option<f64> {
        let starts = RESOLUTIONS.into_iter().zip(&self.rings);
        let first = |((period, _), ring): ((f64, usize), &VecDeque<Bucket>)| Some(ring.front()?.index as f64 * period);
        let mut firsts: Vec<f64> = starts.filter_map(first).collect();
        firsts.dedup();
        // Where the finest ring has lost nothing yet, it knows best.
        match firsts.as_slice() {
            [fine, tens, fives] if fine - tens < 10.0 && fine - fives < 300.0 => Some(*fine),
            _ => firsts.into_iter().reduce(f64::min),
        }
    }

    /// The buckets between two times, in seconds, from the finest resolution that goes back so far and has at most
    /// `points_max` of them; from the coarsest one where none has.
    pub fn between(&self, from: f64, to: f64, points_max: usize) -> Vec<Point> {
        let chosen = resolution(to - from, points_max);
        let period = RESOLUTIONS[chosen].0;
        let points = self.rings[chosen].iter().map(|bucket| Point {
            time: (bucket.index as f64 + 0.5) * period,
            min: f64::from(bucket.min),
            mean: f64::from(bucket.mean),
            max: f64::from(bucket.max),
        });
        points.filter(|point| point.time >= from - period && point.time <= to + period).collect()
    }
}

/// The length of the buckets, in seconds, that [`Series::between`] gives of so many seconds.
pub fn period(seconds: f64, points_max: usize) -> f64 {
    RESOLUTIONS[resolution(seconds, points_max)].0
}

/// The finest that goes back so many seconds and has at most so many points for them; else the coarsest.
fn resolution(seconds: f64, points_max: usize) -> usize {
    let chosen = RESOLUTIONS.iter().position(|(period, capacity)| {
        let goes_back = period * *capacity as f64 >= seconds;
        goes_back && seconds / period <= points_max as f64
    });
    chosen.unwrap_or(RESOLUTIONS.len() - 1)
}

impl Bucket {
    fn take_in(&mut self, value: f32) {
        self.count = self.count.saturating_add(1);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.mean += (value - self.mean) / self.count as f32;
    }
}

impl From<(u64, f32, f32, f32, u32)> for Bucket {
    fn from((index, min, mean, max, count): (u64, f32, f32, f32, u32)) -> Bucket {
        Bucket { index, min, mean, max, count: count.max(1) }
    }
}

impl From<Bucket> for (u64, f32, f32, f32, u32) {
    fn from(Bucket { index, min, mean, max, count }: Bucket) -> Self {
        (index, min, mean, max, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_the_least_the_mean_and_the_greatest_value() {
        let mut series = Series::default();
        for (time, value) in [(0.1, 1.0), (0.5, 3.0), (0.9, 2.0), (1.0, 7.0), (1.5, f64::NAN)] {
            series.push(time, value);
        }
        let points = series.between(0.0, 10.0, 100);
        assert_eq!(points.len(), 2);
        assert_eq!(points[0], Point { time: 0.5, min: 1.0, mean: 2.0, max: 3.0 });
        assert_eq!(series.last().map(|last| (last.mean, last.count)), Some((7.0, 1)));
        series.push(0.2, 1.0);
        assert_eq!(series.last().map(|last| (last.min, last.count)), Some((1.0, 2)), "time went back");
    }

    #[test]
    fn memory_is_bounded_for_ever_and_the_past_stays_in_coarser_steps() {
        let mut series = Series::default();
        let days = 7.0;
        let seconds = (days * 86_400.0) as u64;
        for second in (0..seconds).step_by(2) {
            series.push(second as f64, second as f64);
        }
        for ((_, capacity), ring) in RESOLUTIONS.into_iter().zip(&series.rings) {
            assert!(ring.len() <= capacity && ring.len() >= capacity / 2, "{} of {capacity}", ring.len());
        }
        let now = seconds as f64;
        let (minute, hour, week) = (now - 60.0, now - 3600.0, 0.0);
        assert_eq!(series.between(minute, now, 1000).len(), 30, "every other second");
        assert_eq!(series.between(hour, now, 1000).len(), 361, "and one before");
        let oldest = series.between(week, now, 2000)[0].time;
        assert!((oldest - (now - 5.0 * 86_400.0 - 18_000.0)).abs() < 600.0, "five days and five hours: {oldest}");
    }

    #[test]
    fn a_gap_stays_a_gap_and_old_buckets_go_by_time() {
        let mut series = Series::default();
        series.push(0.0, 1.0);
        series.push(10_000.0, 2.0);
        assert_eq!(series.between(9_900.0, 10_000.0, 1000).len(), 1);
        assert_eq!(series.between(0.0, 10_000.0, 1000).len(), 2, "ten seconds no more, five minutes still");
    }

    #[test]
    fn a_series_is_the_same_after_it_was_sent() {
        let mut series = Series::default();
        (0..50).for_each(|step| series.push(f64::from(step) * 3.7, 1.0 / f64::from(step + 1)));
        let sent = serde_json::to_string(&series).expect("numbers");
        assert_eq!(serde_json::from_str::<Series>(&sent).expect("the same"), series);
    }
}

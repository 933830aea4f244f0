//! Did joining help a node? An estimate from its own losses on held-out data, where it trained alone for a while first.
//!
//! Nobody knows how it would have gone on alone. What is done here: a line through the losses of the second half of its time
//! alone, over the logarithm of its steps, is drawn on to at most three times as many steps. Losses usually fall more and more
//! slowly over that axis, so the line rather flatters training alone. What is measured is `murmur local --against alone`.

use super::{Evaluation, NodeHistory};

/// Evaluations before the first exchange through which a line is drawn, at least; and after it, at least.
const ALONE_MIN: usize = 4;
const TOGETHER_MIN: usize = 2;

/// The line goes over so much of the steps at least, as a ratio, and is drawn on so far at most.
const SPAN_MIN: f64 = 1.5;
const REACH: f64 = 3.0;

/// What can be said of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Estimate {
    /// Its first model was that of others.
    Copied,
    /// It had no exchange.
    NeverTogether,
    /// It trained alone for too short a time, or was evaluated too seldom, before its first exchange.
    HardlyAlone,
    /// Too little is known of the time afterwards.
    HardlyTogether,
    /// At so many own steps: the loss that the line says, twice its standard error, and the loss that was measured.
    Known { steps: u64, alone: f64, error: f64, measured: f64 },
}

impl Estimate {
    /// Of a node.
    pub(crate) fn of(node: &NodeHistory) -> Estimate {
        let Some(first) = node.first_exchange else { return Estimate::NeverTogether };
        if node.has_copied || (node.run.resumed_from.is_some() && node.run.first_step == 0) {
            return Estimate::Copied;
        }
        let all: Vec<Evaluation> = node.evaluations.iter().copied().filter(|found| found.place.steps > 0).collect();
        let (alone, together): (Vec<Evaluation>, Vec<Evaluation>) =
            all.into_iter().partition(|found| found.place.time <= first.time);
        let half = &alone[alone.len() / 2..];
        let (Some(begin), Some(end)) = (half.first(), half.last()) else { return Estimate::HardlyAlone };
        let (begin, end) = (begin.place.steps as f64, end.place.steps as f64);
        if half.len() < ALONE_MIN || end < SPAN_MIN * begin {
            return Estimate::HardlyAlone;
        }
        let within = |found: &&Evaluation| found.place.steps as f64 <= REACH * end && found.place.steps as f64 > end;
        let reached: Vec<&Evaluation> = together.iter().filter(within).collect();
        let Some(last) = reached.last().filter(|_| reached.len() >= TOGETHER_MIN) else {
            return Estimate::HardlyTogether;
        };
        let line: Vec<(f64, f64)> = half.iter().map(|found| ((found.place.steps as f64).ln(), found.loss)).collect();
        let (alone, error) = drawn_on(&line, (last.place.steps as f64).ln());
        Estimate::Known { steps: last.place.steps, alone, error: 2.0 * error, measured: last.loss }
    }
}

/// The value at `x` of the line of least squares through at least three points, and the standard error of a new value there
/// (Draper and Smith, Applied Regression Analysis, chapter 3).
fn drawn_on(points: &[(f64, f64)], x: f64) -> (f64, f64) {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - mean_x).powi(2)).sum();
    let slope = points.iter().map(|point| (point.0 - mean_x) * (point.1 - mean_y)).sum::<f64>() / spread;
    let at = |x: f64| mean_y + slope * (x - mean_x);
    let squares: f64 = points.iter().map(|point| (point.1 - at(point.0)).powi(2)).sum();
    let variance = squares / (count - 2.0);
    (at(x), (variance * (1.0 + 1.0 / count + (x - mean_x).powi(2) / spread)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Place;

    /// A node that trains alone for so many evaluations of a hundred steps, then with others, by this loss.
    fn node(alone: u64, together: u64, loss: impl Fn(u64, bool) -> f64) -> NodeHistory {
        let mut node = NodeHistory::default();
        let place = |turn: u64| Place { time: turn as f64, steps: 100 * turn, ..Place::default() };
        for turn in 1..=alone + together {
            node.evaluations.push(Evaluation { place: place(turn), loss: loss(100 * turn, turn > alone), score: None });
        }
        node.first_exchange = Some(place(alone));
        node
    }

    fn curve(steps: u64) -> f64 {
        6.0 - 0.5 * (steps as f64).ln()
    }

    #[test]
    fn a_node_that_gains_by_joining_is_told_how_much_and_one_that_does_not_is_not() {
        let gained = |steps: u64, together: bool| curve(steps) - if together { 0.3 } else { 0.0 };
        let Estimate::Known { steps, alone, error, measured } = Estimate::of(&node(10, 10, gained)) else {
            panic!("it was alone for long enough")
        };
        assert_eq!(steps, 2000);
        assert!((alone - measured - 0.3).abs() < 1e-9 && error < 1e-6, "{alone} {error} {measured}");
        // Noise of the size of what was gained.
        let noisy = |steps: u64, _: bool| curve(steps) + if steps.is_multiple_of(200) { 0.2 } else { -0.2 };
        let Estimate::Known { alone, error, measured, .. } = Estimate::of(&node(10, 10, noisy)) else {
            panic!("as above")
        };
        assert!((alone - measured).abs() < error, "{alone} {error} {measured}");
    }

    #[test]
    fn where_nothing_can_be_said_it_is_said_why() {
        let of = |steps: u64, _: bool| curve(steps);
        assert_eq!(Estimate::of(&NodeHistory::default()), Estimate::NeverTogether);
        let mut copied = node(10, 10, of);
        copied.has_copied = true;
        assert_eq!(Estimate::of(&copied), Estimate::Copied);
        assert_eq!(Estimate::of(&node(3, 10, of)), Estimate::HardlyAlone);
        assert_eq!(Estimate::of(&node(10, 1, of)), Estimate::HardlyTogether);
        // Alone for long, but each evaluation at nearly the same step.
        let mut crowded = node(10, 10, of);
        crowded.evaluations = Default::default();
        for turn in 0..20 {
            let place = Place { time: f64::from(turn), steps: 1000 + turn as u64, ..Place::default() };
            crowded.evaluations.push(Evaluation { place, loss: 1.0, score: None });
        }
        assert_eq!(Estimate::of(&crowded), Estimate::HardlyAlone);
    }
}

//! A point of a plot as a row of numbers, so that a file of a thousand seeds stays small.

use serde::{Deserialize, Deserializer};

use super::Point;

/// What the numbers of a row are.
pub const COLUMNS: [&str; 13] = [
    "seconds",
    "nodes",
    "loss",
    "worst_loss",
    "disagreement",
    "worst_disagreement",
    "steps",
    "exchanges_completed",
    "failed_sides",
    "control_messages",
    "control_bytes",
    "payload_bytes",
    "running",
];

/// JSON has no numbers that are not finite: such a one is absent.
pub(super) type Row = [Option<f64>; 13];

impl From<Point> for Row {
    fn from(point: Point) -> Row {
        let counts = [
            point.steps,
            point.exchanges_completed,
            point.failed_sides,
            point.control_messages,
            point.control_bytes,
            point.payload_bytes,
        ]
        .map(|count| Some(count as f64));
        let [steps, completed, failed, messages, bytes, payload] = counts;
        let [loss, worst_loss, disagreement, worst_disagreement] =
            [point.loss, point.worst_loss, point.disagreement, point.worst_disagreement].map(rounded);
        let (seconds, nodes) = (rounded(point.seconds), Some(point.nodes as f64));
        [
            seconds,
            nodes,
            loss,
            worst_loss,
            disagreement,
            worst_disagreement,
            steps,
            completed,
            failed,
            messages,
            bytes,
            payload,
            Some(point.running as f64),
        ]
    }
}

impl From<Row> for Point {
    fn from(row: Row) -> Point {
        let number = |index: usize| row[index].unwrap_or(f64::NAN);
        // Saturates, and takes what is absent for none.
        let count = |index: usize| number(index) as u64;
        Point {
            seconds: number(0),
            nodes: number(1) as usize,
            loss: number(2),
            worst_loss: number(3),
            disagreement: number(4),
            worst_disagreement: number(5),
            steps: count(6),
            exchanges_completed: count(7),
            failed_sides: count(8),
            control_messages: count(9),
            control_bytes: count(10),
            payload_bytes: count(11),
            running: count(12) as usize,
        }
    }
}

/// Six digits: more than a plot shows.
fn rounded(value: f64) -> Option<f64> {
    if value.is_finite() { format!("{value:.5e}").parse().ok() } else { None }
}

/// A number that JSON could not hold is read as what it was: not one.
pub(super) fn number_or_nothing<'json, D: Deserializer<'json>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_as_its_point() {
        let point =
            Point { seconds: 12.5, nodes: 8, running: 9, loss: 0.25, payload_bytes: 123_456_789, ..Point::default() };
        assert_eq!(Point::from(Row::from(point.clone())), point);
        let diverged = Point { loss: f64::INFINITY, ..point };
        assert!(Point::from(Row::from(diverged)).loss.is_nan());
    }
}

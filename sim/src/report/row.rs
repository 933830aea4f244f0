//! A point of a plot as a row of numbers, so that a file of a thousand seeds stays small.

use serde::{Deserialize, Deserializer};

use super::Point;

/// JSON has no numbers that are not finite: such a one is absent.
pub(super) type Row = [Option<f64>; 13];

/// Lists the fields of a point in the order of a row.
macro_rules! columns {
    ($($field:ident),+) => {
        /// What the numbers of a row are.
        pub const COLUMNS: [&str; 13] = [$(stringify!($field)),+];

        impl From<Point> for Row {
            fn from(point: Point) -> Row {
                [$(point.$field.to_cell()),+]
            }
        }

        impl From<Row> for Point {
            fn from([$($field),+]: Row) -> Point {
                Point { $($field: Cell::from_cell($field)),+ }
            }
        }
    };
}
columns! {
    seconds, nodes, loss, worst_loss, disagreement, worst_disagreement, steps, exchanges_completed, failed_sides,
    control_messages, control_bytes, payload_bytes, running
}

/// A number of a row.
trait Cell {
    fn to_cell(self) -> Option<f64>;
    fn from_cell(cell: Option<f64>) -> Self;
}

impl Cell for f64 {
    fn to_cell(self) -> Option<f64> {
        rounded(self)
    }

    fn from_cell(cell: Option<f64>) -> f64 {
        cell.unwrap_or(f64::NAN)
    }
}

impl Cell for u64 {
    fn to_cell(self) -> Option<f64> {
        Some(self as f64)
    }

    /// Saturates, and takes what is absent for none.
    fn from_cell(cell: Option<f64>) -> u64 {
        cell.unwrap_or(0.0) as u64
    }
}

impl Cell for usize {
    fn to_cell(self) -> Option<f64> {
        Some(self as f64)
    }

    fn from_cell(cell: Option<f64>) -> usize {
        u64::from_cell(cell) as usize
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

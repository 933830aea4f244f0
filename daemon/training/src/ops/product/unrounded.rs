//! Where processors have no products of 16-bit values that this project knows how to use: everything is `f32`.

use super::{Matrix, MatrixMut, Write};

/// What factors are rounded to: nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {}

impl Rounding {
    /// The fastest one that this machine has: none.
    pub(crate) fn of_this_machine() -> Option<Rounding> {
        None
    }

    /// Never asked, for there is no rounding.
    pub(crate) fn keeps_small_values(self) -> bool {
        match self {}
    }
}

/// Never called, for there is no rounding.
pub(crate) fn multiply(
    rounding: Rounding,
    _output: MatrixMut<'_>,
    _write: Write,
    _scale: f32,
    _left: Matrix<'_>,
    _right: Matrix<'_>,
) {
    match rounding {}
}

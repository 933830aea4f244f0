//! What own training has done to a model, told apart from what exchanges added.
//!
//! Between two changes from outside the difference of two models is all local, so nothing is counted at a step.

/// The sum of all local movement, coordinate by coordinate.
#[derive(Debug)]
pub(super) struct Movement {
    total: Vec<f64>,
    /// The model after the last change from outside.
    reference: Vec<f32>,
}

impl Movement {
    pub(super) fn new(values: &[f32]) -> Movement {
        Movement { total: vec![0.0; values.len()], reference: values.to_vec() }
    }

    /// Up to the present `values`.
    pub(super) fn total(&self, values: &[f32]) -> Vec<f64> {
        let moved = values.iter().zip(&self.reference).map(|(value, before)| f64::from(*value) - f64::from(*before));
        self.total.iter().zip(moved).map(|(total, moved)| total + moved).collect()
    }

    /// Takes what lies between `before` and `after` for another's doing.
    pub(super) fn leave_out(&mut self, before: &[f32], after: &[f32]) {
        self.total = self.total(before);
        self.reference.copy_from_slice(after);
    }
}

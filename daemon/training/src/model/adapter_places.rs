//! Where adapters lie beside their base.

use std::ops::Range;

use murmur_protocol::layout::TensorSpec;

use crate::ops::product::{Matrix, MatrixMut, Write, multiply};

/// Where one matrix of the base lies, and its adapters in the trained vector.
pub(crate) struct AdapterPlaces {
    /// In the base's layout.
    pub(crate) target: TensorSpec,
    /// Which tensor of the base's layout that is.
    pub(super) index: usize,
    pub(crate) down: TensorSpec,
    pub(crate) up: TensorSpec,
}

impl AdapterPlaces {
    /// Of those of a base, which are sorted by their targets' places, those of the matrices that lie in `range`.
    pub(crate) fn within<'a>(all: &'a [AdapterPlaces], range: &Range<usize>) -> &'a [AdapterPlaces] {
        let before = |end: usize| all.partition_point(|places| places.target.range().start < end);
        &all[before(range.start)..before(range.end)]
    }

    pub(crate) fn rank(&self) -> usize {
        self.down.shape[0]
    }

    /// Of the adapted matrix.
    pub(crate) fn inputs(&self) -> usize {
        self.target.shape[1]
    }

    /// Of the adapted matrix.
    pub(crate) fn outputs(&self) -> usize {
        self.target.shape[0]
    }

    /// The first output of the adapted matrix, of those of the matrix in `range`, of which it is some rows.
    pub(crate) fn first_output(&self, range: &Range<usize>) -> usize {
        (self.target.range().start - range.start) / self.inputs()
    }

    /// Adds `s·B·A` to the target's place among `weights`.
    pub(super) fn fold(&self, scale: f32, adapters: &[f32], weights: &mut [f32]) {
        let down = Matrix::dense(&adapters[self.down.range()], self.rank(), self.inputs());
        let up = Matrix::dense(&adapters[self.up.range()], self.outputs(), self.rank());
        let place = MatrixMut::dense(&mut weights[self.target.range()], self.outputs(), self.inputs());
        multiply(place, Write::Add, scale, up, down);
    }
}

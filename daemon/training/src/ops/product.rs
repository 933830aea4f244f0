//! Matrix products over strided views of plain slices, by the `gemm` crate.
//!
//! The views check their bounds once when they are made, so that the one `unsafe` call lies behind a safe interface.

use gemm::Parallelism;
use rayon::prelude::*;

/// A matrix in a slice: `values[row * row_stride + column * column_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A dense row-major matrix.
    pub(crate) fn dense(values: &'a [f32], rows: usize, columns: usize) -> Matrix<'a> {
        Matrix::strided(values, rows, columns, columns)
    }

    /// A row-major matrix whose rows begin `row_stride` values apart.
    pub(crate) fn strided(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Matrix<'a> {
        assert!(covers(values.len(), rows, columns, row_stride), "a matrix lies inside its slice");
        Matrix { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// `count` rows from `first` on.
    fn rows_from(self, first: usize, count: usize) -> Matrix<'a> {
        assert!(first + count <= self.rows, "rows of the matrix");
        Matrix { values: &self.values[first * self.row_stride..], rows: count, ..self }
    }

    /// The same values with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Matrix<'a> {
        let Matrix { values, rows, columns, row_stride, column_stride } = self;
        Matrix { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }
}

/// The place for a product.
pub(crate) struct MatrixMut<'a> {
    values: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// A dense row-major matrix.
    pub(crate) fn dense(values: &'a mut [f32], rows: usize, columns: usize) -> MatrixMut<'a> {
        MatrixMut::strided(values, rows, columns, columns)
    }

    /// A row-major matrix whose rows begin `row_stride` values apart.
    pub(crate) fn strided(values: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> MatrixMut<'a> {
        assert!(columns <= row_stride, "rows do not overlap");
        assert!(covers(values.len(), rows, columns, row_stride), "a matrix lies inside its slice");
        MatrixMut { values, rows, columns, row_stride }
    }
}

fn covers(length: usize, rows: usize, columns: usize, row_stride: usize) -> bool {
    rows == 0 || columns == 0 || (rows - 1) * row_stride + columns <= length
}

/// What happens to the values already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// They are overwritten.
    Replace,
    /// The product is added to them.
    Add,
}

/// `output = left · right` on rayon's threads, where `output` is dense: each task computes some of its rows.
///
/// How rows are split depends on the shape alone, so bits do not depend on the number of threads by construction; with
/// gemm's own threads that would rest on its internals. Both run at the same speed on one and two threads (measured on
/// a busy machine).
pub(crate) fn multiply_in_parallel(output: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    let task_rows = left.rows.div_ceil(TASKS_MAX).max(TASK_ROWS_MIN);
    output.par_chunks_mut(task_rows * right.columns).enumerate().for_each(|(task, output)| {
        let rows = output.len() / right.columns;
        let left = left.rows_from(task * task_rows, rows);
        let place = MatrixMut::dense(output, rows, right.columns);
        multiply(place, Write::Replace, 1.0, left, right);
    });
}

/// `output = left · right`, or `+=` with [`Write::Add`], where `output` is dense: each task computes `task_rows` rows.
///
/// # Panics
/// When the shapes do not fit.
pub(crate) fn multiply_rows(output: &mut [f32], write: Write, left: Matrix<'_>, right: Matrix<'_>, task_rows: usize) {
    assert_eq!(output.len(), left.rows * right.columns, "the product fits its place");
    output.par_chunks_mut(task_rows * right.columns).enumerate().for_each(|(task, output)| {
        let rows = output.len() / right.columns;
        let left = left.rows_from(task * task_rows, rows);
        multiply(MatrixMut::dense(output, rows, right.columns), write, 1.0, left, right);
    });
}

/// Enough for the cores of one machine: every task packs the right factor anew. A guess.
const TASKS_MAX: usize = 32;

/// With fewer rows, packing the right factor would outweigh the product. A guess.
const TASK_ROWS_MIN: usize = 128;

/// `output = scale · left · right`, or `+=` with [`Write::Add`].
///
/// # Panics
/// When the shapes do not fit.
pub(crate) fn multiply(output: MatrixMut<'_>, write: Write, scale: f32, left: Matrix<'_>, right: Matrix<'_>) {
    assert_eq!((output.rows, output.columns), (left.rows, right.columns), "the product fits its place");
    assert_eq!(left.columns, right.rows, "the factors fit each other");
    let stride = |stride: usize| isize::try_from(stride).expect("a stride is shorter than its slice");
    // SAFETY: both constructors checked that every index of these views lies inside their slices (transposing keeps
    // the set of indices), `output` is borrowed exclusively and its rows do not overlap, and the assertions above make
    // gemm's rows, columns and depth those of the views.
    unsafe {
        gemm::gemm(
            output.rows,
            output.columns,
            left.columns,
            output.values.as_mut_ptr(),
            1,
            stride(output.row_stride),
            write == Write::Add,
            left.values.as_ptr(),
            stride(left.column_stride),
            stride(left.row_stride),
            right.values.as_ptr(),
            stride(right.column_stride),
            stride(right.row_stride),
            1.0,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_multiply_transpose_and_accumulate() {
        let left = [1.0, 2.0, 9.0, 3.0, 4.0, 9.0];
        let right = [5.0, 6.0, 7.0, 8.0];
        let mut output = [1.0; 4];
        let (left, right) = (Matrix::strided(&left, 2, 2, 3), Matrix::dense(&right, 2, 2).transposed());
        multiply(MatrixMut::dense(&mut output, 2, 2), Write::Replace, 1.0, left, right);
        assert_eq!(output, [17.0, 23.0, 39.0, 53.0]);
        multiply(MatrixMut::dense(&mut output, 2, 2), Write::Add, 2.0, left, right);
        assert_eq!(output, [51.0, 69.0, 117.0, 159.0]);
    }

    #[test]
    fn tasks_together_are_the_whole_product() {
        let values: Vec<f32> = (0..300 * 3).map(|index| (index % 17) as f32).collect();
        let (left, right) = (Matrix::dense(&values, 300, 3), Matrix::dense(&values[..15], 3, 5));
        let (mut whole, mut split) = (vec![0.0; 1500], vec![0.0; 1500]);
        multiply(MatrixMut::dense(&mut whole, 300, 5), Write::Replace, 1.0, left, right);
        multiply_in_parallel(&mut split, left, right);
        assert_eq!(whole, split);
        let (left, mut square) = (Matrix::dense(&values, 3, 300).transposed(), vec![0.0; 900]);
        multiply_in_parallel(&mut square, left, Matrix::dense(&values[..9], 3, 3));
        let last: f32 = (0..3).map(|depth| values[depth * 300 + 299] * values[depth * 3 + 2]).sum();
        assert_eq!(square[899], last);
    }

    #[test]
    #[should_panic(expected = "inside its slice")]
    fn a_view_outside_its_slice_is_refused() {
        Matrix::strided(&[0.0; 5], 2, 2, 4);
    }
}

//! Matrix products over strided views of plain slices, by the `gemm` crate, shared out among rayon's threads.
//!
//! The views check their bounds once when they are made, so that the few `unsafe` lines lie behind a safe interface.

use std::marker::PhantomData;

use gemm::Parallelism;
use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
mod rounded;
#[cfg(not(target_arch = "x86_64"))]
#[path = "product/unrounded.rs"]
mod rounded;

pub(crate) use rounded::Rounding;

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
        assert!(covers(values.len(), rows, columns, columns), "a matrix lies inside its slice");
        Matrix { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Number of columns.
    pub(crate) fn width(&self) -> usize {
        self.columns
    }

    /// Number of rows.
    pub(crate) fn height(&self) -> usize {
        self.rows
    }

    /// `count` rows from `first` on.
    pub(crate) fn rows(self, first: usize, count: usize) -> Matrix<'a> {
        assert!(first + count <= self.rows, "rows of the matrix");
        Matrix { values: &self.values[first * self.row_stride..], rows: count, ..self }
    }

    /// `count` columns from `first` on.
    pub(crate) fn columns(self, first: usize, count: usize) -> Matrix<'a> {
        assert!(first + count <= self.columns, "columns of the matrix");
        Matrix { values: &self.values[first * self.column_stride..], columns: count, ..self }
    }

    /// One row of a matrix that is not transposed.
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        assert!(row < self.rows && self.column_stride == 1, "a row of the matrix");
        &self.values[row * self.row_stride..][..self.columns]
    }

    /// The same values with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Matrix<'a> {
        let Matrix { values, rows, columns, row_stride, column_stride } = self;
        Matrix { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }
}

/// A place for values: a row-major matrix that is borrowed exclusively. Parts of one matrix that do not overlap may be
/// written by several threads, which slices cannot say of columns: hence the pointer.
pub(crate) struct MatrixMut<'a> {
    values: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for an exclusive borrow of its values, which are plain numbers.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// A dense row-major matrix.
    pub(crate) fn dense(values: &'a mut [f32], rows: usize, columns: usize) -> MatrixMut<'a> {
        assert!(covers(values.len(), rows, columns, columns), "a matrix lies inside its slice");
        MatrixMut { values: values.as_mut_ptr(), rows, columns, row_stride: columns, slice: PhantomData }
    }

    /// The matrix again, for a shorter time.
    pub(crate) fn again(&mut self) -> MatrixMut<'_> {
        MatrixMut { slice: PhantomData, ..*self }
    }

    /// `count` rows from `first` on.
    pub(crate) fn rows(self, first: usize, count: usize) -> MatrixMut<'a> {
        assert!(first + count <= self.rows, "rows of the matrix");
        MatrixMut { values: self.values.wrapping_add(first * self.row_stride), rows: count, ..self }
    }

    /// The only row.
    pub(crate) fn into_row(self) -> &'a mut [f32] {
        assert_eq!(self.rows, 1, "a matrix of one row");
        // SAFETY: a row lies inside the slice, which is borrowed exclusively for as long, and no other part has it.
        unsafe { std::slice::from_raw_parts_mut(self.values, self.columns) }
    }

    /// `count` columns from `first` on.
    pub(crate) fn columns(self, first: usize, count: usize) -> MatrixMut<'a> {
        assert!(first + count <= self.columns, "columns of the matrix");
        MatrixMut { values: self.values.wrapping_add(first), columns: count, ..self }
    }

    /// The columns in front of `count` and those from there on.
    pub(crate) fn part_columns(self, count: usize) -> (MatrixMut<'a>, MatrixMut<'a>) {
        assert!(count <= self.columns, "columns of the matrix");
        let rest = MatrixMut { values: self.values.wrapping_add(count), columns: self.columns - count, ..self };
        (MatrixMut { columns: count, ..self }, rest)
    }

    /// Disjoint parts of so many rows each, the last one maybe fewer.
    pub(crate) fn split_rows(self, rows: usize) -> impl Iterator<Item = MatrixMut<'a>> {
        let MatrixMut { values, columns, row_stride, slice, .. } = self;
        (0..self.rows).step_by(rows).map(move |first| {
            let (values, rows) = (values.wrapping_add(first * row_stride), rows.min(self.rows - first));
            MatrixMut { values, rows, columns, row_stride, slice }
        })
    }

    /// Disjoint parts of so many columns each, the last one maybe fewer.
    pub(crate) fn split_columns(self, columns: usize) -> impl Iterator<Item = MatrixMut<'a>> {
        let MatrixMut { values, rows, row_stride, slice, .. } = self;
        (0..self.columns).step_by(columns).map(move |first| {
            let (values, columns) = (values.wrapping_add(first), columns.min(self.columns - first));
            MatrixMut { values, rows, columns, row_stride, slice }
        })
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
    /// The new ones are added to them.
    Add,
}

/// Parts with fewer rows or columns would spend their time on packing the other factor; and below 64 gemm sums in
/// another order, so that bits would depend on the number of parts.
const PART_MIN: usize = 128;

/// The last part is what the others leave, and has as many rows or columns at least.
const LAST_PART_MIN: usize = 64;

/// Narrower products are not shared out: gemm has other ways for vectors and for at most 256 values, whose sums differ.
const SIDE_MIN: usize = 4;

/// How products are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Products {
    /// That they are shared out among. Bits do not depend on it.
    pub(crate) threads: usize,
    /// Of the factors; `None` multiplies in `f32`.
    pub(crate) rounding: Option<Rounding>,
}

impl Products {
    /// In `f32`.
    pub(crate) fn exact(threads: usize) -> Products {
        Products { threads, rounding: None }
    }

    /// The same in `f32`.
    pub(crate) fn exactly(self) -> Products {
        Products { rounding: None, ..self }
    }

    /// For a factor in which a few values are far larger than all others: integers with a common scale would round those to
    /// zero.
    pub(crate) fn of_uneven(self) -> Products {
        Products { rounding: self.rounding.filter(|rounding| rounding.keeps_small_values()), ..self }
    }

    /// As [`multiply`], with factors rounded so, on this thread.
    pub(crate) fn multiply(self, output: MatrixMut<'_>, write: Write, scale: f32, left: Matrix<'_>, right: Matrix<'_>) {
        match self.rounding {
            None => multiply(output, write, scale, left, right),
            Some(rounding) => rounded::multiply(rounding, output, write, scale, left, right),
        }
    }
}

/// As [`multiply`], shared out among so many of rayon's threads: each computes some rows (or, where they are few, columns)
/// of the output.
///
/// An element's sum does not depend on how they are shared out, so bits do not depend on the number of threads. A few
/// large parts: a part of 128 rows runs at four fifths of the rate of one of 1,024.
pub(crate) fn multiply_in_parallel(
    products: Products,
    output: MatrixMut<'_>,
    write: Write,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let shared_out = output.rows.min(output.columns) >= SIDE_MIN;
    let threads = if shared_out { products.threads } else { 1 };
    let (rows, columns) = (part_of(output.rows, threads), part_of(output.columns, threads));
    if rows < output.rows || columns == output.columns {
        let parts: Vec<MatrixMut<'_>> = output.split_rows(rows).collect();
        parts.into_par_iter().enumerate().for_each(|(index, output)| {
            let left = left.rows(index * rows, output.rows);
            products.multiply(output, write, scale, left, right);
        });
    } else {
        let parts: Vec<MatrixMut<'_>> = output.split_columns(columns).collect();
        parts.into_par_iter().enumerate().for_each(|(index, output)| {
            let right = right.columns(index * columns, output.columns);
            products.multiply(output, write, scale, left, right);
        });
    }
}

/// Rows or columns of a part where so many are shared out among `threads`.
fn part_of(length: usize, threads: usize) -> usize {
    let mut part = length.div_ceil((length / PART_MIN).clamp(1, threads)).max(1);
    // With many threads parts round up to more than there is by nearly a part.
    while (1..LAST_PART_MIN).contains(&(length % part)) {
        part += 1;
    }
    part
}

/// A symmetric product is computed in so many strips of rows, each up to the diagonal only: 10 of 16 parts.
const STRIPS: usize = 4;

/// Narrower strips would cost more in packing than they save.
const STRIP_MIN: usize = 64;

/// As [`multiply_in_parallel`] where the result is symmetric, and what is added to as well: about two thirds of the work for
/// large ones. Bits do not depend on the number of threads.
pub(crate) fn multiply_symmetric(
    threads: usize,
    output: &mut [f32],
    write: Write,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let (products, side) = (Products::exact(threads), left.rows);
    let strip = side.div_ceil(STRIPS).max(STRIP_MIN);
    for first in (0..side).step_by(strip) {
        let (count, reach) = (strip.min(side - first), side.min(first + strip));
        let place = MatrixMut::dense(output, side, side).rows(first, count).columns(0, reach);
        multiply_in_parallel(products, place, write, scale, left.rows(first, count), right.columns(0, reach));
    }
    for row in 0..side {
        for column in (row / strip + 1) * strip..side {
            output[row * side + column] = output[column * side + row];
        }
    }
}

/// `output = scale · left · right`, or `+=` with [`Write::Add`].
///
/// # Panics
/// When the shapes do not fit.
pub(crate) fn multiply(output: MatrixMut<'_>, write: Write, scale: f32, left: Matrix<'_>, right: Matrix<'_>) {
    assert_eq!((output.rows, output.columns), (left.rows, right.columns), "the product fits its place");
    assert_eq!(left.columns, right.rows, "the factors fit each other");
    let stride = |stride: usize| isize::try_from(stride).expect("a stride is shorter than its slice");
    // SAFETY: the constructors checked that every index of these views lies inside their slices (transposing and taking
    // parts keep to that set of indices), `output` is borrowed exclusively and its rows do not overlap, and the
    // assertions above make gemm's rows, columns and depth those of the views.
    unsafe {
        gemm::gemm(
            output.rows,
            output.columns,
            left.columns,
            output.values,
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
    use crate::ops::gradient_check::random_values;

    #[test]
    fn views_multiply_transpose_and_accumulate() {
        let left = [1.0, 2.0, 9.0, 3.0, 4.0, 9.0];
        let right = [5.0, 6.0, 7.0, 8.0];
        let mut output = [1.0; 6];
        let (left, right) = (Matrix::dense(&left, 2, 3).columns(0, 2), Matrix::dense(&right, 2, 2).transposed());
        let mut place = MatrixMut::dense(&mut output, 2, 3).columns(1, 2);
        multiply(place.again(), Write::Replace, 1.0, left, right);
        multiply(place, Write::Add, 2.0, left, right);
        assert_eq!(output, [1.0, 51.0, 69.0, 1.0, 117.0, 159.0]);
    }

    #[test]
    fn no_part_is_too_small_however_many_threads_there_are() {
        for threads in [1, 2, 64, 100, 128, 384] {
            for length in 1..30_000 {
                let part = part_of(length, threads);
                let (parts, last) = (length.div_ceil(part), (length - 1) % part + 1);
                assert!(parts <= threads && (parts == 1 || last >= LAST_PART_MIN), "{length} {threads}: {part}");
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        for (rows, columns, depth) in
            [(300, 3, 5), (1, 600, 40), (700, 64, 1100), (257, 129, 2), (4, 999, 70), (70, 1000, 600)]
        {
            let (left, right) = (random_values(rows * depth, 1), random_values(depth * columns, 2));
            for (left, right) in [
                (Matrix::dense(&left, rows, depth), Matrix::dense(&right, depth, columns)),
                (Matrix::dense(&left, depth, rows).transposed(), Matrix::dense(&right, columns, depth).transposed()),
            ] {
                let product = |threads: usize| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                    let mut output = vec![0.0; rows * columns];
                    let place = MatrixMut::dense(&mut output, rows, columns);
                    pool.install(|| {
                        multiply_in_parallel(Products::exact(threads), place, Write::Replace, 1.0, left, right)
                    });
                    output
                };
                let whole = product(1);
                for threads in [2, 3, 5] {
                    assert!(product(threads) == whole, "{rows} × {columns} × {depth} on {threads} threads");
                }
            }
        }
    }

    #[test]
    fn symmetric_products_are_those_of_any_matrices() {
        for (side, depth) in [(3, 5), (64, 10), (70, 200), (300, 90), (513, 20)] {
            let (values, before) = (random_values(side * depth, 1), random_values(side * side, 2));
            let left = Matrix::dense(&values, side, depth);
            let mut before = before;
            (0..side * side).for_each(|place| before[place] = before[place.max(place % side * side + place / side)]);
            let (mut output, mut expected) = (before.clone(), before);
            for write in [Write::Add, Write::Replace] {
                multiply_symmetric(2, &mut output, write, 0.5, left, left.transposed());
                multiply(MatrixMut::dense(&mut expected, side, side), write, 0.5, left, left.transposed());
                let pairs = output.iter().zip(&expected);
                let error = pairs.fold(0.0_f32, |error, (left, right)| error.max((left - right).abs()));
                assert!(error < 1e-4, "{side} × {depth}, {write:?}: {error}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "inside its slice")]
    fn a_view_outside_its_slice_is_refused() {
        Matrix::dense(&[0.0; 5], 2, 3);
    }
}

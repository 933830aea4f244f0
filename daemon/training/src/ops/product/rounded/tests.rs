//! Rounded products against sums in `f64`, with the error that rounding may cause and no more.

use super::*;
use crate::ops::gradient_check::random_values;
use crate::ops::product::{Products, multiply_in_parallel};

/// Rows, columns and depth: odd ones, one of all that there is one of, several blocks of each kind.
const SHAPES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [12, 32, 2],
    [13, 33, 31],
    [7, 130, 64],
    [100, 20, 257],
    [97, 65, 511],
    [193, 48, 96],
    [14, 1030, 40],
    [100, 70, 768],
];

/// Values whose lanes differ in size by ten powers of ten.
fn uneven(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let mut values = random_values(rows * columns, seed);
    for (place, value) in values.iter_mut().enumerate() {
        *value *= 10_f32.powi((place / columns % 6) as i32 - (place % columns % 5) as i32 - 3);
    }
    values
}

/// The sum of a row's products with a column in `f64`, and how far from it rounded factors may lead.
fn exact(rounding: Rounding, left: Matrix<'_>, right: Matrix<'_>, row: usize, column: usize) -> (f64, f64) {
    let left_at = |depth: usize| f64::from(left.values[row * left.row_stride + depth * left.column_stride]);
    let right_at = |depth: usize| f64::from(right.values[depth * right.row_stride + column * right.column_stride]);
    let (mut sum, mut error, mut magnitude) = (0.0, 0.0, 0.0);
    let length = block_depth(left.columns);
    for first in (0..left.columns).step_by(length) {
        let depths = first..left.columns.min(first + length);
        let largest = |at: &dyn Fn(usize) -> f64| depths.clone().map(|depth| at(depth).abs()).fold(0.0, f64::max);
        // Half a step of each factor.
        let limit = f64::from(integer_limit(depths.len()));
        let steps = [largest(&left_at), largest(&right_at)].map(|largest| 0.5 * largest / limit);
        for depth in depths {
            let (left, right) = (left_at(depth), right_at(depth));
            let errors = match rounding {
                Rounding::Bf16InTiles | Rounding::Bf16 => [left, right].map(|value| value.abs() / 256.0),
                Rounding::Integers => steps,
            };
            sum += left * right;
            magnitude += (left * right).abs();
            error += errors[0] * right.abs() + errors[1] * left.abs() + errors[0] * errors[1];
        }
    }
    // What is summed in `f32`.
    (sum, 1.001 * error + 1e-5 * magnitude)
}

#[test]
fn products_differ_from_exact_ones_by_rounding_alone() {
    for (rounding, [rows, columns, depth]) in on_all(SHAPES) {
        // Wider than the matrices in use, so that rows do not follow each other.
        let (left, right) = (uneven(rows, depth + 3, 1), uneven(depth, columns + 5, 2));
        let (left_turned, right_turned) = (uneven(depth, rows + 1, 3), uneven(columns, depth + 2, 4));
        let lefts = [
            Matrix::dense(&left, rows, depth + 3).columns(2, depth),
            Matrix::dense(&left_turned, depth, rows + 1).columns(1, rows).transposed(),
        ];
        let rights = [
            Matrix::dense(&right, depth, columns + 5).columns(4, columns),
            Matrix::dense(&right_turned, columns, depth + 2).columns(1, depth).transposed(),
        ];
        for (left, right) in lefts.into_iter().flat_map(|left| rights.map(|right| (left, right))) {
            let mut values = vec![7.0; rows * (columns + 2)];
            let mut place = MatrixMut::dense(&mut values, rows, columns + 2).columns(1, columns);
            multiply(rounding, place.again(), Write::Replace, 0.5, left, right);
            multiply(rounding, place, Write::Add, 2.0, left, right);
            for row in 0..rows {
                let values = &values[row * (columns + 2)..][..columns + 2];
                assert_eq!((values[0], values[columns + 1]), (7.0, 7.0), "nothing is written beside the place");
                for column in 0..columns {
                    let (sum, error) = exact(rounding, left, right, row, column);
                    let difference = (f64::from(values[1 + column]) - 2.5 * sum).abs();
                    assert!(
                        difference <= 2.5 * error,
                        "{rounding:?}, {rows} × {columns} × {depth}, {row} {column}: {difference} of {error}"
                    );
                }
            }
        }
    }
}

fn on_all<T: Clone>(cases: impl IntoIterator<Item = T>) -> Vec<(Rounding, T)> {
    let mut all = vec![Rounding::Bf16InTiles, Rounding::Bf16, Rounding::Integers];
    all.retain(|rounding| rounding.is_here());
    if all.is_empty() {
        println!("skipped: this processor has no products of 16-bit values");
    }
    cases.into_iter().flat_map(|case| all.clone().into_iter().map(move |rounding| (rounding, case.clone()))).collect()
}

#[test]
fn any_number_of_threads_gives_the_same_bits_of_rounded_products() {
    for (rounding, [rows, columns, depth]) in on_all([[300, 3, 5], [1, 600, 40], [700, 64, 1100], [257, 129, 2]]) {
        let (left, right) = (random_values(rows * depth, 1), random_values(depth * columns, 2));
        for (left, right) in [
            (Matrix::dense(&left, rows, depth), Matrix::dense(&right, depth, columns)),
            (Matrix::dense(&left, depth, rows).transposed(), Matrix::dense(&right, columns, depth).transposed()),
        ] {
            let product = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                let mut output = vec![0.0; rows * columns];
                let place = MatrixMut::dense(&mut output, rows, columns);
                let products = Products { threads, rounding: Some(rounding) };
                pool.install(|| multiply_in_parallel(products, place, Write::Replace, 1.0, left, right));
                output
            };
            let whole = product(1);
            for threads in [2, 3, 5] {
                assert!(product(threads) == whole, "{rounding:?}, {rows} × {columns} × {depth} on {threads} threads");
            }
        }
    }
}

/// Else a step with such a gradient would not be left out.
#[test]
fn values_that_are_not_finite_show_in_the_result() {
    for (rounding, bad) in on_all([f32::NAN, f32::INFINITY]) {
        let (rows, columns, depth) = (20, 40, 70);
        let (mut left, right) = (random_values(rows * depth, 1), random_values(depth * columns, 2));
        left[13 * depth + 69] = bad;
        let mut output = vec![0.0; rows * columns];
        let factors = (Matrix::dense(&left, rows, depth), Matrix::dense(&right, depth, columns));
        multiply(rounding, MatrixMut::dense(&mut output, rows, columns), Write::Replace, 1.0, factors.0, factors.1);
        for (row, values) in output.chunks(columns).enumerate() {
            assert!(values.iter().all(|value| value.is_finite() != (row == 13)), "{rounding:?}, {bad}, row {row}");
        }
    }
}

/// By the rule that no sum of a block may leave 32 bits.
#[test]
fn the_largest_integers_do_not_overflow() {
    for (rounding, depth) in on_all([1, 128, 255, 256, 512]) {
        let (left, right) = (vec![3.0; 12 * depth], vec![-5.0; depth * 32]);
        let mut output = vec![0.0; 12 * 32];
        let factors = (Matrix::dense(&left, 12, depth), Matrix::dense(&right, depth, 32));
        multiply(rounding, MatrixMut::dense(&mut output, 12, 32), Write::Replace, 1.0, factors.0, factors.1);
        let expected = -15.0 * depth as f32;
        assert!(output.iter().all(|value| (value / expected - 1.0).abs() < 1e-5), "{rounding:?}, {depth}: {output:?}");
    }
}

//! Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): a matrix moves along its momentum with all singular values
//! made alike.
//!
//! With the clipped gradient `G` of a matrix `[outputs, inputs]`: `M ← μM + (1−μ)G`, `U = μM + (1−μ)G` (Nesterov's), `θ ←
//! keep·θ − rate·√max(1, outputs / inputs)·O(U)`. `O` scales `U` to the Frobenius norm 1 and then brings its singular values
//! near 1 by some odd polynomials `X ← aX + b(XXᵀ)X + c(XXᵀ)²X`, which need nothing but matrix products (Newton-Schulz).

use rayon::prelude::*;

use super::codes::{CodedMut, Dither};
use super::{StepFactors, coded};
use crate::ops::product::{Matrix, MatrixMut, Products, Write, multiply_in_parallel, multiply_symmetric};
use crate::ops::vector::vectorised;

/// `(a, b, c)` of each polynomial, in order. Muon's own: singular values from 0.002 on come between 0.68 and 1.13.
pub(crate) const POLYNOMIALS: [[f32; 3]; 5] = [[3.4445, -4.7750, 2.0315]; 5];

/// Added to the Frobenius norm that the matrix is divided by: a gradient of nothing moves nothing.
pub(crate) const NORM_MIN: f32 = 1e-7;

/// By what the rate of a matrix `[outputs, inputs]` is multiplied.
pub(crate) fn rate_scale([outputs, inputs]: [usize; 2]) -> f64 {
    (outputs as f64 / inputs as f64).max(1.0).sqrt()
}

/// Values that a step of a matrix holds beside its state: the update twice, and two squares of its narrower side.
pub(super) fn scratch_values([outputs, inputs]: [usize; 2]) -> usize {
    2 * outputs * inputs + 2 * outputs.min(inputs).pow(2)
}

/// The slices of one matrix, row-major: parameters, gradient and momentum.
pub(super) struct Slices<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) momentum: Momentum<'a>,
    /// `[outputs, inputs]`.
    pub(super) shape: [usize; 2],
}

/// How a matrix' momentum is kept.
pub(super) enum Momentum<'a> {
    /// In 32 bits.
    Exact(&'a mut [f32]),
    /// In 8, and from what its rounding is drawn.
    Coded(CodedMut<'a>, Dither),
}

/// A step of several matrices, side by side on rayon's threads.
pub(super) fn step(momentum: f64, factors: &StepFactors, matrices: Vec<Slices<'_>>) {
    // Threads without a matrix of their own help with the products; bits do not depend on it.
    let threads = rayon::current_num_threads().div_ceil(matrices.len().max(1));
    matrices.into_par_iter().with_max_len(1).for_each(|matrix| {
        let Slices { values, gradient, momentum: mean, shape } = matrix;
        let mut update = vec![0.0; values.len()];
        let (momentum, clip) = (momentum as f32, factors.clip as f32);
        match mean {
            Momentum::Exact(mean) => look_ahead(momentum, clip, gradient, mean, &mut update),
            Momentum::Coded(mean, dither) => coded::look_ahead(momentum, clip, dither, gradient, mean, &mut update),
        }
        orthogonalise(&mut update, shape, threads);
        let rate = factors.muon_rate * rate_scale(shape);
        advance(values, &update, factors.muon_keep as f32, rate as f32);
    });
}

/// Brings the singular values of a row-major matrix near 1. One of zeros stays so.
pub(crate) fn orthogonalise(matrix: &mut Vec<f32>, [rows, columns]: [usize; 2], threads: usize) {
    let norm = super::sum_of_squares(matrix).sqrt() as f32;
    scale(matrix, 1.0 / (norm + NORM_MIN));
    let side = rows.min(columns);
    let (mut gram, mut factor, mut next) = (vec![0.0; side * side], vec![0.0; side * side], vec![0.0; matrix.len()]);
    for [a, b, c] in POLYNOMIALS {
        let wide = rows <= columns;
        let now = Matrix::dense(matrix, rows, columns);
        let (left, right) = if wide { (now, now.transposed()) } else { (now.transposed(), now) };
        multiply_symmetric(threads, &mut gram, Write::Replace, 1.0, left, right);
        // a + b·gram + c·gram², by which the matrix is multiplied on its narrower side.
        factor.copy_from_slice(&gram);
        scale(&mut factor, b);
        factor.iter_mut().step_by(side + 1).for_each(|value| *value += a);
        let square = Matrix::dense(&gram, side, side);
        multiply_symmetric(threads, &mut factor, Write::Add, c, square, square);
        let factor = Matrix::dense(&factor, side, side);
        let (left, right) = if wide { (factor, now) } else { (now, factor) };
        multiply_in_parallel(
            Products::exact(threads),
            MatrixMut::dense(&mut next, rows, columns),
            Write::Replace,
            1.0,
            left,
            right,
        );
        std::mem::swap(matrix, &mut next);
    }
}

vectorised! {
    fn scale(values: &mut [f32], factor: f32) {
        values.iter_mut().for_each(|value| *value *= factor);
    }
}

vectorised! {
    /// `M ← μM + (1−μ)g`, `update = μM + (1−μ)g`, with g clipped.
    fn look_ahead(momentum: f32, clip: f32, gradient: &[f32], mean: &mut [f32], update: &mut [f32]) {
        let new = (1.0 - momentum) * clip;
        for ((gradient, mean), update) in gradient.iter().zip(mean).zip(update) {
            let gradient = new * gradient;
            *mean = momentum * *mean + gradient;
            *update = momentum * *mean + gradient;
        }
    }
}

vectorised! {
    /// `θ ← keep·θ − rate·update`.
    fn advance(values: &mut [f32], update: &[f32], keep: f32, rate: f32) {
        for (value, update) in values.iter_mut().zip(update) {
            *value = *value * keep - rate * update;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::random_values;

    /// A matrix with these on its diagonal has them as its singular values, and so has what becomes of it.
    #[test]
    fn singular_values_follow_the_polynomials_whatever_the_shape() {
        let given = [3.0, 1.0, 0.3, 0.02];
        let norm = given.iter().map(|value| value * value).sum::<f64>().sqrt();
        let expected = given.map(|value| {
            POLYNOMIALS.iter().fold(value / norm, |value, [a, b, c]| {
                let [a, b, c] = [a, b, c].map(|factor| f64::from(*factor));
                a * value + b * value.powi(3) + c * value.powi(5)
            })
        });
        assert!(expected.iter().all(|value| (0.68..1.14).contains(value)), "{expected:?}");
        for shape in [[4, 4], [4, 6], [7, 4]] {
            let mut matrix = vec![0.0; shape[0] * shape[1]];
            given.iter().enumerate().for_each(|(place, value)| matrix[place * (shape[1] + 1)] = *value as f32);
            orthogonalise(&mut matrix, shape, 1);
            for (place, value) in matrix.iter().enumerate() {
                let (row, column) = (place / shape[1], place % shape[1]);
                let expected = if row == column { expected[row] } else { 0.0 };
                assert!((f64::from(*value) - expected).abs() < 1e-5, "{shape:?}, {row}, {column}: {value} {expected}");
            }
        }
    }

    #[test]
    fn a_gradient_of_nothing_moves_nothing() {
        let mut zeros = vec![0.0; 12];
        orthogonalise(&mut zeros, [3, 4], 1);
        assert_eq!(zeros, [0.0; 12]);
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        for shape in [[300, 170], [64, 400], [5, 3]] {
            let matrix = random_values(shape[0] * shape[1], 1);
            let made = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                let mut matrix = matrix.clone();
                pool.install(|| orthogonalise(&mut matrix, shape, threads));
                matrix
            };
            let expected = made(1);
            assert!([2, 3, 5].into_iter().all(|threads| made(threads) == expected), "{shape:?}");
        }
    }
}

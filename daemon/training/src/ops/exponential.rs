//! `exp` and dot products that the compiler turns into vector instructions, with the same bits on every machine.
//!
//! The libraries' `expf` is called value by value and differs between platforms. This one is the classic reduction to
//! `2^n · e^r` with the minimax polynomial of the Cephes library's `expf` (Moshier), within 2 units in the last place.

/// Lanes of a sum: the order of summation does not depend on the machine's vector width.
pub(super) const LANES: usize = 16;

/// `e^x` for finite `x`, clamped to `[-87, 88]`, where the result is a normal number. NaN stays NaN.
#[inline(always)]
pub(crate) fn exponential(x: f32) -> f32 {
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer, which then sits in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    // ln 2 in two parts, so that x − n · ln 2 is exact enough: 0.693359375 has trailing zeros.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let whole = shifted - ROUNDER;
    let rest = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    let mut polynomial = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        polynomial = polynomial * rest + coefficient;
    }
    let fraction = polynomial * rest * rest + rest + 1.0;
    f32::from_bits(fraction.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// `Σ left · right` in sixteen interleaved lanes.
#[inline(always)]
pub(crate) fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (left_chunks, right_chunks) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let tail: f32 = left_chunks.remainder().iter().zip(right_chunks.remainder()).map(|(l, r)| l * r).sum();
    for (left, right) in left_chunks.zip(right_chunks) {
        for lane in 0..LANES {
            lanes[lane] += left[lane] * right[lane];
        }
    }
    lanes.iter().sum::<f32>() + tail
}

/// Replaces logits by `exp(logit − max)` and returns (their sum, the maximum). NaN anywhere makes the sum NaN.
#[inline(always)]
pub(crate) fn exponentials_in_place(logits: &mut [f32]) -> (f32, f32) {
    let maximum = maximum(logits);
    let mut lanes = [0.0_f32; LANES];
    let mut chunks = logits.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            chunk[lane] = exponential(chunk[lane] - maximum);
            lanes[lane] += chunk[lane];
        }
    }
    let mut tail = 0.0;
    for value in chunks.into_remainder() {
        *value = exponential(*value - maximum);
        tail += *value;
    }
    (lanes.iter().sum::<f32>() + tail, maximum)
}

/// `(Σ exp(logit − max), max)`.
#[inline(always)]
pub(crate) fn exponential_sum(logits: &[f32]) -> (f32, f32) {
    let maximum = maximum(logits);
    let mut lanes = [0.0_f32; LANES];
    let chunks = logits.chunks_exact(LANES);
    let tail: f32 = chunks.remainder().iter().map(|value| exponential(value - maximum)).sum();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += exponential(chunk[lane] - maximum);
        }
    }
    (lanes.iter().sum::<f32>() + tail, maximum)
}

#[inline(always)]
fn maximum(values: &[f32]) -> f32 {
    let larger = |left: f32, right: f32| if left > right { left } else { right };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let tail = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, larger);
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunk[lane]);
        }
    }
    lanes.into_iter().fold(tail, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_two_units_in_the_last_place() {
        for step in -8700..=8800 {
            let x = step as f32 / 100.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exponential(x)) - exact).abs() / exact;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {error:e}");
        }
        assert!(exponential(f32::NAN).is_nan());
    }

    #[test]
    fn sums_cover_lanes_and_tail() {
        let values: Vec<f32> = (0..37).map(|index| index as f32 * 0.1).collect();
        let exact: f64 = values.iter().map(|value| f64::from(value - 3.6).exp()).sum();
        assert!((f64::from(exponential_sum(&values).0) - exact).abs() < 1e-5);
        let mut replaced = values.clone();
        let (sum, maximum) = exponentials_in_place(&mut replaced);
        assert!((f64::from(sum) - exact).abs() < 1e-5 && maximum == values[36] && replaced[36] == 1.0);
        assert_eq!(dot(&[1.0; 37], &[2.0; 37]), 74.0);
    }
}

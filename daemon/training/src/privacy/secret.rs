//! Secret randomness: which records a step takes, and its noise.
//!
//! Both must be unknown to peers, so neither comes from the run's seed, as all else does. A key is drawn from the operating system
//! when a process begins, and lives in its memory alone: there is no file that somebody could read to take the noise away again,
//! and a data directory that is copied, or restored from a backup, never meets the same noise twice. Each step has streams of its
//! own (ChaCha20), named by purpose and number.

use murmur_protocol::random::{Generator, Rng, RngExt, SeedableRng};
use rand::rngs::ChaCha20Rng;
use rayon::prelude::*;

use crate::optimizer::TASK_VALUES;

/// 32 bytes that nobody else knows. It cannot be shown, copied or written.
pub struct SecretKey([u8; 32]);

impl SecretKey {
    /// Of bytes from the operating system's source of randomness, used for nothing else.
    pub fn new(bytes: [u8; 32]) -> SecretKey {
        SecretKey(bytes)
    }

    fn seed(&self, purpose: &str, step: u64, part: u64) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // Numbers have a fixed length and come first, so no two names are the same bytes.
        hasher.update(&step.to_le_bytes()).update(&part.to_le_bytes()).update(purpose.as_bytes());
        *hasher.finalize().as_bytes()
    }

    fn stream(&self, purpose: &str, step: u64, part: u64) -> ChaCha20Rng {
        ChaCha20Rng::from_seed(self.seed(purpose, step, part))
    }

    /// The records of a step, in order: each of `records` by itself with this probability.
    pub(super) fn sample(&self, step: u64, records: u64, probability: f64) -> Vec<u64> {
        let mut stream = self.stream("records", step, 0);
        (0..records).filter(|_| uniform(&mut stream) < probability).collect()
    }

    /// For what changes about one record that is taken.
    pub(super) fn augmentation(&self, step: u64, number: u64) -> Generator {
        Generator::from_seed(self.seed("augmentation", step, number))
    }

    /// Adds Gaussian noise of this standard deviation to each value, then scales it.
    pub(crate) fn noise(&self, step: u64, deviation: f64, scale: f64, values: &mut [f32]) {
        values.par_chunks_mut(TASK_VALUES).enumerate().for_each(|(part, values)| {
            let mut stream = self.stream("noise", step, part as u64);
            for pair in values.chunks_mut(2) {
                let noise = normals(&mut stream);
                for (value, noise) in pair.iter_mut().zip(noise) {
                    *value = (scale * (f64::from(*value) + deviation * noise)) as f32;
                }
            }
        });
    }
}

/// From 0 to below 1, in steps of 2⁻⁵³.
pub(super) fn uniform(stream: &mut impl Rng) -> f64 {
    (stream.random::<u64>() >> 11) as f64 / (1u64 << 53) as f64
}

/// Two independent draws of mean 0 and variance 1 (Box and Muller 1958).
fn normals(stream: &mut impl Rng) -> [f64; 2] {
    let radius = (-2.0 * (1.0 - uniform(stream)).ln()).sqrt();
    let (sine, cosine) = (std::f64::consts::TAU * uniform(stream)).sin_cos();
    [radius * cosine, radius * sine]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The square of `Σ (z² − 1) / √2n`, which is near normal: beyond 4 deviations once in 16,000 keys, and this key is fixed.
    #[test]
    fn noise_has_its_variance_by_a_chi_square_test_and_no_mean() {
        let key = SecretKey::new([7; 32]);
        let (count, deviation, scale) = (200_001, 3.0, 0.25);
        let mut values = vec![0.0; count];
        key.noise(5, deviation, scale, &mut values);
        let units = || values.iter().map(|value| f64::from(*value) / (deviation * scale));
        let chi_square: f64 = units().map(|unit| unit * unit).sum();
        let distance = (chi_square - count as f64) / (2.0 * count as f64).sqrt();
        let mean = units().sum::<f64>() / (count as f64).sqrt();
        assert!(distance.abs() < 4.0 && mean.abs() < 4.0, "{distance} {mean}");
        // Neighbours, and values of the same place in two parts, are unrelated.
        for apart in [1, TASK_VALUES] {
            let products = units().zip(units().skip(apart)).map(|(one, other)| one * other);
            let related = products.sum::<f64>() / ((count - apart) as f64).sqrt();
            assert!(related.abs() < 4.0, "{apart}: {related}");
        }
        let beyond = units().filter(|unit| unit.abs() > 3.0).count() as f64 / count as f64;
        assert!((beyond / 0.0027 - 1.0).abs() < 0.2, "{beyond} beyond three deviations");
    }

    #[test]
    fn noise_differs_by_step_and_key() {
        let of = |key: u8, step: u64| {
            let mut values = vec![0.0; 100];
            SecretKey::new([key; 32]).noise(step, 1.0, 1.0, &mut values);
            values
        };
        assert_eq!(of(1, 1), of(1, 1));
        let others = [of(1, 2), of(2, 1)];
        assert!(others.iter().all(|other| other.iter().zip(&of(1, 1)).all(|(one, other)| one != other)));
    }

    #[test]
    fn each_record_is_taken_at_its_rate_by_itself() {
        let key = SecretKey::new([3; 32]);
        let (records, probability, steps) = (50, 0.1, 4000);
        let mut taken = vec![0_u32; records];
        let (mut sum, mut squares) = (0.0, 0.0);
        for step in 0..steps {
            let sample = key.sample(step, records as u64, probability);
            sample.iter().for_each(|number| taken[*number as usize] += 1);
            sum += sample.len() as f64;
            squares += (sample.len() * sample.len()) as f64;
        }
        let expected = steps as f64 * probability;
        let deviation = (expected * (1.0 - probability)).sqrt();
        assert!(taken.iter().all(|taken| (f64::from(*taken) - expected).abs() < 4.5 * deviation), "{taken:?}");
        // The size of a batch is binomial: shuffled batches of a fixed size have no variance at all.
        let mean = sum / steps as f64;
        let variance = squares / steps as f64 - mean * mean;
        assert!((mean / 5.0 - 1.0).abs() < 0.03 && (variance / 4.5 - 1.0).abs() < 0.1, "{mean} {variance}");
        assert_eq!(key.sample(1, 9, 1.0), (0..9).collect::<Vec<_>>());
    }
}

//! An order of the numbers below a count that is looked up number by number: as random as a shuffle, without its memory.

use murmur_protocol::random::spread;

/// 64 bits from a key and a number: the SplitMix64 generator that began with the key, after so many draws.
pub(super) fn mixed(key: u64, number: u64) -> u64 {
    spread(key.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Rounds of the network: four suffice for random round functions (Luby and Rackoff 1988); more are for small halves.
const ROUNDS: u64 = 6;

/// Bits of a half, at least: with one or two there are too few round functions to draw from.
const HALF_BITS_MIN: u32 = 4;

/// A permutation of the numbers below `count`, drawn by a key: a Feistel network over an even number of bits that holds them
/// all, walked on from numbers that are too large (Black and Rogaway, CT-RSA 2002).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permutation {
    key: u64,
    count: u64,
    half_bits: u32,
}

impl Permutation {
    /// Of the numbers below `count`.
    pub(super) fn new(key: u64, count: u64) -> Permutation {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Permutation { key, count, half_bits: bits.div_ceil(2).max(HALF_BITS_MIN) }
    }

    /// Which number comes at `place`; `None` at the end.
    pub(super) fn at(&self, place: u64) -> Option<u64> {
        let mut number = Some(place).filter(|place| *place < self.count)?;
        // More than a quarter of the network's numbers is below the count, but for few numbers, so this ends soon; and it ends,
        // because the cycle leads back to `place`.
        loop {
            number = self.network(number);
            if number < self.count {
                return Some(number);
            }
        }
    }

    fn network(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut high, mut low) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            // A number of its own for each round and half: halves have at most 32 bits.
            (high, low) = (low, high ^ mixed(self.key, round << 32 | low) & mask);
        }
        high << self.half_bits | low
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_number_comes_once_for_any_count_and_key() {
        for count in (0..70).chain([255, 256, 257, 1000, 4096, 5000]) {
            let permutation = Permutation::new(7 + count, count);
            let mut numbers: Vec<u64> = (0..count).map_while(|place| permutation.at(place)).collect();
            let order = numbers.clone();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "{count}");
            assert_eq!((permutation.at(count), permutation.at(u64::MAX)), (None, None));
            assert!(count < 20 || order != numbers, "{count}");
            let other = Permutation::new(8 + count, count);
            assert!(count < 20 || (0..count).any(|place| other.at(place) != permutation.at(place)), "{count}");
        }
        let largest = Permutation::new(1, u64::MAX);
        assert!(largest.at(u64::MAX - 1).is_some());
    }

    /// All orders of four numbers come about equally often: the chi-square of 23 degrees of freedom is below 50 in all but one
    /// case of a thousand.
    #[test]
    fn orders_are_drawn_alike() {
        let draws = 24_000;
        let mut orders: BTreeMap<Vec<u64>, f64> = BTreeMap::new();
        for key in 0..draws {
            let permutation = Permutation::new(mixed(1, key), 4);
            *orders.entry((0..4).filter_map(|place| permutation.at(place)).collect()).or_default() += 1.0;
        }
        let expected = draws as f64 / 24.0;
        let chi_square: f64 = orders.values().map(|count| (count - expected).powi(2) / expected).sum();
        assert!(orders.len() == 24 && chi_square < 50.0, "{} {chi_square}", orders.len());
    }
}

//! Work on the machine's memory that several threads share: one alone is slower than a GPU's bus. They are not rayon's, which may all
//! be waiting for the transfer that the work is a part of.

use std::num::NonZero;
use std::thread::available_parallelism;

/// Values of a thread, at least: it begins in much less time than it takes for these (a guess).
const PART: usize = 1 << 20;

/// Threads at once, at most: fewer than these saturate the memory of most machines (a guess).
const THREADS: usize = 8;

/// Has `fill` write all of `to`. It gets a part, and the place of its first value.
pub(super) fn in_parts<T: Send>(to: &mut [T], fill: impl Fn(usize, &mut [T]) + Sync) {
    in_parts_of(PART, to, fill);
}

fn in_parts_of<T: Send>(least: usize, to: &mut [T], fill: impl Fn(usize, &mut [T]) + Sync) {
    let most = available_parallelism().map_or(1, NonZero::get).clamp(2, THREADS);
    let length = to.len().div_ceil((to.len() / least).clamp(1, most)).max(1);
    let (own, others) = to.split_at_mut(length.min(to.len()));
    std::thread::scope(|scope| {
        for (number, part) in others.chunks_mut(length).enumerate() {
            let fill = &fill;
            scope.spawn(move || fill((number + 1) * length, part));
        }
        fill(0, own);
    });
}

/// As `copy_from_slice`.
pub(super) fn copy(from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "a copy has the length of what is copied");
    in_parts(to, |first, part| part.copy_from_slice(&from[first..first + part.len()]));
}

/// As `to_vec`.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a real GPU has page-locked memory"))]
pub(super) fn copied(from: &[f32]) -> Vec<f32> {
    // These zeros are not written before the values are.
    let mut values = vec![0.0; from.len()];
    copy(from, &mut values);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_of_it_and_each_knows_its_place() {
        for length in [0, 1, 9, 10, 19, 20, 21, 99, 1000] {
            let mut places = vec![usize::MAX; length];
            in_parts_of(10, &mut places, |first, part| {
                part.iter_mut().enumerate().for_each(|(index, place)| *place = first + index);
            });
            assert!(places.into_iter().eq(0..length), "{length}");
        }
        let values: Vec<f32> = (0..3 * PART + 5).map(|index| index as f32).collect();
        assert!(copied(&values) == values);
    }
}

//! The digest of a payload, computed while its bytes are on their way.

use crate::bounds::DIGEST_STEP_BYTES;

/// BLAKE3 of bytes that become more. It takes them in steps: a tree of whole chunks uses all lanes of the processor, and what was just
/// moved is still in its caches.
#[derive(Debug, Default)]
pub(super) struct RunningDigest {
    hasher: blake3::Hasher,
    taken: usize,
}

impl RunningDigest {
    /// `bytes`: all up to now.
    pub(super) fn catch_up(&mut self, bytes: &[u8]) {
        let whole = bytes.len() / DIGEST_STEP_BYTES * DIGEST_STEP_BYTES;
        if whole > self.taken {
            self.hasher.update(&bytes[self.taken..whole]);
            self.taken = whole;
        }
    }

    /// The digest of `bytes`, which are those that it was told of and what has come since.
    pub(super) fn of(mut self, bytes: &[u8]) -> blake3::Hash {
        self.hasher.update(&bytes[self.taken..]);
        self.hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_all_bytes_however_they_came() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|index| (index ^ index >> 8) as u8).collect();
        for lengths in [&[0][..], &[1, 2, 3], &[131_071, 131_072, 131_073, 300_000], &[299_999]] {
            let mut running = RunningDigest::default();
            for length in lengths {
                running.catch_up(&bytes[..*length]);
            }
            let all = &bytes[..lengths[lengths.len() - 1].max(200_000)];
            assert_eq!(running.of(all), blake3::hash(all), "{lengths:?}");
        }
    }
}

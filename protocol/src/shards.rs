//! Data that a swarm shares: how a corpus is cut into shards, who holds which, what is fetched next and from whom.
//!
//! A run with `data.share = true` lists its shards by hash, in order, so the run id fixes every byte that is trained
//! on. There is no coordinator: each node works out from the members that it knows which shards are its own
//! ([`assignment`], rendezvous hashing), and fetches those from whoever is connected and has them
//! ([`next_fetch`]). A node keeps what it has fetched and serves it on. These are pure functions; the daemon's data
//! driver moves the bytes.

mod assignment;
mod choice;
mod hash;
mod request;
mod set;

use std::ops::Range;

pub use assignment::{assignment, own_order, owners};
pub use choice::{Source, next_fetch};
pub use hash::ShardHash;
pub use request::{ShardAnswer, ShardOffer, ShardRequest};
pub use set::ShardSet;

use crate::bounds::{SHARD_BYTES_MIN, SHARDS_MAX};
use crate::manifest::{DataSpec, RunManifest};

/// How a run's corpus is cut: shards of equal length, but for the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    shard_bytes: u64,
    corpus_bytes: u64,
    training_bytes: u64,
    hashes: Vec<ShardHash>,
}

impl Sharding {
    /// The sharding that a run's manifest lists; `None` where it shares nothing or lists none yet.
    pub fn of(data: &DataSpec) -> Option<Sharding> {
        let listed = data.share && !data.shards.is_empty();
        listed.then(|| Sharding {
            shard_bytes: data.shard_bytes,
            corpus_bytes: data.corpus_bytes,
            training_bytes: data.training_bytes(data.corpus_bytes),
            hashes: data.shards.clone(),
        })
    }

    /// How many shards there are, 1 to [`SHARDS_MAX`].
    pub fn count(&self) -> usize {
        self.hashes.len()
    }

    /// Length of the corpus in bytes.
    pub fn corpus_bytes(&self) -> u64 {
        self.corpus_bytes
    }

    /// Bytes of the corpus that are trained on; those behind them are held out.
    pub fn training_bytes(&self) -> u64 {
        self.training_bytes
    }

    /// The hashes, in the order of the corpus.
    pub fn hashes(&self) -> &[ShardHash] {
        &self.hashes
    }

    /// Which bytes of the corpus a shard holds.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn range(&self, index: usize) -> Range<u64> {
        assert!(index < self.count(), "there are {} shards", self.count());
        let start = index as u64 * self.shard_bytes;
        start..self.corpus_bytes.min(start + self.shard_bytes)
    }

    /// Length of a shard in bytes.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn length(&self, index: usize) -> u64 {
        let range = self.range(index);
        range.end - range.start
    }

    /// All shards.
    pub fn all(&self) -> ShardSet {
        (0..self.count()).collect()
    }

    /// The shards that hold a byte of the held-out end: every node needs them, to evaluate.
    pub fn held_out(&self) -> ShardSet {
        (0..self.count()).filter(|index| self.range(*index).end > self.training_bytes).collect()
    }

    /// Bytes in these shards that are trained on.
    pub fn training_bytes_in(&self, shards: ShardSet) -> u64 {
        let trained = |index: usize| {
            let range = self.range(index);
            range.end.min(self.training_bytes).saturating_sub(range.start)
        };
        shards.iter().map(trained).sum()
    }

    /// Whether training may begin with these shards: the held-out end is whole, and there is a shard's worth to train on
    /// (or all there is), since the first steps on a few windows would only learn them by heart.
    pub fn suffices(&self, held: ShardSet) -> bool {
        held.contains_all(self.held_out()) && self.training_bytes_in(held) >= self.shard_bytes.min(self.training_bytes)
    }
}

/// Fills in what a founder's manifest says about its shards: their size, where the run file leaves it open, the length
/// of the corpus and the hashes.
///
/// # Errors
/// As [`RunManifest::validate`] of the result: a size chosen too small for this corpus.
pub fn list_shards(manifest: &RunManifest, corpus: &[u8]) -> Result<RunManifest, crate::manifest::ManifestError> {
    let mut filled = manifest.clone();
    let data = &mut filled.data;
    data.corpus_bytes = corpus.len() as u64;
    if data.shard_bytes == 0 {
        data.shard_bytes = fitting_shard_bytes(corpus.len() as u64, manifest.model.context());
    }
    let shard_bytes = usize::try_from(data.shard_bytes).unwrap_or(usize::MAX).max(1);
    // One more than allowed is enough to be refused.
    data.shards = corpus.chunks(shard_bytes).take(SHARDS_MAX + 1).map(ShardHash::of).collect();
    filled.validate()?;
    Ok(filled)
}

/// The smallest power of two from [`SHARD_BYTES_MIN`] on that keeps to [`SHARDS_MAX`] and holds some windows.
fn fitting_shard_bytes(corpus_bytes: u64, context: u32) -> u64 {
    // A window that begins in one shard and ends in the next is lost to a node that has only the first.
    let windows = 8 * u64::from(context);
    corpus_bytes.div_ceil(SHARDS_MAX as u64).max(windows).max(SHARD_BYTES_MIN).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::DataSource;

    fn founder(shard_bytes: u64) -> RunManifest {
        let mut manifest = RunManifest::default();
        manifest.data.source = DataSource::Files;
        manifest.data.share = true;
        manifest.data.shard_bytes = shard_bytes;
        manifest
    }

    fn corpus(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * index % 251) as u8).collect()
    }

    #[test]
    fn a_corpus_is_cut_into_shards_that_cover_it() {
        let corpus = corpus(10_000);
        let manifest = list_shards(&founder(1024), &corpus).expect("it fits");
        let sharding = Sharding::of(&manifest.data).expect("listed");
        assert_eq!((sharding.count(), sharding.length(9), sharding.range(9)), (10, 784, 9216..10_000));
        for index in 0..sharding.count() {
            let range = sharding.range(index);
            let bytes = &corpus[range.start as usize..range.end as usize];
            assert_eq!(sharding.hashes()[index], ShardHash::of(bytes));
        }
        // Byte 9000 is the first that is held out, within the ninth shard.
        assert_eq!(sharding.training_bytes(), 9000);
        assert_eq!(sharding.held_out().iter().collect::<Vec<_>>(), [8, 9]);
        assert_eq!(sharding.training_bytes_in(sharding.held_out()), 9000 - 8192);
        assert!(!sharding.suffices(sharding.held_out()));
        assert!(sharding.suffices([3, 8, 9].into_iter().collect()));
        assert!(!sharding.suffices([2, 3, 8].into_iter().collect()));
        assert!(sharding.suffices(sharding.all()));
    }

    #[test]
    fn the_shard_size_follows_the_corpus() {
        assert_eq!(fitting_shard_bytes(1000, 128), SHARD_BYTES_MIN);
        assert_eq!(fitting_shard_bytes(1 << 30, 128), 8 << 20);
        assert_eq!(fitting_shard_bytes((1 << 30) + 1, 128), 16 << 20);
        assert_eq!(fitting_shard_bytes(1000, 65_536), 512 << 10);
    }

    #[test]
    fn other_data_is_another_run_and_too_many_shards_are_refused() {
        let corpus = corpus(4000);
        let manifest = list_shards(&founder(0), &corpus).expect("it fits");
        let mut other = corpus.clone();
        other[17] ^= 1;
        let others = list_shards(&founder(0), &other).expect("it fits");
        assert_ne!(manifest.run_id(), others.run_id());
        assert_eq!(list_shards(&manifest, &corpus), Ok(manifest));
        let error = list_shards(&founder(256), &vec![7; 256 * SHARDS_MAX + 1]).expect_err("too many").to_string();
        assert!(error.contains("data.shards"), "{error}");
    }
}

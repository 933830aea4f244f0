//! A corpus of which a part is here: the shards that a node holds so far, and windows from them.
//!
//! Neighbouring shards make one stretch, so that windows across their border are read too; with all shards there is one
//! stretch, and a node reads exactly what it would read from the files themselves.

use std::collections::BTreeMap;
use std::ops::Range;

use murmur_protocol::Payload;
use murmur_protocol::shards::{ShardSet, Sharding};

/// The shards at hand.
pub(crate) struct SharedText {
    sharding: Sharding,
    shards: BTreeMap<usize, Payload>,
}

impl SharedText {
    pub(crate) fn new(sharding: Sharding) -> SharedText {
        SharedText { sharding, shards: BTreeMap::new() }
    }

    /// # Panics
    /// When the shard has another length: who stores shards compares their hashes first.
    pub(crate) fn add(&mut self, index: usize, shard: Payload) {
        assert_eq!(shard.len() as u64, self.sharding.length(index), "a verified shard has its length");
        self.shards.insert(index, shard);
    }

    pub(crate) fn held(&self) -> ShardSet {
        self.shards.keys().copied().collect()
    }

    /// Whether training and evaluation may begin.
    pub(crate) fn suffices(&self) -> bool {
        self.sharding.suffices(self.held())
    }

    /// Bytes of the corpus that are held out, here or not.
    pub(crate) fn held_out(&self) -> Range<usize> {
        self.sharding.training_bytes() as usize..self.sharding.corpus_bytes() as usize
    }

    /// The stretches of the corpus that are here and trained on, in order.
    pub(crate) fn stretches(&self) -> Vec<Range<usize>> {
        let mut stretches: Vec<Range<usize>> = Vec::new();
        for index in self.shards.keys() {
            let range = self.sharding.range(*index);
            let (start, end) = (range.start as usize, range.end.min(self.sharding.training_bytes()) as usize);
            match stretches.last_mut() {
                _ if start >= end => {}
                Some(last) if last.end == start => last.end = end,
                _ => stretches.push(start..end),
            }
        }
        stretches
    }

    /// The bytes in a range of the corpus; `None` where they are not all here.
    pub(crate) fn read(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let mut window = Vec::with_capacity(range.len());
        while window.len() < range.len() {
            let position = range.start + window.len();
            let index = position / self.sharding.length(0) as usize;
            let within = position - self.sharding.range(index).start as usize;
            let shard = self.shards.get(&index)?.bytes();
            let taken = (range.len() - window.len()).min(shard.len() - within);
            window.extend_from_slice(&shard[within..within + taken]);
        }
        Some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use murmur_protocol::manifest::{DataSource, RunManifest};
    use murmur_protocol::shards::list_shards;

    /// 10,000 bytes in ten shards, the last 1,000 held out.
    fn corpus() -> (Vec<u8>, Sharding) {
        let mut manifest = RunManifest::default();
        manifest.data.source = DataSource::Files;
        manifest.data.share = true;
        manifest.data.shard_bytes = 1024;
        let bytes: Vec<u8> = (0..10_000).map(|index| (index * index % 251) as u8).collect();
        let sharding = Sharding::of(&list_shards(&manifest, &bytes).expect("it fits").data).expect("listed");
        (bytes, sharding)
    }

    fn text(indices: &[usize]) -> (Vec<u8>, SharedText) {
        let (bytes, sharding) = corpus();
        let mut text = SharedText::new(sharding.clone());
        for index in indices {
            let range = sharding.range(*index);
            text.add(*index, Payload::from(bytes[range.start as usize..range.end as usize].to_vec()));
        }
        (bytes, text)
    }

    #[test]
    fn neighbours_make_one_stretch_and_what_is_held_out_belongs_to_none() {
        let (_, text) = text(&[0, 1, 3, 7, 8, 9]);
        assert_eq!(text.stretches(), [0..2048, 3072..4096, 7168..9000]);
        assert_eq!(text.held_out(), 9000..10_000);
        assert!(text.suffices());
    }

    #[test]
    fn windows_cross_borders_and_gaps_are_noticed() {
        let (bytes, text) = text(&[0, 1, 3, 9]);
        assert_eq!(text.read(1000..2048).as_deref(), Some(&bytes[1000..2048]));
        assert_eq!(text.read(9990..10_000).as_deref(), Some(&bytes[9990..]));
        assert_eq!(text.read(2040..2049), None);
        assert!(!text.suffices());
    }
}

//! Each node's own endless order of batches, and a position in it that survives a restart.
//!
//! Text: the training region is cut into windows, shuffled anew every epoch by a seeded stream of the node's own, so
//! that no two nodes read in the same order and no node has to know the others. Images and rows of tables: the same, one by one.
//! Of shared data the part that is here is read; a shard that arrives begins a new epoch, over what is here then. Grammar: every sequence is generated
//! from its own stream, named by node and number. Either way a position is two numbers.

use std::ops::Range;
use std::sync::Arc;

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{Payload, RunManifest};

use super::corpus::{Content, Corpus};
use super::images::{ImageSet, shuffle};
use super::{Batch, Image, Window, ids};

/// Where a node is in its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataPosition {
    /// Passes over the training data that are complete; always 0 for the endless grammar.
    pub epoch: u64,
    /// Windows, images or rows of this epoch that were read; for the grammar, of all.
    pub cursor: u64,
}

/// One node's way through a corpus.
pub struct Sampler {
    corpus: Arc<Corpus>,
    seed: u64,
    node: [u8; 32],
    context: usize,
    batch_sequences: usize,
    label_skew: f64,
    shift_pixels: u32,
    position: DataPosition,
    /// The order of the current epoch's windows or images, with the epoch that it belongs to.
    order: Option<EpochOrder>,
}

struct EpochOrder {
    epoch: u64,
    /// Where each window begins, or which image or row comes.
    places: Vec<usize>,
}

impl Sampler {
    /// The data of `node` in a run, from its beginning.
    pub fn new(corpus: Arc<Corpus>, manifest: &RunManifest, node: [u8; 32]) -> Sampler {
        Sampler {
            corpus,
            seed: manifest.run.seed,
            node,
            context: manifest.model.context() as usize,
            batch_sequences: manifest.optimizer.batch_sequences as usize,
            label_skew: manifest.data.label_skew,
            shift_pixels: manifest.data.shift_pixels,
            position: DataPosition::default(),
            order: None,
        }
    }

    /// The same, with so many of the run's batches in one.
    pub fn several_batches(mut self, batches: usize) -> Sampler {
        self.batch_sequences *= batches;
        self
    }

    /// Where the next batch begins.
    pub fn position(&self) -> DataPosition {
        self.position
    }

    /// Continues from a saved position; one beyond the data's end begins the next epoch.
    pub fn seek(&mut self, position: DataPosition) {
        self.position = position;
    }

    /// Adds a shard of a shared corpus, from the next batch on.
    ///
    /// # Panics
    /// When another sampler reads the same corpus, or it has no such shard.
    pub fn add_shard(&mut self, index: usize, shard: Payload) {
        let corpus = Arc::get_mut(&mut self.corpus).expect("a corpus that grows has one reader");
        corpus.add_shard(index, shard);
        if self.order.take().is_some() {
            self.position = DataPosition { epoch: self.position.epoch.wrapping_add(1), cursor: 0 };
        }
    }

    /// What it reads.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// The next batch.
    ///
    /// # Panics
    /// When a shared corpus has no window here: [`Corpus::suffices`] says when it has.
    pub fn next_batch(&mut self) -> Batch {
        let corpus = Arc::clone(&self.corpus);
        if let Content::Images(images) = corpus.content() {
            let examples: Vec<Image> = (0..self.batch_sequences).map(|_| self.next_image(images)).collect();
            return Batch::of_images(&examples, images.shape());
        }
        if let Content::Rows(rows) = corpus.content() {
            let next = |sampler: &mut Sampler| sampler.next_place(|_, _| rows.training().to_vec());
            let numbers: Vec<usize> = (0..self.batch_sequences).map(|_| next(self)).collect();
            return rows.batch(&numbers);
        }
        let windows: Vec<Window> = (0..self.batch_sequences).map(|_| self.next_window()).collect();
        Batch::of(&windows)
    }

    fn next_window(&mut self) -> Window {
        let corpus = Arc::clone(&self.corpus);
        if let Content::Grammar(grammar) = corpus.content() {
            let sequence = self.position.cursor.to_le_bytes();
            self.position.cursor += 1;
            let mut generator = stream(self.seed, "training stories", &[&self.node, &sequence]);
            return ids(&grammar.window(&mut generator, self.context + 1));
        }
        let start = self.next_place(|sampler, generator| sampler.windows(&corpus.stretches(), generator));
        corpus.read(start..start + self.context + 1).expect("a window lies within a stretch")
    }

    fn next_image(&mut self, images: &ImageSet) -> Image {
        let number = self.next_place(|sampler, _| images.share_of(&sampler.node, sampler.seed, sampler.label_skew));
        let image = images.image(number);
        if self.shift_pixels == 0 {
            return image;
        }
        let parts = [self.position.epoch.to_le_bytes(), self.position.cursor.to_le_bytes()];
        let mut generator = stream(self.seed, "image shifts", &[&self.node, &parts[0], &parts[1]]);
        images.shifted(image, self.shift_pixels, &mut generator)
    }

    /// The next place of this epoch, or of the one after it: a shuffle of `places`.
    fn next_place(&mut self, places: impl Fn(&Sampler, &mut Generator) -> Vec<usize>) -> usize {
        loop {
            let order = match self.order.take() {
                Some(order) if order.epoch == self.position.epoch => order,
                _ => self.shuffled(&places),
            };
            let place = order.places.get(self.position.cursor as usize).copied();
            self.order = Some(order);
            if let Some(place) = place {
                self.position.cursor += 1;
                return place;
            }
            self.position = DataPosition { epoch: self.position.epoch.wrapping_add(1), cursor: 0 };
        }
    }

    fn shuffled(&self, places: impl Fn(&Sampler, &mut Generator) -> Vec<usize>) -> EpochOrder {
        let epoch = self.position.epoch;
        let mut generator = stream(self.seed, "data assignment", &[&self.node, &epoch.to_le_bytes()]);
        let mut places = places(self, &mut generator);
        shuffle(&mut places, &mut generator);
        EpochOrder { epoch, places }
    }

    /// Where windows begin in `stretches` of text.
    fn windows(&self, stretches: &[Range<usize>], generator: &mut Generator) -> Vec<usize> {
        // A window needs one byte more than the context, for its last target.
        let spares = stretches.iter().filter_map(|stretch| stretch.len().checked_sub(1 + self.context));
        let spare = spares.max().expect("the corpus holds at least one window");
        // The first window begins here, so that borders fall elsewhere in each epoch.
        let phase = generator.random_range(0..=spare.min(self.context - 1));
        let starts = |stretch: &Range<usize>| {
            let (first, count) = (stretch.start + phase, stretch.len().saturating_sub(1 + phase) / self.context);
            (0..count).map(move |index| first + index * self.context)
        };
        stretches.iter().flat_map(starts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use murmur_protocol::manifest::{DataSource, DataSpec, MlpModel, OptimizerSpec, TransformerModel};
    use murmur_protocol::shards::{Sharding, list_shards};

    fn bytes_corpus(length: usize) -> Arc<Corpus> {
        let bytes = (0..length).map(|index| (index % 251) as u8).collect();
        Arc::new(Corpus::from_bytes(bytes, &DataSpec::default(), 16).expect("long enough"))
    }

    fn sampler(corpus: &Arc<Corpus>, node: u8) -> Sampler {
        let model = TransformerModel { context: 16, ..TransformerModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.optimizer.batch_sequences = 3;
        Sampler::new(corpus.clone(), &manifest, [node; 32])
    }

    #[test]
    fn a_restored_sampler_continues_with_the_same_batches() {
        for corpus in [bytes_corpus(400), Arc::new(Corpus::grammar())] {
            let mut original = sampler(&corpus, 1);
            for _ in 0..11 {
                original.next_batch();
            }
            let mut restored = sampler(&corpus, 1);
            restored.seek(original.position());
            for _ in 0..20 {
                assert_eq!(original.next_batch(), restored.next_batch());
            }
        }
    }

    #[test]
    fn nodes_read_in_different_orders() {
        for corpus in [bytes_corpus(4000), Arc::new(Corpus::grammar())] {
            assert_ne!(sampler(&corpus, 1).next_batch(), sampler(&corpus, 2).next_batch());
        }
    }

    #[test]
    fn an_epoch_reads_each_window_once_and_nothing_held_out() {
        let corpus = bytes_corpus(250);
        let mut sampler = sampler(&corpus, 1);
        let mut starts = Vec::new();
        while sampler.position().epoch == 0 {
            starts.push(sampler.next_window()[0] as usize);
        }
        // The last window read already belongs to the next epoch.
        starts.pop();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == 16), "{starts:?}");
        assert!(*starts.last().expect("windows") + 17 <= 225);
        assert!(starts.len() >= 12);
    }

    #[test]
    fn images_are_each_read_once_an_epoch_and_a_restored_sampler_continues() {
        let model = MlpModel { classes: 50, ..MlpModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        (manifest.data.source, manifest.data.shift_pixels) = (DataSource::Idx, 2);
        manifest.optimizer.batch_sequences = 7;
        let corpus = Arc::new(Corpus::made_up(&RunManifest {
            optimizer: OptimizerSpec { batch_sequences: 49, ..OptimizerSpec::default() },
            ..manifest.clone()
        }));
        let sampler = |node: u8| Sampler::new(corpus.clone(), &manifest, [node; 32]);
        let mut first = sampler(1);
        let batches: Vec<Batch> = (0..7).map(|_| first.next_batch()).collect();
        let mut labels: Vec<u32> = batches.iter().flat_map(|batch| batch.targets().to_vec()).collect();
        assert_ne!(labels, (0..49).collect::<Vec<_>>());
        labels.sort_unstable();
        assert_eq!(labels, (0..49).collect::<Vec<_>>());
        assert_ne!(sampler(2).next_batch(), batches[0], "nodes read in orders of their own");
        let mut restored = sampler(1);
        restored.seek(first.position());
        assert_eq!(restored.next_batch(), first.next_batch());
    }

    #[test]
    fn a_position_from_another_corpus_is_harmless() {
        let mut sampler = sampler(&bytes_corpus(200), 1);
        sampler.seek(DataPosition { epoch: u64::MAX, cursor: u64::MAX });
        assert_eq!(sampler.next_batch().examples(), 3);
    }

    /// 4,000 bytes in sixteen shards of 256.
    fn shared() -> (Vec<u8>, Sharding) {
        let model = TransformerModel { context: 16, ..TransformerModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.data.source = DataSource::Files;
        manifest.data.share = true;
        manifest.data.shard_bytes = 256;
        let bytes: Vec<u8> = (0..4000).map(|index| (index % 251) as u8).collect();
        let sharding = Sharding::of(&list_shards(&manifest, &bytes).expect("it fits").data).expect("listed");
        (bytes, sharding)
    }

    fn with_shards(indices: impl IntoIterator<Item = usize>) -> Sampler {
        let (bytes, sharding) = shared();
        let mut sampler = sampler(&Arc::new(Corpus::shared(sharding.clone())), 1);
        for index in indices {
            let range = sharding.range(index);
            sampler.add_shard(index, bytes[range.start as usize..range.end as usize].to_vec().into());
        }
        sampler
    }

    #[test]
    fn all_shards_are_read_like_the_files_themselves() {
        let mut of_files = sampler(&bytes_corpus(4000), 1);
        let mut of_shards = with_shards((0..16).rev());
        for _ in 0..200 {
            assert_eq!(of_files.next_batch(), of_shards.next_batch());
        }
        let manifest = RunManifest::default();
        assert_eq!(of_files.corpus().validation(&manifest), of_shards.corpus().validation(&manifest));
    }

    #[test]
    fn only_shards_that_are_here_are_read_and_later_ones_join_in() {
        let mut sampler = with_shards([2, 14, 15]);
        assert!(sampler.corpus().suffices());
        let (bytes, sharding) = shared();
        let starts = |sampler: &mut Sampler, windows: usize| -> Vec<usize> {
            let windows = (0..windows).map(|_| sampler.next_window());
            // The text repeats after 251 bytes: a window is at one of few places.
            windows
                .map(|window| {
                    let found = bytes.windows(17).position(|candidate| ids(candidate) == window);
                    found.expect("a window of the corpus")
                })
                .collect()
        };
        // Shard 2 is 512..768, and 251 · 2 = 502.
        assert!(starts(&mut sampler, 100).iter().all(|start| (10..=249).contains(start) || *start < 16));
        let epoch = sampler.position().epoch;
        let range = sharding.range(7);
        sampler.add_shard(7, bytes[range.start as usize..range.end as usize].to_vec().into());
        assert_eq!(sampler.position(), DataPosition { epoch: epoch + 1, cursor: 0 });
        let twin = {
            let mut twin = with_shards([2, 7, 14, 15]);
            twin.seek(sampler.position());
            twin.next_batch()
        };
        assert_eq!(sampler.next_batch(), twin, "the order follows from node, epoch and shards");
    }
}

//! Each node's own endless order of batches, and a position in it that survives a restart.
//!
//! Text: the training region is cut into windows, in another order every epoch by a seeded stream of the node's own, so that no
//! two nodes read in the same order and no node has to know the others. Images and rows of tables: the same, one by one. An
//! order is looked up window by window and takes no memory, however large the data. Of shared data the part that is here is
//! read; a shard that arrives begins a new epoch, over what is here then. Grammar: every sequence is generated from its own
//! stream, named by node and number. Either way a position is two numbers.

use std::ops::Range;
use std::sync::Arc;

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{Payload, RunManifest};

use super::corpus::{Content, Corpus};
use super::images::ImageSet;
use super::permutation::Permutation;
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
    /// The order of the current epoch's windows, images or rows, with the epoch that it belongs to.
    order: Option<EpochOrder>,
    /// With label skew the images that are this node's, once they are known.
    share: Option<Vec<usize>>,
}

struct EpochOrder {
    epoch: u64,
    places: Places,
    permutation: Permutation,
}

/// Where an epoch's windows begin, or which images or rows there are.
struct Places {
    /// Of each stretch: how many places are before it, and its first one.
    stretches: Vec<(u64, usize)>,
    /// From a place to the next one of its stretch.
    apart: usize,
    count: u64,
}

impl Places {
    /// The numbers below `count`.
    fn numbers(count: usize) -> Places {
        Places { stretches: vec![(0, 0)], apart: 1, count: count as u64 }
    }

    /// Where windows of `context` begin in `stretches` of text.
    fn of_windows(stretches: &[Range<usize>], context: usize, generator: &mut Generator) -> Places {
        // A window needs one byte more than the context, for its last target.
        let spares = stretches.iter().filter_map(|stretch| stretch.len().checked_sub(1 + context));
        let spare = spares.max().expect("the corpus holds at least one window");
        // The first window begins here, so that borders fall elsewhere in each epoch.
        let phase = generator.random_range(0..=spare.min(context - 1));
        let mut places = Places { stretches: Vec::with_capacity(stretches.len()), apart: context, count: 0 };
        for stretch in stretches {
            places.stretches.push((places.count, stretch.start + phase));
            places.count += (stretch.len().saturating_sub(1 + phase) / context) as u64;
        }
        places
    }

    /// # Panics
    /// When there is no place.
    fn at(&self, number: u64) -> usize {
        // Stretches without a window come before the next one that begins with the same number.
        let stretch = self.stretches.partition_point(|(before, _)| *before <= number);
        let (before, first) = self.stretches[stretch - 1];
        first + (number - before) as usize * self.apart
    }
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
            share: None,
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
            let rows_of_node = rows.training();
            let next = |sampler: &mut Sampler| sampler.next_place(|_| Places::numbers(rows_of_node.len()));
            let numbers: Vec<usize> = (0..self.batch_sequences).map(|_| rows_of_node[next(self)]).collect();
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
        let context = self.context;
        let start = self.next_place(|generator| Places::of_windows(&corpus.stretches(), context, generator));
        corpus.read(start..start + self.context + 1).expect("a window lies within a stretch")
    }

    fn next_image(&mut self, images: &ImageSet) -> Image {
        if self.label_skew > 0.0 && self.share.is_none() {
            self.share = Some(images.share_of(&self.node, self.seed, self.label_skew));
        }
        let count = self.share.as_deref().unwrap_or(images.training()).len();
        let place = self.next_place(|_| Places::numbers(count));
        let image = images.image(self.share.as_deref().unwrap_or(images.training())[place]);
        if self.shift_pixels == 0 {
            return image;
        }
        let parts = [self.position.epoch.to_le_bytes(), self.position.cursor.to_le_bytes()];
        let mut generator = stream(self.seed, "image shifts", &[&self.node, &parts[0], &parts[1]]);
        images.shifted(image, self.shift_pixels, &mut generator)
    }

    /// The next place of this epoch, or of the one after it, of those that `places` gives.
    fn next_place(&mut self, places: impl Fn(&mut Generator) -> Places) -> usize {
        loop {
            let epoch = self.position.epoch;
            let order = match self.order.take() {
                Some(order) if order.epoch == epoch => order,
                _ => {
                    let parts = [&self.node[..], &epoch.to_le_bytes()];
                    let mut generator = stream(self.seed, "data assignment", &parts);
                    let places = places(&mut generator);
                    EpochOrder { epoch, permutation: Permutation::new(generator.random(), places.count), places }
                }
            };
            let place = order.permutation.at(self.position.cursor).map(|number| order.places.at(number));
            self.order = Some(order);
            if let Some(place) = place {
                self.position.cursor += 1;
                return place;
            }
            self.position = DataPosition { epoch: epoch.wrapping_add(1), cursor: 0 };
        }
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

    /// A file of 256 GB without blocks on disk: an order of its windows in memory would be 2 GB, and would take a minute.
    #[test]
    fn the_order_of_a_large_file_takes_no_memory_and_a_position_finds_its_place_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("large.txt");
        std::fs::File::create(&path).and_then(|file| file.set_len(256 << 30)).expect("a sparse file");
        let model = TransformerModel { context: 1024, ..TransformerModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.data.source = DataSource::Files;
        let place = crate::data::DataPlace::of_files(&[path]);
        let corpus = Arc::new(Corpus::open(&manifest, &place).expect("a corpus"));
        let sampler = || Sampler::new(corpus.clone(), &manifest, [1; 32]);
        let (mut first, mut again) = (sampler(), sampler());
        let next = |sampler: &mut Sampler| {
            sampler.next_place(|generator| Places::of_windows(&corpus.stretches(), 1024, generator))
        };
        let begin = std::time::Instant::now();
        let starts: Vec<usize> = (0..1000).map(|_| next(&mut first)).collect();
        again.seek(DataPosition { epoch: 0, cursor: 990 });
        assert_eq!((0..10).map(|_| next(&mut again)).collect::<Vec<_>>(), starts[990..]);
        assert!(begin.elapsed().as_secs_f64() < 1.0, "{:?}", begin.elapsed());
        let order = first.order.as_ref().expect("drawn");
        assert!(order.places.stretches.len() == 1 && order.places.count > 200 << 20, "{}", order.places.count);
        let apart: usize = starts.windows(2).map(|pair| pair[0].abs_diff(pair[1]) / 999).sum();
        assert!((60 << 30..100 << 30).contains(&apart), "a third of all, where order is random: {apart}");
    }

    #[test]
    fn windows_of_several_stretches_are_each_read_once() {
        let stretches = [5..40, 50..60, 70..160, 200..200];
        let places = Places::of_windows(&stretches, 16, &mut stream(1, "test", &[]));
        let mut starts: Vec<usize> = (0..places.count).map(|number| places.at(number)).collect();
        assert!(starts.len() >= 6 && starts.is_sorted(), "{starts:?}");
        let is_in =
            |start: &usize| stretches.iter().any(|stretch| stretch.start <= *start && start + 17 <= stretch.end);
        assert!(starts.iter().all(is_in), "{starts:?}");
        starts.dedup();
        assert_eq!(starts.len() as u64, places.count);
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

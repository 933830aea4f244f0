//! Each node's own endless order of batches, and a position in it that survives a restart.
//!
//! Files: the training region is cut into windows, shuffled anew every epoch by a seeded stream of the node's own, so
//! that no two nodes read in the same order and no node has to know the others. Grammar: every sequence is generated
//! from its own stream, named by node and number. Either way a position is two numbers.

use std::sync::Arc;

use murmur_protocol::random::{RngExt, stream};

use super::corpus::{Corpus, Text};
use super::{Batch, Window};

/// Where a node is in its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataPosition {
    /// Passes over the training region that are complete; always 0 for the endless grammar.
    pub epoch: u64,
    /// Windows of this epoch that were read; for the grammar, of all.
    pub cursor: u64,
}

/// One node's way through a corpus.
pub struct Sampler {
    corpus: Arc<Corpus>,
    seed: u64,
    node: [u8; 32],
    context: usize,
    batch_sequences: usize,
    position: DataPosition,
    /// The order of the current epoch's windows, with the epoch that it belongs to.
    order: Option<EpochOrder>,
}

struct EpochOrder {
    epoch: u64,
    /// The first window begins here, so that borders fall elsewhere in each epoch.
    phase: usize,
    windows: Vec<usize>,
}

impl Sampler {
    /// The data of `node`, from its beginning.
    pub fn new(corpus: Arc<Corpus>, seed: u64, node: [u8; 32], context: usize, batch_sequences: usize) -> Sampler {
        let position = DataPosition::default();
        Sampler { corpus, seed, node, context, batch_sequences, position, order: None }
    }

    /// Where the next batch begins.
    pub fn position(&self) -> DataPosition {
        self.position
    }

    /// Continues from a saved position; one beyond the data's end begins the next epoch.
    pub fn seek(&mut self, position: DataPosition) {
        self.position = position;
    }

    /// The next batch.
    pub fn next_batch(&mut self) -> Batch {
        let windows: Vec<Window> = (0..self.batch_sequences).map(|_| self.next_window()).collect();
        Batch::of(&windows)
    }

    fn next_window(&mut self) -> Window {
        let corpus = Arc::clone(&self.corpus);
        match corpus.text() {
            Text::Grammar(grammar) => {
                let sequence = self.position.cursor.to_le_bytes();
                self.position.cursor += 1;
                let mut generator = stream(self.seed, "training stories", &[&self.node, &sequence]);
                grammar.window(&mut generator, self.context + 1)
            }
            Text::Bytes(_) => self.next_window_of_bytes(corpus.training_bytes()),
        }
    }

    fn next_window_of_bytes(&mut self, bytes: &[u8]) -> Window {
        loop {
            let order = match self.order.take() {
                Some(order) if order.epoch == self.position.epoch => order,
                _ => self.shuffle(bytes.len()),
            };
            let start =
                order.windows.get(self.position.cursor as usize).map(|index| order.phase + index * self.context);
            self.order = Some(order);
            match start {
                Some(start) => {
                    self.position.cursor += 1;
                    return bytes[start..start + self.context + 1].to_vec();
                }
                None => self.position = DataPosition { epoch: self.position.epoch.wrapping_add(1), cursor: 0 },
            }
        }
    }

    fn shuffle(&self, bytes: usize) -> EpochOrder {
        let epoch = self.position.epoch;
        let mut generator = stream(self.seed, "data assignment", &[&self.node, &epoch.to_le_bytes()]);
        // A window needs one byte more than the context, for its last target; the corpus holds at least one.
        let spare = bytes - 1 - self.context;
        let phase = generator.random_range(0..=spare.min(self.context - 1));
        let mut windows: Vec<usize> = (0..(bytes - 1 - phase) / self.context).collect();
        // Fisher–Yates by hand: a library's shuffle may change its draws, which would move every node's data.
        for last in (1..windows.len()).rev() {
            windows.swap(last, generator.random_range(0..=last as u64) as usize);
        }
        EpochOrder { epoch, phase, windows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use murmur_protocol::manifest::DataSpec;

    fn bytes_corpus(length: usize) -> Arc<Corpus> {
        let bytes = (0..length).map(|index| (index % 251) as u8).collect();
        Arc::new(Corpus::from_bytes(bytes, &DataSpec::default(), 16).expect("long enough"))
    }

    fn sampler(corpus: &Arc<Corpus>, node: u8) -> Sampler {
        Sampler::new(corpus.clone(), 1, [node; 32], 16, 3)
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
            starts.push(sampler.next_window()[0]);
        }
        // The last window read already belongs to the next epoch.
        starts.pop();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == 16), "{starts:?}");
        assert!(usize::from(*starts.last().expect("windows")) + 17 <= corpus.training_bytes().len());
        assert!(starts.len() >= 12);
    }

    #[test]
    fn a_position_from_another_corpus_is_harmless() {
        let mut sampler = sampler(&bytes_corpus(200), 1);
        sampler.seek(DataPosition { epoch: u64::MAX, cursor: u64::MAX });
        assert_eq!(sampler.next_batch().sequences, 3);
    }
}

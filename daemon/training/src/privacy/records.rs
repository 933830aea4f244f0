//! What a record is: the unit that private training protects.
//!
//! An image; a row of a table; a text of JSON Lines or Parquet, cut to one context; of plain text files a window, and no two windows share a token.
//! The number of records is not protected, nor what a run file says.

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::DataSource;
use murmur_protocol::random::Generator;

use crate::data::corpus::Content;
use crate::data::{Batch, Corpus};

/// Why a run cannot be trained on privately here.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotPrivate {
    /// Nothing to protect.
    #[error("the built-in stories are nobody's data")]
    MadeUp,
    /// All members would read it.
    #[error("the run shares its data with all members (data.share)")]
    Shared,
    /// It is compared with that of others.
    #[error(
        "the run file holds a digest of the data (data.digest), by which others can tell whether theirs is the same"
    )]
    Digest,
    /// Which records a node reads depends on all of them.
    #[error("the run deals images out by their class (data.label_skew), so that one decides about others")]
    LabelSkew,
    /// A step takes more on average than there are.
    #[error("{records} records are fewer than a batch of {batch} (optimizer.batch_sequences)")]
    TooFewRecords {
        /// Records that are here.
        records: u64,
        /// The batch of the run.
        batch: u64,
    },
    /// Only one kind of replica is tested for it.
    #[error("private steps are computed on the CPU alone")]
    Device,
    /// Without noise or clipping nothing is promised.
    #[error("clip norm and noise are numbers above 0")]
    NoNoise,
}

/// The records of a corpus.
pub(crate) struct Records {
    count: u64,
    /// Of one record, at most.
    predictions: usize,
    shift_pixels: u32,
}

/// The number of records that a run would train on privately.
///
/// # Errors
/// What of the run cannot be private.
pub fn records_in(manifest: &RunManifest, corpus: &Corpus) -> Result<u64, NotPrivate> {
    Records::of(manifest, corpus).map(|records| records.count)
}

impl Records {
    pub(super) fn of(manifest: &RunManifest, corpus: &Corpus) -> Result<Records, NotPrivate> {
        let data = &manifest.data;
        match data.source {
            DataSource::Grammar => return Err(NotPrivate::MadeUp),
            _ if data.share => return Err(NotPrivate::Shared),
            _ if !data.digest.is_empty() => return Err(NotPrivate::Digest),
            _ if data.label_skew > 0.0 => return Err(NotPrivate::LabelSkew),
            _ => {}
        }
        let context = manifest.model.context() as usize;
        let count = match corpus.content() {
            Content::Grammar(_) => return Err(NotPrivate::MadeUp),
            Content::Shared(_) => return Err(NotPrivate::Shared),
            Content::Images(images) => images.training().len(),
            Content::Rows(rows) => rows.training().len(),
            Content::Bytes(_) | Content::Tokens(_) => match corpus.texts() {
                Some(texts) => texts,
                None => corpus.stretches().iter().map(|stretch| stretch.len() / (context + 1)).sum(),
            },
        };
        Ok(Records { count: count as u64, predictions: context, shift_pixels: data.shift_pixels })
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Predictions of a record, at most.
    pub(super) fn predictions(&self) -> usize {
        self.predictions
    }

    /// One record; `None` for a text so short that nothing in it can be predicted.
    ///
    /// # Panics
    /// When there is no such record.
    pub(super) fn example(&self, corpus: &Corpus, number: u64, draws: &mut Generator) -> Option<Batch> {
        assert!(number < self.count, "a record of the corpus");
        let number = number as usize;
        if let Content::Images(images) = corpus.content() {
            let image = images.image(images.training()[number]);
            let image = match self.shift_pixels {
                0 => image,
                pixels => images.shifted(image, pixels, draws),
            };
            return Some(Batch::of_images(&[image], images.shape()));
        }
        if let Content::Rows(rows) = corpus.content() {
            return Some(rows.batch(&rows.training()[number..=number]));
        }
        let length = self.predictions + 1;
        let range = match corpus.text(number) {
            Some(text) => text.start..text.end.min(text.start + length),
            None => {
                let start = corpus.stretches()[0].start + number * length;
                start..start + length
            }
        };
        let window = corpus.read(range).expect("a record lies within the corpus");
        (window.len() > 1).then(|| Batch::of(&[window]))
    }
}

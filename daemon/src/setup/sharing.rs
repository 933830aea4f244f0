//! Shared data at the start of a daemon: the founder lists its shards, everybody looks which are at hand.

use std::collections::BTreeMap;
use std::path::Path;

use murmur_network::HeldShards;
use murmur_protocol::manifest::ManifestError;
use murmur_protocol::shards::{ShardHash, Sharding, list_shards};
use murmur_protocol::{Payload, RunManifest};
use murmur_training::{Corpus, CorpusError};

use crate::console::figures::counted;
use crate::console::note;
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;
use crate::setup::corpus::{corpus_failure, warn_of_left_out};
use crate::store::{DataDirectory, ShardStore, ShardStoreError};

/// The shared data of a run as a daemon finds it at its start.
#[derive(Debug)]
pub struct SharedData {
    /// How the corpus is cut.
    pub sharding: Sharding,
    /// Where fetched shards go.
    pub store: ShardStore,
    /// The shards at hand, verified.
    pub held: HeldShards,
}

impl SharedData {
    /// The corpus with what is at hand.
    pub fn corpus(&self) -> Corpus {
        let mut corpus = Corpus::shared(self.sharding.clone());
        for (index, shard) in self.held.iter() {
            corpus.add_shard(*index, shard.clone());
        }
        corpus
    }
}

/// Fills the shards of a founder's files into its manifest, where the run shares data and lists none yet.
///
/// # Errors
/// When there are no files, or they are too short, too long for the chosen shards, or not those of `data.digest`.
pub fn list(manifest: RunManifest, settings: &NodeSettings) -> Result<RunManifest, Failure> {
    if !manifest.data.share || !manifest.data.shards.is_empty() {
        return Ok(manifest);
    }
    let corpus = Corpus::read_files(&settings.data.files).map_err(|error| corpus_failure(&error))?;
    let (expected, actual) = (manifest.data.digest.clone(), ShardHash::of(&corpus).to_string());
    if !expected.is_empty() && !expected.eq_ignore_ascii_case(&actual) {
        return Err(corpus_failure(&CorpusError::OtherData { expected, actual }));
    }
    list_shards(&manifest, &corpus).map_err(|error| {
        let failure = Failure::new(ExitCode::Settings, format!("the data cannot be shared as it is: {error}"));
        match error {
            ManifestError::OutOfRange { field: "data.corpus_bytes", .. } => {
                failure.hint("give more data, or choose a smaller model.context")
            }
            _ => failure.hint("data.shard_bytes = 0 chooses a size that fits"),
        }
    })
}

/// Looks which shards are at hand, in the node's files or from an earlier life; `None` where the run shares nothing.
///
/// # Errors
/// When the manifest lists no shards, the files are of another length than the run's data, or the disk cannot be used.
pub fn open(
    manifest: &RunManifest,
    settings: &NodeSettings,
    directory: &DataDirectory,
) -> Result<Option<SharedData>, Failure> {
    if !manifest.data.share {
        return Ok(None);
    }
    let sharding = Sharding::of(&manifest.data).ok_or_else(|| {
        Failure::new(ExitCode::Settings, "this run shares its data, but its manifest lists none")
            .hint("the founder lists it: `murmur start RUN --data FILE…`")
    })?;
    if settings.data.tokenizer != Path::new("") {
        return Err(corpus_failure(&CorpusError::TokenizerUnused(settings.data.tokenizer.clone())));
    }
    warn_of_left_out(manifest, &settings.data.files);
    let store = ShardStore::open(directory.root().join("shards")).map_err(unusable)?;
    let mut held = if settings.data.files.is_empty() { BTreeMap::new() } else { from_files(&sharding, settings)? };
    for (index, hash) in sharding.hashes().iter().enumerate() {
        if held.contains_key(&index) {
            continue;
        }
        match store.load(hash) {
            Ok(Some(shard)) => {
                held.insert(index, shard);
            }
            Ok(None) => {}
            Err(changed @ ShardStoreError::Changed(_)) => {
                note(&format!("warning: {changed}\nhint: it is fetched again from a peer; does the disk fail?"));
                store.remove(hash).map_err(unusable)?;
            }
            Err(error) => return Err(unusable(error)),
        }
    }
    Ok(Some(SharedData { sharding, store, held: held.into() }))
}

/// The held-out end of a run's data, from the shards in a node's data directory: enough to evaluate.
///
/// # Errors
/// When the run shares nothing, or a shard of the held-out end is not there or has changed.
pub fn held_out_corpus(manifest: &RunManifest, root: &Path) -> Result<Corpus, Failure> {
    let missing = || {
        let message = format!("the held-out end of this run's data is not in {}", root.join("shards").display());
        Failure::new(ExitCode::Files, message).hint("give the run's files with --data FILE…")
    };
    let sharding = Sharding::of(&manifest.data).ok_or_else(missing)?;
    let store = ShardStore::existing(root.join("shards"));
    let mut corpus = Corpus::shared(sharding.clone());
    for index in sharding.held_out().iter() {
        let shard = store.load(&sharding.hashes()[index]).map_err(unusable)?.ok_or_else(missing)?;
        corpus.add_shard(index, shard);
    }
    Ok(corpus)
}

/// The shards of the node's own files, without a copy. What differs from the run's is left out and said.
fn from_files(sharding: &Sharding, settings: &NodeSettings) -> Result<BTreeMap<usize, Payload>, Failure> {
    let corpus = Corpus::read_files(&settings.data.files).map_err(|error| corpus_failure(&error))?;
    if corpus.len() as u64 != sharding.corpus_bytes() {
        let (ours, theirs) = (corpus.len(), sharding.corpus_bytes());
        let message = format!("the data files have {ours} bytes in all, this run's data {theirs}");
        return Err(Failure::new(ExitCode::Files, message)
            .hint("leave --data out: this run's data comes from its members; or start a run of your own"));
    }
    let corpus = Payload::from(corpus).bytes().clone();
    let mut held = BTreeMap::new();
    for (index, hash) in sharding.hashes().iter().enumerate() {
        let range = sharding.range(index);
        let shard = corpus.slice(range.start as usize..range.end as usize);
        if ShardHash::of(&shard) == *hash {
            held.insert(index, Payload::from(shard));
        }
    }
    let differing = sharding.count() - held.len();
    if differing > 0 {
        let differs = if differing == 1 { "1 differs".to_owned() } else { format!("{differing} differ") };
        note(&format!(
            "warning: of {} in the data files {differs} from this run's\nhint: what differs is fetched from members \
             instead; check the files and their order",
            counted(sharding.count() as u64, "shard")
        ));
    }
    Ok(held)
}

fn unusable(error: ShardStoreError) -> Failure {
    Failure::new(ExitCode::Files, format!("cannot use the shards in the data directory: {error}"))
        .hint("free or repair the disk, or choose another directory with --data-dir")
}

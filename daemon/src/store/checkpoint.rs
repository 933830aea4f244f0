//! A checkpoint: a folder that is there whole or not at all.
//!
//! ```text
//! checkpoints/step-000000000600/
//!   model.safetensors       the parameters by name, for any tool
//!   optimizer.safetensors   moments, and the average of gradients, slow weights and momentum where the run has them; of
//!                           moments in 8 bits codes and scales, and the others in 32
//!   checkpoint.json         counters, the run, and the BLAKE3 of the two files
//! ```
//! It is written under a temporary name, flushed and renamed, so a crash leaves at most a folder that nobody reads. A
//! checkpoint that does not match its hashes is refused and the one before it is used.

mod writing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use murmur_protocol::{ModelLayout, RunManifest};
use murmur_training::optimizer::{CodedMoments, moment_lengths};
use murmur_training::{Counters, DataPosition, EngineState, GradientAverage};
use serde::{Deserialize, Serialize};

use super::checkpoint_error::{CheckpointError, INDEX_FILE};
use super::tensor_file::TensorFile;
pub use writing::Head;
pub(crate) use writing::ToWrite;
use writing::Writing;

const MODEL_FILE: &str = "model.safetensors";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Format 1 has the vectors of the optimizer in the order of tensors' names, 2 in the order of the layout.
const FORMAT: u32 = 2;
/// The same with some moments in codes of 8 bits.
const FORMAT_WITH_CODES: u32 = 3;

/// All that is needed to resume.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The run.
    pub manifest: RunManifest,
    /// Swarm progress, in steps.
    pub progress: f64,
    /// Model, optimizer and position in the data.
    pub state: EngineState,
    /// How the model did when it was last evaluated; none where it never was, or in checkpoints of earlier versions.
    pub evaluation: Option<LastEvaluation>,
}

/// How a model did on the held-out slice of its run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastEvaluation {
    /// Mean loss, in nats.
    pub loss: f64,
    /// Share of predictions that were right, 0 to 1, for models that classify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct Index {
    format: u32,
    run: String,
    manifest: String,
    progress: f64,
    steps: u64,
    optimizer_steps: u64,
    warm_up_again_steps: u64,
    warm_up_again_taken: u64,
    data_epoch: u64,
    data_cursor: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluation: Option<LastEvaluation>,
    files: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Writes the checkpoint into the folder of checkpoints and deletes all but the newest `keep`.
    ///
    /// # Errors
    /// When the disk is full, the folder cannot be written or the model is broken; older checkpoints are then untouched.
    pub fn write(&self, folder: &Path, layout: &ModelLayout, keep: usize) -> Result<PathBuf, CheckpointError> {
        let head = Head {
            manifest: self.manifest.clone(),
            progress: self.progress,
            counters: self.state.counters,
            evaluation: self.evaluation,
            moments_in_8_bits: !self.state.coded_moments.is_empty(),
        };
        let mut writing = Writing::begin(folder, head, layout)?;
        writing.add(&self.state)?;
        writing.finish(keep)
    }

    /// Removes what a crash in the middle of a write has left. A replaced checkpoint whose successor was not yet in
    /// place comes back.
    pub(crate) fn clear_interrupted(folder: &Path) {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_left = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(".step-"))
        };
        for path in entries.filter(is_left) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let replaced = name.strip_suffix(".old").and_then(|name| name.get(1..)?.split('.').next());
            // One that could not be deleted altogether has no index any more.
            let replaced = replaced.filter(|_| path.join(INDEX_FILE).exists()).map(|name| folder.join(name));
            let _ = match replaced.filter(|replaced| !replaced.exists()) {
                Some(replaced) => std::fs::rename(&path, replaced),
                None => std::fs::remove_dir_all(&path),
            };
        }
    }

    /// Reads and verifies one checkpoint folder.
    ///
    /// # Errors
    /// When anything is missing, damaged or of another shape than its own run calls for.
    pub fn read(folder: &Path) -> Result<Checkpoint, CheckpointError> {
        let path = folder.join(INDEX_FILE);
        let bytes = std::fs::read(&path).map_err(|error| CheckpointError::Io(path.clone(), error))?;
        let damaged = |reason: String| CheckpointError::Index(path.clone(), reason);
        let index: Index = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if index.format > FORMAT_WITH_CODES {
            return Err(CheckpointError::Newer(path.clone(), index.format));
        }
        let manifest = RunManifest::from_text(&index.manifest).map_err(|error| damaged(error.to_string()))?;
        if manifest.run_id().to_string() != index.run {
            return Err(damaged("the run id is not that of the manifest".to_owned()));
        }
        if !(index.progress.is_finite() && index.progress >= 0.0) {
            return Err(damaged(format!("progress {}", index.progress)));
        }
        let layout = murmur_training::trained_layout(&manifest);
        let stored = if index.format == 1 { layout.by_name() } else { layout.clone() };
        let open = |name: &str| TensorFile::open(folder.join(name), index.files.get(name));
        let mut model = open(MODEL_FILE)?;
        let mut parameters = vec![0.0; layout.parameters()];
        stored.tensors().iter().try_for_each(|tensor| model.read(&tensor.name, &mut parameters[tensor.range()]))?;
        let mut optimizer = open(OPTIMIZER_FILE)?;
        let count = layout.parameters();
        let lengths = moment_lengths(&manifest.optimizer, &layout, index.format == FORMAT_WITH_CODES);
        let mut coded_moments = CodedMoments::default();
        for ((name, coded), [codes, scales]) in coded_moments.named_mut().into_iter().zip(lengths.coded) {
            if codes > 0 {
                coded.codes = optimizer.codes(&codes_of(name), codes)?;
                coded.scales = optimizer.values(&scales_of(name), scales)?;
            }
        }
        let mut values = |name: &str, count: usize, is_there: bool| -> Result<Option<Vec<f32>>, CheckpointError> {
            is_there.then(|| optimizer.values(name, count)).transpose()
        };
        let (outer, matched) = (manifest.gossip.outer_learning_rate > 0.0, manifest.optimizer.match_batch);
        let average = values("gradient_average", lengths.average, matched)?;
        let average = average.zip(values("gradient_average_weight", 1, matched)?);
        let state = EngineState {
            parameters,
            first_moment: values("first_moment", lengths.first, true)?.unwrap_or_default(),
            second_moment: values("second_moment", lengths.second, true)?.unwrap_or_default(),
            coded_moments,
            gradient_average: average.map(|(values, weight)| GradientAverage { values, weight: weight[0] }),
            slow_weights: values("slow_weights", count, outer)?,
            outer_momentum: values("outer_momentum", count, outer)?,
            counters: Counters {
                steps: index.steps,
                optimizer_steps: index.optimizer_steps,
                warm_up_again_steps: index.warm_up_again_steps,
                warm_up_again_taken: index.warm_up_again_taken,
                position: DataPosition { epoch: index.data_epoch, cursor: index.data_cursor },
            },
        };
        let state = if index.format == 1 { state.from_order_of_names(&layout, &manifest.optimizer) } else { state };
        Ok(Checkpoint { manifest, progress: index.progress, state, evaluation: index.evaluation })
    }

    /// Whether a checkpoint's files are those that were written. Nothing of it is kept in memory.
    fn is_intact(folder: &Path) -> bool {
        let index = std::fs::read(folder.join(INDEX_FILE)).ok();
        let index: Option<Index> = index.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_whole = |name: &str, index: &Index| TensorFile::open(folder.join(name), index.files.get(name)).is_ok();
        index.is_some_and(|index| [MODEL_FILE, OPTIMIZER_FILE].iter().all(|name| is_whole(name, &index)))
    }
}

/// The newest intact checkpoint in a folder of checkpoints. What had to be passed over comes along, newest first, to be
/// told to the user.
pub fn load_latest(folder: &Path) -> (Option<Checkpoint>, Vec<Refused>) {
    let mut refused = Vec::new();
    for path in checkpoint_folders(folder) {
        match Checkpoint::read(&path) {
            Ok(checkpoint) => return (Some(checkpoint), refused),
            Err(error) => refused.push(Refused { path, error }),
        }
    }
    (None, refused)
}

/// The newest of them, intact or not; `None` where there is none.
pub fn newest_checkpoint(folder: &Path) -> Option<PathBuf> {
    checkpoint_folders(folder).into_iter().next()
}

/// How many there are, intact or not.
pub(crate) fn checkpoints_in(folder: &Path) -> usize {
    checkpoint_folders(folder).len()
}

/// What the folder's name of a checkpoint that cannot be used begins with.
const SET_ASIDE: &str = "refused-";

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct Refused {
    path: PathBuf,
    /// Why it cannot be read.
    pub error: CheckpointError,
}

impl Refused {
    /// Its folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the folder to `refused-…`, so that it stays for whoever wants to look, and is not tried again.
    pub fn set_aside(&self) {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let _ = std::fs::rename(&self.path, self.path.with_file_name(format!("{SET_ASIDE}{name}")));
    }
}

/// Whether a checkpoint in a folder was put aside because it cannot be used.
pub(crate) fn has_set_aside(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(SET_ASIDE))
}

/// Newest first: names sort like their steps.
pub(super) fn checkpoint_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_number = |steps: &str| !steps.is_empty() && steps.bytes().all(|byte| byte.is_ascii_digit());
    let is_checkpoint = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_prefix("step-")).is_some_and(is_number)
    };
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_checkpoint).collect();
    folders.sort();
    folders.reverse();
    folders
}

/// The name of the codes of moments.
fn codes_of(moments: &str) -> String {
    format!("{moments}_codes")
}

/// The name of their scales.
fn scales_of(moments: &str) -> String {
    format!("{moments}_scales")
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{ModelSpec, OptimizerKind, TransformerModel};
    use murmur_training::optimizer::second_moments;

    use super::*;

    fn model(layers: u32) -> ModelSpec {
        TransformerModel { layers, width: 8, heads: 2, feed_forward: 16, ..TransformerModel::default() }.into()
    }

    fn checkpoint(steps: u64) -> (Checkpoint, ModelLayout) {
        let mut manifest = RunManifest { model: model(1), ..RunManifest::default() };
        manifest.gossip.outer_learning_rate = 0.7;
        let layout = murmur_training::model::layout(&manifest.model);
        let values = |offset: f32| (0..layout.parameters()).map(|index| index as f32 + offset).collect::<Vec<f32>>();
        let state = EngineState {
            parameters: values(0.0),
            first_moment: values(0.1),
            second_moment: values(0.2),
            gradient_average: None,
            coded_moments: CodedMoments::default(),
            slow_weights: Some(values(0.3)),
            outer_momentum: Some(values(0.4)),
            counters: Counters { steps, position: DataPosition { epoch: 2, cursor: 3 }, ..Counters::default() },
        };
        let evaluation = Some(LastEvaluation { loss: 1.5, accuracy: None });
        (Checkpoint { manifest, progress: steps as f64 + 0.5, state, evaluation }, layout)
    }

    #[test]
    fn a_checkpoint_comes_back_as_it_was() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (written, layout) = checkpoint(7);
        let index = written.write(folder.path(), &layout, 2).expect("written").join(INDEX_FILE);
        let (read, refused) = load_latest(folder.path());
        let read = read.expect("a checkpoint");
        assert!(refused.is_empty());
        assert_eq!(read.manifest, written.manifest);
        assert_eq!(read.evaluation, written.evaluation);
        assert_eq!(read.progress, written.progress);
        assert_eq!(read.state.parameters, written.state.parameters);
        assert_eq!(read.state.slow_weights, written.state.slow_weights);
        assert_eq!(read.state.outer_momentum, written.state.outer_momentum);
        assert_eq!(read.state.counters, written.state.counters);
        let newer = std::fs::read_to_string(&index).expect("there").replace("\"format\": 2", "\"format\": 99");
        std::fs::write(&index, newer).expect("written");
        assert!(
            matches!(&load_latest(folder.path()).1[..], [refused] if refused.error.to_string().contains("a newer murmur"))
        );
    }

    #[test]
    fn what_other_optimizers_keep_comes_back_too() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (mut written, layout) = checkpoint(7);
        (written.manifest.optimizer.kind, written.manifest.optimizer.match_batch) = (OptimizerKind::Muon, true);
        let seconds = second_moments(&written.manifest.optimizer, &layout);
        written.state.second_moment.truncate(seconds);
        let values = (0..seconds).map(|index| index as f32).collect();
        written.state.gradient_average = Some(GradientAverage { values, weight: 0.25 });
        written.write(folder.path(), &layout, 2).expect("written");
        let read = load_latest(folder.path()).0.expect("a checkpoint");
        assert_eq!((read.state, read.manifest), (written.state, written.manifest));
    }

    #[test]
    fn moments_in_eight_bits_come_back_in_a_smaller_file() {
        let (mut written, layout) = checkpoint(7);
        written.manifest.optimizer.match_batch = true;
        let lengths = moment_lengths(&written.manifest.optimizer, &layout, true);
        let values = |count: usize| (0..count).map(|index| index as f32).collect::<Vec<f32>>();
        (written.state.first_moment, written.state.second_moment) = (values(lengths.first), values(lengths.second));
        written.state.gradient_average = Some(GradientAverage { values: values(lengths.average), weight: 0.25 });
        let coded = written.state.coded_moments.named_mut().into_iter().zip(lengths.coded);
        for (kind, ((_, place), [codes, scales])) in coded.enumerate() {
            place.codes = (0..codes).map(|index| (index * (kind + 3)) as u8).collect();
            place.scales = values(scales);
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = written.write(folder.path(), &layout, 2).expect("written");
        let read = load_latest(folder.path()).0.expect("a checkpoint");
        assert_eq!(read.state, written.state);
        let bytes = path.join(OPTIMIZER_FILE).metadata().expect("there").len();
        // Slow weights and outer momentum are in 32 bits.
        let expected = (lengths.bytes() + 8 * layout.parameters()) as u64;
        assert!((expected..expected + 2000).contains(&bytes), "{bytes}, {expected} of values");
        written.state.coded_moments.second.scales[1] = f32::NAN;
        assert!(matches!(written.write(folder.path(), &layout, 2), Err(CheckpointError::NotFinite(7, _))));
    }

    /// As version 1 wrote them: every vector in the order of names.
    #[test]
    fn a_checkpoint_in_the_order_of_names_comes_back_in_that_of_the_layout() {
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let (mut old, _) = checkpoint(7);
            (old.manifest.model, old.manifest.optimizer.kind) = (model(11), kind);
            old.manifest.optimizer.match_batch = true;
            let layout = murmur_training::model::layout(&old.manifest.model);
            let (sorted, seconds) = (layout.by_name(), second_moments(&old.manifest.optimizer, &layout));
            let values =
                |length: usize, offset: f32| (0..length).map(|index| index as f32 + offset).collect::<Vec<_>>();
            let all = |offset| values(layout.parameters(), offset);
            old.state = EngineState {
                parameters: all(0.0),
                first_moment: all(0.25),
                second_moment: values(seconds, 0.0),
                gradient_average: Some(GradientAverage { values: values(seconds, 0.5), weight: 0.25 }),
                slow_weights: Some(all(0.5)),
                outer_momentum: Some(all(0.75)),
                ..old.state
            };
            let written = old.write(folder.path(), &sorted, 2).expect("written");
            let index = std::fs::read_to_string(written.join(INDEX_FILE)).expect("there");
            std::fs::write(written.join(INDEX_FILE), index.replace("\"format\": 2", "\"format\": 1")).expect("written");
            let state = Checkpoint::read(&written).expect("an old checkpoint").state;
            let vectors = |state: &EngineState| {
                let outer = [state.slow_weights.clone(), state.outer_momentum.clone()].map(Option::unwrap_or_default);
                [vec![state.parameters.clone(), state.first_moment.clone()], outer.to_vec()].concat()
            };
            for (found, old) in vectors(&state).iter().zip(vectors(&old.state)) {
                let before = |name: &str| &old[sorted.tensor(name).expect("the same tensors").range()];
                assert!(layout.tensors().iter().all(|tensor| found[tensor.range()] == *before(&tensor.name)));
            }
            let average = state.gradient_average.expect("kept");
            assert!(average.values.iter().zip(&state.second_moment).all(|(average, second)| *average == second + 0.5));
            let head = sorted.tensor("lm_head.weight").expect("not tied").len();
            assert_eq!(state.second_moment[0], head as f32, "the embedding came after the head");
            assert_eq!(state.second_moment[seconds - head..], old.state.second_moment[..head]);
        }
    }

    #[test]
    fn any_flipped_bit_and_any_truncation_is_refused_and_the_previous_one_used() {
        for file in [MODEL_FILE, OPTIMIZER_FILE, INDEX_FILE] {
            for damage in ["flip", "truncate", "delete"] {
                let folder = tempfile::tempdir().expect("a temporary directory");
                let (older, layout) = checkpoint(7);
                older.write(folder.path(), &layout, 2).expect("written");
                let newest = checkpoint(8).0.write(folder.path(), &layout, 2).expect("written");
                let path = newest.join(file);
                let mut bytes = std::fs::read(&path).expect("there");
                let middle = bytes.len() / 2;
                match damage {
                    "flip" => bytes[middle] ^= 0x10,
                    _ => bytes.truncate(middle),
                }
                match damage {
                    "delete" => std::fs::remove_file(&path).expect("deleted"),
                    _ => std::fs::write(&path, bytes).expect("written"),
                }
                let (read, refused) = load_latest(folder.path());
                assert_eq!(read.expect("the older one").state.counters.steps, 7, "{damage} {file}");
                assert_eq!(refused.len(), 1, "{damage} {file}");
            }
        }
    }

    #[test]
    fn only_the_newest_are_kept() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for steps in [1, 2, 30] {
            let (checkpoint, layout) = checkpoint(steps);
            checkpoint.write(folder.path(), &layout, 2).expect("written");
        }
        assert_eq!(checkpoint_folders(folder.path()).len(), 2);
        assert_eq!(load_latest(folder.path()).0.expect("one").state.counters.steps, 30);
    }

    #[test]
    fn a_broken_model_does_not_push_out_a_good_one() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for steps in [1, 2, 3] {
            let (mut checkpoint, layout) = checkpoint(steps);
            if steps > 1 {
                checkpoint.state.parameters[5] = f32::NAN;
            }
            let written = checkpoint.write(folder.path(), &layout, 2);
            assert_eq!(written.is_ok(), steps == 1);
        }
        assert_eq!(load_latest(folder.path()).0.expect("the first").state.counters.steps, 1);
    }

    #[test]
    fn an_interrupted_write_is_not_read() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(folder.path().join(".step-000000000009.tmp")).expect("created");
        assert!(load_latest(folder.path()).0.is_none());
    }

    #[test]
    fn only_steps_with_a_number_are_checkpoints() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for stray in ["step-zzz", "step-", "step-000000000009.bak"] {
            std::fs::create_dir(folder.path().join(stray)).expect("created");
        }
        assert!(checkpoint_folders(folder.path()).is_empty() && load_latest(folder.path()).1.is_empty());
    }

    #[test]
    fn a_data_directory_that_was_moved_is_not_made_anew() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let checkpoints = folder.path().join("node/checkpoints");
        let (checkpoint, layout) = checkpoint(1);
        let error = checkpoint.write(&checkpoints, &layout, 2).expect_err("moved");
        assert!(error.to_string().contains("node/checkpoints"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
        std::fs::create_dir(folder.path().join("node")).expect("made");
        checkpoint.write(&checkpoints, &layout, 2).expect("written");
    }
}

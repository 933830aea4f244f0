//! Writing a checkpoint: as a whole, or piece by piece as a large model is copied.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use murmur_protocol::{ModelLayout, RunManifest};
use murmur_training::optimizer::{BlockCodes, moment_lengths};
use murmur_training::{Counters, EngineState};
use safetensors::tensor::Dtype;

use super::{
    Checkpoint, FORMAT, FORMAT_WITH_CODES, Index, LastEvaluation, MODEL_FILE, OPTIMIZER_FILE, checkpoint_folders,
};
use super::{codes_of, scales_of};
use crate::console::note;
use crate::observe::journal;
use crate::store::checkpoint_error::{CheckpointError, INDEX_FILE};
use crate::store::tensor_file::TensorWriter;
use crate::store::{bytes_in, free_bytes, sync_directory, write_atomically};

/// Of a checkpoint's size, the part that has to be free beside it: a 16th.
const MARGIN: u64 = 16;

/// What a checkpoint has beside the vectors of its state.
#[derive(Clone, Debug)]
pub struct Head {
    /// The run.
    pub manifest: RunManifest,
    /// Swarm progress, in steps.
    pub progress: f64,
    /// Steps and positions.
    pub counters: Counters,
    /// How the model did when it was last evaluated.
    pub evaluation: Option<LastEvaluation>,
    /// Whether most moments are in 8 bits.
    pub moments_in_8_bits: bool,
}

/// A checkpoint to be written.
#[derive(Debug)]
pub(crate) enum ToWrite {
    /// All of it.
    Whole(Box<Checkpoint>),
    /// A large one, piece by piece as it is copied. It is given up where the last piece does not come.
    InPieces(Box<Head>, Receiver<EngineState>),
}

impl ToWrite {
    /// The node's own steps in it.
    pub(in crate::store) fn steps(&self) -> u64 {
        match self {
            ToWrite::Whole(checkpoint) => checkpoint.state.counters.steps,
            ToWrite::InPieces(head, _) => head.counters.steps,
        }
    }

    /// Writes it into a folder of checkpoints, of which the newest `keep` stay. `None` where it was given up.
    pub(in crate::store) fn write(
        self,
        folder: &Path,
        layout: &ModelLayout,
        keep: usize,
    ) -> Result<Option<PathBuf>, CheckpointError> {
        match self {
            ToWrite::Whole(checkpoint) => checkpoint.write(folder, layout, keep).map(Some),
            ToWrite::InPieces(head, pieces) => {
                let mut writing = Writing::begin(folder, *head, layout)?;
                pieces.iter().try_for_each(|piece| writing.add(&piece))?;
                writing.is_whole().then(|| writing.finish(keep)).transpose()
            }
        }
    }
}

/// A checkpoint that is being written under a temporary name, which goes where it is not finished.
pub(in crate::store) struct Writing<'a> {
    head: Head,
    folder: &'a Path,
    temporary: PathBuf,
    model: TensorWriter,
    optimizer: TensorWriter,
    is_finished: bool,
}

impl<'a> Writing<'a> {
    /// Begins one in the folder of checkpoints.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub(in crate::store) fn begin(
        folder: &'a Path,
        head: Head,
        layout: &ModelLayout,
    ) -> Result<Writing<'a>, CheckpointError> {
        let temporary = folder.join(format!(".{}.tmp", name(&head)));
        let io = |error| CheckpointError::Io(temporary.clone(), error);
        let _ = std::fs::remove_dir_all(&temporary);
        // The folder of checkpoints may have been deleted. Where what it lies in is not there, it was moved elsewhere.
        let _ = std::fs::create_dir(folder);
        std::fs::create_dir(&temporary).map_err(io)?;
        let journal = folder.parent().unwrap_or(folder).join(journal::FOLDER);
        make_room(folder, &journal, &folder.join(name(&head)), || free_bytes(folder));
        let tensors = layout.tensors().iter();
        let model: Vec<_> = tensors.map(|tensor| (tensor.name.clone(), tensor.shape.clone(), Dtype::F32)).collect();
        let create = |name: &str, tensors: &[_]| TensorWriter::create(temporary.join(name), tensors).map_err(io);
        let optimizer = || create(OPTIMIZER_FILE, &vectors(&head, layout));
        match create(MODEL_FILE, &model).and_then(|model| Ok((model, optimizer()?))) {
            Ok((model, optimizer)) => Ok(Writing { head, folder, temporary, model, optimizer, is_finished: false }),
            Err(error) => {
                let _ = std::fs::remove_dir_all(&temporary);
                Err(error)
            }
        }
    }

    /// Adds the state's next tensors, with their part of all vectors; all of it is a piece as well.
    ///
    /// # Errors
    /// When it is not finite, the disk is full or the pieces are more than the model.
    pub(in crate::store) fn add(&mut self, piece: &EngineState) -> Result<(), CheckpointError> {
        check_finite(piece)?;
        let io = |error| CheckpointError::Io(self.temporary.clone(), error);
        self.model.put_next(bytemuck::cast_slice(&piece.parameters)).map_err(io)?;
        let average = piece.gradient_average.as_ref();
        let parts = [
            ("first_moment", Some(&piece.first_moment)),
            ("second_moment", Some(&piece.second_moment)),
            ("gradient_average", average.map(|average| &average.values)),
            ("slow_weights", piece.slow_weights.as_ref()),
            ("outer_momentum", piece.outer_momentum.as_ref()),
        ];
        for (name, values) in parts.into_iter().filter_map(|(name, values)| Some((name, values?))) {
            self.optimizer.put(name, bytemuck::cast_slice(values)).map_err(io)?;
        }
        if let Some(average) = average {
            // The same for all, as it was at the first piece.
            self.optimizer.put_once("gradient_average_weight", &average.weight.to_le_bytes()).map_err(io)?;
        }
        for (name, BlockCodes { codes, scales }) in piece.coded_moments.named() {
            if !codes.is_empty() {
                self.optimizer.put(&codes_of(name), codes).map_err(io)?;
                self.optimizer.put(&scales_of(name), bytemuck::cast_slice(scales)).map_err(io)?;
            }
        }
        Ok(())
    }

    /// Whether all of the model has been added.
    pub(in crate::store) fn is_whole(&self) -> bool {
        self.model.is_full() && self.optimizer.is_full()
    }

    /// Puts it in its place and deletes all but the newest `keep`.
    ///
    /// # Errors
    /// When it is not whole, the disk is full or the folder cannot be written; older checkpoints are then untouched.
    pub(in crate::store) fn finish(mut self, keep: usize) -> Result<PathBuf, CheckpointError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |error| CheckpointError::Io(path, error)
        };
        let mut files = BTreeMap::new();
        for (name, file) in [(MODEL_FILE, &mut self.model), (OPTIMIZER_FILE, &mut self.optimizer)] {
            files.insert(name.to_owned(), file.finish().map_err(io(&self.temporary.join(name)))?);
        }
        let json = serde_json::to_vec_pretty(&index(&self.head, files)).expect("numbers and strings are serialisable");
        write_atomically(&self.temporary.join(INDEX_FILE), &json).map_err(io(&self.temporary))?;
        let name = name(&self.head);
        let target = self.folder.join(&name);
        // A second checkpoint of the same step replaces the first, which goes only once the new one is in place.
        let replaced = name_of_replaced(self.folder, &name);
        let _ = std::fs::rename(&target, &replaced);
        std::fs::rename(&self.temporary, &target).map_err(io(&target))?;
        self.is_finished = true;
        let _ = std::fs::remove_dir_all(&replaced);
        sync_directory(self.folder).map_err(io(self.folder))?;
        // Only its predecessors: one with a higher step is of another life, and not this one's to judge.
        let up_to_this = checkpoint_folders(self.folder).into_iter().filter(|found| *found <= target);
        let surplus: Vec<PathBuf> = up_to_this.skip(keep).collect();
        surplus.into_iter().for_each(|old| drop(std::fs::remove_dir_all(old)));
        Ok(target)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = std::fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Deletes old files of the journal and then the oldest checkpoints where the disk has no room for the one at `target` as well: it
/// is worth more than they are. The journal's newest file and the newest checkpoint that is intact stay, and so do all where that
/// would not be room enough. `free`: bytes of the disk, where they are known.
fn make_room(folder: &Path, journal: &Path, target: &Path, free: impl Fn() -> Option<u64>) {
    static HAS_SAID: AtomicBool = AtomicBool::new(false);
    // As in `finish`: those with a higher step are not this one's to judge.
    let older: Vec<PathBuf> =
        checkpoint_folders(folder).into_iter().filter(|found| found.as_path() <= target).collect();
    let Some(newest) = older.first() else { return };
    // Of one run all have the same size; some more, since others write to the disk meanwhile.
    let needed = bytes_in(newest) + bytes_in(newest) / MARGIN;
    let has_room = |more: u64| free().is_none_or(|free| free + more >= needed);
    if has_room(0) {
        return;
    }
    let mut told: Vec<PathBuf> = journal::files(journal).into_iter().map(|(_, path)| path).collect();
    told.pop();
    let size = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    let intact = older.iter().position(|found| Checkpoint::is_intact(found));
    let surplus = intact.map_or(&[][..], |intact| &older[intact + 1..]);
    if !has_room(told.iter().map(|file| size(file)).chain(surplus.iter().map(|old| bytes_in(old))).sum()) {
        return;
    }
    for old in told.iter().chain(surplus.iter().rev()) {
        if has_room(0) {
            return;
        }
        let _ = std::fs::remove_file(old).or_else(|_| std::fs::remove_dir_all(old));
        if !HAS_SAID.swap(true, Ordering::Relaxed) {
            note(&format!(
                "warning: the disk has no room for another checkpoint: {} was deleted for it",
                old.display()
            ));
            note("hint: make room there; until then the oldest goes before each new one");
        }
    }
}

/// Where a checkpoint of this name goes that is replaced. What was replaced before may be there still: a file that somebody reads
/// stays on the disk of another machine, or its folder may not be written any more.
fn name_of_replaced(folder: &Path, name: &str) -> PathBuf {
    let others = (2_u64..).map(|number| format!(".{name}.{number}.old"));
    let mut paths = std::iter::once(format!(".{name}.old")).chain(others).map(|name| folder.join(name));
    let is_free = |path: &PathBuf| std::fs::remove_dir_all(path).is_ok() || path.symlink_metadata().is_err();
    paths.find(is_free).expect("no folder has so many")
}

/// The name of its folder.
fn name(head: &Head) -> String {
    format!("step-{:012}", head.counters.steps)
}

/// What the optimizer's file has: name, shape, kind.
fn vectors(head: &Head, layout: &ModelLayout) -> Vec<(String, Vec<usize>, Dtype)> {
    let Head { manifest, moments_in_8_bits, .. } = head;
    let lengths = moment_lengths(&manifest.optimizer, layout, *moments_in_8_bits);
    let (all, is_matched) = (layout.parameters(), manifest.optimizer.match_batch);
    let has_outer = manifest.gossip.outer_learning_rate > 0.0;
    let flat = [
        ("first_moment", lengths.first, true),
        ("second_moment", lengths.second, true),
        ("gradient_average", lengths.average, is_matched),
        ("gradient_average_weight", 1, is_matched),
        ("slow_weights", all, has_outer),
        ("outer_momentum", all, has_outer),
    ];
    let flat = flat.into_iter().filter(|(.., is_there)| *is_there);
    let mut vectors: Vec<_> = flat.map(|(name, length, _)| (name.to_owned(), vec![length], Dtype::F32)).collect();
    let names = ["first_moment", "second_moment", "gradient_average"];
    for (name, [codes, scales]) in names.into_iter().zip(lengths.coded).filter(|(_, [codes, _])| *codes > 0) {
        vectors.push((codes_of(name), vec![codes], Dtype::U8));
        vectors.push((scales_of(name), vec![scales], Dtype::F32));
    }
    vectors
}

fn check_finite(state: &EngineState) -> Result<(), CheckpointError> {
    let parts = [
        ("the model", Some(&state.parameters)),
        ("the optimizer's first moment", Some(&state.first_moment)),
        ("the optimizer's second moment", Some(&state.second_moment)),
        ("the optimizer's average of gradients", state.gradient_average.as_ref().map(|average| &average.values)),
        ("the outer optimizer's slow weights", state.slow_weights.as_ref()),
        ("the outer momentum", state.outer_momentum.as_ref()),
    ];
    let finite = |values: &Vec<f32>| values.iter().all(|value| value.is_finite());
    let codes = (!state.coded_moments.is_finite()).then_some(("the optimizer's moments in 8 bits", None));
    let broken = codes.or_else(|| parts.into_iter().find(|(_, values)| !values.is_none_or(finite)));
    broken.map_or(Ok(()), |(part, _)| Err(CheckpointError::NotFinite(state.counters.steps, part)))
}

fn index(head: &Head, files: BTreeMap<String, String>) -> Index {
    let Head { manifest, progress, counters, evaluation, moments_in_8_bits } = head;
    Index {
        format: if *moments_in_8_bits { FORMAT_WITH_CODES } else { FORMAT },
        run: manifest.run_id().to_string(),
        manifest: manifest.canonical_text(),
        progress: *progress,
        steps: counters.steps,
        optimizer_steps: counters.optimizer_steps,
        warm_up_again_steps: counters.warm_up_again_steps,
        warm_up_again_taken: counters.warm_up_again_taken,
        data_epoch: counters.position.epoch,
        data_cursor: counters.position.cursor,
        evaluation: *evaluation,
        files,
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::TransformerModel;
    use murmur_training::optimizer::CodedMoments;

    use super::*;

    fn head() -> (Head, ModelLayout) {
        let model = TransformerModel { layers: 1, width: 8, heads: 2, feed_forward: 16, ..TransformerModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        (manifest.gossip.outer_learning_rate, manifest.optimizer.match_batch) = (0.7, true);
        let counters = Counters { steps: 7, ..Counters::default() };
        let layout = murmur_training::model::layout(&manifest.model);
        (Head { manifest, progress: 8.5, counters, evaluation: None, moments_in_8_bits: false }, layout)
    }

    /// These parameters with all that belongs to them.
    fn piece(range: std::ops::Range<usize>, weight: f32, counters: Counters) -> EngineState {
        let values = |offset: f32| range.clone().map(|index| index as f32 + offset).collect::<Vec<f32>>();
        EngineState {
            parameters: values(0.0),
            first_moment: values(0.1),
            second_moment: values(0.2),
            gradient_average: Some(murmur_training::GradientAverage { values: values(0.3), weight }),
            coded_moments: CodedMoments::default(),
            slow_weights: Some(values(0.4)),
            outer_momentum: Some(values(0.5)),
            counters,
        }
    }

    #[test]
    fn a_checkpoint_in_pieces_has_the_bytes_of_one_in_one_piece() {
        let (head, layout) = head();
        let written = |ends: &[usize]| {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let mut writing = Writing::begin(folder.path(), head.clone(), &layout).expect("begun");
            let mut begin = 0;
            for (number, end) in ends.iter().enumerate() {
                assert!(!writing.is_whole());
                writing.add(&piece(begin..*end, 0.5 + number as f32, head.counters)).expect("added");
                begin = *end;
            }
            assert!(writing.is_whole());
            let path = writing.finish(2).expect("whole");
            [MODEL_FILE, OPTIMIZER_FILE, INDEX_FILE].map(|name| std::fs::read(path.join(name)).expect("there"))
        };
        let all = layout.parameters();
        assert!(written(&[all]) == written(&[256 * 8, 256 * 8 + 11, all - 1, all]));
    }

    /// Writes the checkpoint of so many steps.
    fn write(folder: &Path, steps: u64) -> PathBuf {
        let (head, layout) = head();
        let counters = Counters { steps, ..head.counters };
        let mut writing = Writing::begin(folder, Head { counters, ..head }, &layout).expect("begun");
        writing.add(&piece(0..layout.parameters(), 0.5, counters)).expect("added");
        writing.finish(2).expect("written")
    }

    #[test]
    fn where_the_disk_has_no_room_for_a_third_one_the_oldest_goes_first_and_the_newest_intact_never() {
        let [folder, journal] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary directory"));
        let files = || [1, 2, 3].map(|number| journal.path().join(format!("{number:08}.jsonl")));
        let paths = [1, 2].map(|steps| write(folder.path(), steps));
        let size = bytes_in(&paths[1]);
        let make_room = |disk: u64| {
            let used = || {
                let checkpoints = checkpoint_folders(folder.path()).iter().map(|found| bytes_in(found)).sum::<u64>();
                checkpoints + files().iter().map(|file| file.metadata().map_or(0, |found| found.len())).sum::<u64>()
            };
            let target = folder.path().join("step-000000000003");
            make_room(folder.path(), journal.path(), &target, || Some(disk.saturating_sub(used())));
            paths.each_ref().map(|path| path.exists())
        };
        let tenths = |tenths: u64| size * tenths / 10;
        // What was told long ago goes before a checkpoint, and what is being written not at all.
        for file in files() {
            std::fs::write(file, vec![0; size as usize]).expect("written");
        }
        let is_there = || files().map(|file| file.exists());
        assert_eq!((make_room(tenths(62)), is_there()), ([true, true], [true; 3]), "there is room for all");
        assert_eq!((make_room(tenths(52)), is_there()), ([true, true], [false, true, true]));
        assert_eq!((make_room(tenths(42)), is_there()), ([true, true], [false, false, true]));
        std::fs::remove_file(&files()[2]).expect("there");
        assert_eq!(make_room(tenths(32)), [true, true], "there is room for three");
        assert_eq!(make_room(tenths(20)), [true, true], "the oldest would make too little");
        let model = std::fs::read(paths[1].join(MODEL_FILE)).expect("there");
        std::fs::write(paths[1].join(MODEL_FILE), &model[1..]).expect("written");
        assert_eq!(make_room(tenths(26)), [true, true], "the newest is damaged");
        std::fs::write(paths[1].join(MODEL_FILE), model).expect("written");
        assert_eq!(make_room(tenths(26)), [false, true]);
        assert_eq!(make_room(tenths(13)), [false, true], "it is the last");
    }

    /// A file in place of its folder, which is not deleted as one, stands for a folder that cannot be.
    #[test]
    fn a_checkpoint_is_written_again_although_what_it_replaced_before_cannot_be_deleted() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let stuck = [".step-000000000007.old", ".step-000000000007.2.old"].map(|name| folder.path().join(name));
        std::fs::write(&stuck[0], "in the way").expect("written");
        let first = write(folder.path(), 7);
        assert_eq!(write(folder.path(), 7), first, "the same place");
        std::fs::write(&stuck[1], "in the way").expect("written");
        write(folder.path(), 7);
        assert!(Checkpoint::is_intact(&first) && stuck.iter().all(|path| path.is_file()));
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 3, "nothing else is left");
    }

    #[test]
    fn a_replaced_checkpoint_comes_back_from_under_whatever_name_where_its_successor_did_not_come() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let first = write(folder.path(), 7);
        let old = [".step-000000000007.old", ".step-000000000007.2.old"].map(|name| folder.path().join(name));
        for (whole, rest) in [(&old[0], &old[1]), (&old[1], &old[0])] {
            std::fs::rename(&first, whole).expect("renamed");
            std::fs::create_dir(rest).expect("made");
            std::fs::write(rest.join(".nfs0001"), "what could not be deleted").expect("written");
            Checkpoint::clear_interrupted(folder.path());
            assert!(Checkpoint::is_intact(&first));
            assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1);
        }
        // A damaged one is told of when it is read.
        std::fs::remove_file(first.join(MODEL_FILE)).expect("there");
        std::fs::rename(&first, &old[1]).expect("renamed");
        Checkpoint::clear_interrupted(folder.path());
        assert!(first.join(INDEX_FILE).exists());
    }

    #[test]
    fn what_is_not_whole_leaves_nothing_behind() {
        let (head, layout) = head();
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut writing = Writing::begin(folder.path(), head.clone(), &layout).expect("begun");
        writing.add(&piece(0..100, 1.0, head.counters)).expect("added");
        assert!(!writing.is_whole());
        assert!(writing.finish(2).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
    }
}

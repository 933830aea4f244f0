//! The store driver: writes checkpoints on a thread of its own, so that a slow disk never holds up training.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use murmur_protocol::ModelLayout;

use super::{CheckpointError, ToWrite, newest_checkpoint};
use crate::console::figures::counted;
use crate::console::{Words, note};
use crate::drivers::{NotSaved, Reply, SavedCheckpoint};
use crate::process::memory;

/// Checkpoints waiting to be written. A whole one holds several times the model; while one waits, a further one is skipped.
const QUEUE_MAX: usize = 1;

/// How long the model that a peer's replaces waits for a busy disk.
const REPLACED_WAIT: Duration = Duration::from_secs(10);

/// Beside the folder of checkpoints: the model that a peer's has replaced last.
pub(super) const REPLACED: &str = "replaced";

/// A checkpoint to be written, and who waits for it.
#[derive(Debug)]
struct Order {
    checkpoint: ToWrite,
    /// Whether a peer's model has taken its place.
    is_replaced: bool,
    reply: Option<Reply>,
}

/// Takes checkpoints and writes them in order.
#[derive(Debug)]
pub struct CheckpointWriter {
    queue: Option<SyncSender<Order>>,
    writing: Arc<AtomicBool>,
    /// Checkpoints that have been handed over and are not on disk.
    held: Arc<AtomicUsize>,
    /// Whether the one that was written last is not on disk.
    has_failed: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), CheckpointError>>>,
    tell: Tell,
}

/// What comes of checkpoints, as it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Saving {
    #[default]
    Done,
    /// One is being written.
    UnderWay,
    /// The last one could not be written.
    Failed,
}

/// See [`CheckpointWriter::view`].
#[derive(Clone, Debug)]
pub(crate) struct SavingView {
    is_writing: Arc<AtomicBool>,
    has_failed: Arc<AtomicBool>,
}

impl SavingView {
    pub(crate) fn look(&self) -> Saving {
        match (self.is_writing.load(Ordering::Relaxed), self.has_failed.load(Ordering::Acquire)) {
            (true, _) => Saving::UnderWay,
            (false, true) => Saving::Failed,
            (false, false) => Saving::Done,
        }
    }
}

/// Who is told beside people.
#[derive(Clone)]
struct Tell(Arc<dyn Fn(Words) + Send + Sync>);

impl std::fmt::Debug for Tell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Tell")
    }
}

impl Tell {
    /// Says something to people as well.
    fn say(&self, words: Words) {
        match words.hint {
            Some(hint) => note(&format!("warning: {}\nhint: {hint}", words.text)),
            None => note(&words.text),
        }
        (self.0)(words);
    }
}

impl CheckpointWriter {
    /// Starts the thread.
    ///
    /// # Panics
    /// When the system has no thread left.
    pub fn start(folder: PathBuf, layout: Arc<ModelLayout>, keep: usize) -> CheckpointWriter {
        CheckpointWriter::start_telling(folder, layout, keep, |_| {})
    }

    /// The same, where somebody is told beside people: of each checkpoint that cannot be written, and of each model that a peer's
    /// replaces.
    ///
    /// # Panics
    /// When the system has no thread left.
    pub fn start_telling(
        folder: PathBuf,
        layout: Arc<ModelLayout>,
        keep: usize,
        tell: impl Fn(Words) + Send + Sync + 'static,
    ) -> CheckpointWriter {
        let (queue, orders) = sync_channel(QUEUE_MAX);
        let writing = Arc::new(AtomicBool::new(false));
        let (is_writing, held) = (writing.clone(), Arc::new(AtomicUsize::new(0)));
        let tell = Tell(Arc::new(tell));
        let has_failed = Arc::new(AtomicBool::new(false));
        let (of_thread, failed, to_tell) = (held.clone(), has_failed.clone(), tell.clone());
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || write_all(&orders, (&folder, &layout, keep), (&is_writing, &of_thread, &failed), &to_tell))
            .expect("the system has a thread for the store");
        CheckpointWriter { queue: Some(queue), writing, held, has_failed, thread: Some(thread), tell }
    }

    /// Tells that a model of so many own steps, which a peer's replaces, is not kept.
    pub(crate) fn tell_lost(&self, steps: u64, reason: &str) {
        self.tell.say(lost(steps, &reason));
    }

    /// Tells that the last checkpoint could not be made. People read it as what the daemon ends with.
    pub(crate) fn tell_unmade(&self, reason: &str) {
        (self.tell.0)(unsaved(reason));
    }

    /// Whether a checkpoint is being written or waits for it. Each may be a copy of model and moments: who can wait makes none
    /// meanwhile.
    pub(crate) fn is_busy(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// Whether the last checkpoint could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Waits until nothing is written any more.
    pub(crate) fn settle(&self) {
        let is_there = || self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        while self.is_busy() && is_there() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// To be looked at from any thread.
    pub(crate) fn view(&self) -> SavingView {
        SavingView { is_writing: self.writing.clone(), has_failed: self.has_failed.clone() }
    }

    /// Hands a checkpoint over without waiting; `false` where one is still waiting or the thread is gone. `reply` hears
    /// what became of it in any case.
    pub(crate) fn try_write(&self, checkpoint: ToWrite, reply: Option<Reply>) -> bool {
        let Some(queue) = &self.queue else { return false };
        let order = Order { checkpoint, is_replaced: false, reply };
        self.held.fetch_add(1, Ordering::AcqRel);
        let (order, reason, refusal) = match queue.try_send(order) {
            Ok(()) => return true,
            Err(TrySendError::Full(order)) => (order, "the disk is still busy with the last one", NotSaved::Busy),
            Err(TrySendError::Disconnected(order)) => (order, "the store is gone", NotSaved::Ended),
        };
        self.held.fetch_sub(1, Ordering::AcqRel);
        tracing::warn!("checkpoint skipped: {reason}");
        if let Some(reply) = order.reply {
            let _ = reply.send(Err(refusal));
        }
        false
    }

    /// Hands over the checkpoint of a model that a peer's replaces: it is kept in a folder of its own, until the next one. Waits
    /// for a busy disk, for at most [`REPLACED_WAIT`]: what is trained meanwhile is lost anyway. Returns whether it will be written.
    pub(crate) fn write_replaced(&self, checkpoint: ToWrite) -> bool {
        let Some(queue) = &self.queue else { return false };
        let mut order = Order { checkpoint, is_replaced: true, reply: None };
        let begin = Instant::now();
        self.held.fetch_add(1, Ordering::AcqRel);
        loop {
            order = match queue.try_send(order) {
                Ok(()) => return true,
                Err(TrySendError::Full(order)) if begin.elapsed() < REPLACED_WAIT => order,
                Err(_) => {
                    self.held.fetch_sub(1, Ordering::AcqRel);
                    return false;
                }
            };
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until everything is on disk.
    ///
    /// # Errors
    /// Why the last checkpoint is not.
    pub fn finish(mut self) -> Result<(), CheckpointError> {
        drop(self.queue.take());
        self.thread.take().map_or(Ok(()), |thread| thread.join().expect("writing returns its errors"))
    }

    /// Hands the final checkpoint over, after those that wait. Only for when training is over. Returns whether it will be written.
    pub(crate) fn write_last(&self, checkpoint: ToWrite) -> bool {
        self.held.fetch_add(1, Ordering::AcqRel);
        let order = Order { checkpoint, is_replaced: false, reply: None };
        self.queue.as_ref().is_some_and(|queue| queue.send(order).is_ok())
    }
}

/// Returns how the last one went.
fn write_all(
    orders: &Receiver<Order>,
    (folder, layout, keep): (&Path, &ModelLayout, usize),
    (is_writing, held, has_failed): (&AtomicBool, &AtomicUsize, &AtomicBool),
    tell: &Tell,
) -> Result<(), CheckpointError> {
    let mut last = Ok(());
    for Order { checkpoint, is_replaced, reply } in orders {
        let steps = checkpoint.steps();
        if is_replaced {
            tell.say(keep_replaced(checkpoint, &folder.with_file_name(REPLACED), layout));
            held.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        is_writing.store(true, Ordering::Relaxed);
        let written = checkpoint.write(folder, layout, keep);
        is_writing.store(false, Ordering::Relaxed);
        if let Some(reply) = reply {
            let saved = match &written {
                Ok(Some(path)) => Ok(SavedCheckpoint { path: path.clone(), steps }),
                Ok(None) => Err(NotSaved::GivenUp),
                Err(error) => Err(NotSaved::Failed(error.to_string())),
            };
            // Who has asked may have gone.
            let _ = reply.send(saved);
        }
        last = written.map(|path| match path {
            Some(path) => tracing::info!("checkpoint {}", path.display()),
            None => tracing::info!("a checkpoint was given up before it was whole"),
        });
        if let Err(error) = &last {
            tell.say(unwritten(error, newest_checkpoint(folder).is_some()));
        }
        has_failed.store(last.is_err(), Ordering::Release);
        // The next one is minutes away.
        memory::collect();
        held.fetch_sub(1, Ordering::AcqRel);
    }
    last
}

/// That a checkpoint could not be written, and whether there is one of before.
fn unwritten(error: &CheckpointError, is_one_there: bool) -> Words {
    let hint = match is_one_there {
        true => "the one before it stays; make room there, or mend the disk",
        false => "there is none yet; make room there, or mend the disk",
    };
    Words { text: format!("cannot write a checkpoint: {error}"), hint: Some(hint) }
}

/// That a node ends without its last checkpoint.
pub(crate) fn unsaved(reason: &str) -> Words {
    let hint = "a checkpoint from before, where there is one, is still there";
    Words { text: format!("the last checkpoint is missing: {reason}"), hint: Some(hint) }
}

/// That a model of so many own steps, which a peer's replaces, is not kept.
fn lost(steps: u64, reason: &dyn std::fmt::Display) -> Words {
    let text = format!("the model that was replaced, {}, is lost: {reason}", counted(steps, "own step"));
    Words { text, hint: Some("the node goes on with the model that it has copied") }
}

/// Keeps a model that a peer's has replaced. Returns where, or why not.
fn keep_replaced(checkpoint: ToWrite, folder: &Path, layout: &ModelLayout) -> Words {
    // Whatever its number of steps, the one before it goes.
    let _ = std::fs::remove_dir_all(folder);
    let written = std::fs::create_dir(folder).map_err(|error| CheckpointError::Io(folder.to_owned(), error));
    let steps = checkpoint.steps();
    match written.and_then(|()| checkpoint.write(folder, layout, 1)) {
        Ok(None) => lost(steps, &"the disk is too slow"),
        Ok(Some(path)) => {
            let (steps, path) = (counted(steps, "own step"), path.display());
            Words {
                text: format!("the model that was replaced, {steps}, is kept until the next one is: {path}"),
                hint: None,
            }
        }
        Err(error) => lost(steps, &error),
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::RunManifest;
    use murmur_training::{Counters, EngineState};
    use tokio::sync::oneshot;

    use super::*;
    use crate::store::{Checkpoint, Head};

    /// Of a small model, or a piece of one, after seven steps.
    fn state(parameters: usize) -> EngineState {
        let values = || vec![0.5; parameters];
        EngineState {
            parameters: values(),
            first_moment: values(),
            second_moment: values(),
            gradient_average: None,
            coded_moments: Default::default(),
            slow_weights: None,
            outer_momentum: None,
            counters: Counters { steps: 7, ..Counters::default() },
        }
    }

    fn checkpoint(manifest: RunManifest, parameters: usize) -> Checkpoint {
        Checkpoint { manifest, progress: 7.0, state: state(parameters), evaluation: None }
    }

    /// The journal is told, beside people.
    #[test]
    fn what_became_of_a_replaced_model_and_of_the_last_checkpoint_is_told() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let manifest = RunManifest::default();
        let layout = Arc::new(murmur_training::trained_layout(&manifest));
        let (sender, heard) = std::sync::mpsc::channel();
        let tell = move |Words { text, hint }| sender.send((text, hint.is_some())).expect("heard");
        let writer = CheckpointWriter::start_telling(folder.path().join("checkpoints"), layout.clone(), 2, tell);
        let whole = || ToWrite::Whole(Box::new(checkpoint(manifest.clone(), layout.parameters())));
        let next = || heard.recv_timeout(Duration::from_secs(60)).expect("told");
        assert!(writer.write_replaced(whole()));
        let (text, is_warning) = next();
        assert!(text.starts_with("the model that was replaced, 7 own steps, is kept") && !is_warning, "{text}");
        // Nothing can be written there any more.
        let replaced = folder.path().join(REPLACED);
        std::fs::remove_dir_all(&replaced).expect("there");
        std::fs::write(&replaced, "").expect("written");
        assert!(writer.write_replaced(whole()));
        let (text, is_warning) = next();
        assert!(text.starts_with("the model that was replaced, 7 own steps, is lost: ") && is_warning, "{text}");
        writer.tell_lost(1, "the disk is busy");
        let expected = "the model that was replaced, 1 own step, is lost: the disk is busy";
        assert_eq!(next(), (expected.to_owned(), true));
        writer.tell_unmade("no memory");
        assert_eq!(next(), ("the last checkpoint is missing: no memory".to_owned(), true));
    }

    #[test]
    fn a_checkpoint_whose_last_piece_does_not_come_is_given_up() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let manifest = RunManifest::default();
        let layout = Arc::new(murmur_training::trained_layout(&manifest));
        let writer = CheckpointWriter::start(folder.path().to_owned(), layout, 2);
        let (sender, pieces) = sync_channel(0);
        let (counters, evaluation) = (Counters { steps: 7, ..Counters::default() }, None);
        let head = Head { manifest, progress: 7.0, counters, evaluation, moments_in_8_bits: false };
        let (reply, mut answer) = oneshot::channel();
        assert!(writer.try_write(ToWrite::InPieces(Box::new(head), pieces), Some(reply)) && writer.is_busy());
        let piece = state(100);
        sender.send(piece).expect("it is taken");
        assert!(answer.try_recv().is_err(), "more is to come");
        drop(sender);
        writer.finish().expect("this is no fault of the disk");
        assert_eq!(answer.try_recv(), Ok(Err(NotSaved::GivenUp)));
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
    }
}

//! When the trainer makes a checkpoint: soon after training has begun, then by the period, and whenever somebody asks.

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use murmur_training::EngineState;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::{IDLE_PERIOD, Stage, TrainerThread};
use crate::store::{Checkpoint, Head, LastEvaluation, ToWrite};

/// From the beginning of training to the first checkpoint, which is to be on disk within 30 s: a node that was killed
/// early has something to come back to, and `murmur sample` something to show. The rest is left for the copy, the disk
/// and the step in between.
pub(super) const FIRST_CHECKPOINT_AFTER: Duration = Duration::from_secs(20);

/// Requests for a checkpoint that may wait for the next step boundary.
const REQUESTS_MAX: usize = 4;

/// Says when the next checkpoint is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timetable {
    /// `None`: only at the end.
    period: Option<Duration>,
    due: Option<Instant>,
}

impl Timetable {
    pub(super) fn new(period: Option<Duration>) -> Timetable {
        Timetable { period, due: None }
    }

    /// Training begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.due = self.period.map(|period| now + period.min(FIRST_CHECKPOINT_AFTER));
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// The one that was made came to nothing.
    fn retry(&mut self, now: Instant) {
        self.begin(now);
    }

    /// A checkpoint was made.
    pub(super) fn made(&mut self, now: Instant) {
        self.due = self.period.map(|period| now + period);
    }
}

impl TrainerThread {
    /// Writes a checkpoint for whoever has asked for one. While the disk is busy, whoever asks waits: another copy of model and
    /// moments would be more memory than this node has said that it takes.
    pub(super) fn save_as_asked(&mut self) {
        while !self.writer.is_busy()
            && let Ok(reply) = self.asked.try_recv()
        {
            let before = Instant::now();
            let made = match self.stage {
                Stage::Waiting => Err(NotSaved::NoModel),
                _ if !self.is_worth_keeping() => Err(NotSaved::Broken),
                _ => self.checkpoint().map_err(NotSaved::Failed),
            };
            match made {
                Ok(made) => {
                    let _ =
                        self.hand_over(made, |trainer, checkpoint| trainer.writer.try_write(checkpoint, Some(reply)));
                }
                // Who has asked may have gone.
                Err(error) => drop(reply.send(Err(error))),
            }
            self.clock.spent_aside(before.elapsed());
        }
    }

    /// Writes a checkpoint where one is due. One that is due while the disk is busy is made as soon as it no longer is.
    pub(super) fn save_where_due(&mut self) {
        if !self.timetable.is_due(Instant::now()) || self.writer.is_busy() || !self.is_worth_keeping() {
            return;
        }
        match self.checkpoint() {
            Ok(made) => {
                let _ = self.hand_over(made, |trainer, checkpoint| trainer.writer.try_write(checkpoint, None));
            }
            Err(error) => {
                tracing::error!("{error}");
                self.timetable.retry(Instant::now());
            }
        }
    }

    /// Between two steps: pieces of a large model that have not gone out beside steps, as many as the disk takes in a moment.
    pub(super) fn save_on(&mut self) {
        if !self.engine.is_saving() {
            return;
        }
        if !self.is_worth_keeping() {
            self.timetable.retry(Instant::now());
            return self.engine.stop_saving();
        }
        let before = Instant::now();
        let moment = if self.stage == Stage::Training { Duration::ZERO } else { IDLE_PERIOD };
        self.engine.save_on(Some(before + moment));
        self.clock.spent_aside(before.elapsed());
    }

    /// Whether the model is as good as its last checkpoint.
    pub(super) fn is_worth_keeping(&self) -> bool {
        !self.divergence.is_suspected() && self.view.failure.is_none()
    }

    pub(super) fn checkpoint(&mut self) -> Result<Made, String> {
        self.timetable.made(Instant::now());
        self.saved()
    }

    /// A checkpoint of the model as it is, or what is needed to begin one that is copied piece by piece. One that was begun before is
    /// given up.
    pub(super) fn saved(&mut self) -> Result<Made, String> {
        self.engine.stop_saving();
        let evaluation = self.view.validation_loss.map(|loss| LastEvaluation { loss, accuracy: self.view.accuracy });
        let (manifest, progress) = (self.settings.manifest.clone(), self.view.progress);
        if self.member.is_none() && self.engine.is_saved_in_pieces() {
            self.engine.gather().map_err(|error| format!("cannot fetch the model for a checkpoint: {error}"))?;
            let (receiver, pieces) = sync_channel(0);
            let (counters, moments_in_8_bits) = (self.engine.counters(), self.engine.keeps_moments_in_8_bits());
            let head = Head { manifest, progress, counters, evaluation, moments_in_8_bits };
            return Ok(Made { checkpoint: ToWrite::InPieces(Box::new(head), pieces), receiver: Some(receiver) });
        }
        let saved = match &self.member {
            // What was contributed and has no sum is contributed again.
            Some(member) if member.has_open_gradient() => self.engine.save_before_batch(),
            _ => self.engine.save(),
        };
        let state = saved.map_err(|error| format!("cannot copy the model for a checkpoint: {error}"))?;
        let checkpoint = Checkpoint { manifest, progress, state, evaluation };
        Ok(Made { checkpoint: ToWrite::Whole(Box::new(checkpoint)), receiver: None })
    }

    /// Hands a checkpoint to the writer, and has its pieces copied from now on where it goes in pieces. Returns whether it will be
    /// written.
    pub(super) fn hand_over(&mut self, made: Made, write: impl FnOnce(&Self, ToWrite) -> bool) -> bool {
        let Made { checkpoint, receiver } = made;
        let is_taken = write(self, checkpoint);
        if let Some(receiver) = receiver.filter(|_| is_taken) {
            self.engine.begin_to_save(receiver);
        }
        is_taken
    }
}

/// A checkpoint for the writer, and where its pieces go in.
pub(super) struct Made {
    checkpoint: ToWrite,
    receiver: Option<SyncSender<EngineState>>,
}

/// A checkpoint that is on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// The node's own steps in it.
    pub steps: u64,
}

/// Why no checkpoint was written on request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSaved {
    /// A joiner's own model is worth nothing yet.
    #[error("this node has no model yet: it is still joining")]
    NoModel,
    /// The last step went wrong, or training has ended for good.
    #[error("the model may be broken: its last step failed")]
    Broken,
    /// An earlier one is still being written.
    #[error("the disk is still busy with the last checkpoint")]
    Busy,
    /// The model that was being copied was replaced, or its last step failed.
    #[error("the model was replaced while it was copied for the checkpoint; ask again")]
    GivenUp,
    /// The daemon ends.
    #[error("the daemon is about to end")]
    Ended,
    /// Copying or writing failed.
    #[error("{0}")]
    Failed(String),
}

/// Told once the checkpoint is on disk, or why it is not.
pub(crate) type Reply = oneshot::Sender<Result<SavedCheckpoint, NotSaved>>;

/// Asks the trainer for checkpoints. Does not keep it running.
#[derive(Clone, Debug)]
pub struct CheckpointRequests(mpsc::Sender<Reply>);

impl CheckpointRequests {
    pub(super) fn channel() -> (CheckpointRequests, mpsc::Receiver<Reply>) {
        let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
        (CheckpointRequests(sender), receiver)
    }

    /// Asks a trainer that has ended.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> CheckpointRequests {
        CheckpointRequests::channel().0
    }

    /// With what a test answers.
    #[cfg(test)]
    pub(crate) fn of_a_test() -> (CheckpointRequests, mpsc::Receiver<Reply>) {
        CheckpointRequests::channel()
    }

    /// Has a checkpoint written at the next step boundary, and waits until it is on disk. Training goes on meanwhile.
    ///
    /// # Errors
    /// Why none was written.
    pub async fn write(&self) -> Result<SavedCheckpoint, NotSaved> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(reply).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotSaved::Busy,
            mpsc::error::TrySendError::Closed(_) => NotSaved::Ended,
        })?;
        answer.await.unwrap_or(Err(NotSaved::Ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds after the beginning at which checkpoints are made, where each is made as soon as it is due.
    fn made_at(period: Option<u64>, seconds: u64) -> Vec<u64> {
        let begin = Instant::now();
        let mut timetable = Timetable::new(period.map(Duration::from_secs));
        assert!(!timetable.is_due(begin + Duration::from_secs(seconds)), "training has not begun");
        timetable.begin(begin);
        let due = |second: &u64| {
            let now = begin + Duration::from_secs(*second);
            let is_due = timetable.is_due(now);
            if is_due {
                timetable.made(now);
            }
            is_due
        };
        (0..seconds).filter(due).collect()
    }

    #[test]
    fn the_first_checkpoint_is_made_within_30_seconds_and_the_others_by_the_period() {
        assert_eq!(made_at(Some(300), 1000), [20, 320, 620, 920]);
        assert!(FIRST_CHECKPOINT_AFTER < Duration::from_secs(30));
        assert_eq!(made_at(Some(10), 35), [10, 20, 30], "a shorter period holds from the beginning");
        assert!(made_at(None, 1000).is_empty(), "a period of zero writes at the end only");
    }
}

//! A model that was copied from peers takes the place of the one that training has made.

use std::time::{Duration, Instant};

use murmur_protocol::Payload;

use super::{Stage, TrainerThread};

/// How long a copied model waits for the disk to take the one that it replaces.
const KEEPING_MAX: Duration = Duration::from_secs(60);

impl TrainerThread {
    /// Takes a copied model over; says whether it could. The core may find that others doubt it, and have another copied.
    pub(super) fn load_state(&mut self, chunks: &[Payload], progress: f64) -> bool {
        tracing::debug!("a peer's model is here");
        if self.stage != Stage::Waiting && !self.is_own_kept && self.is_worth_keeping() {
            self.keep_own();
        }
        match self.engine.load_state(chunks) {
            Ok(()) => {
                tracing::debug!("a peer's model is loaded");
                self.view.completed = false;
                self.view.progress = progress;
                self.view.copies += 1;
                // The core goes on from here: no report may show what was before.
                self.show();
                true
            }
            Err(error) => {
                tracing::error!("cannot load a peer's model: {error}");
                false
            }
        }
    }

    /// A node that was too far off for others to average with copies the model anew: what it has learned may still be of
    /// use to its owner.
    pub(super) fn keep_own(&mut self) {
        let begin = Instant::now();
        let saved = self
            .saved()
            .map(|made| self.hand_over(made, |trainer, checkpoint| trainer.writer.write_replaced(checkpoint)));
        // What the disk has not taken by then is lost.
        self.engine.save_on(Some(begin + KEEPING_MAX));
        match saved {
            Ok(is_kept) if is_kept => self.is_own_kept = true,
            Ok(_) => self.writer.tell_lost(self.engine.steps(), "the disk is busy"),
            Err(error) => self.writer.tell_lost(self.engine.steps(), &error),
        }
        self.clock.spent_aside(begin.elapsed());
    }

    /// The model is this node's: its own, or a copy that is believed.
    pub(super) fn begin(&mut self) {
        self.is_own_kept = false;
        if self.stage == Stage::Waiting {
            self.stage = Stage::Training;
            self.timetable.begin(Instant::now());
        } else if self.view.failure.is_none() {
            // The model that ended was replaced by one that may not be at the end yet, or there is a later end.
            self.stage = Stage::Training;
            self.view.completed = false;
        }
    }
}

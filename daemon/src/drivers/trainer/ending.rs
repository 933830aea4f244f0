//! When training ends, and what is done then.

use std::time::{Duration, Instant};

use murmur_protocol::Event;
use murmur_training::TrainingError;

use super::{Stage, TrainerThread};

/// How often a last checkpoint is made again that could not be written.
const LAST_PERIOD: Duration = Duration::from_secs(60);

impl TrainerThread {
    /// Whether there is nothing left to train on: the run is over, or this node's own part of it.
    pub(super) fn is_run_over(&self) -> bool {
        let own_limit = self.settings.steps_max.is_some_and(|limit| self.engine.steps() >= limit);
        // With a limit of its own the node goes on to it, whatever the others' pace, unless the founder ends the run, or nobody
        // is left to average each step with.
        let is_synchronous = self.settings.manifest.synchronous.is_fixed();
        let is_bound = self.settings.steps_max.is_none() || self.ending.is_some() || is_synchronous;
        own_limit || self.is_budget_used_up() || (is_bound && self.end().is_some_and(|end| self.view.progress >= end))
    }

    /// Swarm progress at which the run is complete, in steps; `None` while no end is set.
    pub(super) fn end(&self) -> Option<f64> {
        let total_steps = self.settings.manifest.schedule.total_steps;
        self.ending.map(|ending| ending.until).or((total_steps > 0).then_some(total_steps as f64))
    }

    /// For good. Checkpoints stay as they are: the last one is of a model that still worked.
    pub(super) fn give_up(&mut self, reason: String) {
        tracing::error!("training has ended {reason}");
        self.stage = Stage::Ended;
        self.view.failure = Some(reason);
    }

    /// A step was not taken. Training ends, unless the step's numbers were not finite and others of late were.
    pub(super) fn on_failed_step(&mut self, error: &TrainingError) {
        let place = self.place();
        match error {
            TrainingError::NotFinite { .. } if !self.divergence.skipped() => tracing::warn!("at {place}: {error}"),
            TrainingError::NotFinite { .. } => self.give_up(format!("the model has diverged at {place}: {error}")),
            _ => self.give_up(format!("at {place}: {error}")),
        }
    }

    /// For good.
    pub(super) fn end_training(&mut self) {
        self.stage = Stage::Ended;
        if let Err(error) = self.engine.end_training() {
            tracing::error!("layers of helpers cannot be taken back: {error}");
        }
        self.tell_holding();
    }

    /// Before anything is answered by it.
    pub(super) fn tell_holding(&mut self) {
        let holding = self.engine.holding();
        if holding != self.holding {
            self.holding = holding;
            self.tell(Event::HoldingChanged { holding });
        }
        if self.engine.take_outdated() {
            self.tell(Event::ModelOutdated);
        }
    }

    /// The last evaluation and checkpoint. Where they are done, and the checkpoint is not on disk, it is tried once more.
    pub(super) fn complete(&mut self) {
        if self.view.failure.is_some() {
            return;
        }
        if self.view.completed {
            self.engine.save_on(None);
            self.writer.settle();
            if self.is_last_missing() {
                self.write_last();
            }
            return;
        }
        self.evaluate();
        self.write_last();
        self.view.completed = true;
        self.show();
    }

    /// While the model is served: a last checkpoint that could not be written, now and then once more, since room may be made.
    pub(super) fn write_last_again(&mut self) {
        let is_due = self.last_made.is_some_and(|made| made.elapsed() >= LAST_PERIOD);
        if is_due && self.view.completed && self.is_last_missing() && !self.writer.is_busy() {
            self.write_last();
        }
    }

    fn is_last_missing(&self) -> bool {
        self.unsaved.is_some() || self.writer.has_failed()
    }

    fn write_last(&mut self) {
        self.last_made = Some(Instant::now());
        self.unsaved = None;
        match self.checkpoint() {
            Ok(made) => {
                self.hand_over(made, |trainer, checkpoint| trainer.writer.write_last(checkpoint));
                // Training is over, and waits for the disk.
                self.engine.save_on(None);
            }
            Err(error) => {
                self.writer.tell_unmade(&error);
                self.unsaved = Some(error);
            }
        }
    }
}

//! Snapshots and corrections that travel between the device and the machine's memory while steps go on.

use std::collections::VecDeque;
use std::sync::mpsc::TryRecvError;

use murmur_protocol::{Correction, Event, Part, RequestId, Selection, TrainerOrder, TrainingReport};
use murmur_training::TrainingError;
use murmur_training::engine::{CorrectionUnderWay, SnapshotUnderWay};

use super::TrainerThread;

/// Transfers at once, at most; each holds a model's size of memory of the device and of the machine.
const UNDER_WAY_MAX: usize = 2;

/// In the order in which they began, which is that in which they end. On the CPU each ends where it began.
pub(super) type Transfers = VecDeque<UnderWay>;

pub(super) struct UnderWay {
    request: RequestId,
    what: What,
}

enum What {
    /// With the report of the moment that it is a copy of.
    Snapshot(SnapshotUnderWay, Selection, TrainingReport),
    /// With its shift to the progress.
    Correction(CorrectionUnderWay, f64),
}

impl UnderWay {
    fn is_here(&mut self) -> bool {
        match &mut self.what {
            What::Snapshot(snapshot, ..) => snapshot.is_here(),
            What::Correction(correction, _) => correction.is_here(),
        }
    }
}

impl TrainerThread {
    /// The next order that need not wait for transfers.
    pub(super) fn next_order(&mut self) -> Result<TrainerOrder, TryRecvError> {
        let order = self.held.take().map_or_else(|| self.inbox.try_recv(), Ok)?;
        if self.must_wait(&order) {
            self.held = Some(order);
            return Err(TryRecvError::Empty);
        }
        Ok(order)
    }

    /// Whether an order is to wait for transfers before it. A snapshot has what was ordered before it: corrections end first.
    fn must_wait(&self, order: &TrainerOrder) -> bool {
        let is_correcting = || self.under_way.iter().any(|under_way| matches!(under_way.what, What::Correction(..)));
        match order {
            TrainerOrder::TakeSnapshot { .. } => is_correcting() || self.under_way.len() >= UNDER_WAY_MAX,
            TrainerOrder::ApplyCorrection { .. } => self.under_way.len() >= UNDER_WAY_MAX,
            _ => !self.under_way.is_empty(),
        }
    }

    pub(super) fn begin_snapshot(&mut self, request: RequestId, selection: Selection) {
        let begun = self.engine.begin_snapshot(selection);
        let report = self.report();
        self.take_up(request, begun.map(|snapshot| What::Snapshot(snapshot, selection, report)));
    }

    pub(super) fn begin_correction(&mut self, request: RequestId, part: Part, correction: &Correction, shift: f64) {
        let begun = self.engine.begin_correction(part, correction);
        self.take_up(request, begun.map(|correction| What::Correction(correction, shift)));
    }

    fn take_up(&mut self, request: RequestId, begun: Result<What, TrainingError>) {
        match begun {
            Ok(what) => self.under_way.push_back(UnderWay { request, what }),
            Err(error) => self.refuse(request, &error),
        }
    }

    /// Ends what has arrived.
    pub(super) fn finish_arrived(&mut self) {
        while self.under_way.front_mut().is_some_and(UnderWay::is_here) {
            self.finish_first();
        }
    }

    /// Ends everything that has begun, and waits for it.
    pub(super) fn finish_all(&mut self) {
        while !self.under_way.is_empty() {
            self.finish_first();
        }
    }

    fn finish_first(&mut self) {
        let Some(UnderWay { request, what }) = self.under_way.pop_front() else { return };
        match what {
            What::Snapshot(snapshot, selection, report) => match self.engine.finish_snapshot(snapshot) {
                Ok(taken) => {
                    let report = TrainingReport { local_progress: taken.local_progress, ..report };
                    tracing::debug!("copied {selection:?}");
                    self.tell(Event::SnapshotTaken { request, snapshot: taken.values, report });
                }
                Err(error) => self.refuse(request, &error),
            },
            What::Correction(correction, shift) => match self.engine.finish_correction(correction) {
                Ok(()) => {
                    self.view.completed = false;
                    // A node for which the run is over stays at its end: others that are not there yet come to it.
                    let least = self.end().filter(|end| self.view.progress >= *end).unwrap_or(0.0);
                    self.view.progress = (self.view.progress + shift).max(least);
                    // No step shows it where training is over: the founder then orders an end by it. What else is shown stays, that the
                    // last checkpoint is done too.
                    let progress = self.view.progress;
                    self.view_sender.send_modify(|shown| shown.progress = progress);
                    let report = self.report();
                    self.tell(Event::CorrectionApplied { request, report });
                }
                Err(error) => self.refuse(request, &error),
            },
        }
    }
}

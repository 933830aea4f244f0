//! A helper as a member of the swarm: copies and corrections of its stage, between the steps that its captain orders.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use murmur_protocol::bulk::ChunkedValues;
use murmur_protocol::{
    Correction, Event, Fragments, Part, Payload, RequestId, RunManifest, Selection, Snapshot, TrainerOrder,
    TrainingReport, Vector,
};

use super::lent_stage::HelperStage;
use super::membership::Share;
use crate::engine::TrainingError;
use crate::local_progress::LocalProgress;
use crate::model::trained_layout;

/// Orders that wait for the end of a batch, at most: a core has a handful of requests open.
const ORDERS_MAX: usize = 64;

/// Weight of the newest step in the running average of speed, as a captain's trainer has it.
const AVERAGE_WEIGHT: f64 = 0.1;

/// See the file's documentation. It has the place of a trainer for the core of the member: what of the model it holds are the
/// parameters of its stage.
pub(super) struct LentMember {
    share: Share,
    fragments: Fragments,
    local_progress: LocalProgress,
    /// Parameters of the whole model for each of the stage.
    scale: f64,
    report: TrainingReport,
    /// Tokens of the batch under way, and when the last step was taken.
    tokens: u32,
    stepped_at: Option<Instant>,
    waiting: VecDeque<TrainerOrder>,
}

impl LentMember {
    /// Of a stage that is in memory, at this progress of the swarm; `None` where it is no whole fragments of the run's model.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn new(stage: &mut HelperStage, progress: f64) -> Result<Option<LentMember>, TrainingError> {
        let Some((manifest, layers)) = stage.of_run() else { return Ok(None) };
        let Some(share) = Share::of(manifest, layers) else { return Ok(None) };
        let fragments = Fragments::of(&manifest.gossip, &trained_layout(manifest));
        let mut local_progress = LocalProgress::new(&[]);
        stage.edit(&mut |values| local_progress = LocalProgress::new(values))?;
        let scale = share.of as f64 / share.range.len().max(1) as f64;
        Ok(Some(LentMember {
            share,
            fragments,
            local_progress,
            scale,
            report: TrainingReport { progress, ..TrainingReport::default() },
            tokens: 0,
            stepped_at: None,
            waiting: VecDeque::new(),
        }))
    }

    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    pub(super) fn report(&self) -> TrainingReport {
        self.report
    }

    /// A batch begins at this progress of the swarm: the captain's, who decides how fast all learn.
    pub(super) fn begin(&mut self, progress: f64) {
        (self.report.progress, self.tokens) = (progress, 0);
    }

    /// So many rows have come in on their way forward.
    pub(super) fn forward(&mut self, rows: u32) {
        self.tokens += rows;
    }

    /// The stage has stepped; `travel`: of its parameters.
    pub(super) fn stepped(&mut self, travel: f64) -> Event {
        let now = Instant::now();
        if let Some(before) = self.stepped_at.replace(now) {
            let rate = f64::from(self.tokens) / (now - before).as_secs_f64().max(1e-9);
            let speed = &mut self.report.tokens_per_second;
            *speed = if *speed == 0.0 { rate } else { *speed + AVERAGE_WEIGHT * (rate - *speed) };
        }
        self.report.steps += 1;
        self.report.progress += 1.0;
        self.report.travel += travel * self.scale.sqrt();
        Event::StepsCompleted(self.report)
    }

    /// Keeps an order until the next boundary; the reply where there is no room.
    pub(super) fn order(&mut self, order: TrainerOrder) -> Option<Event> {
        if self.waiting.len() < ORDERS_MAX {
            self.waiting.push_back(order);
            return None;
        }
        order.request().map(|request| Event::RequestFailed { request })
    }

    /// Carries out what waits, between two batches.
    pub(super) fn carry_out(&mut self, stage: &mut HelperStage) -> Vec<Event> {
        let orders = std::mem::take(&mut self.waiting);
        orders.into_iter().filter_map(|order| self.reply(stage, order)).collect()
    }

    fn reply(&mut self, stage: &mut HelperStage, order: TrainerOrder) -> Option<Event> {
        let request = order.request()?;
        let reply = match order {
            TrainerOrder::TakeSnapshot { selection, .. } => self.snapshot(stage, request, selection),
            // The progress of the swarm comes from the captain.
            TrainerOrder::ApplyCorrection { part, correction, .. } => (self.apply(stage, part, &correction))
                .map(|()| Event::CorrectionApplied { request, report: self.report }),
            TrainerOrder::LoadState { chunks, holding, .. } => {
                let accepted = holding == self.share.holding && self.load(stage, &chunks);
                Some(Event::StateLoaded { request, accepted, report: self.report })
            }
            _ => None,
        };
        reply.or(Some(Event::RequestFailed { request }))
    }

    fn snapshot(&mut self, stage: &mut HelperStage, request: RequestId, selection: Selection) -> Option<Event> {
        let mut values = stage.parameters().ok()?;
        let mut report = self.report;
        match selection {
            Selection::Part(part) => {
                let range = self.own(part)?;
                report.local_progress = self.local_progress.measure(&values) * self.scale.sqrt();
                values = values[range].to_vec();
            }
            Selection::State => {}
            Selection::Values { first, end } => values = values.get(first..end)?.to_vec(),
            Selection::Replica => return None,
        }
        Some(Event::SnapshotTaken { request, snapshot: Snapshot::from(values), report })
    }

    fn apply(&mut self, stage: &mut HelperStage, part: Part, correction: &Correction) -> Option<()> {
        let range = self.own(part).filter(|range| range.len() == correction.len())?;
        let local_progress = &mut self.local_progress;
        let edited = stage.edit(&mut |values| {
            let before = local_progress.sample(values);
            correction.add_to(&mut values[range.clone()]);
            local_progress.leave_out(&before, values);
        });
        edited.ok()
    }

    fn load(&mut self, stage: &mut HelperStage, chunks: &[Payload]) -> bool {
        let Some(state) = ChunkedValues::new(chunks, self.share.range.len()) else { return false };
        let local_progress = &mut self.local_progress;
        let edited = stage.edit(&mut |values| {
            state.copy_to(0, values);
            *local_progress = LocalProgress::new(values);
        });
        edited.and_then(|()| stage.forget_moments()).is_ok()
    }

    /// Where a fragment of the model lies in the stage's parameters; `None` where they have none of it.
    fn own(&self, part: Part) -> Option<Range<usize>> {
        if part.fragment.count != self.fragments.count() || part.vector != Vector::Model {
            return None;
        }
        let of_model = self.fragments.range(part.fragment);
        let Range { start, end } = self.share.range;
        (start <= of_model.start && of_model.end <= end).then(|| of_model.start - start..of_model.end - start)
    }
}

/// What a helper has to know to be a member.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// Which of the helper's memberships it is.
    pub number: u64,
    /// The run.
    pub manifest: RunManifest,
    /// What it holds.
    pub share: Share,
    /// How it comes to the swarm.
    pub ticket: String,
    /// Where its training stands.
    pub report: TrainingReport,
    /// Whether the swarm may have newer values of what it holds.
    pub is_outdated: bool,
}

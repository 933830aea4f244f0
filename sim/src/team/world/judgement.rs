//! What came of a run, held against the laws that only the end of it tells.

use std::time::Duration;

use murmur_protocol::PeerId;
use murmur_protocol::team::{CutStage, Place, TeamPhase, TeamStatus, cut};

use super::{World, number};
use crate::team::ledger::{TeamLaw, TeamViolation};
use crate::team::lending::LAYER_BYTES;
use crate::team::owner::{captain_place, initial, model_costs};

/// Batches that a team completes within the calm that follows its misfortunes, at least.
const BATCHES_AFTER: u64 = 3;

/// What came of a run.
#[derive(Debug)]
pub struct TeamRun {
    /// Laws that were broken.
    pub violations: Vec<TeamViolation>,
    /// Batches that all stepped with.
    pub stepped: u64,
    /// Seconds between the ends of the last batches, on average; 0 where there were too few.
    pub batch_seconds: f64,
    /// Where the captain stood at the end, where it lived.
    pub status: Option<TeamStatus>,
    /// Steps that stages missed and revisions that layers went back, in all lives of the captain.
    pub missed_and_lost: (u64, u64),
    /// The most microbatches that one stage held.
    pub held_most: usize,
    /// Events that the machines handled.
    pub events: u64,
    /// Whether the model was compared with that of one learner.
    pub is_compared: bool,
}

impl World<'_> {
    pub(super) fn judge(mut self) -> TeamRun {
        let now = self.queue.now();
        let status = self.owner.machine.as_ref().map(|machine| machine.status(now));
        let missed_and_lost = self.owner.missed_and_lost(now);
        self.ledger.leave_under_way();
        self.ledger.check_steps(missed_and_lost.0);
        if self.plan.copies_after_steps && missed_and_lost.0 == 0 && missed_and_lost.1 > 0 {
            let what = format!("{} revisions are lost where states are copied after every step", missed_and_lost.1);
            self.ledger.breaks(TeamLaw::OneNode, what);
        }
        let is_compared = missed_and_lost == (0, 0) && !self.owner.has_lost && self.is_at_rest(status.as_ref());
        if is_compared {
            let layers = self.layers_in_use();
            self.ledger.check_one_node(initial(self.plan), &layers);
        }
        if self.plan.hostile_for > Duration::ZERO
            && self.stepped_in_peace < BATCHES_AFTER
            && !self.fits_nowhere(&status)
        {
            let what = format!("{} batches in the calm at the end: {status:?}", self.stepped_in_peace);
            self.ledger.breaks(TeamLaw::Ends, what);
        }
        let lost = status.as_ref().map_or(0, |status| status.counts.helpers_lost);
        if self.plan.hostile_for == Duration::ZERO && lost > 0 {
            self.ledger.breaks(TeamLaw::NobodyLost, format!("{lost} times a helper was taken for lost: {status:?}"));
        }
        let ends = &self.owner.batch_ends;
        let batch_seconds = match ends.len() {
            0..3 => 0.0,
            count => (ends[count - 1] - ends[count / 2]).as_secs_f64() / (count - 1 - count / 2) as f64,
        };
        TeamRun {
            violations: self.ledger.violations,
            stepped: self.owner.stepped,
            batch_seconds,
            status,
            missed_and_lost,
            held_most: self.ledger.held_most,
            events: self.events,
            is_compared,
        }
    }

    /// Whether all machines are there, between two batches, so that their layers are those of the model.
    fn is_at_rest(&self, status: Option<&TeamStatus>) -> bool {
        let has_stage = |(_, helper, stage): (usize, PeerId, &CutStage)| {
            let range = stage.layers.first as usize + 1..stage.layers.end as usize + 1;
            self.lenders[number(helper)].stage.as_ref().is_some_and(|stage| stage.range() == range)
        };
        let is_between = |status: &TeamStatus| matches!(status.phase, TeamPhase::Ready | TeamPhase::Computing);
        status.is_some_and(|status| {
            is_between(status) && status.cut.as_ref().is_some_and(|cut| cut.of_helpers().all(has_stage))
        })
    }

    /// Whether the captain waits, and rightly: the model fits on no team of those who are there.
    fn fits_nowhere(&self, status: &Option<TeamStatus>) -> bool {
        let Some(status) = status else { return false };
        let places = status.helpers.iter().map(|helper| {
            let machine = &self.plan.helpers[number(*helper)];
            let memory_bytes = u64::from(machine.memory_layers) * LAYER_BYTES;
            (*helper, Place { memory_bytes, ..captain_place(self.plan) })
        });
        let places = places.collect::<Vec<_>>();
        let cut = cut::best(&model_costs(self.plan), &captain_place(self.plan), &places, 4);
        status.phase == TeamPhase::Waiting && cut.is_err()
    }
}

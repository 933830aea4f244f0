//! Which cut a team takes: helpers are gathered, and the fastest cut over them is chosen. And chosen anew where a helper is lost,
//! comes or leaves.

use std::collections::BTreeSet;

use super::batch::RECONSIDERED_EARLY;
use super::{Captain, Phase};
use crate::peer::PeerId;
use crate::team::bounds::{GAIN_MIN, HELPERS_MAX, REPAYS_WITHIN, WAITING_NOTICE_PERIOD};
use crate::team::cut::{self, Cut, Place};
use crate::team::message::HeldLayers;
use crate::team::notice::TeamNotice;
use crate::time::Time;

/// No cut, as yet.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Until when it waits for those who are expected; then it cuts with those who are there.
    pub(super) until: Time,
    /// Where no cut fits: bytes that are missing, at least.
    pub(super) missing_bytes: u64,
    /// Who was there before the last loss; nobody where the first cut is sought.
    expected: BTreeSet<PeerId>,
}

impl Waiting {
    /// Before the first cut.
    pub(super) fn gathering(until: Time) -> Waiting {
        Waiting::lacking(until, 0)
    }

    /// Until then nothing fits, or is tried; so many bytes are missing, at least.
    pub(super) fn lacking(until: Time, missing_bytes: u64) -> Waiting {
        Waiting { until, missing_bytes, expected: BTreeSet::new() }
    }
}

impl Captain {
    /// A helper that the cut has is gone: it may return within the grace, and then goes on where it was.
    pub(super) fn wait_for(&mut self, now: Time, helper: PeerId) {
        let mut expected: BTreeSet<PeerId> = match &self.phase {
            Phase::Waiting(waiting) => waiting.expected.clone(),
            Phase::Saving(saving) => saving.cut.iter().flat_map(Cut::of_helpers).map(|(_, helper, _)| helper).collect(),
            Phase::Loading(loading) => loading.cut.of_helpers().map(|(_, helper, _)| helper).collect(),
            Phase::Ended => return,
            _ => self.cut.iter().flat_map(Cut::of_helpers).map(|(_, helper, _)| helper).collect(),
        };
        expected.insert(helper);
        self.phase = Phase::Waiting(Waiting { until: now + self.config.timeouts.grace, missing_bytes: 0, expected });
    }

    /// The captain's own machine, as fast as it was measured.
    pub(super) fn own_place(&self) -> Place {
        let operations_per_second = self.speed.reached().unwrap_or(self.config.captain.operations_per_second);
        Place { operations_per_second, ..self.config.captain }
    }

    /// Of reliable helpers, and of all where those have no room.
    fn best_cut(&self) -> Result<Cut, u64> {
        self.best_cut_of(self.roster.reliable()).or_else(|_| self.best_cut_of(self.roster.candidates()))
    }

    fn best_cut_of(&self, mut candidates: Vec<(PeerId, Place)>) -> Result<Cut, u64> {
        // The fastest, where there are more than can be tried.
        candidates.sort_by(|one, other| other.1.operations_per_second.total_cmp(&one.1.operations_per_second));
        candidates.truncate(HELPERS_MAX);
        cut::best(&self.config.model, &self.own_place(), &candidates, self.config.lanes.microbatches())
    }

    /// Whether all who are expected are there, or the time for them is over; where no cut has fitted, whether something is new.
    fn is_gathered(&self, now: Time, waiting: &Waiting) -> bool {
        if now >= waiting.until || waiting.missing_bytes > 0 {
            return now >= waiting.until || self.reconsiders;
        }
        if waiting.expected.is_empty() {
            return self.roster.candidates().len() >= self.config.helpers_wanted;
        }
        waiting.expected.iter().all(|helper| self.roster.is_candidate(*helper))
    }

    /// Cuts the model, where it fits.
    pub(super) fn seek_cut(&mut self, now: Time) {
        let Phase::Waiting(waiting) = &self.phase else { return };
        // What layers begin from has to be known.
        if !self.is_gathered(now, waiting) || !self.checking.is_empty() {
            return;
        }
        let is_late = now >= waiting.until;
        self.reconsiders = false;
        // Those who were there before go on as before.
        let same = self.cut.clone().filter(|cut| {
            let mut members = cut.of_helpers();
            !waiting.expected.is_empty()
                && members.all(|(_, helper, _)| self.roster.is_candidate(helper) && !self.roster.is_avoided(helper))
        });
        match same.map_or_else(|| self.best_cut(), Ok) {
            Ok(cut) => self.take_up(now, cut),
            Err(_) if self.has_leaving() => self.part_with_leaving(now),
            Err(missing_bytes) => {
                if let Phase::Waiting(waiting) = &mut self.phase
                    && (is_late || waiting.missing_bytes != missing_bytes)
                {
                    waiting.missing_bytes = missing_bytes;
                    waiting.until = now + WAITING_NOTICE_PERIOD;
                    self.notice(TeamNotice::Waiting { missing_bytes });
                }
            }
        }
    }

    /// Cuts anew between batches where somebody leaves, or another cut repays what it costs.
    pub(super) fn improve_cut(&mut self, now: Time) {
        let Some(cut) = self.cut.as_ref().filter(|_| std::mem::take(&mut self.reconsiders)) else { return };
        let leaves = cut.of_helpers().any(|(_, helper, _)| !self.roster.is_candidate(helper));
        let better = match self.best_cut() {
            Ok(better) => better,
            Err(_) if leaves && self.has_leaving() => return self.part_with_leaving(now),
            Err(_) => return,
        };
        // A new helper that is better may take another one's place at any time.
        let is_early = RECONSIDERED_EARLY.contains(&self.steps_of_cut);
        let gives_up = is_early && cut.of_helpers().any(|(_, helper, _)| !better.has(helper));
        if leaves || (better.stages != cut.stages && !gives_up && self.repays(cut, &better)) {
            self.take_up(now, better);
        }
    }

    /// Whether a cut gains more within [`REPAYS_WITHIN`] than moving layers takes.
    fn repays(&self, cut: &Cut, better: &Cut) -> bool {
        let places: Option<Vec<Place>> = cut.of_helpers().map(|(_, helper, _)| self.roster.place(helper)).collect();
        let Some(places) = places else { return true };
        let microbatches = self.config.lanes.microbatches();
        let now = cut::tokens_per_second(&self.config.model, &self.own_place(), cut, &places, microbatches);
        let gain = better.tokens_per_second / now - 1.0;
        let seconds = better.of_helpers().map(|(_, helper, stage)| {
            let keeps =
                self.roster.get(helper).and_then(|known| known.held).is_some_and(|held| held.layers == stage.layers);
            let bytes = if keeps { 0 } else { u64::from(stage.layers.len()) * self.config.model.layer.moved_bytes };
            let rate = self.roster.place(helper).map_or(f64::INFINITY, |place| place.link.down);
            // Out of one machine and into another.
            2.0 * bytes as f64 / rate.min(self.config.captain.link.up)
        });
        let seconds: f64 = seconds.sum();
        gain > GAIN_MIN && gain * REPAYS_WITHIN.as_secs_f64() > seconds
    }

    /// A cut is decided. What only a helper has of layers that move is copied first.
    fn take_up(&mut self, now: Time, cut: Cut) {
        let stays = |helper: PeerId, held: &HeldLayers| {
            cut.of_helpers().any(|(_, member, stage)| member == helper && stage.layers == held.layers)
        };
        let mut moving = self.roster.held_layers();
        moving.retain(|(helper, held)| !stays(*helper, held));
        self.save(now, moving, Some(cut));
    }

    /// Whether a helper that wants to leave has not been let go.
    fn has_leaving(&self) -> bool {
        !self.roster.leaving().is_empty()
    }
}

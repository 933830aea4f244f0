//! A node that trains, or has trained, and copies a model anew: nobody lets its own in any more, or it is older than what was
//! exchanged.

use super::Node;
use crate::bounds::{OUTDATED_BEGUN_FOR, OUTDATED_FOR, SETTLING_TIMEOUT};
use crate::join::Unchecked;
use crate::notice::Notice;
use crate::status::Phase;
use crate::time::Time;

/// Periods of [`SETTLING_TIMEOUT`] in which a copy comes no further, until it is given up (a guess: a donor on a slow link sends a chunk
/// in less). Donors that send nothing, or a model that nobody confirms, hold no node for longer.
const PERIODS_IN_VAIN_MAX: u32 = 5;

/// How a copy anew comes on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rejoining {
    /// Whether a model is copied; the own one moves nobody meanwhile.
    is_copying: bool,
    /// Until when a newer model is looked for: the one that is here is older than what was exchanged.
    outdated_until: Option<Time>,
    period_ends: Option<Time>,
    /// That had come at the end of the last period.
    chunks: usize,
    periods_in_vain: u32,
}

impl Rejoining {
    /// Counts a period that is over. `chunks`: that have come so far.
    fn on_time(&mut self, now: Time, chunks: usize) {
        if *self.period_ends.get_or_insert(now + SETTLING_TIMEOUT) <= now {
            self.period_ends = Some(now + SETTLING_TIMEOUT);
            self.periods_in_vain = if chunks <= self.chunks { self.periods_in_vain + 1 } else { 0 };
            self.chunks = chunks;
        }
    }
}

impl Node {
    /// Whether this node trains, or has trained, but on a model that it is about to replace.
    pub(super) fn is_rejoining(&self) -> bool {
        matches!(self.phase, Phase::Training | Phase::Settling) && self.rejoining.is_copying
    }

    /// Nobody lets this node's model in: the swarm is at `progress`, where that is known.
    pub(super) fn rejoin(&mut self, now: Time, progress: Option<f64>) {
        self.rejoining.is_copying = true;
        // Two or three that are apart from all others trust each other alone, and would copy in a circle.
        self.reputation.forget_distances();
        self.joining.expect_progress(progress);
        if self.phase != Phase::Training {
            self.begin_settling(now);
        }
    }

    /// What this node has is older than what it, or a machine of its team, has exchanged: it is copied anew, if somebody comes soon who
    /// has some of it, and gives it.
    pub(super) fn on_model_outdated(&mut self, now: Time) {
        if self.synchronous.is_none() {
            self.rejoining.outdated_until = Some(now + OUTDATED_FOR);
        }
    }

    /// Begins to copy what is outdated once somebody is there who has some of it, and stops looking for it in time.
    pub(super) fn renew(&mut self, now: Time) {
        let has_trained = matches!(self.phase, Phase::Training | Phase::Settling);
        let Some(until) = self.rejoining.outdated_until.filter(|_| has_trained) else { return };
        let is_copying = self.rejoining.is_copying;
        let holds_some = |peer| self.pairwise.shares(self.membership.holding(peer));
        if until <= now {
            // Whoever is there has no model either, or lacks some of it.
            let gives_more = |peer| self.joining.lacks(self.membership.holding(peer));
            let is_given = self.joining.chunks().0 > 0 && self.membership.directly_connected().any(gives_more);
            let has_begun = is_given && now < until + OUTDATED_BEGUN_FOR;
            if !is_copying || (!has_begun && self.joining.is_idle()) {
                self.rejoining = Rejoining::default();
                self.joining.begin_anew(now, &mut self.outbox);
            }
        } else if !is_copying && self.membership.directly_connected().any(holds_some) {
            self.rejoining.is_copying = true;
            self.joining.expect_progress(Some(self.pairwise.training().progress));
        }
    }

    /// The others train. Training goes on here meanwhile; what this node has learned since it fell behind is lost anyway. Where nothing
    /// comes of the copy, it exchanges again: were all members such outliers, each would wait for the others' models.
    pub(super) fn copy_in_training(&mut self, now: Time) {
        if self.is_resting {
            // It would cost what the owner does not want to spend now.
        } else if self.rejoining.outdated_until.is_none() && self.copies_in_vain(now) {
            self.give_up_copying();
        } else {
            self.copy(now);
        }
    }

    /// For this node the run is over. It trains on where the model that it copies is not at the end yet. Where nobody can give it one, it
    /// ends with the model that it has.
    pub(super) fn copy_at_the_end(&mut self, now: Time) {
        let out_of_time = self.phase_deadline.is_none_or(|deadline| deadline <= now);
        if out_of_time {
            self.phase_deadline = Some(now + SETTLING_TIMEOUT);
        }
        let nobody = self.is_resting || !self.has_sharing_member();
        if self.copies_in_vain(now) || (self.joining.is_idle() && (out_of_time || nobody)) {
            self.give_up_copying();
            self.complete();
            self.train_until_a_later_end();
        } else if !self.is_resting {
            self.copy(now);
        }
    }

    fn copies_in_vain(&mut self, now: Time) -> bool {
        self.rejoining.on_time(now, self.joining.status().chunks);
        self.rejoining.periods_in_vain >= PERIODS_IN_VAIN_MAX && !self.joining.is_loading()
    }

    /// One that nobody has confirmed in that time is the node's own from now on, and its owner is told.
    fn give_up_copying(&mut self) {
        if let Some(donors) = self.joining.donors_under_check() {
            let why = Unchecked::Unanswered;
            self.outbox.notice(Notice::StateUnchecked { donors, why, is_copied_again: false });
            self.pairwise.begin_ramp(None);
        }
        self.joining.give_up(&mut self.outbox);
        self.rejoining = Rejoining::default();
        self.pairwise.forget_outlier();
    }
}
